# SPDX-License-Identifier: Apache-2.0
"""`data` and its two modes: live lists, partial data, bad input, the row limit, objects that call back, memory."""

import copy
import gc
import json
import pickle
import tracemalloc
import unittest
import weakref

from support import KEYS, MIB, PRESET, ROW_KEYS, empty_data, stats_of
from kvprobe.stats import MooncakeKVConnectorStats, TransferStats, build_kv_connector_stats

ROW = (0.5, MIB, 3)


def lists_of(*rows, **arguments):
    """The same as stats_of, with the rows in the lists."""
    stats = stats_of(*rows, **arguments)
    assert stats.data
    return stats


class TestLiveLists(unittest.TestCase):
    def test_records_arrive_in_lists_that_were_read_before(self):
        stats = stats_of(ROW)
        data = stats.data
        columns = [data[key] for key in KEYS]
        stats.record_transfer(1.5, 2, 4)
        stats.record_failed_transfer()
        stats.record_failed_recv()
        stats.record_kv_expired_req()
        self.assertIs(stats.data, data)
        self.assertEqual(columns, [[0.5, 1.5], [MIB, 2], [3, 4], [1], [1], [1]])
        for key, column in zip(KEYS, columns):
            self.assertIs(data[key], column)

    def test_what_callers_change_is_what_is_computed_from(self):
        stats = stats_of(ROW)
        stats.data["transfer_duration"].append(1.5)
        stats.data["bytes_transferred"].append(3 * MIB)
        stats.data["num_descriptors"].append(5)
        stats.data["num_failed_recvs"] += [1, 1]
        self.assertEqual(list(stats.reduce().values()), [2, 1000.0, 1400.0, 2.0, 2.0, 4.0, 0, 2, 0])
        self.assertEqual(stats.num_successful_transfers, 2)
        for key in ROW_KEYS:
            stats.data[key].clear()
        self.assertFalse(stats.is_empty())
        stats.data["num_failed_recvs"] = []
        self.assertTrue(stats.is_empty())

    def test_given_data_is_kept_by_reference(self):
        data = {"transfer_duration": [0.5], "bytes_transferred": [MIB], "num_descriptors": [3]}
        stats = MooncakeKVConnectorStats(data=data)
        self.assertIs(stats.data, data)
        stats.record_transfer(1.0, 1, 1)
        self.assertEqual(data["transfer_duration"], [0.5, 1.0])

    def test_falsy_data_is_not_kept(self):
        for falsy in (None, {}, [], 0):
            stats = MooncakeKVConnectorStats(falsy)
            self.assertEqual(stats.data, empty_data())
            self.assertIsNot(stats.data, falsy)

    def test_assignment(self):
        stats = stats_of(ROW, failed=2)
        old, new = stats.data, empty_data()
        stats.data = new
        self.assertIs(stats.data, new)
        self.assertTrue(stats.is_empty())
        stats.record_failed_recv()
        self.assertEqual(new["num_failed_recvs"], [1])
        self.assertEqual(old["num_failed_transfers"], [1, 1])
        unread = stats_of(ROW)
        unread.data = new
        self.assertEqual(unread.num_successful_transfers, 0)
        with self.assertRaises(AttributeError):
            del stats.data

    def test_reset_leaves_the_old_lists(self):
        stats = stats_of(ROW)
        data = stats.data
        columns = [data[key] for key in KEYS]
        stats.reset()
        self.assertTrue(stats.is_empty())
        stats.record_transfer(1.0, 1, 1)
        self.assertEqual(columns, [[0.5], [MIB], [3], [], [], []])
        self.assertIsNot(stats.data, data)
        self.assertIsNot(stats.data["transfer_duration"], columns[0])

    def test_clone_and_reset_copies_the_lists(self):
        stats = stats_of(ROW, expired=1)
        data = stats.data
        data["own"] = "kept as it is"
        snapshot = stats.clone_and_reset()
        self.assertEqual(snapshot.data, data)
        for key in KEYS:
            self.assertIsNot(snapshot.data[key], data[key])
        stats.record_transfer(1.0, 1, 1)
        self.assertEqual(data["transfer_duration"], [0.5])
        self.assertEqual(snapshot.data["transfer_duration"], [0.5])
        self.assertEqual(stats.data["transfer_duration"], [1.0])

    def test_new_without_init_is_complete(self):
        for cls in (MooncakeKVConnectorStats, TransferStats):
            stats = cls.__new__(cls)
            self.assertTrue(stats.is_empty())
            self.assertEqual(stats.reduce()["Num KV expired reqs"], 0)
            self.assertIs(stats.aggregate(cls.__new__(cls)), stats)
            self.assertEqual(stats.__getstate__(), {"data": empty_data()})
            self.assertTrue(stats.clone_and_reset().is_empty())
            self.assertFalse(stats.approximate)
            stats.reset()
            stats.record_transfer(*ROW)
            self.assertEqual(stats.num_successful_transfers, 1)
            self.assertEqual(stats.data["num_descriptors"], [3])

    def test_init_again_begins_anew(self):
        stats = stats_of(ROW)
        stats.__init__()
        self.assertTrue(stats.is_empty())

    def test_copies(self):
        in_core = stats_of(ROW)
        shallow = copy.copy(in_core)
        shallow.record_transfer(*ROW)
        self.assertEqual([in_core.num_successful_transfers, shallow.num_successful_transfers], [1, 2])
        in_lists = lists_of(ROW)
        self.assertIs(copy.copy(in_lists).data, in_lists.data)  # as a copy of any object with a dict
        deep = copy.deepcopy(in_lists)
        self.assertEqual(deep, in_lists)
        self.assertIsNot(deep.data["num_descriptors"], in_lists.data["num_descriptors"])

    def test_equality_and_repr(self):
        self.assertEqual(stats_of(ROW), lists_of(ROW))
        self.assertNotEqual(stats_of(ROW), stats_of(ROW, failed=1))
        self.assertNotEqual(stats_of(ROW), stats_of(ROW).data)
        self.assertEqual(repr(stats_of(ROW)), f"MooncakeKVConnectorStats(data={stats_of(ROW).data!r})")
        with self.assertRaises(TypeError):
            hash(stats_of(ROW))


class TestPartialData(unittest.TestCase):
    def test_missing_columns_are_empty(self):
        stats = MooncakeKVConnectorStats({"num_failed_recvs": [1]})
        self.assertFalse(stats.is_empty())
        self.assertEqual(stats.num_successful_transfers, 0)
        self.assertEqual(list(stats.reduce().values()), [0] * 7 + [1, 0])
        self.assertEqual(stats.data, {"num_failed_recvs": [1]})
        stats.record_transfer(*ROW)
        self.assertEqual(stats.data["transfer_duration"], [0.5])
        self.assertTrue(MooncakeKVConnectorStats({"something": "else"}).is_empty())

    def test_torn_rows(self):
        for missing in ROW_KEYS:
            data = {key: [1] for key in ROW_KEYS if key != missing}
            with self.assertRaises(AssertionError):
                MooncakeKVConnectorStats(data).reduce()
            with self.assertRaises(AssertionError):
                MooncakeKVConnectorStats({**data, missing: [1, 1]}).reduce()

    def test_a_column_that_is_no_list(self):
        stats = lists_of(ROW)
        stats.data["num_descriptors"] = (3,)
        self.assertEqual(stats.reduce()["Avg number of descriptors"], 3.0)
        for record in (lambda: stats.record_transfer(*ROW), stats.record_failed_recv):
            with self.assertRaises(AssertionError):
                record()
        self.assertEqual([len(stats.data[key]) for key in KEYS], [1, 1, 1, 0, 0, 0])

    def test_data_that_is_no_dict(self):
        stats = MooncakeKVConnectorStats([1, 2])
        self.assertEqual(stats.data, [1, 2])
        for call in (stats.is_empty, stats.reduce, stats.clone_and_reset, stats.record_failed_recv,
                     lambda: stats.record_transfer(*ROW), lambda: stats.aggregate(stats_of(ROW)),
                     lambda: stats.num_successful_transfers):
            with self.assertRaises(TypeError):
                call()
        self.assertEqual(stats.data, [1, 2])
        stats.reset()
        self.assertTrue(stats.is_empty())


class TestBadInput(unittest.TestCase):
    def refused(self, error, *args, **kwargs):
        for stats in (stats_of(ROW), lists_of(ROW)):
            with self.subTest(args=args, kwargs=kwargs), self.assertRaises(error):
                stats.record_transfer(*args, **kwargs)
            self.assertEqual(list(stats.data.values()), [[0.5], [MIB], [3], [], [], []])

    def test_values(self):
        for duration in (float("nan"), float("inf"), -float("inf")):
            self.refused(ValueError, duration, 1, 1)
        self.refused(ValueError, 1.0, -1, 1)
        for descriptors in (-1, 1 << 32, 1 << 64):
            self.refused(OverflowError, 1.0, 1, descriptors)
        self.refused(OverflowError, 1.0, 1 << 63, 1)
        for wrong in ("1", None, [], b"1"):
            for place in range(3):
                args = [1, 1, 1]
                args[place] = wrong
                self.refused(TypeError, *args)
        self.refused(TypeError, 1.0, 1.5, 1)

    def test_arguments(self):
        self.refused(TypeError)
        self.refused(TypeError, 1.0, 1)
        self.refused(TypeError, 1.0, 1, 1, 1)
        self.refused(TypeError, 1.0, 1, 1, num_descs=1)
        self.refused(TypeError, 1.0, 1, num_desc=1)
        self.refused(TypeError, 1.0, 1, 1, "read")
        self.refused(ValueError, 1.0, 1, 1, direction="sideways")
        self.refused(ValueError, 1.0, 1, 1, direction=None)
        for call in (lambda s: s.record_failed_transfer("read"), lambda s: s.record_failed_transfer(way="read"),
                     lambda s: s.record_failed_recv(1), lambda s: s.record_kv_expired_req(x=1)):
            stats = stats_of()
            with self.assertRaises(TypeError):
                call(stats)
            self.assertTrue(stats.is_empty())
        with self.assertRaises(ValueError):
            stats_of().record_failed_transfer(direction="up")

    def test_names_that_are_not_interned(self):
        stats = MooncakeKVConnectorStats()
        names = ["".join(list(name)) for name in ("num_descs", "total_bytes", "duration_s", "direction")]
        stats.record_transfer(**dict(zip(names, (3, MIB, 0.5, "read"))))
        self.assertEqual(stats, stats_of(ROW))

    def test_values_that_convert(self):
        class Number:
            def __float__(self):
                return 0.5

            def __index__(self):
                return 7

        stats = MooncakeKVConnectorStats()
        stats.record_transfer(Number(), Number(), True)
        self.assertEqual(list(stats.data.values())[:3], [[0.5], [7], [1]])
        self.assertEqual([type(stats.data[key][0]) for key in ROW_KEYS], [float, int, int])

    def test_lists_with_bad_values(self):
        for key, value, error in (("transfer_duration", float("nan"), ValueError), ("transfer_duration", "x", TypeError),
                                  ("bytes_transferred", -1, ValueError), ("bytes_transferred", 1 << 63, OverflowError),
                                  ("num_descriptors", 1 << 32, OverflowError), ("num_descriptors", None, TypeError)):
            stats = lists_of(ROW)
            stats.data[key][0] = value
            with self.subTest(key=key, value=value), self.assertRaises(error):
                stats.reduce()

    def test_constructor(self):
        for arguments, error in (({"row_limit": 0}, ValueError), ({"row_limit": -1}, OverflowError),
                                 ({"row_limit": 1 << 70}, OverflowError), ({"row_limit": "9"}, TypeError),
                                 ({"rows": 1}, TypeError)):
            with self.subTest(arguments), self.assertRaises(error):
                MooncakeKVConnectorStats(**arguments)
        with self.assertRaises(TypeError):
            MooncakeKVConnectorStats(None, 5)

    def test_states(self):
        stats = stats_of(ROW)
        for state, error in ((None, TypeError), ({}, ValueError), ([1], TypeError), ({"data": {}, "overflow": 3}, TypeError),
                             ({"data": {}, "row_limit": 0}, ValueError)):
            with self.subTest(state=state), self.assertRaises(error):
                stats.__setstate__(state)
        self.assertEqual(stats, stats_of(ROW))

    def test_overflow_that_is_damaged(self):
        good = stats_of(*[ROW] * 20, row_limit=4).__getstate__()
        for key, values in good["overflow"].items():
            for damaged in (None, values[:-1], [-1] * len(values), ["1"] * len(values), [1 << 64] * len(values),
                            [0.5, "x"]):
                state = copy.deepcopy(good)
                state["overflow"][key] = damaged
                with self.subTest(key=key, damaged=damaged), self.assertRaises(ValueError):
                    MooncakeKVConnectorStats().__setstate__(state)
            if key not in ("failures", "ns_counts"):
                state = copy.deepcopy(good)
                del state["overflow"][key]
                with self.subTest(missing=key), self.assertRaises(ValueError):
                    MooncakeKVConnectorStats().__setstate__(state)
        for key in ("ns_counts", "time_buckets", "bytes_buckets", "descriptors_buckets"):
            state = copy.deepcopy(good)
            state["overflow"][key][-1] += 1
            with self.subTest(counts=key), self.assertRaises(ValueError):
                MooncakeKVConnectorStats().__setstate__(state)

    def test_overflow_that_no_recording_can_reach(self):
        good = stats_of(*[ROW] * 20, row_limit=4).__getstate__()
        for key, value in (("seconds", [float("nan"), 0.0]), ("seconds", [float("inf"), 0.0]),
                           ("failures", [(1 << 64) - 1] * 3), ("failures", [0, (1 << 53) + 1, 0]),
                           ("bytes", [1 << 60, 0]), ("descriptors", [0, 16 << 32])):
            state = copy.deepcopy(good)
            state["overflow"][key] = value
            with self.subTest(key=key, value=value), self.assertRaises(ValueError):
                MooncakeKVConnectorStats().__setstate__(state)
        for rows in (1 << 53) + 1, (1 << 63) - 1, (1 << 64) - 1:
            with self.subTest(rows=rows), self.assertRaises(ValueError):
                MooncakeKVConnectorStats().__setstate__(_with_rows(good, rows))

    def test_more_successes_than_a_signed_count_holds(self):
        state = _with_rows(stats_of(*[ROW] * 2, row_limit=1).__getstate__(), 1 << 53)
        part, total = MooncakeKVConnectorStats(), MooncakeKVConnectorStats()
        part.__setstate__(state)
        for _ in range(1024):
            total.aggregate(part)
        self.assertEqual(total.num_successful_transfers, ((1 << 53) + 1) << 10)
        self.assertFalse(total.is_empty())
        self.assertEqual(total.reduce()["Num successful transfers"], ((1 << 53) + 1) << 10)


def _with_rows(state, rows):
    """The state, all of whose rows beyond the limit are alike, with another number of them."""
    state = copy.deepcopy(state)
    overflow = state["overflow"]
    overflow["ns_counts"][1] = rows
    for key in ("time_buckets", "bytes_buckets", "descriptors_buckets"):
        overflow[key] = [rows if count else 0 for count in overflow[key]]
    return state


class TestRowLimit(unittest.TestCase):
    LIMIT, N = 100, 1000
    ROWS = [(i / 1000, i * 4096, i) for i in range(1, N + 1)]

    def setUp(self):
        self.exact = stats_of(*self.ROWS, failed=2, recvs=1)
        self.limited = stats_of(*self.ROWS, failed=2, recvs=1, row_limit=self.LIMIT)

    def same_figures(self, stats, exact=None):
        self.assertTrue(stats.approximate)
        figures, wanted = stats.reduce(), (exact or self.exact).reduce()
        self.assertEqual(list(figures), list(wanted))
        p90 = "P90 xfer time (ms)"
        got, want = figures.pop(p90), wanted.pop(p90)
        self.assertLessEqual(abs(got - want), want / 64)
        self.assertEqual(figures, wanted)

    def test_below_the_limit_all_is_exact(self):
        for n in (self.LIMIT - 1, self.LIMIT):
            for make in (stats_of, lists_of):
                stats = make(*self.ROWS[:n], row_limit=self.LIMIT)
                self.assertFalse(stats.approximate)
                self.assertEqual(stats.reduce(), stats_of(*self.ROWS[:n]).reduce())
                self.assertNotIn("overflow", stats.__getstate__())
                self.assertEqual(len(stats.data["transfer_duration"]), n)

    def test_beyond_it_sums_and_counts_are(self):
        self.assertFalse(self.exact.approximate)
        self.assertEqual(self.limited.row_limit, self.LIMIT)
        self.assertEqual(self.limited.num_successful_transfers, self.N)
        self.same_figures(self.limited)

    def test_data_has_the_first_rows(self):
        self.assertEqual(list(self.limited.data), list(KEYS))
        self.assertEqual(self.limited.data["num_descriptors"], list(range(1, self.LIMIT + 1)))
        self.assertEqual(self.limited.data["num_failed_transfers"], [1, 1])
        self.assertEqual(self.limited.num_successful_transfers, self.N)
        self.same_figures(self.limited)

    def test_it_holds_in_list_mode(self):
        stats = MooncakeKVConnectorStats(row_limit=self.LIMIT)
        data = stats.data
        for row in self.ROWS:
            stats.record_transfer(*row)
        stats.record_failed_transfer()
        stats.record_failed_transfer()
        stats.record_failed_recv()
        self.assertEqual([len(data[key]) for key in KEYS], [self.LIMIT] * 3 + [2, 1, 0])
        self.same_figures(stats)

    def test_failures_have_it_too(self):
        for stats in (stats_of(failed=12, row_limit=5), lists_of(failed=12, row_limit=5)):
            self.assertEqual(stats.data["num_failed_transfers"], [1] * 5)
            self.assertEqual(stats.reduce()["Num failed transfers"], 12)
            self.assertFalse(stats.approximate)
            stats.data["num_failed_transfers"].clear()
            self.assertFalse(stats.is_empty())

    def test_snapshots_take_all_along(self):
        for stats in (self.limited, lists_of(*self.ROWS, failed=2, recvs=1, row_limit=self.LIMIT)):
            snapshot = stats.clone_and_reset()
            self.same_figures(snapshot)
            self.assertTrue(stats.is_empty())
            self.assertFalse(stats.approximate)
            stats.record_transfer(*ROW)
            self.assertEqual(stats.reduce(), stats_of(ROW).reduce())

    def test_pickles_and_to_dict_take_all_along(self):
        for stats in (self.limited, lists_of(*self.ROWS, failed=2, recvs=1, row_limit=self.LIMIT)):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                again = pickle.loads(pickle.dumps(stats, protocol))
                self.same_figures(again)
                self.assertEqual(again, stats)
                self.assertEqual(again.row_limit, self.LIMIT)
            plain = json.loads(json.dumps(stats.to_dict()))
            self.assertEqual(list(plain), [*KEYS, "overflow"])
            self.same_figures(build_kv_connector_stats(plain))
        self.assertNotIn("overflow", self.exact.to_dict())

    def test_aggregates(self):
        twice = stats_of(*self.ROWS * 2, failed=4, recvs=2)
        for here in (stats_of, lists_of):
            for there in (stats_of, lists_of):
                for limit_there in (self.LIMIT, 1_000_000):
                    mine = here(*self.ROWS, failed=2, recvs=1, row_limit=self.LIMIT)
                    mine.aggregate(there(*self.ROWS, failed=2, recvs=1, row_limit=limit_there))
                    self.same_figures(mine, twice)
                    self.assertEqual(len(mine.data["num_descriptors"]), self.LIMIT)
        self.exact.aggregate(self.limited)
        self.same_figures(self.exact, twice)

    def test_an_aggregate_is_bounded_too(self):
        total = MooncakeKVConnectorStats(stats_of(*self.ROWS).data, row_limit=1500)
        for _ in range(9):
            total.aggregate(MooncakeKVConnectorStats(stats_of(*self.ROWS, expired=400).data))
        self.assertEqual([len(total.data[key]) for key in KEYS], [1500, 1500, 1500, 0, 0, 1500])
        self.same_figures(total, stats_of(*self.ROWS * 10, expired=3600))

    def test_given_data_is_not_cut(self):
        stats = MooncakeKVConnectorStats(self.exact.data, row_limit=self.LIMIT)
        self.assertFalse(stats.approximate)
        self.assertEqual(stats.reduce(), self.exact.reduce())


class TestCallbacks(unittest.TestCase):
    """Values and keys whose methods change the object under the call."""

    def disturbances(self, stats):
        return (
            stats.reset,
            stats.clone_and_reset,
            lambda: stats.data,
            lambda: setattr(stats, "data", {}),
            lambda: setattr(stats, "data", 7),
            lambda: stats.aggregate(stats_of(ROW)),
            lambda: stats.aggregate(stats),
            lambda: stats.record_failed_recv(),
            lambda: [column.clear() for column in list(getattr(stats.data, "values", tuple)())
                     if isinstance(column, list)],
            lambda: stats.__init__(),
            gc.collect,
        )

    def each(self, prepare, call):
        """Every call is to end, normally or with an exception, and to leave a usable object."""
        for number in range(len(self.disturbances(MooncakeKVConnectorStats()))):
            stats = MooncakeKVConnectorStats()
            busy = []

            def disturb():
                if busy:
                    return
                busy.append(1)
                try:
                    self.disturbances(stats)[number]()
                except (AssertionError, KeyError, TypeError, RuntimeError):
                    pass
                finally:
                    busy.clear()

            class Value:
                def __float__(self):
                    disturb()
                    return 0.5

                def __index__(self):
                    disturb()
                    return 5

                def __len__(self):
                    disturb()
                    return 1

                def __iter__(self):
                    disturb()
                    return iter([1])

            prepare(stats, Value, disturb)
            try:
                call(stats, Value, disturb)
            except (AssertionError, AttributeError, KeyError, TypeError, RuntimeError, ValueError):
                pass
            busy.append(1)  # no more
            stats.reset()
            stats.record_transfer(*ROW)
            self.assertEqual(stats, stats_of(ROW))

    @staticmethod
    def nothing(stats, value, disturb):
        pass

    @staticmethod
    def read(stats, value, disturb):
        stats.record_transfer(*ROW)
        stats.data["transfer_duration"].append(0.5)

    @staticmethod
    def values(stats, value, disturb):
        stats.data = {key: [value() for _ in range(5)] for key in KEYS}

    @staticmethod
    def columns(stats, value, disturb):
        stats.data = {key: value() for key in KEYS}

    @staticmethod
    def keys(stats, value, disturb):
        """Keys with the hashes of the columns, so that each look-up compares."""

        class Key:
            def __init__(self, text):
                self.text = text

            def __hash__(self):
                return hash(self.text)

            def __eq__(self, other):
                disturb()
                return self is other

        stats.data = {Key(key): [] for key in KEYS} | {key: [1, 2] for key in KEYS}

    def test_arguments(self):
        for prepare in (self.nothing, self.read):
            self.each(prepare, lambda stats, value, _: stats.record_transfer(value(), value(), value()))

    def test_values(self):
        for prepare in (self.values, self.columns, self.keys):
            self.each(prepare, lambda stats, *_: stats.reduce())
            self.each(prepare, lambda stats, *_: stats.is_empty())
            self.each(prepare, lambda stats, *_: stats.num_successful_transfers)
            self.each(prepare, lambda stats, *_: stats.clone_and_reset())
            self.each(prepare, lambda stats, *_: stats.__getstate__())
            self.each(prepare, lambda stats, *_: stats.record_transfer(*ROW))
            self.each(prepare, lambda stats, *_: stats.record_failed_transfer())
            self.each(prepare, lambda stats, *_: stats.aggregate(stats_of(ROW)))
            self.each(prepare, lambda stats, *_: stats.aggregate(lists_of(ROW)))
            self.each(prepare, lambda stats, *_: stats.aggregate(stats))
            self.each(prepare, lambda stats, *_: stats_of(ROW, row_limit=2).aggregate(stats))

    def test_an_other_that_calls_back(self):
        def other(value, disturb):
            class Other:
                def is_empty(self):
                    disturb()
                    return False

                @property
                def data(self):
                    disturb()
                    return {key: value() for key in KEYS}

            return Other()

        for prepare in (self.nothing, self.read, self.keys):
            self.each(prepare, lambda stats, value, disturb: stats.aggregate(other(value, disturb)))

    def test_finalizers(self):
        """The last reference to what a list holds may run code that looks at the object."""
        for method in ("reset", "clone_and_reset", "__init__"):
            stats = lists_of(ROW)

            class Last:
                def __del__(self):
                    stats.record_transfer(*ROW)
                    stats.is_empty()

            stats.data["mine"] = [Last()]
            getattr(stats, method)()
            gc.collect()
            stats.record_failed_recv()
            self.assertFalse(stats.is_empty())


class TestMemory(unittest.TestCase):
    def test_cycles_are_collected(self):
        stats = lists_of(ROW)
        stats.data["self"] = [stats]
        gone = weakref.ref(stats)
        del stats
        gc.collect()
        self.assertIsNone(gone())

    def exercise(self):
        stats = stats_of(ROW, ROW, failed=1, row_limit=2)
        stats.record_transfer(*ROW)
        stats.aggregate(stats_of(ROW))
        stats.reduce()
        again = pickle.loads(pickle.dumps(stats))
        again.record_transfer(*ROW)
        again.aggregate(stats)
        again.aggregate(again)
        stats.aggregate(again)
        again.clone_and_reset().reduce()
        build_kv_connector_stats(stats.to_dict()).reduce()
        stats.data = {"transfer_duration": [1]}
        for call in (stats.reduce, lambda: stats.record_transfer(float("nan"), 1, 1), lambda: stats.aggregate(3),
                     lambda: stats.record_transfer(1, 1, 1, x=1), lambda: stats.__setstate__({"data": {}, "overflow": 1})):
            try:
                call()
            except (AssertionError, ValueError, AttributeError, TypeError):
                pass
        stats.reset()

    def test_nothing_leaks(self):
        rounds = 500
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        for _ in range(rounds):  # fills the interpreter's own free lists
            self.exercise()
        gc.collect()
        objects = len(gc.get_objects())
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(rounds):
            self.exercise()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        # A dict, a list or an object of the class in each round would be more; the rest is the interpreter's own.
        self.assertLess(grown, 8192 + rounds * 32)
        self.assertLess(len(gc.get_objects()) - objects, rounds)

    def test_c_memory_does_not_grow(self):
        """What tracemalloc does not see: cores and sketches, a quarter of a GiB of them if none were freed."""

        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * 4096

        if PRESET != "release":
            self.skipTest("a sanitizer keeps freed memory back")
        for _ in range(200):
            self.exercise()
        before = resident()
        for _ in range(2000):
            self.exercise()
        self.assertLess(resident() - before, 16 * MIB)


if __name__ == "__main__":
    unittest.main()
