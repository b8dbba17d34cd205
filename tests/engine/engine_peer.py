# SPDX-License-Identifier: Apache-2.0
"""A transfer engine in a process of its own. Reads one JSON list [method, [argument...]] a line, prints the result.

new(size, fill): registers memory of so many bytes, all of them `fill`; gives its address. pattern(at, size, seed) and
holds(at, size, seed): write and compare the bytes of support.pattern. only(at, size, fill): whether all are `fill`.
Any other method is the engine's.
"""

import ctypes
import json
import sys

from support import Buffer, pattern

from mooncake.engine import TransferEngine


class Peer:
    def __init__(self):
        self.engine = TransferEngine()
        self.buffers = []

    def new(self, size, fill):
        buffer = Buffer(bytes([fill]) * size)
        self.buffers.append(buffer)
        rc = self.engine.register_memory(buffer.ptr, size)
        return buffer.ptr if rc == 0 else rc

    def pattern(self, at, size, seed):
        ctypes.memmove(at, pattern(seed, size), size)

    def holds(self, at, size, seed):
        return ctypes.string_at(at, size) == pattern(seed, size)

    def only(self, at, size, fill):
        return ctypes.string_at(at, size) == bytes([fill]) * size


def main():
    peer = Peer()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        function = getattr(peer, method, None) or getattr(peer.engine, method)
        print(json.dumps(function(*arguments)), flush=True)


if __name__ == "__main__":
    main()
