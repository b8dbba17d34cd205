# SPDX-License-Identifier: Apache-2.0
"""Drives kvprobe and workers for the tests of the collector."""

import functools
import json
import os
import pathlib
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))
from concurrently import WAIT_S as TIMEOUT  # noqa: E402
from concurrently import wait_until  # noqa: E402,F401
from vm import facts  # noqa: E402

BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", REPO / "build"))
KVPROBE = BUILD / "bin" / "kvprobe"
SITE_WORKER = BUILD / "tests" / "helpers" / "bpf-site-worker"
# A guest without hardware support does a hundredth of the work.
SCALE = float(os.environ.get("KV_TEST_SCALE", "1"))
SYS_UPROBE = 336

# The stable kernel of 6.1 since which uprobes through perf events want CAP_SYS_ADMIN.
ADMIN_SINCE = (6, 1, 146)
# every form of attaching that can be asked for on this kind of machine
FORMS = {
    "nop5": ["--attach=nop5"],
    "int3": ["--attach=int3"],
    "single": ["--single", "--attach=int3"],
    "single-nop5": ["--single", "--attach=nop5"],
}


def site_keys():
    """The keys that the site worker has, in its order."""
    text = (REPO / "perf_points.def").read_text()
    points = re.findall(r"^PERF_POINT\((\w+), (\w+),", text, re.M)
    return [name for name, layer in points if layer in ("RC", "CLIENT", "TRANSFER", "MASTER", "XFER")]


def kernel_form():
    """What the running kernel optimises, asked as kvprobe does, but independently of it."""
    if platform.machine() != "x86_64":
        return "int3"
    import ctypes
    import errno
    libc = ctypes.CDLL(None, use_errno=True)
    ctypes.set_errno(0)
    libc.syscall(SYS_UPROBE)
    return {errno.ENXIO: "nop5", errno.EPROTO: "nop10"}.get(ctypes.get_errno(), "int3")


def scaled(count, least=1):
    """So much work, or what this machine can bear of it."""
    return max(least, int(count * SCALE))


def has_multi():
    """Whether the running kernel has uprobe_multi links: 6.6 and later."""
    return kernel_version() >= (6, 6)


def attach_capabilities():
    """What attaching takes: the perf events that take the place of multi links want more since July 2025."""
    enough = has_multi() or (6, 1) <= kernel_version() < ADMIN_SINCE
    return ("bpf", "perfmon") if enough else ("bpf", "perfmon", "sys_admin")


def kernel_version():
    return tuple(map(int, facts.kernel_version().split(".")))


def forms_here():
    """The forms of FORMS that this kernel allows."""
    forms = {name: args for name, args in FORMS.items() if "nop5" not in name or kernel_form() == "nop5"}
    if not has_multi():
        del forms["single"]  # it is what int3 is there
    return forms


def why_not():
    """The reason for which nothing can be attached here, or None."""
    if os.geteuid():
        return "attaching needs root"
    probe = subprocess.run([KVPROBE, "stat", "-d", "0.01", "--file", SITE_WORKER], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=TIMEOUT, text=True)
    return None if probe.returncode == 0 else f"kvprobe cannot attach here: {probe.stderr.strip()}"


class Case(unittest.TestCase):
    """A test that attaches. Kills what is left of its processes."""

    _reason = None

    @classmethod
    def setUpClass(cls):
        if Case._reason is None:
            Case._reason = why_not() or ""
        if Case._reason:
            raise unittest.SkipTest(Case._reason)

    def setUp(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="kvprobe-bpf-"))
        self.addCleanup(shutil.rmtree, self.scratch, True)

    def worker(self, *args, **kwargs):
        worker = Worker(*args, **kwargs)
        self.addCleanup(worker.kill)
        return worker

    def collector(self, *args, **kwargs):
        collector = Collector(*args, **kwargs)
        self.addCleanup(collector.kill)
        return collector


class Child:
    """A process whose output is read with a timeout."""

    def __init__(self, argv, **kwargs):
        self.process = subprocess.Popen([os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in argv],
                                        **kwargs)
        self.pid = self.process.pid

    def read_line(self, pipe, buffer):
        deadline = time.monotonic() + TIMEOUT
        while b"\n" not in buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise AssertionError(f"{self.process.args[0]} said nothing in {TIMEOUT} s")
            data = os.read(pipe.fileno(), 65536)
            if not data:
                raise AssertionError(f"{self.process.args[0]} ended with {self.process.wait(TIMEOUT)}, "
                                     f"having said {bytes(buffer)!r}")
            buffer += data
        line, _, rest = bytes(buffer).partition(b"\n")
        buffer[:] = rest
        return line.decode(errors="replace")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()


class Worker(Child):
    """bpf-site-worker. `pid` is what the host calls it."""

    def __init__(self, binary=SITE_WORKER, prefix=(), env=None):
        super().__init__([*prefix, binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         env={**os.environ, **(env or {})})
        self._buffer = bytearray()
        self.nspid = int(self.read_line(self.process.stdout, self._buffer).split()[1])
        if prefix:
            self.pid = wait_until(self._find, "the worker below its wrapper")

    def _find(self):
        """The worker among the descendants of the wrapper."""
        waiting = [self.process.pid]
        while waiting:
            pid = waiting.pop()
            try:
                if os.readlink(f"/proc/{pid}/exe").startswith(os.fspath(BUILD)):
                    return pid
                waiting += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except OSError:
                continue
        return None

    def send(self, command):
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def answer(self):
        return self.read_line(self.process.stdout, self._buffer)

    def do(self, command):
        self.send(command)
        answer = self.answer()
        if answer.startswith("error"):
            raise AssertionError(f"worker: {command}: {answer}")
        return answer

    def fire(self, key, threads=1, loops=1, size=0, keys=1, failed=0, rc=0):
        return self.do(f"fire {key} {threads} {loops} {size} {keys} {failed} {rc}")

    def quit(self):
        self.send("quit")
        return self.process.wait(TIMEOUT)

    def memory(self, address, length):
        """Bytes at a link-time address of the worker's binary."""
        binary = os.stat(f"/proc/{self.pid}/exe")
        for line in pathlib.Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            fields = line.split()
            if int(fields[4]) == binary.st_ino and int(fields[2], 16) == 0:
                base = int(fields[0].split("-")[0], 16)
                break
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as mem:
            mem.seek(base + address)
            return mem.read(length)

    def semaphore(self, probe):
        return int.from_bytes(self.memory(notes()[probe]["semaphore"], 2), "little")

    def watched(self, probe):
        return self.semaphore(probe) != 0


class Collector(Child):
    """kvprobe log or stat, attached when the constructor returns (unless wait=False)."""

    def __init__(self, *args, wait=True, stdout=None, prefix=(), env=None):
        self.out_file = tempfile.TemporaryFile() if stdout is None else None
        super().__init__([*prefix, KVPROBE, *args], stdin=subprocess.DEVNULL,
                         stdout=self.out_file if stdout is None else stdout, stderr=subprocess.PIPE, env=env)
        self._buffer = bytearray()
        self.errors = []
        if wait:
            self.wait_for("attached: ")

    def wait_for(self, start):
        """The next line of stderr that begins so."""
        return self.wait_for_any(start)

    def wait_for_any(self, *starts):
        while True:
            try:
                line = self.read_line(self.process.stderr, self._buffer)
            except AssertionError as error:
                raise AssertionError(f"{error}; it said before: {self.errors}") from None
            self.errors.append(line)
            if line.startswith(starts):
                return line

    def wait_for_file(self, path):
        """Until a file is attached, program and all: a semaphore that is up does not say that. Wants -v."""
        self.wait_for_any(f"kvprobe: {path}: ")

    def finish(self):
        """Wait for the end; returns the exit code."""
        rest, deadline = bytearray(self._buffer), time.monotonic() + TIMEOUT
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stderr], [], [], left)[0]:
                raise AssertionError(f"kvprobe did not end: {self.errors}")
            data = os.read(self.process.stderr.fileno(), 65536)
            if not data:
                break
            rest += data
        self.errors += rest.decode(errors="replace").splitlines()
        return self.process.wait(TIMEOUT)

    def stop(self, signal_number=signal.SIGINT):
        self.process.send_signal(signal_number)
        return self.finish()

    def output(self):
        self.out_file.seek(0)
        return self.out_file.read()

    def rows(self, kind="total"):
        return [row for row in map(json.loads, self.output().splitlines()) if row["type"] == kind]

    def by_key(self, pid):
        return {row["key"]: row for row in self.rows() if row["pid"] == pid}

    def summary(self):
        last = json.loads(self.output().splitlines()[-1])
        assert last["type"] == "summary", last
        return last

    def kill(self):
        super().kill()
        if self.out_file:
            self.out_file.close()


def run_kvprobe(*args, prefix=(), **kwargs):
    """Run to the end; returns the CompletedProcess."""
    return subprocess.run([*prefix, KVPROBE, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=TIMEOUT, **kwargs)


@functools.lru_cache(None)
def notes():
    """name -> row of kvprobe list, for the site worker's binary."""
    rows = map(json.loads, run_kvprobe("list", "--json", SITE_WORKER).stdout.splitlines())
    return {row["key"]: row for row in rows}
