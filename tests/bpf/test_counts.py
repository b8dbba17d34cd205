# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""kvprobe stat counts exactly: every key, every form of attaching, several workers, threads and namespaces."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

import collector
from collector import Case, forms_here, run_kvprobe, scaled, site_keys

THREADS = 8
LOOPS = scaled(100_000)


def values_of(k, i):
    """What call i of key k reports: the rule of site_worker.c."""
    failed = (k + i) % 5 == 0
    n_keys = k % 9 + i % 3
    return (k + 1) * 1000 + i, n_keys, n_keys if failed else 0, failed


def expected(k, loops):
    calls = [values_of(k, i) for i in range(loops)]
    return {"calls": loops, "bytes": sum(c[0] for c in calls), "keys": sum(c[1] for c in calls),
            "failed_keys": sum(c[2] for c in calls), "failed_calls": sum(c[3] for c in calls)}


class ExactTest(Case):
    def test_eight_threads_lose_nothing(self):
        for name, form in forms_here().items():
            with self.subTest(form=name):
                worker = self.worker()
                stat = self.collector("stat", "--json", "--perf-key", "RC_PUT_FROM", "-p", worker.pid, *form)
                worker.fire("RC_PUT_FROM", THREADS, LOOPS, size=3, keys=2, failed=1, rc=-200)
                self.assertEqual(stat.stop(), 0, stat.errors)
                row = stat.by_key(worker.pid)["RC_PUT_FROM"]
                n = THREADS * LOOPS
                got = {name: row[name] for name in ("calls", "failed_calls", "bytes", "keys", "failed_keys")}
                self.assertEqual(got, {"calls": n, "failed_calls": n, "bytes": 3 * n, "keys": 2 * n,
                                       "failed_keys": n})
                self.assertEqual(row["untimed"], 0)
                self.assertEqual(stat.summary()["events"], n)
                self.assertEqual(stat.summary()["lost"], 0)

    def test_every_key_with_known_values(self):
        for name, form in forms_here().items():
            # ending a single uprobe waits for a grace period: a few of them will do
            prefix = "PUT_SINGLE_" if "single" in name else ""
            with self.subTest(form=name):
                worker = self.worker()
                stat = self.collector("stat", "--json", "--perf-key", prefix, "-p", worker.pid, *form)
                worker.do("each 37")
                self.assertEqual(stat.stop(), 0, stat.errors)
                rows = stat.by_key(worker.pid)
                self.assertEqual(set(rows), {key for key in site_keys() if key.startswith(prefix)})
                for k, key in enumerate(site_keys()):
                    if key in rows:
                        want = expected(k, 37)
                        self.assertEqual({field: rows[key][field] for field in want}, want, key)

    def test_durations_are_bounded_and_ordered(self):
        worker = self.worker()
        stat = self.collector("stat", "--json")
        start = time.monotonic_ns()
        worker.fire("PUT_BATCH_FULL", 1, 1000)
        spent = time.monotonic_ns() - start
        self.assertEqual(stat.stop(), 0)
        row = stat.by_key(worker.pid)["PUT_BATCH_FULL"]
        self.assertGreater(row["avg_ns"], 0)
        self.assertLessEqual(row["avg_ns"] * 1000, spent)
        self.assertLessEqual(row["p50_ns"], row["p99_ns"])
        self.assertLessEqual(row["p99_ns"], row["p999_ns"])
        self.assertLessEqual(row["p999_ns"], row["max_ns"])
        self.assertLessEqual(row["max_ns"], spent)

    def test_intervals_add_up_to_the_total(self):
        worker = self.worker()
        stat = self.collector("stat", "--json", "-i", "0.2")
        for _ in range(5):
            worker.fire("RC_REMOVE", 2, 500, size=7)
            time.sleep(0.25)
        self.assertEqual(stat.stop(), 0)
        intervals = [row for row in stat.rows("interval") if (row["pid"], row["key"]) == (worker.pid, "RC_REMOVE")]
        total = stat.by_key(worker.pid)["RC_REMOVE"]
        self.assertGreater(len(intervals), 1)
        self.assertLessEqual(sum(row["calls"] for row in intervals), 5000)
        self.assertEqual(total["calls"], 5000)
        self.assertLessEqual(max(row["max_ns"] for row in intervals), total["max_ns"])

    def test_count_ends_the_run(self):
        self.worker()
        stat = self.collector("stat", "--json", "-i", "0.1", "-c", "3")
        self.assertEqual(stat.finish(), 0)

    def test_level_and_key_filters(self):
        worker = self.worker()
        stat = self.collector("stat", "--json", "--level", "DEBUG,KEY_MODULE", "--perf-key", "MASTER_")
        worker.do("each 1")
        self.assertEqual(stat.stop(), 0)
        keys = set(stat.by_key(worker.pid))
        self.assertIn("MASTER_PUT_SHARD_LOCK", keys)
        self.assertIn("MASTER_RPC_PING", keys)
        self.assertNotIn("MASTER_BG_BATCH_EVICT", keys)
        self.assertTrue(all(key.startswith("MASTER_") for key in keys))

    def test_text_and_csv(self):
        worker = self.worker()
        for args in ([], ["--csv"]):
            stat = self.collector("stat", "--sort", "calls", "-p", worker.pid, *args)
            worker.fire("RC_REMOVE", 1, 10)
            worker.fire("RC_GET_SIZE", 1, 20)
            self.assertEqual(stat.stop(), 0)
            text = stat.output().decode()
            self.assertLess(text.index("RC_GET_SIZE"), text.index("RC_REMOVE"))
            self.assertIn(str(worker.pid), text)


    def test_columns_stand_below_their_heads(self):
        longest = max(site_keys(), key=len)
        workers = [self.worker(), self.worker()]
        stat = self.collector("stat", "-p", ",".join(str(worker.pid) for worker in workers))
        for worker in workers:
            worker.fire(longest, 1, 3, size=2**62, keys=2**61, failed=2**60)
        workers[0].quit()
        self.assertEqual(stat.stop(), 0)
        title, head, *rows = stat.output().decode().splitlines()
        self.assertEqual(len(rows), 3)  # one each, and their sum
        self.assertEqual({len(row) for row in rows}, {len(head)})
        self.assertEqual([row.split()[0] for row in rows], [f"{workers[0].pid}+", f"{workers[1].pid}", "all"]
                         if workers[0].pid < workers[1].pid else [f"{workers[1].pid}", f"{workers[0].pid}+", "all"])
        for row in rows:
            self.assertEqual(row[head.index("KEY "):].split()[0], longest)
        self.assertIn("+: the process has ended", title)
        self.assertIn("all: ", title)

    def test_intervals_that_were_slept_through_are_one(self):
        worker = self.worker()
        stat = self.collector("stat", "--json", "-i", "0.2", "-p", worker.pid)
        for signal_number in (signal.SIGSTOP, signal.SIGCONT):
            time.sleep(1)
            stat.process.send_signal(signal_number)
            worker.fire("RC_REMOVE", 1, 10)
        time.sleep(0.5)
        self.assertEqual(stat.stop(), 0)
        intervals = stat.rows("interval")
        self.assertEqual(sum(row["calls"] for row in intervals), 20)
        self.assertGreater(max(row["seconds"] for row in intervals), 0.5)

    def test_a_reader_that_does_not_read_does_not_hold_it(self):
        worker = self.worker()
        read_end, write_end = os.pipe()
        self.addCleanup(os.close, read_end)
        stat = self.collector("stat", "--json", "-i", "0.001", "-p", worker.pid, stdout=write_end)
        os.close(write_end)

        def blocked():
            worker.do("each 1")
            return "pipe_write" in pathlib.Path(f"/proc/{stat.pid}/wchan").read_text()
        collector.wait_until(blocked, "the pipe to be full")
        self.assertEqual(stat.stop(), 1, stat.errors)
        # one blocked write is waited for, not one per row: what was to be written ends where the first gave up
        self.assertTrue(any("writing to stdout" in line for line in stat.errors), stat.errors)

    def test_a_reader_that_is_slow_gets_it_all(self):
        worker = self.worker()
        read_end, write_end = os.pipe()
        stat = self.collector("stat", "--json", "-i", "0.001", "-p", worker.pid, stdout=write_end)
        os.close(write_end)

        def blocked():
            worker.do("each 1")
            return "pipe_write" in pathlib.Path(f"/proc/{stat.pid}/wchan").read_text()
        collector.wait_until(blocked, "the pipe to be full")
        stat.process.send_signal(signal.SIGINT)
        with open(read_end, "rb") as reader:
            rows = [json.loads(line) for line in reader]
        self.assertEqual(stat.finish(), 0, stat.errors)
        self.assertEqual(rows[-1]["type"], "summary")

    def test_what_cannot_be_written_is_a_failure(self):
        worker = self.worker()
        for args in (["stat", "-d", "0.1", "-p", worker.pid], ["stat", "--json", "-d", "0.1", "-p", worker.pid],
                     ["list", "-p", worker.pid], ["check", "-v", "--def", collector.REPO / "perf_points.def", collector.SITE_WORKER],
                     ["help"], ["stat", "--help"]):
            for redirection in (">/dev/full", ">&-"):
                with self.subTest(args=args, redirection=redirection):
                    ended = subprocess.run(["sh", "-c", f'"$0" "$@" {redirection}', collector.KVPROBE,
                                            *map(str, args)], stderr=subprocess.PIPE, text=True,
                                           timeout=collector.TIMEOUT)
                    self.assertEqual(ended.returncode, 1, ended.stderr)
                    self.assertIn("writing to stdout", ended.stderr)


class WorkersTest(Case):
    def test_pid_filter(self):
        for name, form in forms_here().items():
            with self.subTest(form=name):
                wanted, also, other = self.worker(), self.worker(), self.worker()
                stat = self.collector("stat", "--json", "--perf-key", "RC_REMOVE", "-p", f"{wanted.pid}", "-p", f"{also.pid}", *form)
                for i, worker in enumerate((wanted, also, other)):
                    worker.fire("RC_REMOVE", 2, 100 * (i + 1))
                self.assertEqual(stat.stop(), 0)
                calls = {row["pid"]: row["calls"] for row in stat.rows()}
                self.assertEqual(calls, {wanted.pid: 200, also.pid: 400})

    def test_worker_that_starts_later_is_counted(self):
        stat = self.collector("stat", "--json", "-v", "--perf-key", "RC_REMOVE", wait=False)
        stat.wait_for_any("kvprobe: no process has the probes yet", "attached: ")
        binary = shutil.copy(collector.SITE_WORKER, self.scratch / "later")  # a file that no one has seen
        worker = self.worker(binary)
        stat.wait_for_file(binary)
        worker.fire("RC_REMOVE", 1, 50)
        second = self.worker(binary)
        second.fire("RC_REMOVE", 1, 60)
        self.assertEqual(stat.stop(), 0)
        self.assertEqual(stat.by_key(worker.pid)["RC_REMOVE"]["calls"], 50)
        self.assertEqual(stat.by_key(second.pid)["RC_REMOVE"]["calls"], 60)

    def test_file_is_attached_before_a_process_has_it(self):
        stat = self.collector("stat", "--json", "--file", collector.SITE_WORKER)
        worker = self.worker()
        worker.do("each 2")
        self.assertEqual(stat.stop(), 0)
        self.assertEqual({row["calls"] for row in stat.by_key(worker.pid).values()}, {2})

    def test_rows_of_ended_workers_stay(self):
        worker = self.worker()
        stat = self.collector("stat", "--json")
        worker.fire("RC_REMOVE", 1, 5)
        self.assertEqual(worker.quit(), 0)
        self.assertEqual(stat.stop(), 0)
        row = stat.by_key(worker.pid)["RC_REMOVE"]
        self.assertEqual(row["calls"], 5)
        self.assertIs(row["exited"], True)
        self.assertEqual(row["comm"], "bpf-site-worker")

    def test_ends_when_the_listed_processes_have(self):
        worker = self.worker()
        stat = self.collector("stat", "--json", "-p", worker.pid)
        worker.fire("RC_REMOVE", 1, 5)
        worker.quit()
        self.assertEqual(stat.finish(), 0)
        self.assertEqual(stat.by_key(worker.pid)["RC_REMOVE"]["calls"], 5)


class NamespaceTest(Case):
    def namespace_prefix(self):
        if not shutil.which("unshare"):
            self.skipTest("no unshare")
        # a mount namespace in which the binary lies elsewhere, and a pid namespace of its own
        inside = self.scratch / "inside"
        inside.mkdir()
        script = f'mount -t tmpfs none {inside} && cp "$0" {inside}/worker && exec {inside}/worker'
        prefix = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", script]
        if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no namespaces here")
        return prefix

    def start_inside(self):
        worker = collector.Child([*self.namespace_prefix(), collector.SITE_WORKER], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        self.addCleanup(worker.kill)
        worker.buffer = bytearray()
        worker.read_line(worker.process.stdout, worker.buffer)
        children = f"/proc/{worker.pid}/task/{worker.pid}/children"
        worker.host_pid = int(collector.wait_until(lambda: pathlib.Path(children).read_text().split(), "the worker")[0])
        self.addCleanup(lambda: os.path.exists(f"/proc/{worker.host_pid}") and os.kill(worker.host_pid, signal.SIGKILL))
        return worker

    def command(self, worker, text):
        worker.process.stdin.write(f"{text}\n".encode())
        worker.process.stdin.flush()
        return worker.read_line(worker.process.stdout, worker.buffer)

    def test_worker_in_other_mount_and_pid_namespaces(self):
        worker = self.start_inside()
        for how in ([], ["-p", str(worker.host_pid)]):
            with self.subTest(how=how):
                stat = self.collector("stat", "--json", *how)
                self.command(worker, "fire RC_REMOVE 1 70 0 1 0 0")
                self.assertEqual(stat.stop(), 0)
                row = stat.by_key(worker.host_pid)["RC_REMOVE"]
                self.assertEqual((row["calls"], row["nspid"]), (70, 1))

    def run_inside(self, workers, *args):
        """kvprobe stat and workers, alone in a pid namespace; each worker fires RC_REMOVE 33 times."""
        self.namespace_prefix()
        script = """
            tool=$1 worker=$2 dir=$3 n=$4; shift 4; : > $dir/err
            for i in $(seq $n); do mkfifo $dir/in.$i; $worker < $dir/in.$i > $dir/out.$i & done
            for i in $(seq $n); do eval "exec $((i + 3))> $dir/in.$i"; done
            $tool stat --json "$@" > $dir/json 2> $dir/err & pid=$!
            for i in $(seq 600); do grep -q ^attached: $dir/err && break; sleep 0.05; done
            for i in $(seq $n); do echo "fire RC_REMOVE 1 33 0 1 0 0" >&$((i + 3)); done
            for i in $(seq $n); do for k in $(seq 600); do grep -q ^fired $dir/out.$i && break; sleep 0.05; done; done
            kill -INT $pid; wait $pid; echo $? > $dir/code
        """
        shell = collector.Child(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh",
                                 collector.KVPROBE, collector.SITE_WORKER, self.scratch, workers, *args])
        self.addCleanup(shell.kill)
        shell.process.wait(collector.TIMEOUT)
        rows = [json.loads(line) for line in (self.scratch / "json").read_text().splitlines()]
        return int((self.scratch / "code").read_text()), rows, (self.scratch / "err").read_text()

    def test_collector_inside_a_pid_namespace_sees_its_workers(self):
        outside = self.worker()
        stat = self.collector("stat", "-p", outside.pid)
        code, rows, err = self.run_inside(1)
        outside.fire("RC_REMOVE", 1, 44)
        stat.stop()
        self.assertEqual(code, 0, err)
        self.assertEqual([row["calls"] for row in rows if row["type"] == "total"], [33], err)

    def test_more_workers_than_rows_is_a_counted_loss(self):
        code, rows, err = self.run_inside(3, "--workers", "2")
        self.assertEqual(code, 4, err)
        self.assertEqual(rows[-1]["events"], 66)
        self.assertEqual(rows[-1]["lost"], 33)
        self.assertIn("--workers", err)

    def test_pid_that_is_used_again_gets_a_row_of_its_own(self):
        self.namespace_prefix()
        script = """
            tool=$1 worker=$2 dir=$3; : > $dir/err
            $tool stat --json --file $worker > $dir/json 2> $dir/err & pid=$!
            for i in $(seq 600); do grep -q ^attached: $dir/err && break; sleep 0.05; done
            echo "fire RC_REMOVE 1 10 0 1 0 0" | $worker > $dir/first
            sleep 3 # the collector looks once a second
            first=$(head -n 1 $dir/first); first=${first#ready }
            for i in $(seq 50); do
                echo $((first - 2)) > /proc/sys/kernel/ns_last_pid || break
                echo "fire RC_REMOVE 1 20 0 1 0 0" | $worker > $dir/second
                grep -q "ready $first" $dir/second && break
            done
            kill -INT $pid; wait $pid; echo $? > $dir/code
        """
        shell = collector.Child(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh",
                                 collector.KVPROBE, collector.SITE_WORKER, self.scratch])
        self.addCleanup(shell.kill)
        shell.process.wait(collector.TIMEOUT)
        first, second = ((self.scratch / name).read_text().splitlines()[0] for name in ("first", "second"))
        if first != second:
            self.skipTest("no pid could be used again here")
        self.assertEqual((self.scratch / "code").read_text().strip(), "0")
        rows = [json.loads(line) for line in (self.scratch / "json").read_text().splitlines()]
        calls = sorted(row["calls"] for row in rows if row["type"] == "total" and f"ready {row['pid']}" == first)
        self.assertEqual(calls, [10, 20])


class ListTest(Case):
    def test_watched_says_what_is_attached(self):
        worker = self.worker()
        stat = self.collector("stat", "--perf-key", "RC_REMOVE_ALL")
        rows = [json.loads(line) for line in run_kvprobe("list", "--json", "-p", worker.pid).stdout.splitlines()]
        watched = {row["key"] for row in rows if row["watched"]}
        self.assertEqual(watched, {"RC_REMOVE_ALL", "RC_REMOVE_ALL_INTERNAL"})
        self.assertEqual({row["key"] for row in rows}, set(site_keys()) | {"op_log"})
        stat.stop()
        rows = [json.loads(line) for line in run_kvprobe("list", "--json").stdout.splitlines()]
        self.assertFalse(any(row["watched"] for row in rows if row["pid"] == worker.pid))


if __name__ == "__main__":
    unittest.main()
