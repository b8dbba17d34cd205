# SPDX-License-Identifier: Apache-2.0
"""Names, signatures, defaults and type checks: what callers see before a store is set up."""

import inspect
import sys
import unittest
import weakref

import support  # noqa: F401
import kvprobe.store
import mooncake.store
from mooncake.store import MooncakeDistributedStore, ObjectDataType, ReplicaStatus, ReplicateConfig, SoftPinAction

SIGNATURES = {
    "setup": "local_hostname metadata_server global_segment_size local_buffer_size protocol rdma_devices "
    "master_server_addr engine=None enable_ssd_offload=False ssd_offload_path='' tenant_id='default' "
    "enable_client_http_server=False client_http_port=9300",
    "close": "",
    "health_check": "",
    "get_hostname": "",
    "register_buffer": "buffer_ptr size",
    "unregister_buffer": "buffer_ptr",
    "put": "key value config=None",
    "put_from": "key buffer_ptr size config=None",
    "batch_put_from": "keys buffer_ptrs sizes config=None",
    "batch_put_from_multi_buffers": "keys all_buffer_ptrs all_sizes config=None",
    "get": "key",
    "get_into": "key buffer_ptr size",
    "batch_get_into": "keys buffer_ptrs sizes",
    "batch_get_into_multi_buffers": "keys all_buffer_ptrs all_sizes prefer_alloc_in_same_node=False",
    "is_exist": "key",
    "batch_is_exist": "keys",
    "get_size": "key",
    "remove": "key force=False",
    "remove_all": "force=False",
    "get_replica_desc": "key",
    "batch_get_replica_desc": "keys",
}


class TestModule(unittest.TestCase):
    def test_both_names_hold_the_same_objects(self):
        for name in kvprobe.store.__all__:
            self.assertIs(getattr(mooncake.store, name), getattr(kvprobe.store, name), name)

    def test_found_without_any_path_but_the_packages(self):
        done = support.run_python(
            "import sys, mooncake.store, kvprobe.store\n"
            "print(mooncake.store.MooncakeDistributedStore is kvprobe.store.MooncakeDistributedStore)",
            LD_LIBRARY_PATH="",
        )
        self.assertEqual((done.returncode, done.stdout), (0, "True\n"), done.stderr)

    def test_stable_abi(self):
        self.assertTrue(sys.modules["kvprobe._store"].__file__.endswith(".abi3.so"))

    def test_status_table(self):
        self.assertEqual(mooncake.store.STATUS[0], "ok")
        for code in (-1, -200, -600, -704, -706, -707, -800, -900, -901, -1012):
            self.assertTrue(mooncake.store.STATUS[code])


class TestSignatures(unittest.TestCase):
    def test_every_method(self):
        methods = {n for n in vars(MooncakeDistributedStore) if not n.startswith("_")}
        self.assertEqual(methods, set(SIGNATURES))
        for name, expected in SIGNATURES.items():
            parameters = list(inspect.signature(getattr(MooncakeDistributedStore, name)).parameters.values())[1:]
            text = " ".join(
                p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters
            )
            self.assertEqual(text, expected, name)

    def test_bound_signature_and_docstring_name_the_keywords(self):
        setup = MooncakeDistributedStore().setup
        for name in SIGNATURES["setup"].split():
            name = name.partition("=")[0]
            self.assertIn(name, inspect.signature(setup).parameters)
        self.assertIn("enable_ssd_offload", setup.__doc__)

    def test_every_method_is_documented(self):
        for name in SIGNATURES:
            self.assertGreater(len(getattr(MooncakeDistributedStore, name).__doc__ or ""), 20, name)

    def test_all_arguments_by_name(self):
        store = MooncakeDistributedStore()
        self.assertEqual(store.batch_is_exist(keys=["k"]), [-600])
        self.assertEqual(store.get(key="k"), b"")
        self.assertEqual(store.put(key="k", value=b"v", config=ReplicateConfig()), -600)
        self.assertEqual(store.put_from(key="k", buffer_ptr=4096, size=8, config=None), -600)
        self.assertEqual(store.batch_put_from(keys=["k"], buffer_ptrs=[4096], sizes=[8], config=None), [-600])
        self.assertEqual(
            store.batch_put_from_multi_buffers(keys=["k"], all_buffer_ptrs=[[1]], all_sizes=[[1]], config=None), []
        )
        self.assertEqual(store.get_into(key="k", buffer_ptr=4096, size=8), -600)
        self.assertEqual(store.batch_get_into(keys=["k"], buffer_ptrs=[4096], sizes=[8]), [-600])
        self.assertEqual(
            store.batch_get_into_multi_buffers(
                keys=["k"], all_buffer_ptrs=[[1]], all_sizes=[[1]], prefer_alloc_in_same_node=True
            ),
            [-600],
        )
        self.assertLess(store.remove(key="k", force=True), 0)
        self.assertLess(store.remove_all(force=True), 0)
        self.assertEqual(store.batch_get_replica_desc(keys=["k"]), {})
        self.assertEqual(store.get_replica_desc(key="k"), [])
        self.assertLess(store.get_size(key="k"), 0)
        self.assertLess(store.register_buffer(buffer_ptr=4096, size=8), 0)
        self.assertLess(store.unregister_buffer(buffer_ptr=4096), 0)

    def test_what_is_not_there_yet_is_absent(self):
        for name in ("put_parts", "upsert", "get_buffer", "batch_remove", "remove_by_regex", "setup_dummy"):
            self.assertFalse(hasattr(MooncakeDistributedStore, name), name)

    def test_can_be_subclassed_and_weakly_referenced(self):
        class Mine(MooncakeDistributedStore):
            pass

        store = Mine()
        reference = weakref.ref(store)
        self.assertEqual(store.health_check(), 1)
        del store
        self.assertIsNone(reference())


class TestArgumentErrors(unittest.TestCase):
    def setUp(self):
        self.store = MooncakeDistributedStore()

    def raises(self, text, method, *args, **kwargs):
        with self.assertRaises(TypeError) as caught:
            getattr(self.store, method)(*args, **kwargs)
        self.assertIn(text, str(caught.exception))

    def test_unknown_keyword_is_named(self):
        seven = ("h", "m", 0, 0, "tcp", "", "embedded")
        self.raises("'not_a_keyword'", "setup", *seven, not_a_keyword=1)
        self.raises("'config2'", "put", "k", b"v", config2=None)
        self.raises("'force_'", "remove_all", force_=True)

    def test_missing_and_superfluous(self):
        self.raises("'master_server_addr'", "setup", "h", "m", 0, 0, "tcp", "")
        self.raises("'value'", "put", "k")
        self.raises("multiple values for argument 'key'", "get", "k", key="k")
        self.raises("takes at most 1 argument (2 given)", "get", "k", "x")
        with self.assertRaises(TypeError):
            MooncakeDistributedStore(1)
        with self.assertRaises(TypeError):
            ReplicateConfig(replica_num=1)

    def test_keys(self):
        self.raises("key must be a str, not bytes", "get", b"k")
        self.raises("key must be a str, not NoneType", "put", None, b"v")
        self.raises("keys must be a sequence of str, not str", "batch_is_exist", "abc")
        self.raises("keys must be a sequence of str, not bytes", "batch_is_exist", b"abc")
        self.raises("keys must be a sequence of str, not dict", "batch_is_exist", {"a": 1})
        self.raises("keys[1] must be a str, not int", "batch_is_exist", ["a", 1])
        self.raises("key must be a str, not list", "get_replica_desc", ["a"])

    def test_pointers_and_sizes(self):
        self.raises("buffer_ptr must be an int, not str", "register_buffer", "1", 1)
        self.raises("buffer_ptr must be an int from 0 to 2**64-1", "register_buffer", -1, 1)
        self.raises("size must be an int from 0 to 2**64-1", "get_into", "k", 1, 2**64)
        self.raises("sizes[0] must be an int, not float", "batch_get_into", ["k"], [1], [1.0])
        multi = "batch_put_from_multi_buffers"
        self.raises("all_buffer_ptrs[0] must be a sequence of int, not int", multi, ["k"], [1], [1])
        self.raises("all_buffer_ptrs[1][2] must be an int, not NoneType", multi, ["k", "l"],
                    [[1], [1, 2, None]], [[1], [1, 2, 3]])
        self.raises("all_sizes[0][1] must be an int from 0 to 2**64-1", multi, ["k"], [[1, 2]], [[1, -1]])
        self.raises("all_sizes[0] must be a sequence of int, not bytes", multi, ["k"], [[1, 2]], [b"ab"])
        self.raises("all_buffer_ptrs must be a sequence of sequences of int, not NoneType", multi, ["k"], None, [[1]])

    def test_config_and_value(self):
        self.raises("config must be a ReplicateConfig, not dict", "put", "k", b"v", {})
        self.raises("value must be bytes-like, not str", "put", "k", "v")
        with self.assertRaises(BufferError):
            self.store.put("k", memoryview(b"abcdef")[::2])

    def test_exceptions_of_the_callers_objects_pass_through(self):
        class Bad:
            def __index__(self):
                raise KeyError("from __index__")

            def __bool__(self):
                raise KeyError("from __bool__")

        with self.assertRaisesRegex(KeyError, "from __index__"):
            self.store.register_buffer(Bad(), 1)
        with self.assertRaisesRegex(KeyError, "from __index__"):
            self.store.batch_get_into(["k"], [Bad()], [1])
        with self.assertRaisesRegex(KeyError, "from __bool__"):
            self.store.remove_all(Bad())


class TestReplicateConfig(unittest.TestCase):
    def test_defaults(self):
        config = ReplicateConfig()
        self.assertEqual(config.replica_num, 1)
        self.assertEqual(config.nof_replica_num, 0)
        self.assertEqual(config.dfs_replica_num, 0)
        self.assertIs(config.soft_pin_action, SoftPinAction.PRESERVE)
        self.assertIsNone(config.soft_pin_ttl_ms)
        self.assertIs(config.with_hard_pin, False)
        self.assertEqual(config.preferred_segments, [])
        self.assertEqual(config.preferred_segment, "")
        self.assertEqual(config.preferred_nof_segments, [])
        self.assertIs(config.prefer_alloc_in_same_node, False)
        self.assertIs(config.data_type, ObjectDataType.UNKNOWN)
        self.assertIsNone(config.group_ids)
        self.assertFalse(hasattr(config, "with_soft_pin"))

    def test_values_stay(self):
        values = {
            "replica_num": 3, "nof_replica_num": 1, "dfs_replica_num": 2, "soft_pin_action": SoftPinAction.ENABLE,
            "soft_pin_ttl_ms": 2**64 - 1, "with_hard_pin": True, "preferred_segments": ["10.0.0.1:1", "h:2"],
            "preferred_segment": "h:3", "preferred_nof_segments": ["n"], "prefer_alloc_in_same_node": True,
            "data_type": ObjectDataType.KVCACHE, "group_ids": ["g1", "g2"],
        }
        config = ReplicateConfig()
        for name, value in values.items():
            setattr(config, name, value)
        for name, value in values.items():
            self.assertEqual(getattr(config, name), value, name)
        for text in ("replica_num=3", "ENABLE", str(2**64 - 1), "with_hard_pin=True", "10.0.0.1:1", "h:3", "KVCACHE",
                     "g2"):
            self.assertIn(text, str(config))
        config.soft_pin_ttl_ms = None
        config.group_ids = None
        self.assertIsNone(config.soft_pin_ttl_ms)
        self.assertIsNone(config.group_ids)

    def test_lists_are_copies(self):
        config = ReplicateConfig()
        names = ["a:1"]
        config.preferred_segments = names
        names.append("b:2")
        config.preferred_segments.append("c:3")
        self.assertEqual(config.preferred_segments, ["a:1"])

    def test_type_checks(self):
        config = ReplicateConfig()
        for name, value in (
            ("soft_pin_ttl_ms", -1), ("soft_pin_ttl_ms", 2**64), ("soft_pin_ttl_ms", "1"), ("replica_num", -1),
            ("replica_num", "1"), ("replica_num", None), ("with_hard_pin", 1), ("with_hard_pin", None),
            ("prefer_alloc_in_same_node", "yes"), ("preferred_segments", "h:1"), ("preferred_segments", [1]),
            ("preferred_segment", 1), ("preferred_segment", None), ("group_ids", "g"), ("group_ids", [None]),
            ("data_type", "KVCACHE"), ("soft_pin_action", None), ("preferred_nof_segments", 3),
        ):
            with self.subTest(name=name, value=value), self.assertRaises(TypeError) as caught:
                setattr(config, name, value)
            self.assertIn(name, str(caught.exception))
        for name in ("soft_pin_action", "data_type"):
            with self.assertRaises(ValueError):
                setattr(config, name, 99)
        with self.assertRaises(AttributeError):
            del config.replica_num
        with self.assertRaises(AttributeError):
            config.unknown = 1
        self.assertEqual(str(config), str(ReplicateConfig()))

    def test_enums(self):
        self.assertEqual([int(a) for a in SoftPinAction], [0, 1, 2])
        self.assertEqual([int(t) for t in ObjectDataType], list(range(10)))
        self.assertEqual(
            [s.name for s in ReplicaStatus],
            ["UNDEFINED", "INITIALIZED", "PROCESSING", "COMPLETE", "REMOVED", "FAILED"],
        )
        config = ReplicateConfig()
        config.soft_pin_action = 2
        self.assertIs(config.soft_pin_action, SoftPinAction.DISABLE)


if __name__ == "__main__":
    unittest.main()
