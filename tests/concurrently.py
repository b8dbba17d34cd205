# SPDX-License-Identifier: Apache-2.0
"""Threads in tests: run at once, waited for with a limit, no exception lost."""

import threading

WAIT_S = 60


def run_threads(*functions, timeout=WAIT_S):
    """Run them at once, wait, and pass the first exception on."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        if thread.is_alive():
            raise TimeoutError(f"a thread is still busy after {timeout} s")
    if errors:
        raise errors[0]
