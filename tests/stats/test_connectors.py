# SPDX-License-Identifier: Apache-2.0
"""Several connectors and several workers: MultiKVConnectorStats, merging as the scheduler does it, the store's stats."""

import pickle
import unittest

from support import MIB, ROW_KEYS, stats_of
from kvprobe.stats import (
    KVConnectorStats,
    MooncakeConnector,
    MooncakeKVConnectorStats,
    MooncakeStoreConnector,
    MooncakeStoreConnectorStats,
    MultiConnector,
    MultiKVConnectorStats,
    get_kv_connector_class,
    register_kv_connector,
)


class FooStats(KVConnectorStats):
    """A user's own: its data is an int, not lists."""

    def __init__(self, data=None):
        self.data = data or {"num_foo": 0}

    def reset(self):
        self.data = {"num_foo": 0}

    def aggregate(self, other):
        self.data["num_foo"] += other.data["num_foo"]
        return self

    def reduce(self):
        return dict(self.data)

    def is_empty(self):
        return self.data["num_foo"] == 0


@register_kv_connector
class FooConnector:
    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return FooStats(data=data)


@register_kv_connector
class PlainConnector:
    """Has no stats of its own."""

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return None


def partial_data(duration=0.001):
    """What older versions send: not every column."""
    return {"transfer_duration": [duration], "bytes_transferred": [MIB], "num_descriptors": [4],
            "num_failed_transfers": []}


build = MultiConnector.build_kv_connector_stats


class TestMultiConnectorStats(unittest.TestCase):
    def test_build_with_none(self):
        for stats in (build(), build(None), build(data=None)):
            self.assertIsInstance(stats, MultiKVConnectorStats)
            self.assertEqual(stats.data, {})
            self.assertTrue(stats.is_empty())

    def test_build_with_empty_dict(self):
        stats = build({})
        self.assertIsInstance(stats, MultiKVConnectorStats)
        self.assertEqual(stats.data, {})

    def test_reconstructs_mooncake_stats(self):
        """Both serialised forms of a child; the lists are as they were."""
        for child in (partial_data(), {"data": partial_data()}):
            stats = build({"MooncakeConnector": child})
            mine = stats["MooncakeConnector"]
            self.assertIsInstance(mine, MooncakeKVConnectorStats)
            for key, values in partial_data().items():
                self.assertEqual(mine.data[key], values)
            self.assertEqual(mine.reduce()["Num KV expired reqs"], 0)

    def test_multiple_connectors(self):
        stats = build({"MooncakeConnector": {"data": partial_data()}, "FooConnector": {"data": {"num_foo": 3}},
                       "MooncakeStoreConnector": {"save_put": []}})
        self.assertEqual([type(child) for child in stats.data.values()],
                         [MooncakeKVConnectorStats, FooStats, MooncakeStoreConnectorStats])

    def test_raises_error_for_unknown_connector(self):
        with self.assertRaises(ValueError) as caught:
            build({"UnknownConnector": {"data": partial_data()}, "MooncakeConnector": {"data": partial_data()}})
        self.assertEqual(str(caught.exception), "Connector 'UnknownConnector' is not registered.")

    def test_already_instantiated_objects(self):
        mine, foo = stats_of((0.001, MIB, 4)), FooStats()
        stats = build({"MooncakeConnector": mine, "NotEvenRegistered": foo})
        self.assertIs(stats["MooncakeConnector"], mine)
        self.assertIs(stats["NotEvenRegistered"], foo)

    def test_mixed_objects_and_dicts(self):
        mine = stats_of((0.001, MIB, 4))
        stats = build({"MooncakeConnector": mine, "FooConnector": {"data": {"num_foo": 1}}})
        self.assertIs(stats["MooncakeConnector"], mine)
        self.assertEqual(stats["FooConnector"].data, {"num_foo": 1})

    def test_skips_connectors_without_custom_stats(self):
        stats = build({"PlainConnector": {"data": {"x": [1]}}, "FooConnector": {"data": {"num_foo": 1}}})
        self.assertEqual(list(stats.data), ["FooConnector"])

    def test_handles_malformed_data(self):
        for child in ({"wrong_field": partial_data()}, "data", None, 7, [partial_data()]):
            with self.subTest(child=child), self.assertRaisesRegex(AssertionError, "Expected a dict with a 'data' field"):
                build({"MooncakeConnector": child})

    def test_aggregate_same_connector(self):
        a, b = (build({"MooncakeConnector": {"data": partial_data(duration)}}) for duration in (1.0, 2.0))
        self.assertIs(a.aggregate(b), a)
        self.assertEqual(a["MooncakeConnector"].data["transfer_duration"], [1.0, 2.0])
        self.assertEqual(a["MooncakeConnector"].data["num_descriptors"], [4, 4])

    def test_aggregate_different_types_under_one_name(self):
        with self.assertRaises(AssertionError):
            build({"X": stats_of((1.0, 1, 1))}).aggregate(build({"X": FooStats({"num_foo": 1})}))

    def test_aggregate_new_connector(self):
        a, foo = build({"MooncakeConnector": {"data": partial_data()}}), FooStats({"num_foo": 2})
        a.aggregate(build({"FooConnector": foo}))
        self.assertEqual(set(a.data), {"MooncakeConnector", "FooConnector"})
        self.assertIs(a["FooConnector"], foo)

    def test_reduce(self):
        reduced = build({"MooncakeConnector": stats_of((0.001, MIB, 4), (0.002, MIB, 4)),
                         "FooConnector": FooStats({"num_foo": 5})}).reduce()
        self.assertEqual(reduced["MooncakeConnector"]["Num successful transfers"], 2)
        self.assertEqual(reduced["FooConnector"], {"num_foo": 5})

    def test_reset(self):
        stats = build({"MooncakeConnector": stats_of((1.0, 1, 1)), "FooConnector": FooStats({"num_foo": 5})})
        self.assertFalse(stats.is_empty())
        stats.reset()
        self.assertTrue(stats.is_empty())
        self.assertEqual(len(stats.data), 2)

    def test_is_empty_with_multiple_connectors(self):
        stats = build({"MooncakeConnector": MooncakeKVConnectorStats(), "FooConnector": FooStats()})
        self.assertTrue(stats.is_empty())
        stats["FooConnector"].data["num_foo"] = 1
        self.assertFalse(stats.is_empty())

    def test_to_dict_is_what_build_takes(self):
        stats = build({"MooncakeConnector": stats_of((1.0, 1, 1), failed=1), "FooConnector": FooStats({"num_foo": 5})})
        plain = stats.to_dict()
        self.assertEqual(plain["FooConnector"], {"num_foo": 5})
        self.assertEqual(build(plain).reduce(), stats.reduce())
        nested = build({"MultiConnector": stats})
        self.assertEqual(build(nested.to_dict()).reduce(), nested.reduce())
        self.assertEqual(pickle.loads(pickle.dumps(stats)).reduce(), stats.reduce())

    def test_names(self):
        self.assertIs(get_kv_connector_class("MooncakeConnector"), MooncakeConnector)
        register_kv_connector(FooConnector)  # again: the same class
        with self.assertRaises(ValueError):
            register_kv_connector(PlainConnector, "FooConnector")


class TestAggregation(unittest.TestCase):
    """What happens to the snapshots of tensor-parallel workers and of the scheduler."""

    @staticmethod
    def merge(outputs):
        """As an output aggregator does: the first one that is there takes in the others."""
        total = None
        for stats in outputs:
            if stats is None:
                continue
            total = stats if total is None else total.aggregate(stats)
        return total

    def sent(self, stats):
        """As it comes from another process."""
        return pickle.loads(pickle.dumps(stats))

    def test_kv_connector_stats_aggregation(self):
        rows = ([(1.0, MIB, 1)] * 2, [(1.0, MIB, 1)], [(2.0, 2 * MIB, 2)] * 3)
        for pass_on in (lambda stats: stats, self.sent):
            total = self.merge([pass_on(stats_of(*each)) for each in rows] + [None])
            self.assertIsInstance(total, MooncakeKVConnectorStats)
            figures = total.reduce()
            self.assertEqual(figures["Num successful transfers"], 6)
            self.assertEqual(figures["Avg xfer time (ms)"], 1500.0)
            self.assertEqual(figures["Avg number of descriptors"], 1.5)

    def test_multi_kv_connector_stats_aggregation(self):
        workers = [
            MultiKVConnectorStats({"MooncakeConnector": stats_of(*[(1.0, MIB, 1)] * n), "FooConnector":
                                   FooStats({"num_foo": foo})})
            for n, foo in ((2, 1), (1, 2), (2, 3))
        ]
        total = self.merge(self.sent(worker) for worker in workers)
        self.assertEqual(total["MooncakeConnector"].num_successful_transfers, 5)
        self.assertEqual(total["FooConnector"].data["num_foo"], 6)

    def test_scheduler_kv_connector_stats_aggregation(self):
        """The scheduler's side is merged into the worker's; a key of their own that both have comes along."""
        worker, scheduler = stats_of((1.0, MIB, 1)), stats_of((2.0, MIB, 1))
        for stats in (worker, scheduler):
            stats.data["scheduler_only"] = [1]
        total = worker.aggregate(scheduler)
        self.assertEqual(total.num_successful_transfers, 2)
        self.assertEqual(total.data["scheduler_only"], [1, 1])

    def test_unknown_key(self):
        mine, other = stats_of((1.0, MIB, 1)), stats_of((2.0, MIB, 1))
        other.data["extra"] = [1]
        with self.assertRaisesRegex(KeyError, "extra"):
            mine.aggregate(other)
        self.assertEqual([len(mine.data[key]) for key in ROW_KEYS], [1, 1, 1])

    def test_accumulator_is_not_a_list(self):
        mine = stats_of((1.0, MIB, 1))
        mine.data["num_failed_recvs"] = 0
        with self.assertRaises(AssertionError):
            mine.aggregate(stats_of((2.0, MIB, 1), recvs=1).clone_and_reset())
        with self.assertRaises(AssertionError):
            mine.aggregate(MooncakeKVConnectorStats(stats_of((2.0, MIB, 1), recvs=1).data))
        self.assertEqual([len(mine.data[key]) for key in ROW_KEYS], [1, 1, 1])

    def test_any_mix_of_modes(self):
        for lists_here in (False, True):
            for lists_there in (False, True):
                mine, other = stats_of((1.0, 1, 1), failed=1), stats_of((2.0, 2, 2), recvs=1, expired=1)
                self.assertTrue(not lists_here or mine.data)
                self.assertTrue(not lists_there or other.data)
                self.assertIs(mine.aggregate(other), mine)
                self.assertEqual(list(mine.data.values()), [[1.0, 2.0], [1, 2], [1, 2], [1], [1], [1]])
                self.assertEqual(other.num_successful_transfers, 1)

    def test_with_itself(self):
        for lists in (False, True):
            stats = stats_of((1.0, 1, 1), (2.0, 2, 2), failed=1)
            self.assertTrue(not lists or stats.data)
            stats.aggregate(stats)
            self.assertEqual(list(stats.data.values()), [[1.0, 2.0] * 2, [1, 2] * 2, [1, 2] * 2, [1, 1], [], []])

    def test_with_a_class_of_someone_else(self):
        class Pure(KVConnectorStats):
            def is_empty(self):
                return not self.data

        mine = stats_of((1.0, 1, 1))
        mine.aggregate(Pure({"transfer_duration": (2.0,), "bytes_transferred": [2], "num_descriptors": range(2, 3)}))
        self.assertEqual([mine.data[key] for key in ROW_KEYS], [[1.0, 2.0], [1, 2], [1, 2]])
        self.assertIs(mine.aggregate(Pure()), mine)
        for wrong in (None, 3, object()):
            with self.assertRaises(AttributeError):
                mine.aggregate(wrong)

    def test_a_column_that_only_the_other_has(self):
        mine = MooncakeKVConnectorStats(partial_data())
        mine.aggregate(stats_of((2.0, 2, 2), expired=2))
        self.assertEqual(mine.data["num_kv_expired_reqs"], [1, 1])
        self.assertEqual(mine.num_successful_transfers, 2)


class TestStoreStats(unittest.TestCase):
    def test_record_and_reduce(self):
        stats = MooncakeStoreConnectorStats()
        self.assertTrue(stats.is_empty())
        for i in range(1, 11):
            stats.record_operation("save_put", i / 1000, 4, num_bytes=4096)
        stats.record_operation("load_get", 0.001, 2, num_bytes=10, status="error", num_failed_keys=2)
        stats.record_operation("load_get", 0.002, 3, num_bytes=20, status="partial_failure", num_failed_keys=1)
        self.assertFalse(stats.is_empty())
        self.assertEqual(list(stats.reduce().items()), [
            ("load_get_count", 2), ("load_get_avg_ms", 1.5), ("load_get_p90_ms", 2.0), ("load_get_total_keys", 5),
            ("load_get_total_bytes", 30), ("load_get_failed_keys", 3), ("load_get_error_count", 1),
            ("save_put_count", 10), ("save_put_avg_ms", 5.5), ("save_put_p90_ms", 9.0), ("save_put_total_keys", 40),
            ("save_put_total_bytes", 40960), ("save_put_failed_keys", 0), ("save_put_error_count", 0),
        ])
        self.assertEqual(stats.data["load_get"][0], {"duration_seconds": 0.001, "num_keys": 2, "num_bytes": 10,
                                                     "status": "error", "num_failed_keys": 2})

    def test_nearest_rank_p90(self):
        for n, wanted in ((1, 1), (2, 2), (3, 3), (9, 9), (10, 9), (11, 10), (20, 18), (21, 19), (100, 90)):
            stats = MooncakeStoreConnectorStats()
            for i in range(n, 0, -1):
                stats.record_operation("lookup_exists", float(i), 1)
            self.assertEqual(stats.reduce()["lookup_exists_p90_ms"], wanted * 1e3, n)

    def test_aggregate_reset_and_rebuild(self):
        a, b = MooncakeStoreConnectorStats(), MooncakeStoreConnectorStats()
        a.record_operation("save_put", 0.001, 1)
        b.record_operation("save_put", 0.002, 1)
        b.record_operation("save_exists", 0.002, 1)
        self.assertIs(a.aggregate(b), a)
        self.assertEqual([len(records) for records in a.data.values()], [2, 1])
        rebuilt = MooncakeStoreConnector.build_kv_connector_stats(pickle.loads(pickle.dumps(a.data)))
        self.assertEqual(rebuilt.reduce(), a.reduce())
        a.aggregate(a)
        self.assertEqual(a.reduce()["save_put_count"], 4)
        a.reset()
        self.assertTrue(a.is_empty())
        self.assertEqual(a.reduce(), {})
        self.assertEqual(rebuilt.reduce()["save_put_count"], 2)

    def test_status(self):
        with self.assertRaises(ValueError):
            MooncakeStoreConnectorStats().record_operation("save_put", 0.001, 1, status="fine")


if __name__ == "__main__":
    unittest.main()
