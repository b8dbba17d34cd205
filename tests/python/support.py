# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python interface share: the build tree, stores, buffers, a master, other processes."""

import ctypes
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", HERE.parents[1] / "build")).resolve()
PRESET = os.environ.get("KVPROBE_PRESET", "release")
sys.path[:0] = [str(BUILD / "python"), str(HERE.parent)]

from concurrently import run_threads  # noqa: E402,F401
from mooncake.store import MooncakeDistributedStore  # noqa: E402

WAIT_S = 60
MIB = 1 << 20

INVALID_PARAMS = -600
NOT_FOUND = -704
HAS_LEASE = -706
FULL = -200
NOT_SUPPORTED = -1012
UNAVAILABLE = -1010


class Buffer:
    """Memory with an address, as a connector's tensor has it."""

    def __init__(self, size_or_bytes):
        data = size_or_bytes if isinstance(size_or_bytes, bytes) else bytes(size_or_bytes)
        self._memory = (ctypes.c_char * max(1, len(data))).from_buffer_copy(data or b"\0")
        self.size = len(data)
        self.ptr = ctypes.addressof(self._memory)

    def bytes(self, offset=0, size=None):
        size = self.size - offset if size is None else size
        return ctypes.string_at(self.ptr + offset, size)

    def fill(self, data, offset=0):
        assert offset + len(data) <= self.size
        ctypes.memmove(self.ptr + offset, data, len(data))

    def clear(self):
        ctypes.memset(self.ptr, 0, self.size)

    def parts(self, n):
        """(addresses, sizes) of n equal fragments"""
        step = self.size // n
        return [self.ptr + i * step for i in range(n)], [step] * n


def pattern(seed, size):
    """Bytes that differ from seed to seed and from place to place."""
    block = bytes((seed * 131 + i * 7 + (i >> 8)) & 0xFF for i in range(4096))
    return (block * (size // len(block) + 1))[:size]


def setup_embedded(store, segment=16 * MIB, local=4 * MIB):
    """The store with its own master in this process."""
    return store.setup("127.0.0.1", "P2PHANDSHAKE", segment, local, "tcp", "", "embedded")


class StoreCase(unittest.TestCase):
    """A test with a store of its own (self.store), master embedded."""

    SEGMENT = 16 * MIB
    LOCAL = 4 * MIB

    def setUp(self):
        self.store = MooncakeDistributedStore()
        self.addCleanup(self.close_store)
        self.assertEqual(setup_embedded(self.store, self.SEGMENT, self.LOCAL), 0)

    def close_store(self):
        self.assertEqual(self.store.close(), 0)

    def buffer(self, size_or_bytes):
        """A registered buffer."""
        buffer = Buffer(size_or_bytes)
        self.assertEqual(self.store.register_buffer(buffer.ptr, buffer.size), 0)
        self.addCleanup(lambda: self.store.unregister_buffer(buffer.ptr))
        return buffer


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Master:
    """kvmaster as a process of its own, on a port of loopback that it chooses."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [BUILD / "bin" / "kvmaster", "--rpc_address=127.0.0.1", "--rpc_port=0", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )
        timer = threading.Timer(WAIT_S, self._process.kill)
        timer.start()
        first_line = self._process.stdout.readline()
        timer.cancel()
        self.address = first_line.rpartition(" ")[2].strip()
        if not self.address.startswith("127.0.0.1:"):
            self.stop()
            raise RuntimeError(f"kvmaster said {first_line!r} and ended with {self._process.returncode}")
        self.port = int(self.address.rpartition(":")[2])

    def stop(self):
        """Its exit code after SIGTERM."""
        self._process.terminate()
        try:
            return self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdout.close()


class MasterCase(unittest.TestCase):
    """Tests that share one kvmaster process."""

    @classmethod
    def setUpClass(cls):
        cls.master = Master()
        cls.addClassCleanup(cls.master.stop)

    def new_store(self, segment=16 * MIB, local=4 * MIB, address=None):
        store = MooncakeDistributedStore()
        self.assertEqual(
            store.setup("127.0.0.1", "P2PHANDSHAKE", segment, local, "tcp", "", address or self.master.address), 0
        )
        self.addCleanup(store.close)
        return store


class Peer:
    """peer.py: a store in another process, called by name."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, HERE / "peer.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._timer = threading.Timer(4 * WAIT_S, self._process.kill)
        self._timer.start()

    def call(self, method, *args):
        print(json.dumps([method, args]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the peer ended in {method}: {self._process.wait(WAIT_S)}")
        return json.loads(answer)

    def stop(self):
        """Its exit code when its input ends."""
        self._process.stdin.close()
        try:
            return self._process.wait(WAIT_S)
        finally:
            self._timer.cancel()
            self._process.kill()
            self._process.stdout.close()


def run_python(code, timeout=WAIT_S, **environment):
    """Run a program text in a fresh interpreter. Returns the CompletedProcess with text output."""
    env = dict(os.environ, KVPROBE_BUILD=str(BUILD), PYTHONPATH=str(BUILD / "python"), **environment)
    return subprocess.run(
        [sys.executable, "-c", code], env=env, timeout=timeout, capture_output=True, text=True, check=False
    )
