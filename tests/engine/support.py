# SPDX-License-Identifier: Apache-2.0
"""What the tests of the transfer engine share: engines here, engines in other processes, memory."""

import ctypes
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", HERE.parents[1] / "build")).resolve()
PRESET = os.environ.get("KVPROBE_PRESET", "release")
sys.path.insert(0, str(BUILD / "python"))

from mooncake.engine import TransferEngine  # noqa: E402

MIB = 1 << 20
TIMEOUT_S = 2  # of a transfer, where a test waits for it
WAIT_S = 120
OK, INVALID, FAILED, UNAVAILABLE, NOT_SUPPORTED = 0, -600, -800, -1010, -1012


class Buffer:
    """Memory with an address."""

    def __init__(self, data):
        self._memory = (ctypes.c_char * len(data)).from_buffer_copy(data)
        self.size = len(data)
        self.ptr = ctypes.addressof(self._memory)

    def bytes(self, offset=0, size=None):
        return ctypes.string_at(self.ptr + offset, self.size - offset if size is None else size)

    def fill(self, data, offset=0):
        assert offset + len(data) <= self.size
        ctypes.memmove(self.ptr + offset, data, len(data))


@functools.cache
def _block(seed):
    return bytes((seed * 131 + i * 7 + (i >> 8)) & 0xFF for i in range(65521))


def pattern(seed, size):
    """Bytes that differ from seed to seed (of 256) and from place to place."""
    block = _block(seed % 256)
    return block[:size] if size <= len(block) else (block * (size // len(block) + 1))[:size]


def new_engine(timeout_s=None):
    """An engine on loopback; its transfers take at most so long."""
    if timeout_s is not None:
        os.environ["MC_TRANSFER_TIMEOUT_MS"] = str(int(timeout_s * 1000))
    try:
        engine = TransferEngine()
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        return engine
    finally:
        os.environ.pop("MC_TRANSFER_TIMEOUT_MS", None)


class Peer:
    """engine_peer.py: any method of it or of its engine is one of this."""

    def __init__(self):
        self._process = subprocess.Popen([sys.executable, str(HERE / "engine_peer.py")], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self._held = False
        assert self.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.session = f"127.0.0.1:{self.get_rpc_port()}"

    def __getattr__(self, method):
        return lambda *arguments: self.ask(method, *arguments)

    def send(self, method, *arguments):
        self._process.stdin.write(json.dumps([method, arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self):
        line = self._process.stdout.readline()
        assert line, "the peer is gone"
        return json.loads(line)

    def ask(self, method, *arguments):
        self.send(method, *arguments)
        return self.answer()

    def hold(self):
        os.kill(self._process.pid, signal.SIGSTOP)
        self._held = True
        deadline = time.monotonic() + WAIT_S
        while pathlib.Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, "the peer does not stop"
            time.sleep(0.001)

    def go_on(self):
        os.kill(self._process.pid, signal.SIGCONT)
        self._held = False

    def kill(self):
        self._process.kill()

    def close(self):
        if self._held:
            self.go_on()
        self._process.stdin.close()
        try:
            self._process.wait(WAIT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


class EngineCase(unittest.TestCase):
    """self.engine here, self.peer in another process."""

    def setUp(self):
        self.engine = new_engine(self.timeout_s())
        self.peer = self.new_peer()

    def timeout_s(self):
        return None

    def new_peer(self):
        peer = Peer()
        self.addCleanup(peer.close)
        return peer

    def memory(self, data):
        """Registered memory."""
        buffer = Buffer(data)
        self.assertEqual(self.engine.register_memory(buffer.ptr, buffer.size), 0)
        self.addCleanup(lambda: self.engine.unregister_memory(buffer.ptr))
        return buffer
