# SPDX-License-Identifier: Apache-2.0
"""bpftrace as an independent witness of what fires."""

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


def why_not():
    """The reason for which bpftrace cannot be used here, or None."""
    if not shutil.which("bpftrace"):
        return "no bpftrace"
    if os.geteuid():
        return "bpftrace needs root"
    return None


class Bpftrace:
    """Attached, by file and to every process, from __enter__ to stop()."""

    def __init__(self, script):
        self._script = f'{script} BEGIN {{ printf("{READY}\\n"); }}'
        self._lines = []

    def __enter__(self):
        self._process = subprocess.Popen(["bpftrace", "-B", "line", "-f", "json", "-e", self._script],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._wait_until_ready()
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=STOP_TIMEOUT)

    @property
    def pid(self):
        return self._process.pid

    def _wait_until_ready(self):
        deadline = time.monotonic() + START_TIMEOUT
        seen = b""
        while READY.encode() not in seen:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._process.kill()
                raise AssertionError("bpftrace did not attach in time")
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                raise AssertionError("bpftrace ended: " + self._process.stderr.read().decode())
            seen += data
        self._head = seen

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
