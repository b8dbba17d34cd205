# SPDX-License-Identifier: Apache-2.0
"""The call sequences of vLLM, vllm-ascend, LMCache and SGLang, with the bytes checked."""

import inspect
import unittest
import uuid

import support
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from support import MIB, Buffer, MasterCase, StoreCase, pattern

LAYERS = 8
BLOCK = 16 * 1024


class KVCache:
    """One tensor per layer; block b of layer l is at base[l] + b * BLOCK."""

    def __init__(self, blocks, seed=None):
        self.blocks = blocks
        self.layers = [
            Buffer(pattern(seed + layer, blocks * BLOCK) if seed is not None else blocks * BLOCK)
            for layer in range(LAYERS)
        ]

    def register(self, store):
        return [store.register_buffer(layer.ptr, layer.size) for layer in self.layers]

    def addresses(self, block):
        return [layer.ptr + block * BLOCK for layer in self.layers], [BLOCK] * LAYERS

    def block(self, block):
        return [layer.bytes(block * BLOCK, BLOCK) for layer in self.layers]

    def save(self, store, keys, *config):
        where = [self.addresses(b) for b in range(len(keys))]
        return store.batch_put_from_multi_buffers(keys, [a for a, _ in where], [s for _, s in where], *config)

    def load(self, store, keys):
        where = [self.addresses(b) for b in range(len(keys))]
        return store.batch_get_into_multi_buffers(keys, [a for a, _ in where], [s for _, s in where])


class TestVllm(MasterCase):
    """Writer and reader of one process against a kvmaster; the first version's dict and the later positionals."""

    def config(self):
        return {
            "local_hostname": "127.0.0.1", "metadata_server": "", "global_segment_size": str(64 * MIB),
            "local_buffer_size": str(4 * MIB), "protocol": "tcp", "rdma_devices": "",
            "master_server_addr": self.master.address,
        }

    def keys(self, n):
        run = uuid.uuid4().hex
        return [f"model@tp_rank:0@pcp0@dcp0@pp_rank:0@{run}{i:04x}" for i in range(n)]

    def sequence(self, store, *config):
        keys = self.keys(6)
        source, target = KVCache(6, seed=3), KVCache(6)
        self.assertEqual(source.register(store), [0] * LAYERS)
        self.assertEqual(target.register(store), [0] * LAYERS)

        missing = [k for k, found in zip(keys, store.batch_is_exist(keys), strict=True) if found != 1]
        self.assertEqual(missing, keys)
        self.assertEqual(source.save(store, keys[:4], *config), [0] * 4)
        self.assertEqual(store.batch_is_exist(keys), [1, 1, 1, 1, 0, 0])

        described = store.batch_get_replica_desc(keys)
        self.assertEqual(list(described), keys[:4])
        for replicas in described.values():
            self.assertTrue(replicas[0].is_memory_replica())
            self.assertEqual(replicas[0].get_memory_descriptor().buffer_descriptor.size, LAYERS * BLOCK)

        results = target.load(store, keys)
        self.assertEqual(results, [LAYERS * BLOCK] * 4 + [support.NOT_FOUND] * 2)
        for block in range(4):
            self.assertEqual(target.block(block), source.block(block))
        self.assertEqual(target.block(4), [bytes(BLOCK)] * LAYERS)

        self.assertEqual(store.remove_all(force=True), 4)
        self.assertEqual(store.batch_is_exist(keys), [0] * 6)
        self.assertEqual(store.close(), 0)

    def test_dict(self):
        store = MooncakeDistributedStore()
        self.assertEqual(store.setup(self.config()), 0)
        self.sequence(store)

    def test_positionals_and_preferred_segment(self):
        store = MooncakeDistributedStore()
        seven = self.config()
        seven.update(global_segment_size=64 * MIB, local_buffer_size=4 * MIB)
        self.assertEqual(store.setup(*seven.values()), 0)
        config = ReplicateConfig()
        config.preferred_segment = store.get_hostname()
        self.sequence(store, config)

    def test_pressure(self):
        """-200 for what does not fit; the rest of the batch is stored."""
        store = self.new_store(segment=10 * LAYERS * BLOCK)
        keys = self.keys(16)
        source = KVCache(16, seed=9)
        source.register(store)
        results = source.save(store, keys)
        self.assertEqual(set(results), {0, support.FULL})
        stored = [k for k, r in zip(keys, results, strict=True) if r == 0]
        self.assertEqual(store.batch_is_exist(stored), [1] * len(stored))
        self.assertEqual(store.remove_all(force=True), len(stored))


class TestVllmAscend(StoreCase):
    def test_feature_detection(self):
        self.assertIn("enable_ssd_offload", inspect.signature(self.store.setup).parameters)
        self.assertIn("enable_ssd_offload", self.store.setup.__doc__)

    def test_setup_with_an_engine(self):
        store = MooncakeDistributedStore()
        self.addCleanup(store.close)
        self.assertEqual(
            store.setup("127.0.0.1", "P2PHANDSHAKE", 4 * MIB, 0, "tcp", "", "embedded", object()), 0
        )


class TestLmcache(StoreCase):
    def test_sequence(self):
        config = ReplicateConfig()
        config.replica_num = 1
        config.preferred_segment = self.store.get_hostname()
        pool = self.buffer(pattern(5, 4 * 64 * 1024))
        ptrs, sizes = pool.parts(4)
        keys = [f"model@1@0@{i:016x}@bfloat16" for i in range(4)]

        self.assertFalse(self.store.is_exist(keys[0]))
        self.assertEqual(self.store.put_from(keys[0], ptrs[0], sizes[0], config), 0)
        self.assertTrue(self.store.is_exist(keys[0]))
        self.assertEqual(self.store.batch_put_from(keys, ptrs, sizes, config), [0] * 4)

        target = self.buffer(pool.size)
        tptrs, _ = target.parts(4)
        self.assertEqual(self.store.batch_get_into(keys, tptrs, sizes), sizes)
        self.assertEqual(target.bytes(), pool.bytes())
        self.assertLessEqual(self.store.batch_get_into(["absent"], tptrs[:1], sizes[:1])[0], 0)


class TestSglang(StoreCase):
    def test_unknown_keywords_are_dropped_by_their_name(self):
        store = MooncakeDistributedStore()
        self.addCleanup(store.close)
        seven = ("127.0.0.1", "P2PHANDSHAKE", 4 * MIB, MIB, "tcp", "", "embedded")
        optional = {"some_new_option": 1, "tenant_id": "default", "another_option": "x"}
        for _ in range(len(optional) + 1):
            try:
                result = store.setup(*seven, **optional)
                break
            except TypeError as error:
                named = [name for name in optional if name in str(error)]
                self.assertEqual(len(named), 1, str(error))
                del optional[named[0]]
        self.assertEqual(result, 0)
        self.assertEqual(list(optional), ["tenant_id"])

    def test_warm_up_and_pages(self):
        key, value = "sglang_warmup_" + uuid.uuid4().hex, bytes(4096)
        self.assertEqual(self.store.put(key, value), 0)
        self.assertEqual(self.store.is_exist(key), 1)
        self.assertEqual(self.store.get(key), value)

        pages = 3
        keys = [f"{page:08x}_0_{part}" for page in range(pages) for part in "kv"]
        host = self.buffer(pattern(8, len(keys) * 32 * 1024))
        ptrs, sizes = host.parts(len(keys))
        self.assertEqual(self.store.batch_is_exist(keys), [0] * len(keys))
        self.assertEqual(self.store.batch_put_from(keys, ptrs, sizes), [0] * len(keys))
        target = self.buffer(host.size)
        tptrs, _ = target.parts(len(keys))
        self.assertEqual(self.store.batch_get_into(keys, tptrs, sizes), sizes)
        self.assertEqual(target.bytes(), host.bytes())
        self.assertEqual(self.store.remove_all(), 0)  # all have a read lease
        self.assertEqual(self.store.remove_all(force=True), len(keys) + 1)

    def test_group_ids_are_a_hint(self):
        self.assertTrue(hasattr(ReplicateConfig, "group_ids"))
        buffer = self.buffer(pattern(1, 2048))
        config = ReplicateConfig()
        config.group_ids = ["page0", "page0"]
        ptrs, sizes = buffer.parts(2)
        self.assertEqual(self.store.batch_put_from(["0_k", "0_v"], ptrs, sizes, config), [0, 0])
        self.assertEqual(self.store.get("0_k") + self.store.get("0_v"), pattern(1, 2048))


if __name__ == "__main__":
    unittest.main()
