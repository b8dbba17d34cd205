# SPDX-License-Identifier: Apache-2.0
"""What tests do beside others: threads run at once, conditions waited for with a limit, no exception lost."""

import os
import threading
import time

# An emulated machine may take its time over things.
WAIT_S = 60 * float(os.environ.get("KV_TEST_PATIENCE", "1"))


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


def wait_until(condition, what, timeout=WAIT_S):
    """The first true value of the condition."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen in {timeout} s: {what}")
        time.sleep(0.02)
    return value
