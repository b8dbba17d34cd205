# SPDX-License-Identifier: Apache-2.0
"""The built binaries under a workload, watched by bpftrace: every key fires, each once per call, with what the call
returned; nothing fires when nothing is called; no semaphore stays up."""

import collections
import os
import signal
import time
import unittest
from dataclasses import dataclass

import tracer
from probe_elf import perf_points, product_binaries
from processes import Master, Workload, semaphores, wait_until

# Fire by themselves, whatever is called.
BACKGROUND = {"MASTER_RPC_PING"} | {point.name for point in perf_points.load() if point.name.startswith("MASTER_BG_")}
# Steps that one call may take several times: per object at the master, per connection.
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


def watched_files():
    return {path: layers for _, path, layers in product_binaries()}


def script(files):
    points = [f"usdt:{path}:kvstore:{point.name}" for path, layers in files.items()
              for point in perf_points.load() if point.layer in layers]
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
    """One run, watched as a whole, because attaching to everything takes a while."""

    @classmethod
    def setUpClass(cls):
        cls.watch = tracer.Bpftrace(script(watched_files()))
        with cls.watch:
            cls.embedded_report = cls.run_embedded()
            cls.worker_report = cls.run_cluster()
            _, lines = cls.watch.stop()
        cls.firings = firings(lines)

    @staticmethod
    def run_embedded():
        with Workload("embedded") as work:
            work.expect("ready")
            work.go_on()
            return work.report()

    @staticmethod
    def run_cluster():
        with Master(*MASTER_FLAGS) as master, Workload("owner", master.address) as owner, \
                Workload("worker", master.address) as work:
            owner.expect("ready")
            work.expect("ready")
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
        for report in (self.embedded_report, self.worker_report):
            self.assertEqual(report["wrong"], [])

    def test_python_keys_once_per_call_with_its_result(self):
        python_keys = {point.name for point in perf_points.load() if point.layer == "PY"}
        for report in (self.embedded_report, self.worker_report):
            seen = [firing for firing in self.of(report) if firing.key in python_keys]
            expected = report["expected"]
            self.assertEqual([firing.key for firing in seen], [call["key"] for call in expected])
            for firing, call in zip(seen, expected):
                with self.subTest(call=call, firing=firing):
                    self.assertEqual((firing.bytes, firing.n_keys, firing.n_failed),
                                     (call["bytes"], call["n_keys"], call["n_failed"]))
                    self.assertIn(firing.rc, call["rc"])
                    self.assertGreaterEqual(firing.elapsed_ns, 1)

    def test_no_key_twice_in_one_call(self):
        for report in (self.embedded_report, self.worker_report):
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
        fired = {firing.key for firing in self.firings}
        self.assertEqual({point.name for point in perf_points.load()} - fired, set())

    def test_codes_are_negative_or_0(self):
        self.assertEqual([firing for firing in self.firings if firing.rc > 0 or firing.n_failed > firing.n_keys], [])


@unittest.skipIf(tracer.why_not(), tracer.why_not())
class Silence(unittest.TestCase):
    def test_nothing_fires_when_nothing_is_called(self):
        with Workload("idle") as work:
            work.expect("ready")
            with tracer.Bpftrace(script(watched_files())) as watch:
                time.sleep(2)
                _, lines = watch.stop()
            work.go_on()
            report = work.report()
        seen = [firing for firing in firings(lines) if firing.pid == report["pid"]]
        self.assertEqual({firing.key for firing in seen} - BACKGROUND, set())


@unittest.skipIf(tracer.why_not(), tracer.why_not())
class Semaphores(unittest.TestCase):
    def setUp(self):
        self.work = self.enterContext(Workload("idle"))
        self.work.expect("ready")
        self.files = {path: layers for name, path, layers in product_binaries() if name != "kvmaster"}

    def up(self):
        """The probes of the worker that someone watches, by file."""
        return {path: {probe for probe, value in semaphores(self.work.pid, path).items() if value}
                for path in self.files}

    def all_down(self):
        return not any(self.up().values())

    def watch(self):
        return tracer.Bpftrace(script(self.files))

    def expect_done_probes_up(self):
        for path, probes in self.up().items():
            keys = {point.name for point in perf_points.load() if point.layer in self.files[path]}
            self.assertEqual(probes, keys)

    def test_down_up_and_down_again(self):
        self.assertTrue(self.all_down())
        with self.watch() as watch:
            self.expect_done_probes_up()
            watch.stop()
        wait_until(self.all_down, "semaphores down after the tracer detached")

    def test_down_after_the_tracer_was_killed(self):
        with self.watch() as watch:
            self.expect_done_probes_up()
            os.kill(watch.pid, signal.SIGKILL)
        wait_until(self.all_down, "semaphores down after the tracer was killed")
        self.work.go_on()
        self.assertEqual(self.work.report()["wrong"], [])


if __name__ == "__main__":
    unittest.main()
