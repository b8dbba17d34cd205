# SPDX-License-Identifier: Apache-2.0
"""What every call returns: the table of return conventions, its error rows included."""

import unittest

import support
from mooncake.store import MooncakeDistributedStore, ReplicaStatus, ReplicateConfig, SoftPinAction
from support import FULL, HAS_LEASE, INVALID_PARAMS, MIB, NOT_FOUND, NOT_SUPPORTED, Buffer, StoreCase, pattern

LONE_SURROGATE = "layer.\ud800.req"
NUL_KEY = "layer\0req"
BAD_KEYS = [LONE_SURROGATE, NUL_KEY, "", "k" * 4097]


class TestNotSetUp(unittest.TestCase):
    def setUp(self):
        self.store = MooncakeDistributedStore()
        self.buffer = Buffer(64)

    def check(self):
        store, ptr = self.store, self.buffer.ptr
        self.assertEqual(store.health_check(), 1)
        self.assertEqual(store.get_hostname(), "")
        self.assertEqual(store.put("k", b"v"), INVALID_PARAMS)
        self.assertEqual(store.put_from("k", ptr, 8), INVALID_PARAMS)
        self.assertEqual(store.batch_put_from(["k", "l"], [ptr, ptr], [8, 8]), [INVALID_PARAMS] * 2)
        self.assertEqual(store.batch_put_from_multi_buffers(["k", "l"], [[ptr], [ptr]], [[8], [8]]), [])
        self.assertEqual(store.get("k"), b"")
        self.assertEqual(store.get_into("k", ptr, 8), INVALID_PARAMS)
        self.assertEqual(store.batch_get_into(["k"], [ptr], [8]), [INVALID_PARAMS])
        self.assertEqual(store.batch_get_into_multi_buffers(["k"], [[ptr]], [[8]]), [INVALID_PARAMS])
        self.assertLessEqual(store.is_exist("k"), 0)
        self.assertEqual(store.batch_is_exist(["k", "l"]), [INVALID_PARAMS] * 2)
        self.assertLess(store.get_size("k"), 0)
        self.assertLess(store.remove("k"), 0)
        self.assertLess(store.remove_all(), 0)
        self.assertLess(store.register_buffer(ptr, 64), 0)
        self.assertLess(store.unregister_buffer(ptr), 0)
        self.assertEqual(store.get_replica_desc("k"), [])
        self.assertEqual(store.batch_get_replica_desc(["k"]), {})

    def test_before_setup(self):
        self.check()
        self.assertEqual(self.store.close(), 0)

    def test_after_close(self):
        self.assertEqual(support.setup_embedded(self.store), 0)
        self.assertEqual(self.store.health_check(), 0)
        self.assertEqual(self.store.close(), 0)
        self.check()
        self.assertEqual(self.store.close(), 0)


class TestSetup(unittest.TestCase):
    SEVEN = ("127.0.0.1", "P2PHANDSHAKE", 2 * MIB, MIB, "tcp", "", "embedded")
    DICT = dict(
        zip(
            "local_hostname metadata_server global_segment_size local_buffer_size protocol rdma_devices "
            "master_server_addr".split(),
            SEVEN,
        )
    )

    def setUp(self):
        self.store = MooncakeDistributedStore()
        self.addCleanup(self.store.close)

    def assert_works(self):
        self.assertEqual(self.store.put("k", b"value"), 0)
        self.assertEqual(self.store.get("k"), b"value")
        host, _, port = self.store.get_hostname().rpartition(":")
        self.assertEqual(host, "127.0.0.1")
        self.assertGreater(int(port), 0)

    def test_seven_positionals(self):
        self.assertEqual(self.store.setup(*self.SEVEN), 0)
        self.assert_works()

    def test_all_keywords(self):
        self.assertEqual(
            self.store.setup(
                **self.DICT, engine=None, enable_ssd_offload=False, ssd_offload_path="", tenant_id="default",
                enable_client_http_server=False, client_http_port=9300,
            ),
            0,
        )
        self.assert_works()

    def test_engine_is_ignored(self):
        self.assertEqual(self.store.setup(*self.SEVEN, object()), 0)
        self.assert_works()

    def test_dict_with_texts(self):
        self.assertEqual(
            self.store.setup(dict(self.DICT, global_segment_size="16 MB", local_buffer_size=str(MIB))), 0
        )
        self.assert_works()

    def test_dict_by_name_and_with_defaults(self):
        config = dict(self.DICT)
        for name in ("global_segment_size", "local_buffer_size", "protocol", "rdma_devices"):
            del config[name]
        self.assertEqual(self.store.setup(config=dict(config, unknown_name=1, tenant_id=None)), 0)
        self.assertEqual(self.store.put("big", bytes(8 * MIB)), 0)  # 16 MB each are the defaults

    def test_bad_values_of_the_dict(self):
        for change in (
            {"global_segment_size": "50%"}, {"global_segment_size": ""}, {"local_buffer_size": "-1"},
            {"local_buffer_size": "12 parsecs"}, {"enable_ssd_offload": "perhaps"}, {"global_segment_size": 1023},
            {"local_buffer_size": (1 << 40) + 1},
        ):
            with self.subTest(change):
                self.assertEqual(self.store.setup(dict(self.DICT, **change)), INVALID_PARAMS)
        for missing in ("local_hostname", "metadata_server"):
            config = dict(self.DICT)
            del config[missing]
            self.assertEqual(self.store.setup(config), INVALID_PARAMS)
        self.assertEqual(self.store.setup({}), INVALID_PARAMS)
        with self.assertRaisesRegex(TypeError, "local_hostname must be a str, not int"):
            self.store.setup(dict(self.DICT, local_hostname=1))
        with self.assertRaisesRegex(TypeError, "names in the dict must be str"):
            self.store.setup({1: 2})
        self.assertEqual(self.store.setup(self.DICT), 0)

    def test_bad_positionals(self):
        with self.assertRaisesRegex(TypeError, "global_segment_size must be an int, not str"):
            self.store.setup("127.0.0.1", "P2PHANDSHAKE", "16MB", MIB, "tcp", "", "embedded")
        with self.assertRaisesRegex(TypeError, "protocol must be a str without NUL"):
            self.store.setup("127.0.0.1", "P2PHANDSHAKE", MIB, MIB, "t\0cp", "", "embedded")
        self.assertEqual(self.store.setup("127.0.0.1", "P2PHANDSHAKE", 1, MIB, "tcp", "", "embedded"), INVALID_PARAMS)
        self.assertEqual(self.store.health_check(), 1)

    def test_what_is_not_supported(self):
        for change in (
            {"enable_ssd_offload": True}, {"enable_client_http_server": True}, {"tenant_id": "other"},
        ):
            self.assertEqual(self.store.setup(*self.SEVEN, **change), NOT_SUPPORTED, change)
            self.assertEqual(self.store.setup(dict(self.DICT, **change)), NOT_SUPPORTED, change)
        self.assertEqual(self.store.setup(dict(self.DICT, enable_ssd_offload="true")), NOT_SUPPORTED)
        self.assertEqual(self.store.setup(dict(self.DICT, ipc_socket_path="@x")), NOT_SUPPORTED)
        self.assertEqual(self.store.setup(*self.SEVEN, enable_ssd_offload=False, tenant_id="default"), 0)

    def test_twice(self):
        self.assertEqual(self.store.setup(*self.SEVEN), 0)
        self.assertEqual(self.store.setup(*self.SEVEN), INVALID_PARAMS)
        self.assert_works()

    def test_again_after_close(self):
        for _ in range(2):
            self.assertEqual(self.store.setup(*self.SEVEN), 0)
            self.assert_works()
            self.assertEqual(self.store.close(), 0)

    def test_no_master(self):
        address = f"127.0.0.1:{support.free_port()}"
        self.assertIn(self.store.setup("127.0.0.1", "P2PHANDSHAKE", MIB, MIB, "tcp", "", address), (-900, -901))
        self.assertEqual(self.store.health_check(), 1)


class TestPut(StoreCase):
    def test_put_and_duplicate(self):
        self.assertEqual(self.store.put("k", b"first"), 0)
        self.assertEqual(self.store.put("k", b"second, longer"), 0)
        self.assertEqual(self.store.get("k"), b"first")
        self.assertEqual(self.store.get_size("k"), 5)

    def test_values(self):
        for i, value in enumerate((bytearray(b"abc"), memoryview(b"xabcx")[1:4], b"abc", Buffer(b"abc")._memory)):
            self.assertEqual(self.store.put(f"k{i}", value), 0)
            self.assertEqual(self.store.get(f"k{i}")[:3], b"abc")
        self.assertEqual(self.store.put("empty", b""), INVALID_PARAMS)
        self.assertEqual(self.store.is_exist("empty"), 0)

    def test_put_from(self):
        buffer = self.buffer(pattern(1, 4096))
        self.assertEqual(self.store.put_from("k", buffer.ptr, 4096), 0)
        self.assertEqual(self.store.get("k"), pattern(1, 4096))
        self.assertEqual(self.store.put_from("zero", buffer.ptr, 0), 0)
        self.assertEqual(self.store.is_exist("zero"), 0)

    def test_batch_put_from(self):
        buffer = self.buffer(pattern(2, 4096))
        keys = [f"k{i}" for i in range(4)]
        self.assertEqual(self.store.batch_put_from(keys, *buffer.parts(4)), [0] * 4)
        for i, key in enumerate(keys):
            self.assertEqual(self.store.get(key), pattern(2, 4096)[i * 1024 : (i + 1) * 1024])

    def test_multi_concatenates(self):
        buffer = self.buffer(b"0123456789abcdef")
        ptrs = [[buffer.ptr + 8, buffer.ptr], [buffer.ptr + 15]]
        self.assertEqual(self.store.batch_put_from_multi_buffers(["a", "b"], ptrs, [[4, 2], [1]]), [0, 0])
        self.assertEqual((self.store.get("a"), self.store.get("b")), (b"89ab01", b"f"))

    def test_full(self):
        buffer = self.buffer(6 * MIB)
        results = self.store.batch_put_from(["a", "b", "c", "d"], [buffer.ptr] * 4, [6 * MIB] * 4)
        self.assertEqual(results.count(0), 2)
        self.assertEqual(results.count(FULL), 2)
        self.assertEqual(self.store.put_from("one more", buffer.ptr, 6 * MIB), FULL)

    def test_config_statuses(self):
        buffer = self.buffer(64)

        def put(**attributes):
            config = ReplicateConfig()
            for name, value in attributes.items():
                setattr(config, name, value)
            key = f"k{attributes}"
            single = self.store.put(key, b"v", config)
            self.assertEqual(self.store.put_from(key, buffer.ptr, 8, config), single)
            self.assertEqual(self.store.batch_put_from([key], [buffer.ptr], [8], config), [single])
            multi = self.store.batch_put_from_multi_buffers([key], [[buffer.ptr]], [[8]], config)
            return single, multi[0]

        for attributes in (
            {"nof_replica_num": 1}, {"dfs_replica_num": 1}, {"preferred_nof_segments": ["x"]},
        ):
            self.assertEqual(put(**attributes), (NOT_SUPPORTED, NOT_SUPPORTED), attributes)
        for attributes in (
            {"replica_num": 0}, {"replica_num": 2**40}, {"soft_pin_ttl_ms": 5},
            {"preferred_segments": ["x" * 5000]},
        ):
            self.assertEqual(put(**attributes), (INVALID_PARAMS, INVALID_PARAMS), attributes)
        self.assertEqual(put(prefer_alloc_in_same_node=True), (INVALID_PARAMS, 0))
        for attributes in (
            {}, {"replica_num": 2}, {"with_hard_pin": True}, {"group_ids": ["g"]},
            {"soft_pin_action": SoftPinAction.ENABLE, "soft_pin_ttl_ms": 1000},
            {"preferred_segments": ["nowhere:1", self.store.get_hostname()]},
            {"preferred_segment": self.store.get_hostname()},
        ):
            self.assertEqual(put(**attributes), (0, 0), attributes)

    def test_no_local_buffer(self):
        store = MooncakeDistributedStore()
        self.addCleanup(store.close)
        self.assertEqual(support.setup_embedded(store, local=0), 0)
        self.assertEqual(store.put("k", b"v"), INVALID_PARAMS)
        buffer = Buffer(b"value")
        self.assertEqual(store.register_buffer(buffer.ptr, buffer.size), 0)
        self.assertEqual(store.put_from("k", buffer.ptr, buffer.size), 0)


class TestGet(StoreCase):
    def setUp(self):
        super().setUp()
        self.values = {f"k{i}": pattern(i, 1000 + i) for i in range(4)}
        for key, value in self.values.items():
            self.assertEqual(self.store.put(key, value), 0)

    def test_get(self):
        for key, value in self.values.items():
            self.assertEqual(self.store.get(key), value)
        self.assertEqual(self.store.get("absent"), b"")
        self.assertEqual(self.store.put("one", b"\x07"), 0)
        self.assertEqual(self.store.get("one"), b"\x07")

    def test_get_into(self):
        buffer = self.buffer(2000)
        self.assertEqual(self.store.get_into("k1", buffer.ptr, 2000), 1001)
        self.assertEqual(buffer.bytes(0, 1001), self.values["k1"])
        self.assertEqual(buffer.bytes(1001), bytes(999))
        self.assertEqual(self.store.get_into("k1", buffer.ptr, 1000), INVALID_PARAMS)
        self.assertEqual(self.store.get_into("absent", buffer.ptr, 1000), NOT_FOUND)

    def test_batch_get_into(self):
        buffer = self.buffer(8000)
        keys = ["k0", "absent", "k2", "k3"]
        ptrs = [buffer.ptr + 2000 * i for i in range(4)]
        self.assertEqual(
            self.store.batch_get_into(keys, ptrs, [2000, 2000, 1002, 1002]), [1000, NOT_FOUND, 1002, INVALID_PARAMS]
        )
        self.assertEqual(buffer.bytes(0, 1000), self.values["k0"])
        self.assertEqual(buffer.bytes(4000, 1002), self.values["k2"])

    def test_multi_scatters(self):
        buffer = self.buffer(2000)
        ptrs = [[buffer.ptr + 1500, buffer.ptr, buffer.ptr + 1000], [buffer.ptr]]
        results = self.store.batch_get_into_multi_buffers(["k1", "absent"], ptrs, [[500, 500, 500], [10]])
        self.assertEqual(results, [1001, NOT_FOUND])
        whole = buffer.bytes(1500, 500) + buffer.bytes(0, 500) + buffer.bytes(1000, 1)
        self.assertEqual(whole, self.values["k1"])
        too_small = self.store.batch_get_into_multi_buffers(["k1", "k0"], [[buffer.ptr], [buffer.ptr]], [[1000], [1000]])
        self.assertEqual(too_small, [INVALID_PARAMS, 1000])


class TestQuestions(StoreCase):
    def test_exist_and_size(self):
        self.assertEqual(self.store.put("k", bytes(77)), 0)
        self.assertEqual((self.store.is_exist("k"), self.store.is_exist("absent")), (1, 0))
        self.assertEqual(self.store.batch_is_exist(["absent", "k", "k"]), [0, 1, 1])
        self.assertEqual((self.store.get_size("k"), self.store.get_size("absent")), (77, NOT_FOUND))

    def test_remove(self):
        self.assertEqual(self.store.put("k", b"v"), 0)
        self.assertEqual(self.store.remove("k"), 0)
        self.assertEqual(self.store.remove("k"), NOT_FOUND)
        self.assertEqual(self.store.put("leased", b"v"), 0)
        self.assertEqual(self.store.is_exist("leased"), 1)
        self.assertEqual(self.store.remove("leased"), HAS_LEASE)
        self.assertEqual(self.store.remove("leased", True), 0)

    def test_remove_all(self):
        self.assertEqual(self.store.remove_all(), 0)
        for i in range(5):
            self.assertEqual(self.store.put(f"k{i}", b"v"), 0)
        self.assertEqual(self.store.batch_is_exist(["k0", "k1"]), [1, 1])
        self.assertEqual(self.store.remove_all(), 3)
        self.assertEqual(self.store.remove_all(force=True), 2)
        self.assertEqual(self.store.batch_is_exist([f"k{i}" for i in range(5)]), [0] * 5)

    def test_replica_descriptors(self):
        self.assertEqual(self.store.put("a", bytes(10)), 0)
        self.assertEqual(self.store.put("b", bytes(20)), 0)
        found = self.store.batch_get_replica_desc(["a", "absent", "b", "a", NUL_KEY])
        self.assertEqual(list(found), ["a", "b"])
        for key, size in (("a", 10), ("b", 20)):
            (replica,) = found[key]
            self.assertIs(replica.status, ReplicaStatus.COMPLETE)
            self.assertTrue(replica.is_memory_replica())
            self.assertFalse(replica.is_disk_replica() or replica.is_local_disk_replica())
            buffer = replica.get_memory_descriptor().buffer_descriptor
            self.assertEqual((buffer.size, buffer.size_), (size, size))
            self.assertEqual(buffer.transport_endpoint, self.store.get_hostname())
            self.assertEqual(buffer.transport_endpoint_, buffer.transport_endpoint)
            self.assertEqual(buffer.buffer_address, buffer.buffer_address_)
            self.assertGreater(buffer.buffer_address, 0)
            self.assertIn(self.store.get_hostname(), repr(replica))
            with self.assertRaises(RuntimeError):
                replica.get_disk_descriptor()
            with self.assertRaises(RuntimeError):
                replica.get_local_disk_descriptor()
            with self.assertRaises(AttributeError):
                replica.status = ReplicaStatus.FAILED
            with self.assertRaises(TypeError):
                type(replica)()
        self.assertEqual(len(self.store.get_replica_desc("a")), 1)
        self.assertEqual(self.store.get_replica_desc("absent"), [])

    def test_register_buffer(self):
        buffer = Buffer(4096)
        self.assertEqual(self.store.register_buffer(buffer.ptr, 4096), 0)
        self.assertEqual(self.store.register_buffer(buffer.ptr + 1024, 1024), INVALID_PARAMS)
        self.assertEqual(self.store.unregister_buffer(buffer.ptr + 1024), INVALID_PARAMS)
        self.assertEqual(self.store.unregister_buffer(buffer.ptr), 0)
        self.assertEqual(self.store.unregister_buffer(buffer.ptr), INVALID_PARAMS)
        self.assertEqual(self.store.register_buffer(0, 1024), INVALID_PARAMS)
        self.assertEqual(self.store.register_buffer(buffer.ptr, 0), INVALID_PARAMS)


class TestBadInput(StoreCase):
    """A bad key or object fails alone; lists that do not match fail whole."""

    def test_bad_keys_fail_alone(self):
        buffer = self.buffer(64)
        keys = ["good", *BAD_KEYS]
        n = len(BAD_KEYS)
        expected = [0] + [INVALID_PARAMS] * n
        self.assertEqual(
            self.store.batch_put_from_multi_buffers(keys, [[buffer.ptr]] * (n + 1), [[8]] * (n + 1)), expected
        )
        self.assertEqual(self.store.batch_put_from(keys, [buffer.ptr] * (n + 1), [8] * (n + 1)), expected)
        expected[0] = 1
        self.assertEqual(self.store.batch_is_exist(keys), expected)
        expected[0] = 8
        self.assertEqual(
            self.store.batch_get_into_multi_buffers(keys, [[buffer.ptr]] * (n + 1), [[8]] * (n + 1)), expected
        )
        self.assertEqual(self.store.batch_get_into(keys, [buffer.ptr] * (n + 1), [8] * (n + 1)), expected)
        self.assertEqual(list(self.store.batch_get_replica_desc(keys)), ["good"])

    def test_bad_keys_of_single_calls(self):
        buffer = self.buffer(64)
        for key in BAD_KEYS:
            self.assertEqual(self.store.put(key, b"v"), INVALID_PARAMS)
            self.assertEqual(self.store.put_from(key, buffer.ptr, 8), INVALID_PARAMS)
            self.assertEqual(self.store.get(key), b"")
            self.assertEqual(self.store.get_into(key, buffer.ptr, 8), INVALID_PARAMS)
            self.assertEqual(self.store.get_size(key), INVALID_PARAMS)
            self.assertEqual(self.store.remove(key), INVALID_PARAMS)
            self.assertLessEqual(self.store.is_exist(key), 0)
            self.assertEqual(self.store.get_replica_desc(key), [])

    def test_unicode_and_longest_keys(self):
        for key in ("schlüssel", "键", "🗝", "k" * 4096, "space tab\t newline\n"):
            self.assertEqual(self.store.put(key, key.encode()), 0)
            self.assertEqual(self.store.get(key), key.encode())
        self.assertEqual(self.store.put("é" * 2049, b"v"), INVALID_PARAMS)  # 4098 bytes

    def test_lengths_differ(self):
        p = self.buffer(64).ptr
        three = ["a", "b", "c"]
        bad = [INVALID_PARAMS] * 3
        for ptrs, sizes in (([p], [1, 1, 1]), ([p, p, p], [1]), ([p] * 4, [1] * 4), ([], [])):
            self.assertEqual(self.store.batch_put_from(three, ptrs, sizes), bad)
            self.assertEqual(self.store.batch_get_into(three, ptrs, sizes), bad)
            ptrs, sizes = [[x] for x in ptrs], [[x] for x in sizes]
            self.assertEqual(self.store.batch_put_from_multi_buffers(three, ptrs, sizes), bad)
            self.assertEqual(self.store.batch_get_into_multi_buffers(three, ptrs, sizes), bad)
        self.assertEqual(self.store.batch_is_exist(three), [0, 0, 0])

    def test_inner_lengths_differ(self):
        p = self.buffer(64).ptr
        keys = ["a", "b", "c"]
        ptrs, sizes = [[p, p], [p, p], [p]], [[1, 1], [1], [1]]
        self.assertEqual(self.store.batch_put_from_multi_buffers(keys, ptrs, sizes), [0, INVALID_PARAMS, 0])
        self.assertEqual(self.store.batch_get_into_multi_buffers(keys, ptrs, sizes), [2, INVALID_PARAMS, 1])

    def test_nothing_and_too_much_in_an_object(self):
        p = self.buffer(64).ptr
        self.assertEqual(
            self.store.batch_put_from_multi_buffers(
                ["a", "b", "c", "d"], [[], [p], [p, p], [p, p]], [[], [0], [2**63, 2**63], [1, 0]]
            ),
            [INVALID_PARAMS, INVALID_PARAMS, INVALID_PARAMS, 0],
        )
        self.assertEqual(self.store.get_size("d"), 1)

    def test_empty_lists(self):
        self.assertEqual(self.store.batch_is_exist([]), [])
        self.assertEqual(self.store.batch_put_from([], [], []), [])
        self.assertEqual(self.store.batch_get_into([], [], []), [])
        self.assertEqual(self.store.batch_put_from_multi_buffers([], [], []), [])
        self.assertEqual(self.store.batch_get_into_multi_buffers([], [], []), [])
        self.assertEqual(self.store.batch_get_replica_desc([]), {})

    def test_sequences_of_other_kinds(self):
        import array
        import collections

        class Address:
            def __init__(self, value):
                self.value = value

            def __index__(self):
                return self.value

        buffer = self.buffer(b"0123456789abcdef")
        keys = ("a", "b")
        ptrs = collections.deque([array.array("Q", [buffer.ptr, buffer.ptr + 4]), (Address(buffer.ptr + 8),)])
        sizes = (range(4, 6), [True])
        self.assertEqual(self.store.batch_put_from_multi_buffers(keys, ptrs, sizes), [0, 0])
        self.assertEqual((self.store.get("a"), self.store.get("b")), (b"012345678", b"8"))


if __name__ == "__main__":
    unittest.main()
