# SPDX-License-Identifier: Apache-2.0
"""MooncakeKVConnectorStats and the worker that records into it: what the callers of vLLM's class rely on."""

import asyncio
import random
import threading
import time
import types
import unittest
from unittest import mock

from support import FIGURES, KEYS, MIB, ROW_KEYS, empty_data, run_threads, stats_of
from kvprobe.stats import (
    MooncakeConnector,
    MooncakeConnectorWorker,
    MooncakeKVConnectorStats,
    build_kv_connector_stats,
    get_kv_connector_stats,
)

TOLERANCE = 0.001
GOLDEN = (
    (((0.001, MIB, 4), (0.002, 2 * MIB, 6)), (2, 1.5, 1.9, 1.5, 1000.0, 5.0)),
    (tuple((i / 1000, MIB, i) for i in range(1, 11)), (10, 5.5, 9.1, 1.0, 181.818, 5.5)),
    (((0.0, MIB, 1),), (1, 0.0, 0.0, 1.0, 0.0, 1.0)),
)


class TestStats(unittest.TestCase):
    def test_is_empty_on_fresh_stats(self):
        stats = MooncakeKVConnectorStats()
        self.assertTrue(stats.is_empty())
        self.assertEqual(stats.num_successful_transfers, 0)

    def test_record_transfer_and_reduce(self):
        stats = stats_of(*GOLDEN[0][0])
        self.assertFalse(stats.is_empty())
        self.assertEqual(list(stats.reduce().items()), list(zip(FIGURES, (2, 1.5, 1.9, 1.5, 1000.0, 5.0, 0, 0, 0))))

    def test_record_failures_keeps_stats_non_empty(self):
        stats = stats_of(failed=1, recvs=1, expired=1)
        self.assertFalse(stats.is_empty())
        self.assertEqual(list(stats.reduce().values()), [0, 0, 0, 0, 0, 0, 1, 1, 1])
        for kind in ("failed", "recvs", "expired"):
            with self.subTest(kind):
                self.assertFalse(stats_of(**{kind: 1}).is_empty())

    def test_aggregate_sums_observations(self):
        a, b = stats_of((0.001, MIB, 1)), stats_of((0.002, MIB, 1), failed=1)
        self.assertIs(a.aggregate(b), a)
        self.assertEqual(a.num_successful_transfers, 2)
        self.assertEqual(a.reduce()["Num failed transfers"], 1)
        self.assertEqual(b.num_successful_transfers, 1)

    def test_aggregate_with_empty_other_is_noop(self):
        a = stats_of((0.001, MIB, 1))
        self.assertIs(a.aggregate(MooncakeKVConnectorStats()), a)
        self.assertEqual(a.num_successful_transfers, 1)

    def test_getstate_drops_lock_and_setstate_recreates_it(self):
        original = stats_of((0.001, MIB, 4))
        state = original.__getstate__()
        self.assertNotIn("_lock", state)
        self.assertEqual(state, {"data": original.data})
        rebuilt = MooncakeKVConnectorStats.__new__(MooncakeKVConnectorStats)
        rebuilt.__setstate__(state)
        self.assertEqual(rebuilt.data, original.data)
        rebuilt.record_transfer(duration_s=0.002, total_bytes=MIB, num_descs=4)
        self.assertEqual(rebuilt.num_successful_transfers, 2)

    def test_concurrent_writers_keep_row_lengths_aligned(self):
        stats, seen, done = MooncakeKVConnectorStats(), [], threading.Event()

        def write():
            while not done.is_set():
                stats.record_transfer(duration_s=0.001, total_bytes=MIB, num_descs=1)
                stats.record_failed_transfer()

        def read():
            try:
                end = time.monotonic() + 0.2
                while time.monotonic() < end or not sum(seen):
                    snapshot = stats.clone_and_reset()
                    lengths = {len(snapshot.data[key]) for key in ROW_KEYS}
                    self.assertEqual(len(lengths), 1)
                    snapshot.reduce()
                    seen.append(lengths.pop())
            finally:
                done.set()

        run_threads(write, write, write, write, read)
        self.assertGreater(sum(seen), 0)

    def test_clone_and_reset_hands_off_old_data(self):
        stats = stats_of((0.001, MIB, 1))
        snapshot = stats.clone_and_reset()
        self.assertIs(type(snapshot), MooncakeKVConnectorStats)
        self.assertEqual(snapshot.num_successful_transfers, 1)
        self.assertTrue(stats.is_empty())
        stats.record_transfer(duration_s=0.002, total_bytes=MIB, num_descs=1)
        self.assertEqual(snapshot.num_successful_transfers, 1)
        self.assertEqual(snapshot.data["transfer_duration"], [0.001])

    def test_build_kv_connector_stats_none_returns_empty_instance(self):
        for build in (MooncakeConnector.build_kv_connector_stats, build_kv_connector_stats):
            for stats in (build(), build(None), build(data=None)):
                self.assertIsInstance(stats, MooncakeKVConnectorStats)
                self.assertTrue(stats.is_empty())

    def test_build_kv_connector_stats_with_data_round_trips(self):
        original = stats_of((0.001, MIB, 1), failed=1)
        rebuilt = MooncakeConnector.build_kv_connector_stats(data=original.data)
        self.assertEqual(rebuilt.num_successful_transfers, 1)
        self.assertEqual(len(rebuilt.data["num_failed_transfers"]), 1)
        self.assertEqual(rebuilt, original)


class TestFigures(unittest.TestCase):
    def test_golden_vectors(self):
        for rows, expected in GOLDEN:
            live, lists = stats_of(*rows), stats_of(*rows)
            self.assertEqual(len(lists.data["transfer_duration"]), len(rows))
            for stats in (live, lists, live.clone_and_reset()):
                figures = stats.reduce() if stats is not live else stats_of(*rows).reduce()
                self.assertEqual(tuple(figures), FIGURES)
                for got, want in zip(figures.values(), expected + (0, 0, 0)):
                    self.assertLessEqual(abs(got - want), TOLERANCE)
                self.assertEqual([type(value) for value in figures.values()], [int] + [float] * 5 + [int] * 3)

    def test_no_success_gives_ints(self):
        self.assertEqual([type(value) for value in stats_of(failed=1).reduce().values()], [int] * 9)

    def test_against_the_definition(self):
        """Random rows, each figure computed here as the definition says."""
        dice = random.Random(7)
        for n in (1, 2, 3, 10, 11, 99, 1000):
            rows = [(dice.expovariate(200), dice.randrange(1 << 34), dice.randrange(1 << 32)) for _ in range(n)]
            seconds, sizes, descriptors = (list(column) for column in zip(*rows))
            ordered, position = sorted(seconds), 0.9 * (n - 1)
            low = int(position)
            high = min(low + 1, n - 1)
            mib = sum(sizes) / 2**20
            expected = (
                n,
                round(sum(seconds) / n * 1e3, 3),
                round((ordered[low] + (ordered[high] - ordered[low]) * (position - low)) * 1e3, 3),
                round(mib / n, 3),
                round(mib / sum(seconds), 3),
                round(sum(descriptors) / n, 1),
            )
            in_core, in_lists = stats_of(*rows), stats_of(*rows)
            self.assertEqual(len(in_lists.data["num_descriptors"]), n)
            for stats in (in_core, in_lists):
                for got, want in zip(stats.reduce().values(), expected):
                    self.assertLessEqual(abs(got - want), max(TOLERANCE, 1e-9 * want), (n, got, want))

    def test_rounding_is_pythons(self):
        """Half-way cases that a scaled rint gets wrong."""
        for duration in (0.0000005, 0.0000015, 0.0010005, 0.0025005, 2.0000005, 1.0000025):
            stats = stats_of((duration, 1, 1))
            self.assertEqual(stats.reduce()["P90 xfer time (ms)"], round(duration * 1e3, 3))
        self.assertEqual(stats_of(*[(1.0, 1, d) for d in (0, 0, 0, 1)]).reduce()["Avg number of descriptors"], 0.2)

    def test_nothing_takes_time(self):
        """No positive sum of durations: no throughput, rather than a division by zero."""
        self.assertEqual(stats_of((0.0, MIB, 1), (0.0, MIB, 1)).reduce()["Throughput (MB/s)"], 0.0)

    def test_data_of_every_kind_of_record(self):
        stats = stats_of((0.5, 3, 2), failed=2, recvs=1, expired=3)
        self.assertEqual(list(stats.data), list(KEYS))
        self.assertEqual(list(stats.data.values()), [[0.5], [3], [2], [1, 1], [1], [1, 1, 1]])
        self.assertEqual(MooncakeKVConnectorStats().data, empty_data())

    def test_read_direction_counts_the_same(self):
        stats = MooncakeKVConnectorStats()
        stats.record_transfer(0.5, 3, 2, direction="read")
        stats.record_transfer(0.5, 3, 2, direction="".join(("wri", "te")))
        stats.record_failed_transfer(direction="".join(("re", "ad")))
        self.assertEqual(list(stats.data.values()), [[0.5, 0.5], [3, 3], [2, 2], [1], [], []])


class TestWorker(unittest.TestCase):
    def setUp(self):
        self.worker = MooncakeConnectorWorker(engine=mock.Mock())

    def send(self, code):
        self.worker.engine.batch_transfer_sync_write.return_value = code
        return self.worker._send_blocks("peer:1", [1, 2], [3, 4], [1024, 2048])

    def test_send_blocks_records_success(self):
        self.assertEqual(self.send(0), 0)
        self.worker.engine.batch_transfer_sync_write.assert_called_once_with("peer:1", [1, 2], [3, 4], [1024, 2048])
        data = self.worker.xfer_stats.data
        self.assertEqual(data["bytes_transferred"], [3072])
        self.assertEqual(data["num_descriptors"], [2])
        self.assertEqual(data["num_failed_transfers"], [])
        self.assertEqual(len(data["transfer_duration"]), 1)

    def test_send_blocks_records_failure(self):
        with self.assertLogs("kvprobe.stats", "WARNING"):
            self.assertEqual(self.send(1), 1)
        self.assertEqual(self.worker.xfer_stats.data["num_failed_transfers"], [1])
        self.assertEqual(self.worker.xfer_stats.num_successful_transfers, 0)

    def test_get_kv_connector_stats_returns_none_when_empty(self):
        self.assertIsNone(self.worker.get_kv_connector_stats())
        self.assertIsNone(get_kv_connector_stats(MooncakeKVConnectorStats()))

    def test_get_kv_connector_stats_returns_and_resets(self):
        self.send(0)
        snapshot = self.worker.get_kv_connector_stats()
        self.assertIsInstance(snapshot, MooncakeKVConnectorStats)
        self.assertEqual(snapshot.num_successful_transfers, 1)
        self.assertIsNone(self.worker.get_kv_connector_stats())

    def test_expired_request_bumps_counter(self):
        self.worker.reqs_need_send = {
            "late": types.SimpleNamespace(expire_time=-1),
            "waiting": types.SimpleNamespace(expire_time=time.perf_counter() + 3600),
        }
        self.worker.finished_sending_reqs = {"sent"}
        with self.assertLogs("kvprobe.stats", "WARNING"):
            finished = asyncio.run(self.worker.fetch_finished_sending_reqs())
        self.assertEqual(finished, {"late", "sent"})
        self.assertEqual(self.worker.xfer_stats.data["num_kv_expired_reqs"], [1])
        self.assertEqual(list(self.worker.reqs_need_send), ["waiting"])
        self.assertEqual(self.worker.finished_sending_reqs, set())

    def test_failed_receives(self):
        """One per reply of a worker, whether it says so or does not come at all."""

        async def ask(worker_addr, pull_metas):
            if worker_addr == "dead":
                raise ConnectionError("no answer")
            return {"status": worker_addr, "err_msg": "not registered"}

        self.worker.request_blocks = ask
        receive = self.worker.receive_kv_from_single_worker
        with self.assertLogs("kvprobe.stats", "WARNING"):
            answers = [asyncio.run(receive(peer, {"a": 1, "b": 2})) for peer in ("ERROR", "dead", "FINISH")]
        self.assertEqual(answers, [False, False, True])
        self.assertEqual(self.worker.xfer_stats.data["num_failed_recvs"], [1, 1])
        self.assertEqual(self.worker.xfer_stats.num_successful_transfers, 0)


if __name__ == "__main__":
    unittest.main()
