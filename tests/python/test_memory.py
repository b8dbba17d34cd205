# SPDX-License-Identifier: Apache-2.0
"""No reference and no memory is lost, on success or on error; batches of the size that schedulers send."""

import ctypes
import gc
import sys
import unittest

import support
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from support import INVALID_PARAMS, MIB, StoreCase, pattern

CALLS = 10000 if support.PRESET == "release" else 1000


class MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


def allocated_bytes():
    """What malloc() has given out, in all threads."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = MallocInfo
    info = mallinfo()
    return info.uordblks + info.hblkhd


class TestLeaks(StoreCase):
    def setUp(self):
        super().setUp()
        self.data = self.buffer(pattern(1, 4096))
        self.config = ReplicateConfig()
        self.config.preferred_segments = ["nowhere:1", "nowhere:2"]
        self.config.preferred_segment = self.store.get_hostname()
        self.keys = [f"key.{i}" for i in range(4)]
        self.ptrs, self.sizes = self.data.parts(4)
        self.assertEqual(self.store.batch_put_from(self.keys, self.ptrs, self.sizes), [0] * 4)

    def grows_not(self, function, calls=CALLS):
        """Neither Python's blocks nor, where no sanitizer is in its place, what malloc() has given out."""
        for _ in range(200):
            function()
        gc.collect()
        blocks, malloced = sys.getallocatedblocks(), allocated_bytes()
        for _ in range(calls):
            function()
        gc.collect()
        self.assertLess(sys.getallocatedblocks() - blocks, calls / 2)  # less than one per call
        if support.PRESET == "release":
            self.assertLess(allocated_bytes() - malloced, 8 * calls)  # no allocation is smaller

    def test_batches(self):
        keys = self.keys + ["absent", "bad\0key", "\ud800"]
        ptrs = [[p, p] for p in self.ptrs] + [[self.data.ptr]] * 3
        sizes = [[s // 2, s // 2] for s in self.sizes] + [[1], [1, 2], [1]]

        def calls():
            self.store.batch_is_exist(keys)
            self.store.batch_put_from_multi_buffers(self.keys, ptrs[:4], sizes[:4], self.config)
            self.store.batch_get_into_multi_buffers(keys, ptrs, sizes)
            self.store.batch_get_into_multi_buffers(keys, ptrs[:1], sizes)
            self.store.batch_get_replica_desc(keys)

        self.grows_not(calls, CALLS // 4)

    def test_single_calls(self):
        def calls():
            self.store.put("key.0", b"value", self.config)
            self.store.put("\ud800", b"value", self.config)
            self.store.get("key.0")
            self.store.get("absent")
            self.store.get_into("key.1", self.data.ptr, 4096)
            self.store.get_size("key.1")
            self.store.is_exist("\ud800")
            self.store.remove("absent")
            self.store.get_hostname()
            self.store.get_replica_desc("key.2")

        self.grows_not(calls, CALLS // 4)

    def test_errors(self):
        bad = [
            ("batch_is_exist", (["a", "\ud800", 1],)),
            ("batch_put_from_multi_buffers", (["a", "b"], [[1, 2], [3, "x"]], [[1, 2], [3, 4]])),
            ("batch_put_from_multi_buffers", (["a", "b"], [[1], [3]], [[1], [3]], {})),
            ("batch_get_into", (["a", "\ud800"], [1, -1], [1, 1])),
            ("put", ("\ud800", "no bytes")),
            ("put", ("k", b"v", 3)),
            ("get_into", ("\ud800", 1, None)),
            ("get_replica_desc", (1,)),
            ("setup", ({"local_hostname": "h", "metadata_server": 5},)),
        ]

        def calls():
            for method, args in bad:
                try:
                    getattr(self.store, method)(*args)
                except TypeError:
                    pass
                else:
                    self.fail(method)
            self.store.setup({"local_hostname": "h", "metadata_server": "m", "global_segment_size": f"{len(bad)}%"})

        self.grows_not(calls, CALLS // 10)

    def test_configs_and_stores(self):
        def calls():
            config = ReplicateConfig()
            config.preferred_segments = ["a:1", "b:2"]
            config.group_ids = ["x"]
            config.soft_pin_action = 1
            str(config)
            MooncakeDistributedStore().health_check()

        self.grows_not(calls)

    def test_reference_counts(self):
        def count():
            objects = [*self.keys, self.keys, self.ptrs, self.sizes, self.config, MooncakeDistributedStore,
                       ReplicateConfig, self.store, None]
            return [sys.getrefcount(o) for o in objects[:-1]]

        before = count()
        for _ in range(100):
            self.store.batch_is_exist(self.keys)
            self.store.batch_put_from(self.keys, self.ptrs, self.sizes, self.config)
            self.store.batch_get_into(self.keys, self.ptrs, self.sizes)
            self.store.batch_get_replica_desc(self.keys)
            self.store.put(self.keys[0], b"v", self.config)
            self.store.get(self.keys[0])
            self.store.batch_put_from(self.keys, self.ptrs[:2], self.sizes, self.config)
            with self.assertRaises(TypeError):
                self.store.batch_put_from([*self.keys, 1], self.ptrs, self.sizes, self.config)
        self.assertEqual(count(), before)

    def test_a_value_is_released(self):
        value = bytearray(100)
        self.assertEqual(self.store.put("from a bytearray", value), 0)
        value.append(1)  # BufferError if put still held the buffer
        with self.assertRaises(TypeError):
            self.store.put("k", value, "no config")
        value.append(1)


class TestHugeBatches(StoreCase):
    SEGMENT = 64 * MIB
    N = 20000

    def test_twenty_thousand_keys(self):
        data = self.buffer(pattern(4, 64 * 16))
        keys = [f"model@tp_rank:0@pcp0@dcp0@pp_rank:0@{i:064x}" for i in range(self.N)]
        self.assertEqual(self.store.batch_is_exist(keys), [0] * self.N)

        ptrs = [[data.ptr + 64 * ((i + f) % 16) for f in range(4)] for i in range(self.N)]
        sizes = [[64] * 4] * self.N
        self.assertEqual(self.store.batch_put_from_multi_buffers(keys, ptrs, sizes), [0] * self.N)
        self.assertEqual(self.store.batch_is_exist(keys[::-1]), [1] * self.N)

        step = 256
        target = self.buffer(self.N * step)
        into = [[target.ptr + i * step] for i in range(self.N)]
        self.assertEqual(self.store.batch_get_into_multi_buffers(keys, into, [[step]] * self.N), [step] * self.N)
        source, got = data.bytes(), target.bytes()
        for i in range(self.N):
            expected = b"".join(source[64 * ((i + f) % 16) :][:64] for f in range(4))
            self.assertEqual(got[i * step : (i + 1) * step], expected)
        self.assertEqual(len(self.store.batch_get_replica_desc(keys)), self.N)
        self.assertEqual(self.store.remove_all(force=True), self.N)

    def test_many_fragments(self):
        count = 2000
        data = self.buffer(pattern(6, count * 16))
        ptrs = [data.ptr + 16 * i for i in range(count)]
        self.assertEqual(self.store.batch_put_from_multi_buffers(["k"], [ptrs[::-1]], [[16] * count]), [0])
        pieces = [data.bytes(16 * i, 16) for i in range(count)]
        self.assertEqual(self.store.get("k"), b"".join(pieces[::-1]))

    def test_a_mismatch_of_many(self):
        keys = [f"k{i}" for i in range(self.N)]
        self.assertEqual(self.store.batch_put_from_multi_buffers(keys, [], []), [INVALID_PARAMS] * self.N)


if __name__ == "__main__":
    unittest.main()
