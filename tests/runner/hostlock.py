# SPDX-License-Identifier: Apache-2.0
"""One test run at a time watches the host: two would see each other's workers, and hold each other's ports."""

import contextlib
import fcntl
import os
import pathlib
import tempfile
import time

LOCK = pathlib.Path(tempfile.gettempdir()) / "kvprobe-tests.lock"
LIMIT_SECONDS = 1800
LOOK_SECONDS = 0.5


@contextlib.contextmanager
def held(say, path=LOCK, limit=LIMIT_SECONDS):
    """Wait for the host's lock, at most so long; then TimeoutError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        deadline = time.monotonic() + limit
        told = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another test run holds {path}") from None
            if not told:
                say(f"waiting for another test run on this host ({path})")
                told = True
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(fd)
