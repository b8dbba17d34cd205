# SPDX-License-Identifier: Apache-2.0
"""A transfer engine in a process of its own. Reads one JSON list [method, [argument...]] a line, prints the result.

new(size, fill): registers memory of so many bytes, all of them `fill`; gives its address. patterns([[at, size, seed]...])
and wrong_patterns(the same): write the bytes of support.pattern, and say which ranges hold other ones.
not_only(fill, [[at, size]...]): which ranges have other bytes. Any other method is the engine's.
"""

import contextlib
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

    @contextlib.contextmanager
    def taken_back(self):
        """The memory is ours meanwhile. To a sanitizer this is what puts us in an order with the transfers before and
        after."""
        taken = [buffer for buffer in self.buffers if self.engine.unregister_memory(buffer.ptr) == 0]
        yield
        for buffer in taken:
            self.engine.register_memory(buffer.ptr, buffer.size)

    def patterns(self, ranges):
        with self.taken_back():
            for at, size, seed in ranges:
                ctypes.memmove(at, pattern(seed, size), size)

    def wrong_patterns(self, ranges):
        with self.taken_back():
            return [[at, size, seed] for at, size, seed in ranges
                    if ctypes.string_at(at, size) != pattern(seed, size)]

    def not_only(self, fill, ranges):
        with self.taken_back():
            return [[at, size] for at, size in ranges if ctypes.string_at(at, size) != bytes([fill]) * size]


def main():
    peer = Peer()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        function = getattr(peer, method, None) or getattr(peer.engine, method)
        print(json.dumps(function(*arguments)), flush=True)


if __name__ == "__main__":
    main()
