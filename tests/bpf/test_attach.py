# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""Attaching harms no worker and leaves nothing behind: forms, fork, kill -9, replaced binaries, many times over."""

import os
import shutil
import signal
import unittest

import collector
from collector import Case, forms_here, notes, run_kvprobe, scaled

SITE = bytes([0x90, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0])
KEY = "RC_REMOVE"


def site_of(worker, key=KEY):
    return worker.memory(notes()[key]["address"], len(SITE))


class FormTest(Case):
    def test_bytes_of_each_form(self):
        changed_at = {"nop5": 1, "single-nop5": 1, "int3": 0, "single": 0}
        for name, form in forms_here().items():
            with self.subTest(form=name):
                worker = self.worker()
                self.assertEqual(site_of(worker), SITE)
                stat = self.collector("stat", "--perf-key", KEY, "-p", worker.pid, *form)
                worker.fire(KEY, 1, 10)
                now = site_of(worker)
                self.assertEqual(now[changed_at[name]], 0xcc if "nop5" not in name else 0xe8, now.hex())
                self.assertEqual(now[:changed_at[name]] + now[6:], SITE[:changed_at[name]] + SITE[6:])
                self.assertEqual(worker.semaphore(KEY), 1)
                self.assertEqual(stat.stop(), 0)
                self.assertEqual(site_of(worker)[0], 0x90)
                self.assertEqual(worker.semaphore(KEY), 0)
                worker.fire(KEY, 1, 10)  # lives

    def test_auto_takes_the_kernels_form_and_says_so(self):
        worker = self.worker()
        stat = self.collector("stat", "-v", "-p", worker.pid)
        line = next(line for line in stat.errors if line.startswith("attached: "))
        self.assertTrue(line.endswith(f"1 files, 1 processes, form={collector.kernel_form()}"), line)
        stat.stop()
        self.assertTrue(any("form" in line and "bpf-site-worker" in line for line in stat.errors), stat.errors)

    def test_a_form_that_the_kernel_does_not_optimise_is_refused(self):
        for form in {"nop5", "nop10"} - {collector.kernel_form()}:
            ended = run_kvprobe("stat", f"--attach={form}")
            self.assertEqual(ended.returncode, 3, ended.stderr)
            self.assertIn("does not optimise", ended.stderr)

    def test_operands_that_are_not_pinned(self):
        worker = self.worker(collector.BUILD / "tests" / "helpers" / "bpf-plain-site")
        stat = self.collector("stat", "--json", "-v", "-p", worker.pid)
        worker.do("go")
        self.assertEqual(stat.stop(), 0, stat.errors)
        row = stat.by_key(worker.pid)[KEY]
        got = {name: row[name] for name in ("calls", "bytes", "keys", "failed_keys", "failed_calls", "untimed",
                                            "avg_ns", "max_ns")}
        self.assertEqual(got, {"calls": 100, "bytes": 100 * 70000, "keys": 100 * 300, "failed_keys": 300,
                               "failed_calls": 100, "untimed": 0, "avg_ns": 50500, "max_ns": 100000})
        self.assertEqual(stat.summary()["attach_form"], "int3")
        self.assertTrue(any("safety note" in line for line in stat.errors) or collector.kernel_form() == "int3")

    def test_fast_form_is_refused_without_the_safety_note(self):
        form = collector.kernel_form()
        if form == "int3":
            self.skipTest("this kernel optimises no form")
        ended = run_kvprobe("stat", f"--attach={form}", "-d", "1", "--file",
                            collector.BUILD / "tests" / "helpers" / "bpf-plain-site")
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("safety note", ended.stderr)


class ForkTest(Case):
    def test_children_live(self):
        for name, form in forms_here().items():
            for when in ("before", "after"):
                for how in ("fork", "vfork", "spawn", "exec", "grandchild"):
                    with self.subTest(form=name, first_hit=when, how=how):
                        worker = self.worker()
                        stat = self.collector("stat", "--json", "--perf-key", KEY, "-p", worker.pid, *form)
                        if when == "after":
                            worker.fire(KEY, 1, 10)
                        answer = worker.do(f"{how} {KEY} 50").split()
                        self.assertEqual(answer[2:], ["exit", "0"], answer)
                        worker.fire(KEY, 1, 10)
                        self.assertEqual(stat.stop(), 0)
                        self.assertEqual(stat.by_key(worker.pid)[KEY]["calls"], 10 if when == "before" else 20)
                        self.assertEqual(worker.quit(), 0)

    def test_children_count_as_processes_of_their_own(self):
        for how in ("spawn", "vfork", "exec"):
            with self.subTest(how=how):
                worker = self.worker()
                stat = self.collector("stat", "--json", "--perf-key", KEY)
                worker.fire(KEY, 1, 10)
                child = int(worker.do(f"{how} {KEY} 50").split()[1])
                self.assertEqual(stat.stop(), 0)
                self.assertEqual(stat.by_key(worker.pid)[KEY]["calls"], 10)
                self.assertEqual(stat.by_key(child)[KEY]["calls"], 50)

    def test_what_the_fork_guard_held_back_is_reported(self):
        if collector.kernel_form() != "nop5":
            self.skipTest("no form that needs the fork guard")
        worker = self.worker(env={"SITE_WORKER_LINGER_MS": "2500"})
        stat = self.collector("stat", "--json", "--perf-key", KEY, "--attach=nop5")
        log = self.collector("log", "--attach=nop5")
        worker.fire(KEY, 1, 10)
        child = int(worker.do(f"fork {KEY} 50").split()[1])
        self.assertEqual(stat.stop(), 0)
        self.assertEqual(log.stop(), 0)
        calls = stat.by_key(child).get(KEY, {"calls": 0})["calls"]
        self.assertEqual(calls + stat.summary()["skipped_fork"], 50)
        self.assertGreater(stat.summary()["skipped_fork"], 0)
        self.assertTrue(any("skipped_fork 50" in line for line in log.errors), log.errors)


class EndTest(Case):
    def test_kill_9_of_the_collector(self):
        for name, form in forms_here().items():
            for command in ("stat", "log"):
                with self.subTest(form=name, command=command):
                    worker = self.worker()
                    args = ["--perf-key", KEY] if command == "stat" else []
                    tool = self.collector(command, "-p", worker.pid, *args, *form)
                    worker.fire(KEY, 2, 1000)
                    probe = KEY if command == "stat" else "op_log"
                    self.assertEqual(worker.semaphore(probe), 1)
                    tool.process.kill()
                    tool.process.wait(collector.TIMEOUT)
                    collector.wait_until(lambda: worker.semaphore(probe) == 0, "the semaphore to fall")
                    self.assertEqual(site_of(worker, probe)[0], 0x90)
                    worker.fire(KEY, 2, 1000)
                    self.assertEqual(worker.quit(), 0)

    def test_two_collectors_at_once(self):
        worker = self.worker()
        first = self.collector("stat", "--json", "-p", worker.pid, "--perf-key", KEY)
        second = self.collector("stat", "--json", "-p", worker.pid, "--perf-key", KEY)
        self.assertEqual(worker.semaphore(KEY), 1)  # the kernel counts the site once for all of them
        worker.fire(KEY, 2, 100)
        self.assertEqual(first.stop(), 0)
        self.assertEqual(worker.semaphore(KEY), 1)
        worker.fire(KEY, 2, 100)
        self.assertEqual(second.stop(), 0)
        self.assertEqual(first.by_key(worker.pid)[KEY]["calls"], 200)
        self.assertEqual(second.by_key(worker.pid)[KEY]["calls"], 400)
        self.assertEqual(worker.semaphore(KEY), 0)

    def test_attach_and_detach_many_times_under_load(self):
        worker = self.worker()
        descriptors = len(os.listdir(f"/proc/{worker.pid}/fd"))
        worker.send(f"fire {KEY} 4 {10**9} 1 1 0 0")
        for _ in range(scaled(200, least=10)):
            ended = run_kvprobe("stat", "--json", "-p", worker.pid, "-d", "0.01")
            self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIsNone(worker.process.poll())
        self.assertEqual(len(os.listdir(f"/proc/{worker.pid}/fd")), descriptors)
        collector.wait_until(lambda: worker.semaphore(KEY) == 0, "the semaphore to fall")

    def test_no_descriptors_grow_while_workers_come_and_go(self):
        stat = self.collector("stat", "--json", "--file", collector.SITE_WORKER)
        seen = []
        for _ in range(3):
            for _ in range(5):
                worker = self.worker()
                worker.fire(KEY, 1, 1)
                self.assertEqual(worker.quit(), 0)
            collector.wait_until(lambda: stat.process.poll() is None, "the collector to live")
            seen.append(len(os.listdir(f"/proc/{stat.pid}/fd")))
        self.assertLessEqual(seen[-1], seen[0] + 1, seen)
        stat.stop()


class FileTest(Case):
    def test_a_broken_binary_does_not_keep_us_from_the_others(self):
        path = self.scratch / "broken"
        shutil.copy(collector.SITE_WORKER, path)
        bytes_ = bytearray(path.read_bytes())
        note = bytes_.index(b"kvstore\0" + KEY.encode() + b"\0") - 24
        bytes_[note + 16] |= 1  # the kernel refuses a semaphore at an odd address
        path.write_bytes(bytes_)
        self.worker(path)
        worker = self.worker()
        stat = self.collector("stat", "--json")
        worker.fire(KEY, 1, 10)
        self.assertEqual(stat.stop(), 1)
        self.assertEqual(stat.by_key(worker.pid)[KEY]["calls"], 10)
        self.assertTrue(any(f"{path}: not attached" in line for line in stat.errors), stat.errors)

    def test_binary_replaced_while_attached(self):
        path = self.scratch / "worker"
        shutil.copy(collector.SITE_WORKER, path)
        old = self.worker(path)
        stat = self.collector("stat", "--json", "-v", "--perf-key", KEY)
        old.fire(KEY, 1, 10)
        os.unlink(path)
        shutil.copy(collector.SITE_WORKER, path)
        new = self.worker(path)
        stat.wait_for_file(path)
        new.fire(KEY, 1, 20)
        old.fire(KEY, 1, 10)
        self.assertEqual(stat.stop(), 0)
        self.assertEqual(stat.by_key(old.pid)[KEY]["calls"], 20)
        self.assertEqual(stat.by_key(new.pid)[KEY]["calls"], 20)

    def test_deleted_binary(self):
        path = self.scratch / "worker"
        shutil.copy(collector.SITE_WORKER, path)
        worker = self.worker(path)
        os.unlink(path)
        stat = self.collector("stat", "--json", "-p", worker.pid)
        worker.fire(KEY, 1, 10)
        self.assertEqual(stat.stop(signal.SIGTERM), 0)
        self.assertEqual(stat.by_key(worker.pid)[KEY]["calls"], 10)


if __name__ == "__main__":
    unittest.main()
