# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""kvprobe log prints the formatter's text byte for byte, and counts what it could not."""

import re
import signal
import subprocess
import unittest

from collector import Case, forms_here

# what the text calls the ops of probe_abi.h
OPS = {1: "batch_put_from_multi_buffers", 2: "batch_is_exist", 3: "batch_get_into_multi_buffers",
       4: "register_buffer", 5: "batch_get_replica_desc"}
SUMMARY = re.compile(r"summary: .* (\d+) calls \((\d+) keys\), lost (\d+) calls \((\d+) keys\), partial (\d+),")


class LogCase(Case):
    def log(self, worker, *args, **kwargs):
        return self.collector("log", "-p", worker.pid, *args, **kwargs)

    def write(self, worker, op, threads, calls, keys, seed=1, name="text"):
        """Fire op_log blocks; returns what the formatter made of them, per thread."""
        path = self.scratch / name
        worker.do(f"log {op} {threads} {calls} {keys} {seed} {path}")
        return [(self.scratch / f"{name}.{i}").read_bytes() for i in range(threads)]

    def summary(self, log):
        match = next(filter(None, map(SUMMARY.match, log.errors)), None)
        self.assertTrue(match, log.errors)
        return dict(zip(("calls", "keys", "lost", "lost_keys", "partial"), map(int, match.groups())))


def calls_of(text):
    """A text as a list of calls, each a summary with its lines."""
    calls = []
    for line in text.splitlines(keepends=True):
        if line.startswith(b"["):
            calls.append(line)
        else:
            calls[-1] += line
    return calls


class TextTest(LogCase):
    def test_every_op_and_hostile_keys(self):
        for name, form in forms_here().items():
            with self.subTest(form=name):
                worker = self.worker()
                log = self.log(worker, *form)
                text = b""
                for op in OPS:
                    text += self.write(worker, op, 1, 200, 8, op)[0]
                self.assertEqual(log.stop(), 0, log.errors)
                self.assertEqual(log.output(), text)
                self.assertEqual(self.summary(log)["calls"], 1000)

    def test_blocks_of_every_size(self):
        worker = self.worker()
        log = self.log(worker)
        text = b""
        # from one piece of the smallest class to many of the largest
        for keys in (0, 1, 2, 5, 17, 40, 150, 600, 2500, 9000, 40000):
            text += self.write(worker, 3, 1, 3, keys, keys + 1)[0]
        self.assertEqual(log.stop(), 0, log.errors)
        self.assertEqual(log.output(), text)

    def test_calls_of_many_threads_do_not_mix(self):
        worker = self.worker()
        log = self.log(worker)
        texts = self.write(worker, 1, 8, 300, 24)
        self.assertEqual(log.stop(), 0, log.errors)
        expected = [calls_of(text) for text in texts]
        got = calls_of(log.output())
        self.assertEqual(sorted(got), sorted(call for calls in expected for call in calls))
        # and each thread's calls stay in their order
        position = {call: i for i, call in enumerate(got)}
        for calls in expected:
            places = [position[call] for call in calls]
            self.assertEqual(places, sorted(places))

    def test_prefixes_are_put_in_front_of_every_line(self):
        worker = self.worker()
        log = self.log(worker, "-T", "--pid", "--trace-id")
        text = self.write(worker, 2, 1, 20, 4)[0]
        self.assertEqual(log.stop(), 0)
        prefix = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z pid=%d trace_id=[0-9a-f]{16} " % worker.pid, re.M)
        self.assertEqual(len(prefix.findall(log.output())), text.count(b"\n"))
        self.assertEqual(prefix.sub(b"", log.output()), text)

    def test_verbose_adds_the_code_of_failed_keys(self):
        worker = self.worker()
        log = self.log(worker, "-v")
        text = self.write(worker, 2, 1, 50, 4)[0]
        self.assertEqual(log.stop(), 0)
        failed = text.count(b"\nsuccess=0")
        self.assertGreater(failed, 0)
        self.assertEqual(log.output().count(b" rc=-704\n"), failed)
        self.assertEqual(log.output().replace(b" rc=-704\n", b"\n"), text)


class FilterTest(LogCase):
    def test_op(self):
        worker = self.worker()
        log = self.log(worker, "--op", OPS[2], "--op", OPS[4])
        texts = {op: self.write(worker, op, 1, 10, 3)[0] for op in OPS}
        self.assertEqual(log.stop(), 0)
        self.assertEqual(log.output(), texts[2] + texts[4])

    def test_min_us(self):
        worker = self.worker()
        log = self.log(worker, "--min-us", "500000")
        text = self.write(worker, 1, 1, 300, 2)[0]
        self.assertEqual(log.stop(), 0)
        slow = [call for call in calls_of(text)
                if int(re.match(rb"\[\w+\] elapsed_us=(\d+)", call).group(1)) >= 500000]
        self.assertTrue(0 < len(slow) < 300)
        self.assertEqual(log.output(), b"".join(slow))

    def test_key_prefix(self):
        worker = self.worker()
        log = self.log(worker, "--key", "A")
        text = self.write(worker, 1, 1, 2000, 8)[0]
        self.assertEqual(log.stop(), 0)
        lines = [line for line in text.splitlines() if line.split(b" key=")[1:] and line.split(b" key=")[1][:1] == b"A"]
        self.assertGreater(len(lines), 0)
        self.assertEqual([line for line in log.output().splitlines() if line.startswith(b"success=")], lines)

    def test_n_calls(self):
        worker = self.worker()
        log = self.log(worker, "-n", "7")
        text = self.write(worker, 1, 1, 50, 2)[0]
        self.assertEqual(log.finish(), 0)
        self.assertEqual(log.output(), b"".join(calls_of(text)[:7]))

    def test_calls_begun_before_the_attach_are_partial(self):
        worker = self.worker()
        log = self.log(worker)
        worker.do("partial 3")
        text = self.write(worker, 1, 1, 2, 2)[0]
        self.assertEqual(log.stop(), 0)
        self.assertEqual(log.output(), text)
        self.assertIn("partial 3", log.errors)
        self.assertEqual(self.summary(log)["partial"], 3)


    def test_calls_without_memory_for_the_block_are_lost(self):
        worker = self.worker()
        log = self.log(worker)
        worker.do("blockless 3")
        text = self.write(worker, 1, 1, 2, 2)[0]
        self.assertEqual(log.stop(), 4)
        self.assertEqual(log.output(), text)
        summary = self.summary(log)
        self.assertEqual((summary["lost"], summary["lost_keys"], summary["partial"]), (3, 24, 0))

    def test_keys_beyond_what_a_block_holds_are_lost(self):
        worker = self.worker()
        log = self.log(worker)
        text = self.write(worker, 2, 1, 1, 70000)[0]
        self.assertEqual(log.stop(), 4)
        self.assertEqual(log.output(), text)
        self.assertEqual(text.count(b"\nsuccess="), 65536)
        summary = self.summary(log)
        self.assertEqual((summary["keys"], summary["lost"], summary["lost_keys"]), (65536, 0, 70000 - 65536))


class StreamTest(LogCase):
    def test_a_deadline_holds_while_workers_fire_faster_than_they_are_read(self):
        worker = self.worker()
        for i in range(4):
            (self.scratch / f"sink.{i}").symlink_to("/dev/null")
        log = self.log(worker, "-d", "1", stdout=subprocess.DEVNULL)
        worker.send(f"log 2 4 {10**9} 1 1 {self.scratch / 'sink'}")  # goes on until the test ends
        self.assertIn(log.finish(), (0, 4), log.errors)
        self.assertGreater(self.summary(log)["calls"], 0)

    def test_a_pipe_sees_each_call_while_the_run_goes_on(self):
        worker = self.worker()
        log = self.log(worker, stdout=subprocess.PIPE)
        text = self.write(worker, 2, 1, 1, 2)[0]
        buffer = bytearray()
        seen = b"".join(log.read_line(log.process.stdout, buffer).encode() + b"\n" for _ in range(3))
        self.assertIsNone(log.process.poll())
        self.assertEqual(seen, text)
        self.assertEqual(log.stop(), 0)

    def test_a_reader_that_leaves_ends_the_run(self):
        worker = self.worker()
        log = self.log(worker, stdout=subprocess.PIPE)
        log.process.stdout.close()
        log.process.stdout = None
        self.write(worker, 2, 1, 10, 2)
        self.assertEqual(log.finish(), 0, log.errors)

    def test_a_reader_that_sleeps_costs_counted_calls(self):
        worker = self.worker()
        log = self.log(worker, "--ring-mb", "1", stdout=subprocess.PIPE)
        texts = self.write(worker, 1, 2, 4000, 64)  # far more than ring and pipe hold; the worker does not wait
        calls = 8000
        log.process.send_signal(signal.SIGINT)
        self.assertEqual(log.finish(), 4, log.errors)
        summary = self.summary(log)
        self.assertGreater(summary["lost"], 0)
        self.assertEqual(summary["calls"] + summary["lost"], calls)
        self.assertEqual(summary["keys"] + summary["lost_keys"], 64 * calls)
        self.assertGreaterEqual(summary["lost_keys"], summary["lost"])
        self.assertTrue(any(re.fullmatch(r"lost \d+ calls \(\d+ keys\)", line) for line in log.errors), log.errors)
        self.assertGreater(sum(map(len, texts)), 2 << 20)

    def test_a_ring_too_small_for_a_call_loses_the_whole_call(self):
        worker = self.worker()
        log = self.log(worker, "--ring-mb", "1")
        self.write(worker, 1, 1, 1, 60000, name="large")
        small = self.write(worker, 1, 1, 5, 2, name="small")[0]
        self.assertEqual(log.stop(), 4)
        self.assertEqual(log.output(), small)
        summary = self.summary(log)
        self.assertEqual((summary["calls"], summary["lost"], summary["lost_keys"]), (5, 1, 60000))

    def test_stdout_that_cannot_be_written(self):
        worker = self.worker()
        with open("/dev/full", "wb") as full:
            log = self.log(worker, stdout=full)
            self.write(worker, 2, 1, 10, 2)
            self.assertEqual(log.finish(), 1)
        self.assertTrue(any("No space left" in line for line in log.errors), log.errors)

    def test_sigterm_and_duration_end_it_well(self):
        worker = self.worker()
        log = self.log(worker)
        text = self.write(worker, 2, 1, 10, 2)[0]
        self.assertEqual(log.stop(signal.SIGTERM), 0)
        self.assertEqual(log.output(), text)
        log = self.log(worker, "-d", "0.3")
        self.assertEqual(log.finish(), 0)

    def test_nothing_but_text_on_stdout(self):
        worker = self.worker()
        log = self.log(worker, "-v")
        self.assertEqual(log.stop(), 0)
        self.assertEqual(log.output(), b"")


if __name__ == "__main__":
    unittest.main()
