# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""The built binaries under a workload, watched by bpftrace: every key fires, each once per call, with what the call
returned; nothing fires when nothing is called; no semaphore stays up."""

import collections
import os
import signal
import time
import unittest
from dataclasses import dataclass

import tracer
from probe_elf import BUILD, perf_points, product_binaries
from processes import Master, Workload, semaphores, wait_until

# Fire by themselves, whatever is called.
BACKGROUND = {"MASTER_RPC_PING"} | {point.name for point in perf_points.load() if point.name.startswith("MASTER_BG_")}
# Steps that one call may take several times: per object at the master, per connection.
KVPROBE = BUILD / "bin" / "kvprobe"
REPEATED = {point.name for point in perf_points.load()
            if point.level == "DEBUG" or (point.layer == "MASTER" and point.level == "MODULE")}
# A client that stops pinging is gone after this; the watermark is low enough for the workload to reach it.
MASTER_FLAGS = ("--client_ttl=3", "--eviction_high_watermark_ratio=0.5", "--put_start_discard_timeout_sec=1",
                "--put_start_release_timeout_sec=1")


@dataclass
class Firing:
    time_ns: int
    pid: int
    key: str
    elapsed_ns: int
    bytes: int
    n_keys: int
    n_failed: int
    rc: int
    op_id: int


def traced(point):
    """The keys that bpftrace follows one by one. It detaches them one by one as well, a quarter of a second each, so
    it is given the public calls and what each of them must do exactly once."""
    return point.layer == "PY" or point.level == "KEY_MODULE" and point.layer != "MASTER" or point.name in (
        "PUT_INTERNAL_FULL", "GET_BUFFER_INTERNAL_FULL", "GET_INTO_INTERNAL", "GET_BATCH_INTO_INTERNAL",
        "CLIENT_BATCH_QUERY", "PUT_BATCH_FULL", "GET_BATCH_FULL", "MASTER_RPC_BATCH_PUT_START")


def script(choose=traced):
    points = [f"usdt:{path}:kvstore:{point.name}" for _, path, layers in product_binaries()
              for point in perf_points.load() if point.layer in layers and choose(point)]
    return (", ".join(points) + ' { printf("%lu %d %s %lu %lu %lu %lu %ld %lx\\n", nsecs, pid, probe, arg0, arg1, '
            "arg2, arg3, (int64)arg4, arg5); }")


def firings(lines):
    found = []
    for line in lines:
        when, pid, probe, elapsed, size, n_keys, n_failed, rc, op_id = line.split()
        found.append(Firing(int(when), int(pid), probe.rpartition(":")[2], int(elapsed), int(size), int(n_keys),
                            int(n_failed), int(rc), int(op_id, 16)))
    return sorted(found, key=lambda firing: firing.time_ns)


@unittest.skipIf(tracer.why_not(), tracer.why_not())
class Fires(unittest.TestCase):
    """One run, watched by bpftrace and by kvprobe at the same time: what one says the other must say too."""

    @classmethod
    def setUpClass(cls):
        with Master(*MASTER_FLAGS) as master, Workload("owner", master.address) as owner, \
                Workload("worker", master.address) as worker, Workload("embedded") as embedded, \
                Workload("transfers") as transfers, Workload("engine") as engine:
            children = (master, owner, worker, embedded, transfers, engine)
            for child in children[1:]:
                child.expect("ready")
            pids = ",".join(str(child.pid) for child in children)
            with tracer.Bpftrace(script()) as watch, tracer.KvprobeStat(KVPROBE, "-p", pids) as stat:
                cls.embedded_report = cls.run_embedded(embedded)
                cls.transfers_report = cls.run_embedded(transfers)
                cls.engine_report = cls.run_embedded(engine)
                cls.worker_report = cls.run_cluster(master, owner, worker)
                cls.totals, cls.summary = stat.stop()
                _, lines = watch.stop()
            cls.firings = [firing for firing in firings(lines) if firing.pid in {child.pid for child in children}]

    @staticmethod
    def run_embedded(work):
        work.go_on()
        return work.report()

    @staticmethod
    def run_cluster(master, owner, work):
        owner.go_on()
        owner.expect("up")
        work.go_on()
        work.expect("kill-owner")
        owner.kill()
        work.go_on()
        work.expect("kill-master")
        time.sleep(6)  # the master finds the owner dead and cleans up after it
        master.kill()
        work.go_on()
        return work.report()

    def of(self, report):
        return [firing for firing in self.firings if firing.pid == report["pid"]]

    def test_calls_returned_what_they_should(self):
        for report in (self.embedded_report, self.worker_report, self.transfers_report, self.engine_report):
            self.assertEqual(report["wrong"], [])

    def assert_as_returned(self, seen, expected):
        """Each call fired once, in order, with what it returned to its caller."""
        self.assertEqual([firing.key for firing in seen], [call["key"] for call in expected])
        for firing, call in zip(seen, expected):
            with self.subTest(call=call, firing=firing):
                self.assertEqual((firing.bytes, firing.n_keys, firing.n_failed),
                                 (call["bytes"], call["n_keys"], call["n_failed"]))
                self.assertIn(firing.rc, call["rc"])
                self.assertGreaterEqual(firing.elapsed_ns, 1)

    def test_python_keys_once_per_call_with_its_result(self):
        python_keys = {point.name for point in perf_points.load() if point.layer == "PY"}
        for report in (self.embedded_report, self.worker_report):
            seen = [firing for firing in self.of(report) if firing.key in python_keys]
            self.assert_as_returned(seen, report["expected"])

    def test_engine_keys_once_per_call_with_its_result(self):
        seen = [firing for firing in self.of(self.engine_report) if firing.key.startswith("ENGINE_")]
        self.assert_as_returned(seen, self.engine_report["expected"])

    def test_transfer_keys_once_per_record_with_what_was_measured(self):
        seen = self.of(self.transfers_report)
        expected = self.transfers_report["expected"]
        self.assertEqual([firing.key for firing in seen], [record["key"] for record in expected])
        for firing, record in zip(seen, expected):
            with self.subTest(record=record, firing=firing):
                self.assertEqual((firing.elapsed_ns, firing.bytes, firing.n_keys, firing.n_failed),
                                 (record["elapsed_ns"], record["bytes"], record["n_keys"], record["n_failed"]))
                self.assertEqual([firing.rc], record["rc"])

    def test_transfer_keys_are_not_untimed(self):
        rows = [row for (pid, _), row in self.totals.items() if pid == self.transfers_report["pid"]]
        self.assertEqual(sum(row["calls"] for row in rows), len(self.transfers_report["expected"]))
        self.assertEqual([row["untimed"] for row in rows], [0] * len(rows))

    def test_no_key_twice_in_one_call(self):
        for report in (self.embedded_report, self.worker_report, self.transfers_report, self.engine_report):
            counts = collections.Counter((firing.op_id, firing.key) for firing in self.of(report)
                                         if firing.key not in BACKGROUND | REPEATED)
            self.assertEqual([item for item in counts.items() if item[1] > 1], [])

    def test_what_lies_within_a_call_has_its_op_id(self):
        python_ids = {firing.op_id for firing in self.firings if firing.key.find("STORE_PY") >= 0}
        strangers = [firing for firing in self.of(self.embedded_report)
                     if firing.key not in BACKGROUND | REPEATED and firing.op_id not in python_ids]
        self.assertEqual(strangers, [])

    def test_the_op_id_reaches_the_master(self):
        worker_ids = {firing.op_id for firing in self.of(self.worker_report)}
        at_master = {firing.op_id for firing in self.firings
                     if firing.key == "MASTER_RPC_BATCH_PUT_START" and firing.pid != self.embedded_report["pid"]}
        self.assertTrue(at_master)
        self.assertLessEqual(at_master, worker_ids)

    def test_every_key_fires(self):
        fired = {key for (_, key), row in self.totals.items() if row["calls"]}
        self.assertEqual({point.name for point in perf_points.load()} - fired, set())

    def test_kvprobe_and_bpftrace_agree(self):
        self.assertEqual((self.summary["lost"], self.summary["missed"]), (0, 0))
        seen = {}
        for firing in self.firings:
            row = seen.setdefault((firing.pid, firing.key), collections.Counter())
            row.update(calls=1, failed_calls=firing.rc < 0, keys=firing.n_keys, failed_keys=firing.n_failed,
                       bytes=firing.bytes)
        names = {point.name for point in perf_points.load() if traced(point)}
        counted = {which: {name: row[name] for name in ("calls", "failed_calls", "keys", "failed_keys", "bytes")}
                   for which, row in self.totals.items() if which[1] in names and row["calls"]}
        self.assertEqual(counted, {which: dict(row) for which, row in seen.items()})

    def test_codes_are_negative_or_0(self):
        transfer_keys = {point.name for point in perf_points.load() if point.layer == "XFER"}
        self.assertEqual([firing for firing in self.firings if firing.rc > 0 or firing.n_failed > firing.n_keys and
                          firing.key not in transfer_keys], [])


@unittest.skipIf(tracer.why_not(), tracer.why_not())
class Idle(unittest.TestCase):
    """A worker that is set up and calls nothing."""

    def setUp(self):
        self.work = self.enterContext(Workload("idle"))
        self.work.expect("ready")
        self.files = {path: layers for name, path, layers in product_binaries() if name != "kvmaster"}
        wait_until(self.all_down, "no one else on this host watches every process", timeout=60)

    def up(self):
        """The probes of the worker that someone watches, in all its files."""
        return {probe for path in self.files for probe, value in semaphores(self.work.pid, path).items() if value}

    def all_down(self):
        return not self.up()

    def works_on(self):
        self.work.go_on()
        self.assertEqual(self.work.report()["wrong"], [])

    def test_nothing_fires_when_nothing_is_called(self):
        with tracer.KvprobeStat(KVPROBE, "-p", self.work.pid) as stat:
            time.sleep(2)
            totals, _ = stat.stop()
        fired = {key for (_, key), row in totals.items() if row["calls"]}
        self.assertEqual(fired - BACKGROUND, set())
        self.works_on()

    def test_semaphores_of_kvprobe(self):
        every_key = {point.name for point in perf_points.load()}
        with tracer.KvprobeStat(KVPROBE, "-p", self.work.pid) as stat:
            self.assertEqual(self.up(), every_key)
            stat.stop()
        wait_until(self.all_down, "semaphores down after kvprobe detached")
        with tracer.KvprobeStat(KVPROBE, "-p", self.work.pid) as stat:
            self.assertEqual(self.up(), every_key)
            os.kill(stat.pid, signal.SIGKILL)
            wait_until(self.all_down, "semaphores down after kvprobe was killed")
        self.works_on()

    def test_semaphores_of_bpftrace(self):
        chosen = {"STORE_PY_CLOSE", "RC_TEARDOWN_ALL", "MASTER_RPC_PING"}
        with tracer.Bpftrace(script(lambda point: point.name in chosen)) as watch:
            self.assertEqual(self.up(), chosen)
            watch.stop()
        wait_until(self.all_down, "semaphores down after bpftrace detached")
        with tracer.Bpftrace(script(lambda point: point.name in chosen)) as watch:
            self.assertEqual(self.up(), chosen)
            os.kill(watch.pid, signal.SIGKILL)
        wait_until(self.all_down, "semaphores down after bpftrace was killed")
        self.works_on()


if __name__ == "__main__":
    unittest.main()
