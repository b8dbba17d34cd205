# SPDX-License-Identifier: Apache-2.0
"""What watches in the probe tests: bpftrace, a witness that knows nothing of us, and kvprobe."""

import ctypes
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
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


def wait_for_word(path, word, process):
    """Until the file that a process writes to has the word."""
    deadline = time.monotonic() + START_TIMEOUT
    while word not in path.read_text():
        if process.poll() is not None:
            raise AssertionError(f"{process.args[0]} ended: {path.read_text()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{process.args[0]} did not attach in time: {path.read_text()}")
        time.sleep(0.02)


class Watcher:
    """A tracing process, attached from __enter__ to stop(). Its output goes to files: a pipe that no one empties
    would hold it up."""

    def __init__(self, argv, ready, ready_on):
        self._argv = [str(word) for word in argv]
        self._ready, self._ready_on = ready, ready_on

    def __enter__(self):
        self._where = tempfile.TemporaryDirectory(prefix="kvprobe-watch-")
        self._files = {name: pathlib.Path(self._where.name) / name for name in ("stdout", "stderr")}
        with open(self._files["stdout"], "wb") as out, open(self._files["stderr"], "wb") as err:
            self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            wait_for_word(self._files[self._ready_on], self._ready, self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(timeout=STOP_TIMEOUT)
        self._where.cleanup()

    @property
    def pid(self):
        return self._process.pid

    def _output(self):
        """Detach; the lines that it wrote to its standard output."""
        self._process.send_signal(signal.SIGINT)
        status = self._process.wait(timeout=STOP_TIMEOUT)
        if status:
            raise AssertionError(f"{self._argv[0]}: status {status}: {self._files['stderr'].read_text()}")
        return self._files["stdout"].read_text().splitlines()


class Bpftrace(Watcher):
    def __init__(self, script):
        script = f'{script} BEGIN {{ printf("{READY}\\n"); }}'
        super().__init__(["bpftrace", "-B", "line", "-f", "json", "-e", script], READY, "stdout")

    def stop(self):
        """Detach; returns (maps by name, lines printed)."""
        maps, text = {}, ""
        for line in self._output():
            record = json.loads(line) if line.startswith("{") else {}
            if record.get("type") == "map":
                maps.update(record["data"])
            elif record.get("type") == "printf":
                text += record["data"]
            elif record.get("type") == "lost_events":
                raise AssertionError(f"bpftrace lost events: {line}")
        return maps, [line for line in text.splitlines() if line != READY]


class KvprobeStat(Watcher):
    def __init__(self, kvprobe, *options):
        super().__init__([kvprobe, "stat", "--json", *options], "attached: ", "stderr")

    def stop(self):
        """Detach; returns (totals by (pid, key), the summary)."""
        rows = [json.loads(line) for line in self._output()]
        totals = {(row["pid"], row["key"]): row for row in rows if row["type"] == "total"}
        if [row for row in rows if row["type"] == "summary"] != rows[-1:]:
            raise AssertionError(f"the last line, and only it, is the summary: {rows[-3:]}")
        return totals, rows[-1]


def optimised_form():
    """The nop that the running kernel turns into a call: "nop5", "nop10" or None. The kernel says so itself when
    its uprobe system call is made from where it may not be."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(SYS_UPROBE)
    return {errno.ENXIO: "nop5", errno.EPROTO: "nop10"}.get(ctypes.get_errno())
