# SPDX-License-Identifier: Apache-2.0
"""A worker that makes every public Python call, and every error exit of it, and says what its key has to report.

    workload.py embedded | worker MASTER | owner MASTER | transfers | engine | idle

embedded  waits for a line on stdin, makes the calls on a store with an embedded master, and prints one JSON line:
          the expected firings of the STORE_PY keys, in order.
worker    the same against a master process and an owner of memory that dies in between: prints "kill-owner" and
          "kill-master" when it wants them dead, and waits for a line each time.
owner     waits for a line, contributes memory, says "up" and waits until it is killed.
transfers waits for a line, records KV transfers of every kind, and prints the expected firings of the XFER keys.
engine    waits for a line, moves memory between two transfer engines, and prints the expected firings of their calls.
idle      sets up with an embedded master and calls nothing until it gets a line; it has every extension loaded.
"""

import ctypes
import json
import os
import sys
import time

from kvprobe.engine import TransferEngine
from kvprobe.stats import MooncakeKVConnectorStats
from mooncake.store import MooncakeDistributedStore, ReplicateConfig

MIB = 1 << 20
SEGMENT = 32 * MIB
LOCAL = 4 * MIB
SIZE = 4096
INVALID, NO_SPACE, MISSING, LEASED, FAILED, TIMED_OUT = -600, -200, -704, -706, -800, -901

EXPECTED = []
WRONG = []


def wait_for_line(word):
    print(word, flush=True)
    if not sys.stdin.readline():
        sys.exit("the test is gone")


def expect(key, bytes, n_keys, n_failed, rc):
    """rc: the code, or a set of those that are right."""
    codes = sorted(rc) if isinstance(rc, set) else [rc]
    EXPECTED.append({"key": key, "bytes": bytes, "n_keys": n_keys, "n_failed": n_failed, "rc": codes})


class AnyOf(list):
    """Results that cannot stand in a set."""


def call(key, function, *args, result, bytes=0, n_keys=0, n_failed=0, rc=0, **kwargs):
    """Make one call. result: what it must return, a set or an AnyOf of these, or an exception class."""
    try:
        got = function(*args, **kwargs)
    except TypeError as error:
        got = type(error)
    allowed = result if isinstance(result, (set, AnyOf)) else [result]
    if got not in allowed:
        WRONG.append(f"{key}: {function.__name__} returned {got!r}, expected {result!r}")
    expect(key, bytes, n_keys, n_failed, rc)
    return got


class Memory:
    """A buffer with an address, cut into objects of two fragments."""

    def __init__(self, size):
        self.buffer = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self.buffer)
        self.size = size

    def fragments(self, n, size=SIZE):
        half = size // 2
        starts = [self.address + i * size for i in range(n)]
        return [[start, start + half] for start in starts], [[half, size - half] for _ in starts]

    def flat(self, n, size=SIZE):
        return [self.address + i * size for i in range(n)], [size] * n


def raising_calls(store):
    """Every call with arguments that no call takes."""
    raises = {"result": TypeError, "rc": INVALID}
    call("STORE_PY_SETUP", store.setup, 1, 2, 3, **raises)
    call("STORE_PY_REGISTER_BUFFER", store.register_buffer, "x", 1, **raises)
    call("STORE_PY_UNREGISTER_BUFFER", store.unregister_buffer, "x", **raises)
    call("PUT_STORE_PY_PUT", store.put, "k", 17, **raises)
    call("PUT_STORE_PY_PUT", store.put, "k", b"x", config=5, **raises)
    call("STORE_PY_PUT_FROM", store.put_from, "k", "x", 1, **raises)
    call("STORE_PY_BATCH_PUT_FROM", store.batch_put_from, "k", 1, 2, **raises)
    call("STORE_PY_BATCH_PUT_MULTI", store.batch_put_from_multi_buffers, ["k"], 1, 2, **raises)
    call("GET_STORE_PY_GET", store.get, 5, **raises)
    call("STORE_PY_GET_INTO", store.get_into, "k", None, 1, **raises)
    call("STORE_PY_BATCH_GET_INTO", store.batch_get_into, ["k"], None, 1, **raises)
    call("STORE_PY_BATCH_GET_INTO_MULTI", store.batch_get_into_multi_buffers, ["k"], None, 1, **raises)
    call("STORE_PY_IS_EXIST", store.is_exist, **raises)
    call("STORE_PY_BATCH_IS_EXIST", store.batch_is_exist, [1], **raises)
    call("STORE_PY_GET_SIZE", store.get_size, None, **raises)
    call("STORE_PY_REMOVE", store.remove, b"k", "no", 3, **raises)
    call("STORE_PY_REMOVE_ALL", store.remove_all, unknown=1, **raises)
    call("STORE_PY_BATCH_GET_REPLICA_DESC", store.batch_get_replica_desc, 5, **raises)


def calls_that_cannot(store, memory, codes, multi_put_result=None):
    """Every call on a store that is not set up, is closed, or has no master: codes are what it may say."""
    one = {"n_keys": 1, "n_failed": 1, "rc": codes}
    lists = [[code] for code in sorted(codes)]
    ptrs, sizes = memory.flat(1)
    multi_ptrs, multi_sizes = memory.fragments(1)
    # It answers "no" where it cannot ask; any other number would be taken for "yes".
    exists = call("STORE_PY_IS_EXIST", store.is_exist, "k", result=codes | {0}, **one)
    if exists == 0:
        EXPECTED[-1].update(n_failed=0, rc=[0])

    def batch(key, function, *args, results=lists):
        call(key, function, *args, result=AnyOf(results), **one)

    call("PUT_STORE_PY_PUT", store.put, "k", b"x", result=codes, **one)
    call("STORE_PY_PUT_FROM", store.put_from, "k", memory.address, SIZE, result=codes, **one)
    batch("STORE_PY_BATCH_PUT_FROM", store.batch_put_from, ["k"], ptrs, sizes)
    batch("STORE_PY_BATCH_PUT_MULTI", store.batch_put_from_multi_buffers, ["k"], multi_ptrs, multi_sizes,
          results=lists if multi_put_result is None else [multi_put_result])
    call("GET_STORE_PY_GET", store.get, "k", result=b"", **one)
    call("STORE_PY_GET_INTO", store.get_into, "k", memory.address, SIZE, result=codes, **one)
    batch("STORE_PY_BATCH_GET_INTO", store.batch_get_into, ["k"], ptrs, sizes)
    batch("STORE_PY_BATCH_GET_INTO_MULTI", store.batch_get_into_multi_buffers, ["k"], multi_ptrs, multi_sizes)
    batch("STORE_PY_BATCH_IS_EXIST", store.batch_is_exist, ["k"])
    call("STORE_PY_GET_SIZE", store.get_size, "k", result=codes, **one)
    call("STORE_PY_REMOVE", store.remove, "k", result=codes, **one)
    call("STORE_PY_REMOVE_ALL", store.remove_all, result=codes, rc=codes)
    call("STORE_PY_BATCH_GET_REPLICA_DESC", store.batch_get_replica_desc, ["k"], result=AnyOf([{}]), **one)


def good_calls(store, memory):
    """Success, and the per-key failures of a store that works."""
    n = 3
    keys = [f"many.{i}" for i in range(n)]
    ptrs, sizes = memory.flat(n)
    multi_ptrs, multi_sizes = memory.fragments(n)
    done = {"n_keys": n, "bytes": n * SIZE}
    call("PUT_STORE_PY_PUT", store.put, "one", b"v" * SIZE, result=0, n_keys=1, bytes=SIZE)
    call("PUT_STORE_PY_PUT", store.put, "one", b"w" * SIZE, result=0, n_keys=1)
    call("STORE_PY_PUT_FROM", store.put_from, "from", memory.address, SIZE, result=0, n_keys=1, bytes=SIZE)
    call("STORE_PY_BATCH_PUT_FROM", store.batch_put_from, keys, ptrs, sizes, result=[0] * n, **done)
    call("STORE_PY_BATCH_PUT_FROM", store.batch_put_from, keys, ptrs, sizes, result=[0] * n, n_keys=n)
    multi = [f"multi.{i}" for i in range(n)]
    call("STORE_PY_BATCH_PUT_MULTI", store.batch_put_from_multi_buffers, multi, multi_ptrs, multi_sizes,
         result=[0] * n, **done)
    call("GET_STORE_PY_GET", store.get, "one", result=b"v" * SIZE, n_keys=1, bytes=SIZE)
    call("STORE_PY_GET_INTO", store.get_into, "from", memory.address, SIZE, result=SIZE, n_keys=1, bytes=SIZE)
    call("STORE_PY_BATCH_GET_INTO", store.batch_get_into, keys, ptrs, sizes, result=[SIZE] * n, **done)
    call("STORE_PY_BATCH_GET_INTO_MULTI", store.batch_get_into_multi_buffers, multi, multi_ptrs, multi_sizes,
         result=[SIZE] * n, **done)
    call("STORE_PY_IS_EXIST", store.is_exist, "one", result=1, n_keys=1)
    call("STORE_PY_IS_EXIST", store.is_exist, "none", result=0, n_keys=1)
    call("STORE_PY_BATCH_IS_EXIST", store.batch_is_exist, keys + ["none"], result=[1] * n + [0], n_keys=n + 1)
    call("STORE_PY_GET_SIZE", store.get_size, "one", result=SIZE, n_keys=1)
    replicas = store.batch_get_replica_desc(keys + ["none"])
    expect("STORE_PY_BATCH_GET_REPLICA_DESC", 0, n + 1, 1, MISSING)
    if sorted(replicas) != keys:
        WRONG.append(f"batch_get_replica_desc: {replicas}")

    missing = {"n_keys": 1, "n_failed": 1, "rc": MISSING}
    call("GET_STORE_PY_GET", store.get, "none", result=b"", **missing)
    call("STORE_PY_GET_INTO", store.get_into, "none", memory.address, SIZE, result=MISSING, **missing)
    call("STORE_PY_GET_SIZE", store.get_size, "none", result=MISSING, **missing)
    call("STORE_PY_REMOVE", store.remove, "none", result=MISSING, **missing)
    call("STORE_PY_BATCH_GET_INTO", store.batch_get_into, ["none", "one"], *memory.flat(2), result=[MISSING, SIZE],
         n_keys=2, n_failed=1, rc=MISSING, bytes=SIZE)
    call("STORE_PY_BATCH_GET_INTO_MULTI", store.batch_get_into_multi_buffers, ["one", "none"], *memory.fragments(2),
         result=[SIZE, MISSING], n_keys=2, n_failed=1, rc=MISSING, bytes=SIZE)
    invalid = {"n_keys": 1, "n_failed": 1, "rc": INVALID}
    call("STORE_PY_GET_INTO", store.get_into, "one", memory.address, SIZE - 1, result=INVALID, **invalid)
    call("PUT_STORE_PY_PUT", store.put, "", b"x", result=INVALID, **invalid)
    call("PUT_STORE_PY_PUT", store.put, "big", b"x" * (LOCAL + 1), result=INVALID, **invalid)
    call("STORE_PY_BATCH_PUT_MULTI", store.batch_put_from_multi_buffers, ["a", "b"], *memory.fragments(1),
         result=[INVALID] * 2, n_keys=2, n_failed=2, rc=INVALID)
    call("STORE_PY_BATCH_PUT_MULTI", store.batch_put_from_multi_buffers, [], [], [], result=[])
    same_node = ReplicateConfig()
    same_node.prefer_alloc_in_same_node = True
    call("STORE_PY_PUT_FROM", store.put_from, "near", memory.address, SIZE, same_node, result=INVALID, **invalid)
    call("STORE_PY_REMOVE", store.remove, "one", result=LEASED, n_keys=1, n_failed=1, rc=LEASED)
    call("STORE_PY_REMOVE", store.remove, "one", True, result=0, n_keys=1)
    call("STORE_PY_REMOVE_ALL", store.remove_all, True, result=2 * n + 1, n_keys=2 * n + 1)
    call("STORE_PY_REMOVE_ALL", store.remove_all, True, result=0)


def register_calls(store, memory):
    call("STORE_PY_REGISTER_BUFFER", store.register_buffer, 0, SIZE, result=INVALID, rc=INVALID)
    call("STORE_PY_REGISTER_BUFFER", store.register_buffer, memory.address, 0, result=INVALID, rc=INVALID)
    call("STORE_PY_REGISTER_BUFFER", store.register_buffer, memory.address, memory.size, result=0, bytes=memory.size)
    call("STORE_PY_REGISTER_BUFFER", store.register_buffer, memory.address, SIZE, result=INVALID, rc=INVALID)
    call("STORE_PY_UNREGISTER_BUFFER", store.unregister_buffer, memory.address + 1, result=INVALID, rc=INVALID)


def full_pool(store, memory):
    """Fill the pool beyond its size: eviction sets in, and an object larger than the pool finds no place."""
    big = Memory(SEGMENT + MIB)
    call("STORE_PY_REGISTER_BUFFER", store.register_buffer, big.address, big.size, result=0, bytes=big.size)
    call("STORE_PY_PUT_FROM", store.put_from, "too big", big.address, big.size, result=NO_SPACE, n_keys=1,
         n_failed=1, rc=NO_SPACE)
    for i in range(3):
        call("STORE_PY_PUT_FROM", store.put_from, f"large.{i}", big.address, 10 * MIB, result=0, n_keys=1,
             bytes=10 * MIB)
    time.sleep(0.5)  # the evicting thread has its turn
    call("STORE_PY_UNREGISTER_BUFFER", store.unregister_buffer, big.address, result=0)


def setup(store, master, segment=SEGMENT):
    args = ("127.0.0.1", "P2PHANDSHAKE", segment, LOCAL, "tcp", "", master)
    call("STORE_PY_SETUP", store.setup, *args, result=0)


def embedded():
    store = MooncakeDistributedStore()
    memory = Memory(MIB)
    wait_for_line("ready")
    raising_calls(store)
    calls_that_cannot(store, memory, {INVALID}, multi_put_result=[])
    call("STORE_PY_SETUP", store.setup, "127.0.0.1", "P2PHANDSHAKE", 1000, LOCAL, "tcp", "", "embedded",
         result=INVALID, rc=INVALID)
    setup(store, "embedded")
    call("STORE_PY_SETUP", store.setup, "127.0.0.1", "P2PHANDSHAKE", SEGMENT, LOCAL, "tcp", "", "embedded",
         result=INVALID, rc=INVALID)
    register_calls(store, memory)
    good_calls(store, memory)
    full_pool(store, memory)
    call("STORE_PY_UNREGISTER_BUFFER", store.unregister_buffer, memory.address, result=0)
    call("STORE_PY_CLOSE", store.close, result=0)
    call("STORE_PY_CLOSE", store.close, result=0)
    calls_that_cannot(store, memory, {INVALID}, multi_put_result=[])
    finish()


def worker(master):
    store = MooncakeDistributedStore()
    memory = Memory(MIB)
    wait_for_line("ready")
    setup(store, master, segment=0)
    register_calls(store, memory)
    good_calls(store, memory)
    call("PUT_STORE_PY_PUT", store.put, "k", b"x" * SIZE, result=0, n_keys=1, bytes=SIZE)
    wait_for_line("kill-owner")
    failed = {"n_keys": 1, "n_failed": 1, "rc": FAILED}
    call("STORE_PY_PUT_FROM", store.put_from, "lost", memory.address, SIZE, result=FAILED, **failed)
    call("STORE_PY_GET_INTO", store.get_into, "k", memory.address, SIZE, result=FAILED, **failed)
    call("STORE_PY_BATCH_PUT_MULTI", store.batch_put_from_multi_buffers, ["lost.too"], *memory.fragments(1),
         result=[FAILED], **failed)
    call("STORE_PY_BATCH_GET_INTO_MULTI", store.batch_get_into_multi_buffers, ["k"], *memory.fragments(1),
         result=[FAILED], **failed)
    wait_for_line("kill-master")
    calls_that_cannot(store, memory, {-900, -901})
    call("STORE_PY_UNREGISTER_BUFFER", store.unregister_buffer, memory.address, result=0)
    store.close()
    expect("STORE_PY_CLOSE", 0, 0, 0, {0, -900, -901})
    finish()


def owner(master):
    store = MooncakeDistributedStore()
    wait_for_line("ready")
    if store.setup("127.0.0.1", "P2PHANDSHAKE", SEGMENT, 0, "tcp", "", master) != 0:
        sys.exit("owner: setup failed")
    wait_for_line("up")


def transfers():
    stats = MooncakeKVConnectorStats()
    wait_for_line("ready")
    unrecorded = {"bytes": 0, "n_keys": 0, "n_failed": 1, "elapsed_ns": 0}
    for read in (False, True):
        key, direction = ("XFER_READ", {"direction": "read"}) if read else ("XFER_WRITE", {})
        for seconds, size, descriptors in ((0.0015, 3 * MIB, 17), (0.0, 0, 1), (2.6e-9, 7, 4), (12, 1 << 40, 100000)):
            stats.record_transfer(seconds, size, descriptors, **direction)
            expect(key, size, descriptors, 0, 0)
            EXPECTED[-1]["elapsed_ns"] = max(1, round(seconds * 1e9))
    for key, record, rc in (("XFER_WRITE", stats.record_failed_transfer, FAILED),
                            ("XFER_RECV_FAILED", stats.record_failed_recv, FAILED),
                            ("XFER_REQ_EXPIRED", stats.record_kv_expired_req, TIMED_OUT)):
        record()
        EXPECTED.append({"key": key, "rc": [rc], **unrecorded})
    # what only reads or merges fires nothing
    snapshot = stats.clone_and_reset()
    if snapshot.num_successful_transfers != 8 or not stats.is_empty():
        WRONG.append(f"clone_and_reset: {snapshot.num_successful_transfers}")
    stats.aggregate(snapshot)
    stats.reduce()
    finish()


def engine():
    here, peer, memory = TransferEngine(), TransferEngine(), Memory(4 * SIZE)
    for one in (here, peer):
        if one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            sys.exit("engine: initialize failed")
    session, base = f"127.0.0.1:{peer.get_rpc_port()}", memory.address
    nowhere = "127.0.0.1:1"  # nobody listens there
    invalid = {"result": INVALID, "n_failed": 1, "rc": INVALID}
    wait_for_line("ready")
    call("ENGINE_REGISTER_MEMORY", here.register_memory, base, 2 * SIZE, result=0, bytes=2 * SIZE)
    call("ENGINE_REGISTER_MEMORY", here.register_memory, base, SIZE, result=INVALID, rc=INVALID)
    call("ENGINE_REGISTER_MEMORY", peer.register_memory, base + 2 * SIZE, 2 * SIZE, result=0, bytes=2 * SIZE)
    for key, one, batch in (("ENGINE_TRANSFER_WRITE", here.transfer_sync_write, here.batch_transfer_sync_write),
                            ("ENGINE_TRANSFER_READ", here.transfer_sync_read, here.batch_transfer_sync_read)):
        call(key, one, session, base, base + 2 * SIZE, 100, result=0, n_keys=1, bytes=100)
        call(key, batch, session, [base, base + 500], [base + 3 * SIZE, base + 2 * SIZE], [200, 50], result=0, n_keys=2,
             bytes=250)
        call(key, one, session, base + 3 * SIZE, base + 2 * SIZE, 1, n_keys=1, **invalid)
        call(key, one, session, base, base, 1, n_keys=1, **invalid)
        call(key, one, nowhere, base, base + 2 * SIZE, 1, result=FAILED, n_keys=1, n_failed=1, rc=FAILED)
    call("ENGINE_UNREGISTER_MEMORY", here.unregister_memory, base + 1, result=INVALID, rc=INVALID)
    call("ENGINE_UNREGISTER_MEMORY", here.unregister_memory, base, result=0)
    finish()


def idle():
    store = MooncakeDistributedStore()
    setup(store, "embedded")
    wait_for_line("ready")
    call("STORE_PY_CLOSE", store.close, result=0)
    finish()


def finish():
    print(json.dumps({"expected": EXPECTED, "wrong": WRONG, "pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    {"embedded": embedded, "worker": worker, "owner": owner, "transfers": transfers, "engine": engine, "idle": idle}[sys.argv[1]](*sys.argv[2:])
