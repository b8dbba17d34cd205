# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""kvprobe xfer says of running workers what their own logging would: over the bare probes and over kvprobe.stats."""

import json
import re
import signal
import subprocess
import time
import unittest

from collector import BUILD, REPO, SITE_WORKER, Case, forms_here, run_kvprobe, wait_until
from transfer_rows import (COUNTS, MEANS, MIB, P90, P90_ERROR, PythonRecorder, SiteRecorder, failures, parse_line,
                           random_rows, reference)

GOLDEN = {
    "two": ([("write", 0.001, MIB, 4), ("write", 0.002, 2 * MIB, 6)], (2, 1.5, 1.9, 1.5, 1000.0, 5.0)),
    "ten": ([("write", i / 1000, MIB, i) for i in range(1, 11)], (10, 5.5, 9.1, 1.0, 181.818, 5.5)),
    "no duration": ([("write", 0.0, MIB, 1)], (1, 0.0, 0.0, 1.0, 0.0, 1.0)),
}
# field of JSON -> name in the line
FIELDS = {"successes": COUNTS[0], "avg_ms": MEANS[0], "p90_ms": P90, "avg_mb": MEANS[1], "throughput_mb_s": MEANS[2],
          "avg_descriptors": MEANS[3], "failed_transfers": COUNTS[1], "failed_recvs": COUNTS[2],
          "expired_reqs": COUNTS[3]}
ADDITIVE = ("successes", "failed_transfers", "failed_recvs", "expired_reqs", "bytes", "descriptors", "sum_ns")


class XferCase(Case):
    def recorder(self, kind):
        worker = kind()
        self.addCleanup(worker.kill)
        return worker

    def assert_figures(self, got, want):
        """Counts equal; averages to five digits or the last printed one; P90 within the histogram's error."""
        self.assertEqual(list(got), list(want))
        for name in COUNTS:
            self.assertEqual(got[name], want[name], name)
        for name in MEANS:
            self.assertLessEqual(abs(got[name] - want[name]), max(0.001001, 1e-5 * want[name]), (name, got, want))
        self.assertLessEqual(abs(got[P90] - want[P90]), P90_ERROR * want[P90] + 0.001001, (got, want))

    def lines(self, xfer):
        """who -> figures of the text on stdout, which has nothing else."""
        found = [parse_line(line) for line in xfer.output().decode().splitlines()]
        self.assertEqual(len(dict(found)), len(found), found)
        return dict(found)

    def assert_json_agrees(self, row, figures):
        self.assertEqual({field: row[field] for field in FIELDS}, {field: figures[name] for field, name in
                                                                  FIELDS.items()})


class Rows:
    """Over workers of KIND, which the classes below say."""

    KIND = None

    def watch_one(self, rows, *args):
        """Record the rows in a watched worker; its line, and what the worker itself says."""
        worker = self.recorder(self.KIND)
        xfer = self.collector("xfer", "-p", worker.pid, *args)
        worker.record(rows)
        self.assertEqual(xfer.stop(), 0, xfer.errors)
        output = xfer.output().decode()
        self.assertEqual(output.count("\n"), 1, output)
        who, figures = parse_line(output.rstrip("\n"))
        self.assertEqual(who, f"pid={worker.pid}")
        return output, figures, worker.own()

    def test_golden_vectors(self):
        for name, (rows, wanted) in GOLDEN.items():
            with self.subTest(rows=name):
                _, figures, own = self.watch_one(rows)
                want = dict(zip((COUNTS[0], MEANS[0], P90, *MEANS[1:]), wanted)) | dict.fromkeys(COUNTS[1:], 0)
                self.assert_figures(figures, want)
                for exact in (name for name in want if name != P90):
                    self.assertEqual(figures[exact], want[exact])
                if own:
                    self.assert_figures(figures, own[1])

    def test_failures_only(self):
        """Without a success the line is the worker's own to the last character."""
        line, figures, own = self.watch_one(failures(failed=2, recv=3, expired=4))
        pid = line.partition(" ")[0]
        self.assertEqual(line, f"{pid} KV Transfer metrics: Num successful transfers=0, Avg xfer time (ms)=0, "
                               "P90 xfer time (ms)=0, Avg MB per transfer=0, Throughput (MB/s)=0, Avg number of "
                               "descriptors=0, Num failed transfers=2, Num failed recvs=3, Num KV expired reqs=4\n")
        if own:
            self.assertEqual(line, f"{pid} {own[0]}\n")

    def test_one_transfer_is_exact(self):
        """Of one duration the minimum and the maximum say all, P90 included."""
        line, _, own = self.watch_one([("read", 0.0012345, 3 * MIB + 17, 7)])
        self.assertIn(" KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)=1.234, P90 xfer time "
                      "(ms)=1.234, Avg MB per transfer=3.0, Throughput (MB/s)=2430.147, Avg number of "
                      "descriptors=7.0, Num failed transfers=0, Num failed recvs=0, Num KV expired reqs=0", line)
        if own:
            self.assertEqual(line.partition(" ")[2], own[0] + "\n")

    def test_two_workers_and_their_sum(self):
        rows = [random_rows(1, 700), random_rows(2, 300)]
        workers = [self.recorder(self.KIND) for _ in rows]
        pids = ",".join(str(worker.pid) for worker in workers)
        text, as_json = self.collector("xfer", "-p", pids), self.collector("xfer", "--json", "-p", pids)
        for worker, own_rows in zip(workers, rows):
            worker.record(own_rows)
        for xfer in (text, as_json):
            self.assertEqual(xfer.stop(), 0, xfer.errors)
        lines = self.lines(text)
        self.assertEqual(set(lines), {*(f"pid={worker.pid}" for worker in workers), "all"})
        by_pid = {row["pid"]: row for row in as_json.rows()}
        self.assertEqual(set(by_pid), {*(worker.pid for worker in workers), 0})
        for pid, worker_rows in zip([*(worker.pid for worker in workers), 0], [*rows, rows[0] + rows[1]]):
            with self.subTest(pid=pid):
                figures = lines[f"pid={pid}" if pid else "all"]
                self.assert_figures(figures, reference(worker_rows))
                self.assert_json_agrees(by_pid[pid], figures)
                moved = [row for row in worker_rows if row[0] in ("write", "read")]
                self.assertEqual(by_pid[pid]["bytes"], sum(row[2] for row in moved))
                self.assertEqual(by_pid[pid]["descriptors"], sum(row[3] for row in moved))
                self.assertLessEqual(abs(by_pid[pid]["sum_ns"] - sum(row[1] for row in moved) * 1e9), len(moved))
        for worker in workers:
            if worker.own():
                self.assert_figures(lines[f"pid={worker.pid}"], worker.own()[1])

    def test_a_worker_that_ends_keeps_its_line(self):
        worker, other = self.recorder(self.KIND), self.recorder(self.KIND)
        xfer = self.collector("xfer", "--json", "-p", f"{worker.pid},{other.pid}")
        rows = random_rows(3, 50)
        worker.record(rows)
        other.record(rows[:5])
        self.assertEqual(worker.quit(), 0)
        time.sleep(1.5)  # a look at who lives, once a second
        self.assertEqual(xfer.stop(), 0, xfer.errors)
        by_pid = {row["pid"]: row for row in xfer.rows()}
        self.assertTrue(by_pid[worker.pid]["exited"])
        self.assertFalse(by_pid[other.pid]["exited"])
        self.assertEqual(by_pid[worker.pid]["successes"], reference(rows)[COUNTS[0]])

    def test_ends_with_the_last_of_the_listed(self):
        worker = self.recorder(self.KIND)
        xfer = self.collector("xfer", "-p", worker.pid)
        worker.record([("write", 0.001, MIB, 4)])
        worker.quit()
        self.assertEqual(xfer.finish(), 0, xfer.errors)
        self.assertEqual(set(self.lines(xfer)), {f"pid={worker.pid}"})


class OverProbes(Rows, XferCase):
    KIND = SiteRecorder

    def test_every_form_of_attaching(self):
        for name, form in forms_here().items():
            with self.subTest(form=name):
                _, figures, _ = self.watch_one(GOLDEN["ten"][0] + failures(failed=1, recv=1, expired=1), *form)
                self.assert_figures(figures, reference(GOLDEN["ten"][0] + failures(failed=1, recv=1, expired=1)))


class OverPython(Rows, XferCase):
    KIND = PythonRecorder

    def test_eight_threads(self):
        rows = random_rows(8, 20000)
        worker = self.recorder(PythonRecorder)
        xfer = self.collector("xfer", "-p", worker.pid)
        worker.record(rows, threads=8)
        self.assertEqual(xfer.stop(), 0, xfer.errors)
        figures = self.lines(xfer)[f"pid={worker.pid}"]
        self.assert_figures(figures, reference(rows))
        self.assert_figures(figures, worker.own()[1])

    def test_list_and_check(self):
        binary = BUILD / "python" / "kvprobe" / "_stats.abi3.so"
        listed = {json.loads(line)["key"] for line in run_kvprobe("list", "--json", binary).stdout.splitlines()}
        keys = {"XFER_WRITE", "XFER_READ", "XFER_RECV_FAILED", "XFER_REQ_EXPIRED"}
        self.assertEqual({name for name in listed if not name.endswith("__start")}, keys)
        done = run_kvprobe("check", "--def", REPO / "perf_points.def", binary)
        self.assertEqual(done.returncode, 0, done.stdout)


class Run(XferCase):
    """How a run goes: intervals, signals, exit codes."""

    @staticmethod
    def successes_printed(xfer):
        """In all whole lines so far, of either format."""
        whole = xfer.output().decode().rpartition("\n")[0]
        return sum(map(int, re.findall(r'(?:"successes":|Num successful transfers=)(\d+)', whole)))

    def two_batches(self, *args):
        """A busy worker and an idle one, watched with intervals; rows in two of them."""
        busy, idle = self.recorder(SiteRecorder), self.recorder(SiteRecorder)
        xfer = self.collector("xfer", "-p", f"{busy.pid},{idle.pid}", "-i", "0.2", *args)
        batches = [random_rows(5, 40) + failures(failed=1), [("write", 0.003, MIB, 9)] * 3]
        printed = 0
        for batch in batches:
            busy.record(batch)
            printed += reference(batch)[COUNTS[0]]
            wait_until(lambda: self.successes_printed(xfer) == printed, "every row is in some interval")
        self.assertEqual(xfer.stop(), 0, xfer.errors)
        return busy, xfer, batches

    def test_intervals_add_up_to_the_totals(self):
        busy, xfer, batches = self.two_batches("--json")
        intervals, (total,) = xfer.rows("interval"), xfer.rows()
        self.assertEqual({row["pid"] for row in intervals}, {busy.pid})
        self.assertGreaterEqual(len(intervals), 2)
        for field in ADDITIVE:
            self.assertEqual(sum(row[field] for row in intervals), total[field], field)
        self.assert_figures({name: total[field] for field, name in FIELDS.items()}, reference(sum(batches, [])))
        # the second batch came in one or more intervals of its own
        last = intervals[-1]
        self.assertEqual((last["avg_ms"], last["avg_descriptors"]), (3.0, 9.0))
        self.assertLessEqual(abs(last["p90_ms"] - 3), 3 * P90_ERROR)

    def test_interval_lines_and_then_totals(self):
        busy, xfer, batches = self.two_batches()
        lines = [parse_line(line) for line in xfer.output().decode().splitlines()]
        self.assertEqual({who for who, _ in lines}, {f"pid={busy.pid}"})
        self.assertGreaterEqual(len(lines), 3)
        self.assert_figures(lines[-1][1], reference(sum(batches, [])))
        for name in COUNTS:
            self.assertEqual(sum(figures[name] for _, figures in lines[:-1]), lines[-1][1][name], name)
        # stderr says what each group is, and says nothing of intervals without a line
        headings = [line.split()[1] for line in xfer.errors if line.split()[1:2] in (["interval"], ["total"])]
        self.assertEqual(headings, ["interval"] * (len(lines) - 1) + ["total"])

    def test_count_ends_the_run(self):
        worker = self.recorder(SiteRecorder)
        xfer = self.collector("xfer", "--json", "-i", "0.1", "-c", "3", "-p", worker.pid)
        worker.record([("write", 0.001, 1, 1)])
        self.assertEqual(xfer.finish(), 0, xfer.errors)
        self.assertEqual(xfer.summary()["events"], 1)

    def test_duration_ends_the_run(self):
        worker = self.recorder(SiteRecorder)
        xfer = self.collector("xfer", "-d", "0.3", "-p", worker.pid)
        self.assertEqual(xfer.finish(), 0, xfer.errors)
        self.assertEqual(xfer.output(), b"")

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                worker = self.recorder(SiteRecorder)
                xfer = self.collector("xfer", "-p", worker.pid)
                worker.record([("write", 0.001, MIB, 1)])
                self.assertEqual(xfer.stop(number), 0, xfer.errors)
                self.assertEqual(len(self.lines(xfer)), 1)
                wait_until(lambda: not worker.watched("XFER_WRITE"), "the semaphore is down")

    def test_a_worker_that_starts_later(self):
        xfer = self.collector("xfer", "--json", "-v", wait=False)
        xfer.wait_for_any("attached: ", "kvprobe: no process has the probes yet")
        worker = self.recorder(SiteRecorder)
        xfer.wait_for_file(SITE_WORKER)
        worker.record([("write", 0.002, MIB, 5)])
        self.assertEqual(xfer.stop(), 0, xfer.errors)
        row, = (row for row in xfer.rows() if row["pid"] == worker.pid)
        self.assertEqual((row["successes"], row["avg_ms"]), (1, 2.0))

    def test_verbose_says_how_good_p90_is(self):
        worker = self.recorder(SiteRecorder)
        xfer = self.collector("xfer", "-v", "-p", worker.pid)
        worker.record(GOLDEN["two"][0])
        self.assertEqual(xfer.stop(), 0)
        self.assertTrue(any("within 3.125 % of the value" in line for line in xfer.errors), xfer.errors)
        self.assertEqual(len(self.lines(xfer)), 1)

    def test_json_fields(self):
        worker = self.recorder(SiteRecorder)
        xfer = self.collector("xfer", "--json", "-p", worker.pid)
        worker.record(GOLDEN["ten"][0] + failures(recv=2))
        self.assertEqual(xfer.stop(), 0)
        row, = xfer.rows()
        self.assertEqual(list(row), ["type", "time_ns", "pid", "nspid", "comm", *FIELDS, "bytes", "descriptors",
                                     "sum_ns", "p90_error", "seconds", "exited"])
        self.assertEqual((row["comm"], row["bytes"], row["descriptors"], row["sum_ns"], row["p90_error"]),
                         ("bpf-site-worker", 10 * MIB, 55, 55_000_000, P90_ERROR))
        self.assertIn(b'"throughput_mb_s":181.818,', xfer.output())
        summary = xfer.summary()
        self.assertEqual((summary["events"], summary["lost"], summary["untimed"], summary["workers"]), (12, 0, 0, 1))

    def test_a_table_that_is_too_small(self):
        """Workers beyond the table are lost, and the exit status says so."""
        workers = [self.recorder(SiteRecorder) for _ in range(2)]
        xfer = self.collector("xfer", "--json", "--workers", "1")
        for worker in workers:
            wait_until(lambda: worker.watched("XFER_WRITE"), "watched")
            worker.record([("write", 0.001, MIB, 1)])
        self.assertEqual(xfer.stop(), 4, xfer.errors)
        self.assertGreaterEqual(xfer.summary()["lost"], 1)


class NothingThere(XferCase):
    def refused(self, pid):
        done = run_kvprobe("xfer", "-p", pid, "-d", "1")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        return done.stderr

    def start(self, *argv):
        process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def test_a_process_without_probes(self):
        self.assertIn("kvprobe.stats", self.refused(self.start("sleep", 60).pid))

    def test_no_process_at_all(self):
        """In a namespace of its own kvprobe sees no worker."""
        done = run_kvprobe("xfer", "-d", "0.2", prefix=("unshare", "--pid", "--fork", "--mount-proc"))
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertIn("waiting for one: none has imported kvprobe.stats", done.stderr)
        self.assertIn("nothing was attached: no process had the probes: none has imported kvprobe.stats", done.stderr)

    def test_a_process_with_other_probes(self):
        """The master has probes, but none of transfers."""
        master = self.start(BUILD / "bin" / "kvmaster", "--rpc_address=127.0.0.1", "--rpc_port=0")
        self.assertIn(b"listening", master.stdout.readline())
        self.assertIn("none has imported kvprobe.stats", self.refused(master.pid))

    def test_no_such_process(self):
        ended = self.start("true")
        ended.wait(60)
        self.assertIn(str(ended.pid), self.refused(ended.pid))

    def test_usage(self):
        for args in (("-i", "0"), ("-i", "x"), ("-c", "0"), ("-p", "no"), ("more",)):
            with self.subTest(args=args):
                done = run_kvprobe("xfer", *args)
                self.assertEqual((done.returncode, done.stdout), (64, ""), done.stderr)

    def test_help_says_which_side_records(self):
        done = run_kvprobe("xfer", "--help")
        self.assertEqual(done.returncode, 0)
        for word in ("prefill", "decode", "kvprobe.stats", "3.2 %"):
            self.assertIn(word, done.stdout)


class Stat(XferCase):
    def test_failures_are_events_and_not_untimed(self):
        worker = self.recorder(SiteRecorder)
        stat = self.collector("stat", "--json", "--perf-key", "XFER_", "-p", worker.pid)
        worker.record(GOLDEN["two"][0] + failures(failed=3, recv=2, expired=1))
        self.assertEqual(stat.stop(), 0, stat.errors)
        rows = stat.by_key(worker.pid)
        write = rows["XFER_WRITE"]
        self.assertEqual((write["calls"], write["failed_calls"], write["untimed"], write["keys"], write["layer"]),
                         (5, 3, 0, 10, "XFER"))
        self.assertEqual((write["avg_ns"], write["max_ns"]), (1_500_000, 2_000_000))
        self.assertLessEqual(abs(write["p50_ns"] - 1_000_000), 1_000_000 * P90_ERROR)
        for key, n in (("XFER_RECV_FAILED", 2), ("XFER_REQ_EXPIRED", 1)):
            self.assertEqual((rows[key]["calls"], rows[key]["failed_calls"], rows[key]["untimed"], rows[key]["max_ns"]),
                             (n, n, 0, 0))
        self.assertEqual((stat.summary()["events"], stat.summary()["untimed"]), (8, 0))


if __name__ == "__main__":
    unittest.main()
