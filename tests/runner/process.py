# SPDX-License-Identifier: Apache-2.0
"""Runs one test program to its end, or to its time limit, and leaves none of its processes behind."""

import os
import pty
import selectors
import signal
import subprocess
import threading
import time
import tty
from dataclasses import dataclass

LINE_MAX = 16384
READ_SIZE = 65536
# How long output may still trickle in from a program that has ended.
DRAIN_SECONDS = 0.2


@dataclass
class Ended:
    """How a program ended. returncode as in subprocess: negative for a signal."""

    returncode: int
    timed_out: bool
    seconds: float
    silent: bool = False  # killed because it had said nothing for too long

    def trouble(self):
        """What is wrong with the way it ended, or None."""
        if self.silent:
            return f"silent for too long: killed after {self.seconds:.0f} s"
        if self.timed_out:
            return f"time limit: killed after {self.seconds:.0f} s"
        if self.returncode < 0:
            return f"died of signal {-self.returncode} ({signal.Signals(-self.returncode).name})"
        if self.returncode:
            return f"exit status {self.returncode}"
        return None


class Running:
    """The programs in flight, so that Ctrl-C can end them."""

    def __init__(self):
        self._lock = threading.RLock()  # stop_all may come, by a signal, into the middle of add
        self._pids = set()
        self.stopped = False

    def add(self, pid):
        with self._lock:
            self._pids.add(pid)

    def remove(self, pid):
        with self._lock:
            self._pids.discard(pid)

    def stop_all(self):
        with self._lock:
            self.stopped = True
            for pid in self._pids:
                kill_group(pid)


RUNNING = Running()


def stop_on_signals():
    """From now on SIGINT and SIGTERM end the programs in flight and raise KeyboardInterrupt."""

    def stop(signum, _frame):
        RUNNING.stop_all()
        raise KeyboardInterrupt(signum)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class LineSplitter:
    """Turns bytes into lines, each bounded."""

    def __init__(self, on_line):
        self._on_line = on_line
        self._rest = b""

    def feed(self, data):
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._emit(line)
        if len(self._rest) > LINE_MAX:
            self.flush()

    def flush(self):
        if self._rest:
            self._emit(self._rest)
            self._rest = b""

    def _emit(self, line):
        self._on_line(line[:LINE_MAX].decode("utf-8", "backslashreplace").rstrip("\r"))


class Silence(Exception):
    """The program has said nothing for longer than it may."""


def _read_output(fd, splitter, has_ended, deadline, silence):
    """Until the program has ended and its output with it. False: the deadline passed first."""
    heard = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        drain_until = None
        while True:
            now = time.monotonic()
            if drain_until is None and has_ended():
                drain_until = now + DRAIN_SECONDS
            if drain_until is not None and now >= drain_until:
                return True
            if now >= deadline:
                return False
            if silence and now - heard >= silence:
                raise Silence
            if not selector.select(timeout=0.05):
                continue
            try:
                data = os.read(fd, READ_SIZE)
            except OSError:  # EIO: the last holder of the terminal is gone
                data = b""
            if not data:
                break
            heard = time.monotonic()
            splitter.feed(data)
    while not has_ended():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)
    return True


def _output_channel():
    """(read end, write end): a terminal, or a pipe on a host that has none to give."""
    try:
        master, slave = pty.openpty()
    except OSError:
        return os.pipe()
    tty.setraw(slave)
    return master, slave


def run(argv, env, cwd, timeout, on_line, silence=None):
    """Run argv with its output going, line by line, to on_line. It is killed after timeout seconds, or when it has said
    nothing for silence seconds.

    Its standard output is a terminal, so that a C program writes out each line as it makes it: a test that
    forks would otherwise print what is in its buffer twice.
    """
    master, slave = _output_channel()
    start = time.monotonic()
    try:
        child = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                                 start_new_session=True)
    except OSError as error:
        os.close(master)
        on_line(f"cannot start {argv[0]}: {error}")
        return Ended(127, False, 0.0)
    finally:
        os.close(slave)
    RUNNING.add(child.pid)
    if RUNNING.stopped:
        kill_group(child.pid)

    def has_ended():
        # The zombie is kept until its group is killed: until then no one else can get its number.
        return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    splitter = LineSplitter(on_line)
    in_time = silent = False
    try:
        in_time = _read_output(master, splitter, has_ended, start + timeout, silence)
    except Silence:
        silent = True
    finally:
        kill_group(child.pid)
        RUNNING.remove(child.pid)
        returncode = child.wait()
        os.close(master)
    splitter.flush()
    return Ended(returncode, not in_time and not silent, time.monotonic() - start, silent)
