# SPDX-License-Identifier: Apache-2.0
"""Snapshots of an object that many threads write into, and snapshots on their way to other processes."""

import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from support import BUILD, KEYS, MIB, ROW_KEYS, SCALE, WAIT_S, run_python, run_threads, stats_of
from kvprobe.stats import MooncakeKVConnectorStats

WRITERS = 8
SECONDS = 10 * SCALE
SEQUENCE_BITS = 40
BACKLOG = 100_000  # rows that wait for a snapshot; far below the limit, from where on data has not all of them


class TestThreads(unittest.TestCase):
    """Each row says who wrote it and which of its rows it is, in all three columns."""

    def write(self, stats, writer, done, written):
        sequence, failures = 0, 0
        while not done.is_set():
            if stats.num_successful_transfers > BACKLOG:
                time.sleep(0.001)
                continue
            for _ in range(50):
                number = writer << SEQUENCE_BITS | sequence
                stats.record_transfer(duration_s=float(sequence), total_bytes=number, num_descs=sequence & 0xFFFFFFFF)
                sequence += 1
            stats.record_failed_transfer()
            stats.record_failed_recv()
            stats.record_kv_expired_req()
            failures += 1
        written[writer] = (sequence, failures)

    def check(self, snapshot, following):
        """Rows are whole, and each writer's go on where those of the last snapshot ended."""
        data = snapshot.data
        lengths = {len(data[key]) for key in ROW_KEYS}
        self.assertEqual(len(lengths), 1)
        for seconds, number, descriptors in zip(*(data[key] for key in ROW_KEYS)):
            writer, sequence = number >> SEQUENCE_BITS, number & (1 << SEQUENCE_BITS) - 1
            self.assertEqual((sequence, seconds, descriptors), (following[writer], float(sequence), sequence))
            following[writer] += 1
        return [len(data[key]) for key in KEYS[3:]]

    def test_rows_written_are_rows_seen(self):
        """Every other snapshot is taken of live lists, which someone has read meanwhile."""
        stats, done, written = MooncakeKVConnectorStats(), threading.Event(), {}
        following, failures, taken = [0] * WRITERS, [0, 0, 0], 0

        def take():
            snapshot = stats.clone_and_reset()
            snapshot.reduce()
            return [a + b for a, b in zip(failures, self.check(snapshot, following))]

        def read():
            nonlocal failures, taken
            end = time.monotonic() + SECONDS
            try:
                while time.monotonic() < end or taken < 10:
                    if taken % 2:
                        self.assertEqual(list(stats.data), list(KEYS))
                    failures = take()
                    taken += 1
                    time.sleep(0.005)
            finally:
                done.set()

        writers = [lambda i=i: self.write(stats, i, done, written) for i in range(WRITERS)]
        run_threads(*writers, read, timeout=SECONDS + WAIT_S)
        failures = take()
        self.assertEqual(following, [written[i][0] for i in range(WRITERS)])
        self.assertGreater(min(following), 0)
        self.assertEqual(failures, [sum(rounds for _, rounds in written.values())] * 3)

    def test_everything_at_once(self):
        """All other methods beside writers: whatever they see, a row is whole."""
        stats, done = MooncakeKVConnectorStats(row_limit=500), threading.Event()
        other = stats_of((1.0, MIB, 1), failed=1)

        def repeat(call):
            def run():
                while not done.is_set():
                    call()
            return run

        def stop():
            time.sleep(min(SECONDS, 2))
            done.set()

        def check_lists():
            data = stats.clone_and_reset().data
            self.assertEqual(len({len(data[key]) for key in ROW_KEYS}), 1)

        run_threads(
            *[lambda i=i: self.write(stats, i, done, {}) for i in range(3)],
            repeat(stats.reduce), repeat(lambda: stats.aggregate(other)), repeat(lambda: pickle.dumps(stats)),
            repeat(lambda: stats.data), repeat(check_lists), repeat(stats.is_empty), repeat(stats.reset), stop,
        )


class TestPickle(unittest.TestCase):
    def test_every_protocol(self):
        for make in (MooncakeKVConnectorStats, lambda: stats_of((0.5, MIB, 3), failed=1, recvs=2, expired=3)):
            for lists in (False, True):
                for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                    original = make()
                    if lists:
                        self.assertEqual(list(original.data), list(KEYS))
                    again = pickle.loads(pickle.dumps(original, protocol))
                    self.assertIs(type(again), MooncakeKVConnectorStats)
                    self.assertEqual(again.data, original.data)
                    again.record_transfer(1.0, 1, 1)
                    self.assertEqual(again.num_successful_transfers, original.num_successful_transfers + 1)

    def test_what_a_subclass_adds(self):
        original = Annotated()
        original.record_transfer(0.5, MIB, 3)
        original.note = "mine"
        again = pickle.loads(pickle.dumps(original))
        self.assertEqual((again.note, again.data), ("mine", original.data))

    def test_recursive(self):
        stats = stats_of((0.5, MIB, 3))
        stats.data["self"] = [stats]
        again = pickle.loads(pickle.dumps(stats))
        self.assertIs(again.data["self"][0], again)


class Annotated(MooncakeKVConnectorStats):
    pass


RECEIVER = """
import pickle, sys
from kvprobe.stats import KVConnectorLogging, MooncakeKVConnectorStats, build_kv_connector_stats
total = MooncakeKVConnectorStats()
log = KVConnectorLogging("MooncakeConnector")
n = 0
while True:
    try:
        snapshot = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    n += 1
    total.aggregate(snapshot)
    log.observe(snapshot.data)
print(n)
print(total.reduce())
log.log(print)
"""


class TestPipe(unittest.TestCase):
    SNAPSHOTS = 1000

    def test_a_thousand_snapshots_to_another_process(self):
        sum_of_all = MooncakeKVConnectorStats()
        process = subprocess.Popen([sys.executable, "-c", RECEIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   env=dict(os.environ, PYTHONPATH=str(BUILD / "python")))
        timer = threading.Timer(WAIT_S, process.kill)
        timer.start()
        try:
            for i in range(self.SNAPSHOTS):
                stats = stats_of(*[(0.001 * (i % 7 + 1), 4096 * i, i)] * (i % 5), failed=i % 2, recvs=i % 3, expired=1)
                sum_of_all.aggregate(stats)
                pickle.dump(stats, process.stdin, protocol=2 + i % 4)
            process.stdin.close()
            output = process.stdout.read().decode().splitlines()
            self.assertEqual(process.wait(WAIT_S), 0)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            process.stdout.close()
        figures = sum_of_all.reduce()
        self.assertEqual(figures["Num successful transfers"], 2000)
        self.assertEqual(output[0], str(self.SNAPSHOTS))
        self.assertEqual(output[1], str(figures))
        self.assertEqual(output[2], "KV Transfer metrics: " + ", ".join(f"{k}={v}" for k, v in figures.items()))


FAKE_VLLM_METRICS = """
from dataclasses import dataclass, field
from typing import Any

@dataclass
class KVConnectorStats:
    data: dict[str, Any] = field(default_factory=dict)
    def reset(self): raise NotImplementedError
    def aggregate(self, other): raise NotImplementedError
    def reduce(self): raise NotImplementedError
    def is_empty(self): raise NotImplementedError

class KVConnectorPromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        self.was_called = True
"""

WITH_VLLM = """
import pickle
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats, KVConnectorPromMetrics
from kvprobe import stats
for cls in (stats.MooncakeKVConnectorStats, stats.MooncakeStoreConnectorStats, stats.MultiKVConnectorStats):
    assert issubclass(cls, KVConnectorStats) and cls().is_empty() and cls().to_dict() is not None, cls
assert issubclass(stats.MooncakePromMetrics, KVConnectorPromMetrics)
mine = stats.MooncakeKVConnectorStats()
mine.record_transfer(duration_s=0.001, total_bytes=1048576, num_descs=4)
assert mine.reduce()["Avg xfer time (ms)"] == 1.0
assert pickle.loads(pickle.dumps(mine)) == mine
"""

WITHOUT = """
import sys
import kvprobe.stats
assert not {"numpy", "vllm", "prometheus_client", "kvprobe._store"} & set(sys.modules)
"""


class TestBases(unittest.TestCase):
    def vllm(self, metrics):
        root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        package = root / "vllm" / "distributed" / "kv_transfer" / "kv_connector" / "v1"
        package.mkdir(parents=True)
        for parent in [package, *package.parents]:
            if parent == root:
                break
            (parent / "__init__.py").touch()
        (package / "metrics.py").write_text(metrics)
        return root

    def test_with_vllm(self):
        done = run_python(WITH_VLLM, path=self.vllm(FAKE_VLLM_METRICS))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_with_a_vllm_that_does_not_work(self):
        done = run_python("import kvprobe.stats; kvprobe.stats.MooncakeKVConnectorStats()",
                          path=self.vllm("raise RuntimeError('no device')"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no device", done.stderr)

    def test_without(self):
        done = run_python(WITHOUT)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
