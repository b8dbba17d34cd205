# SPDX-License-Identifier: Apache-2.0
"""A Python worker for the tests of the tools: the calls of an inference engine, failures included, over TCP to
the owner of the memory, again and again until stdin ends.

    traced_worker.py MASTER      "ready" on stdout after the first round
"""

import ctypes
import mmap
import sys
import threading

from mooncake.store import MooncakeDistributedStore

KEYS = 8
FRAGMENTS = 4
FRAGMENT = 4096
OBJECT = FRAGMENT * FRAGMENTS


def new_store(master):
    store = MooncakeDistributedStore()
    status = store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master)
    if status != 0:
        sys.exit(f"setup: {status}")
    return store


def one_round(store, base, number):
    keys = [f"layer.{i}.req_{number}" for i in range(KEYS)]
    addresses = [[base + i * OBJECT + j * FRAGMENT for j in range(FRAGMENTS)] for i in range(KEYS)]
    sizes = [[FRAGMENT] * FRAGMENTS for _ in range(KEYS)]
    if store.batch_put_from_multi_buffers(keys, addresses, sizes) != [0] * KEYS:
        sys.exit("put failed")
    wanted = keys[:-1] + [f"missing.{number}"]
    if store.batch_is_exist(wanted) != [1] * (KEYS - 1) + [0]:
        sys.exit("is_exist is wrong")
    got = store.batch_get_into_multi_buffers(wanted, addresses, sizes)
    if got != [OBJECT] * (KEYS - 1) + [-704]:
        sys.exit(f"get is wrong: {got}")
    if len(store.batch_get_replica_desc(wanted)) != KEYS - 1:
        sys.exit("replica_desc is wrong")
    for key in keys:
        store.remove(key, True)


def main():
    master = sys.argv[1]
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    memory = mmap.mmap(-1, KEYS * OBJECT)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    number = 0
    while not stop.is_set():
        # A store of its own for a few rounds: each makes new connections.
        store = new_store(master)
        if store.register_buffer(base, KEYS * OBJECT) != 0:
            sys.exit("register_buffer failed")
        for _ in range(50):
            one_round(store, base, number)
            number += 1
            if number == 1:
                print("ready", flush=True)
            if stop.wait(0.002):
                break
        store.close()


main()
