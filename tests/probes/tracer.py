# SPDX-License-Identifier: Apache-2.0
"""What watches in the probe tests: bpftrace, a witness that knows nothing of us, and kvprobe."""

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import time

READY = "kvprobe-test-ready"
START_TIMEOUT = 60
STOP_TIMEOUT = 60
SYS_UPROBE = 336


def why_not():
    """The reason for which bpftrace cannot be used here, or None."""
    if not shutil.which("bpftrace"):
        return "no bpftrace"
    if os.geteuid():
        return "bpftrace needs root"
    return None


def read_until(pipe, word, process):
    """What comes out of pipe up to and including word, which must come in time."""
    deadline = time.monotonic() + START_TIMEOUT
    seen = b""
    while word not in seen:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            process.kill()
            raise AssertionError(f"{process.args[0]} did not attach in time: {seen.decode()}")
        data = os.read(pipe.fileno(), 65536)
        if not data:
            out, err = process.communicate(timeout=STOP_TIMEOUT)
            raise AssertionError(f"{process.args[0]} ended: {(seen + out + err).decode()}")
        seen += data
    return seen


class Bpftrace:
    """Attached, by file and to every process, from __enter__ to stop()."""

    def __init__(self, script):
        self._script = f'{script} BEGIN {{ printf("{READY}\\n"); }}'
        self._lines = []

    def __enter__(self):
        self._process = subprocess.Popen(["bpftrace", "-B", "line", "-f", "json", "-e", self._script],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._head = read_until(self._process.stdout, READY.encode(), self._process)
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=STOP_TIMEOUT)

    @property
    def pid(self):
        return self._process.pid

    def stop(self):
        """Detach; returns (maps by name, lines printed)."""
        self._process.send_signal(signal.SIGINT)
        out, err = self._process.communicate(timeout=STOP_TIMEOUT)
        if self._process.returncode:
            raise AssertionError(f"bpftrace: status {self._process.returncode}: {err.decode()}")
        maps, text = {}, ""
        for line in (self._head + out).decode().splitlines():
            record = json.loads(line) if line.startswith("{") else {}
            if record.get("type") == "map":
                maps.update(record["data"])
            elif record.get("type") == "printf":
                text += record["data"]
            elif record.get("type") == "lost_events":
                raise AssertionError(f"bpftrace lost events: {line}")
        return maps, [line for line in text.splitlines() if line != READY]


class KvprobeStat:
    """kvprobe stat --json, attached from __enter__ to stop()."""

    def __init__(self, kvprobe, *options):
        self._argv = [str(kvprobe), "stat", "--json", *map(str, options)]

    def __enter__(self):
        self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE)
        self._errors = read_until(self._process.stderr, b"attached: ", self._process)
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=STOP_TIMEOUT)

    @property
    def pid(self):
        return self._process.pid

    def stop(self):
        """Detach; returns (totals by (pid, key), the summary)."""
        self._process.send_signal(signal.SIGINT)
        out, err = self._process.communicate(timeout=STOP_TIMEOUT)
        if self._process.returncode:
            raise AssertionError(f"{self._argv}: status {self._process.returncode}: {(self._errors + err).decode()}")
        rows = [json.loads(line) for line in out.decode().splitlines()]
        totals = {(row["pid"], row["key"]): row for row in rows if row["type"] == "total"}
        summaries = [row for row in rows if row["type"] == "summary"]
        if len(summaries) != 1 or rows[-1] != summaries[0]:
            raise AssertionError(f"the last line, and only it, is the summary: {rows[-3:]}")
        return totals, summaries[0]


def optimised_form():
    """The nop that the running kernel turns into a call: "nop5", "nop10" or None. The kernel says so itself when
    its uprobe system call is made from where it may not be."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(SYS_UPROBE)
    return {errno.ENXIO: "nop5", errno.EPROTO: "nop10"}.get(ctypes.get_errno())
