#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The calls of vLLM's store connector, in its order, without vLLM or a GPU.

A writer registers its KV cache, asks which blocks are missing, stores those, looks its prefix up, reads the blocks
back and checks every byte; at the end it resets and closes. Attach `kvprobe log -p PID` and `kvprobe stat -p PID`
to see each call. With --wait it stops before the first call until a line comes on stdin, so that there is time to
attach.

  PYTHONPATH=build/python python3 examples/vllm_sequence.py --master embedded --requests 3
"""

import argparse
import ctypes
import hashlib
import mmap
import os
import sys

from mooncake.store import MooncakeDistributedStore, ReplicateConfig


class KvCache:
    """One worker's cache: blocks that are spread over layers, as vLLM keeps them: object = one block of each layer."""

    def __init__(self, layers, blocks, block_bytes):
        self.layers, self.blocks, self.block_bytes = layers, blocks, block_bytes
        self.memory = mmap.mmap(-1, layers * blocks * block_bytes)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def fragments(self, block):
        stride = self.blocks * self.block_bytes
        return [self.base + layer * stride + block * self.block_bytes for layer in range(self.layers)]

    def sizes(self):
        return [self.block_bytes] * self.layers

    def fill(self, block, seed):
        for layer, address in enumerate(self.fragments(block)):
            digest = hashlib.sha256(f"{seed}/{layer}".encode()).digest()
            ctypes.memmove(address, (digest * (self.block_bytes // 32 + 1))[: self.block_bytes], self.block_bytes)

    def read(self, block):
        return b"".join(ctypes.string_at(address, self.block_bytes) for address in self.fragments(block))

    def clear(self, block):
        for address in self.fragments(block):
            ctypes.memset(address, 0, self.block_bytes)


def must(what, got, wanted):
    if got != wanted:
        raise SystemExit(f"{what}: got {got}, not {wanted}")


def save(store, cache, keys):
    """The sending side: only what the pool does not have yet."""
    exists = store.batch_is_exist(keys)
    missing = [i for i, found in enumerate(exists) if found != 1]
    if not missing:
        return 0
    results = store.batch_put_from_multi_buffers([keys[i] for i in missing], [cache.fragments(i) for i in missing],
                                                 [cache.sizes() for _ in missing], ReplicateConfig())
    must("batch_put_from_multi_buffers", results, [0] * len(missing))
    return len(missing)


def load(store, cache, keys):
    """The receiving side: the longest prefix that is there, then its bytes."""
    found = store.batch_is_exist(keys)
    hits = found.index(0) if 0 in found else len(found)
    store.batch_get_replica_desc(keys[:hits])
    results = store.batch_get_into_multi_buffers(keys[:hits], [cache.fragments(i) for i in range(hits)],
                                                 [cache.sizes() for _ in range(hits)])
    must("batch_get_into_multi_buffers", results, [sum(cache.sizes())] * hits)
    return hits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--master", default="embedded", help='host:port, or "embedded" (default)')
    parser.add_argument("--requests", type=int, default=3, help="requests to serve (default 3)")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of a request (default 4)")
    parser.add_argument("--layers", type=int, default=16, help="layers, that is fragments of a block (default 16)")
    parser.add_argument("--block-bytes", type=int, default=65536, help="bytes of a block in one layer (default 65536)")
    parser.add_argument("--wait", action="store_true", help="wait for a line on stdin before the first call")
    arguments = parser.parse_args()

    if arguments.wait:
        print(f"pid {os.getpid()}: press Enter to start", flush=True)
        sys.stdin.readline()
    store = MooncakeDistributedStore()
    status = store.setup({"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE",
                          "global_segment_size": "256MB", "local_buffer_size": "16MB", "protocol": "tcp",
                          "rdma_devices": "", "master_server_addr": arguments.master})
    must("setup", status, 0)
    cache = KvCache(arguments.layers, arguments.blocks, arguments.block_bytes)
    must("register_buffer", store.register_buffer(cache.base, len(cache.memory)), 0)
    for request in range(arguments.requests):
        keys = [f"llama@tp_rank:0@pcp0@dcp0@pp_rank:0@{hashlib.sha256(f'{request}/{i}'.encode()).hexdigest()[:16]}"
                for i in range(arguments.blocks)]
        for i, key in enumerate(keys):
            cache.fill(i, key)
        wanted = [cache.read(i) for i in range(arguments.blocks)]
        stored = save(store, cache, keys)
        for i in range(arguments.blocks):
            cache.clear(i)
        loaded = load(store, cache, keys + ["llama@tp_rank:0@pcp0@dcp0@pp_rank:0@not-there"])
        must("bytes read", [cache.read(i) for i in range(arguments.blocks)], wanted)
        print(f"request {request}: stored {stored} blocks, loaded and checked {loaded}", flush=True)
    removed = store.remove_all(force=True)
    must("remove_all", removed, arguments.requests * arguments.blocks)
    must("close", store.close(), 0)
    print(f"removed {removed} blocks, closed", flush=True)


if __name__ == "__main__":
    main()
