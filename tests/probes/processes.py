# SPDX-License-Identifier: Apache-2.0
"""The processes that the probe tests watch: workloads and a master, and their semaphores."""

import json
import os
import pathlib
import re
import select
import struct
import subprocess
import sys
import time

from probe_elf import BUILD, REPO, SITE_NOPS, Binary

sys.path.insert(0, str(REPO / "tests"))
from concurrently import wait_until  # noqa: E402,F401

TIMEOUT = 120
WORKLOAD = REPO / "tests" / "probes" / "workload.py"


class Talker:
    """A child process that says words on its standard output and is answered with lines."""

    def __init__(self, *argv, env=None):
        self.process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env={**os.environ, **(env or {})})
        self._rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    @property
    def pid(self):
        return self.process.pid

    def line(self):
        """Its next line of output."""
        deadline = time.monotonic() + TIMEOUT
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise AssertionError(f"nothing from {self.process.args} in {TIMEOUT} s")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise AssertionError(f"{self.process.args} ended: {self.process.wait(timeout=TIMEOUT)}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def expect(self, word):
        line = self.line()
        if line != word:
            raise AssertionError(f"{self.process.args} says {line!r}, not {word!r}")

    def go_on(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=TIMEOUT)
        self.process.stdin.close()
        self.process.stdout.close()


class Workload(Talker):
    def __init__(self, *arguments):
        super().__init__(sys.executable, WORKLOAD, *arguments, env={"PYTHONPATH": str(BUILD / "python")})

    def report(self):
        """What finish() of the workload printed; it must have ended well."""
        report = json.loads(self.line())
        status = self.process.wait(timeout=TIMEOUT)
        if status:
            raise AssertionError(f"workload ended with {status}")
        return report


class Master(Talker):
    """kvmaster on a port of its own choice."""

    def __init__(self, *flags):
        super().__init__(BUILD / "bin" / "kvmaster", "--rpc_address=127.0.0.1", "--rpc_port=0", *flags)
        match = re.search(r"(127\.0\.0\.1:\d+)", self.line())
        if not match:
            raise AssertionError("kvmaster does not say where it listens")
        self.address = match[1]


def load_bias(pid, path):
    """What has to be added to a file's addresses in a process that maps it."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and os.path.realpath(fields[5]) == os.path.realpath(path) and int(fields[2], 16) == 0:
            return int(fields[0].split("-")[0], 16)
    raise AssertionError(f"{path} is not mapped in {pid}")


def semaphores(pid, path):
    """{probe: its semaphore's value in a running process}"""
    bias = load_bias(pid, path)
    values = {}
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for note in Binary(path).notes:
            memory.seek(bias + note.semaphore)
            values[note.name], = struct.unpack("<H", memory.read(2))
    return values


def site_bytes(pid, path, probe):
    """The code of a probe's site as it stands in a running process."""
    binary = Binary(path)
    note, = (note for note in binary.notes if note.name == probe)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(load_bias(pid, path) + binary.site_address(note))
        return memory.read(len(SITE_NOPS))
