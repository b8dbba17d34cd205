# SPDX-License-Identifier: Apache-2.0
"""A store in a process of its own. Reads one JSON list [method, [argument...]] a line, prints the result as JSON.

Besides the store's methods: put_pattern(keys, fragments, size) and get_pattern(keys, fragments, size), which put
and check the bytes of support.pattern(i, size) for key i, in so many fragments.
"""

import json
import sys

from support import Buffer, MooncakeDistributedStore, pattern


class Peer:
    def __init__(self):
        self.store = MooncakeDistributedStore()

    def put_pattern(self, keys, fragments, size):
        buffers = [Buffer(pattern(i, size)) for i in range(len(keys))]
        for buffer in buffers:
            self.store.register_buffer(buffer.ptr, buffer.size)
        parts = [buffer.parts(fragments) for buffer in buffers]
        results = self.store.batch_put_from_multi_buffers(keys, [p for p, _ in parts], [s for _, s in parts])
        for buffer in buffers:
            self.store.unregister_buffer(buffer.ptr)
        return results

    def get_pattern(self, keys, fragments, size):
        """[results, whether all bytes are right]"""
        buffers = [Buffer(size) for _ in keys]
        for buffer in buffers:
            self.store.register_buffer(buffer.ptr, buffer.size)
        parts = [buffer.parts(fragments) for buffer in buffers]
        results = self.store.batch_get_into_multi_buffers(keys, [p for p, _ in parts], [s for _, s in parts])
        for buffer in buffers:
            self.store.unregister_buffer(buffer.ptr)
        return [results, all(b.bytes() == pattern(i, size) for i, b in enumerate(buffers))]


def main():
    peer = Peer()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        function = getattr(peer, method, None) or getattr(peer.store, method)
        print(json.dumps(function(*arguments)), flush=True)


if __name__ == "__main__":
    main()
