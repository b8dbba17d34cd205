# SPDX-License-Identifier: Apache-2.0
"""The example of a prefill/decode pair, with kvprobe xfer attached to both processes from outside: its lines, theirs,
and their /metrics say the same."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import unittest
import urllib.request

from collector import BUILD, REPO, Child, TIMEOUT, wait_until
from test_xfer import XferCase
from transfer_rows import COUNTS, MEANS, MIB, PREFIX, parse_line

EXAMPLE = REPO / "examples" / "pd_connector.py"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
SMALL = ("--layers", 4, "--block-bytes", 4096)
SIDES = {"prefill": "producer", "decode": "consumer"}
COUNTERS = {"Num failed transfers": "num_failed_transfers", "Num failed recvs": "num_failed_recvs",
            "Num KV expired reqs": "num_kv_expired_reqs"}
INJECTED = {"prefill": (1, 0, 1), "decode": (0, 1, 0)}


def environment(**more):
    return {**os.environ, "PYTHONPATH": os.fspath(BUILD / "python"), "VLLM_LOG_STATS_INTERVAL": "3600", **more}


class Example(Child):
    """The example, stopped before its first transfer. pids, ports: by side."""

    def __init__(self, *options, **env):
        super().__init__([sys.executable, EXAMPLE, "--wait", "--json", *options], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(**env))
        self._buffer = bytearray()
        self.pids, self.ports, self.lines, self.result = {}, {}, [], None
        for side in SIDES:
            pid, port = re.fullmatch(rf"{side} pid=(\d+) http://127\.0\.0\.1:(\d+)/metrics", self.next_line()).groups()
            self.pids[side], self.ports[side] = int(pid), int(port)
        assert self.next_line().endswith("press Enter to start")

    def next_line(self):
        return self.read_line(self.process.stdout, self._buffer)

    def press_enter(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def run(self):
        """To the end of the work; with --hold it goes on serving."""
        self.press_enter()
        while not (line := self.next_line()).startswith("{"):
            self.lines.append(line)
        self.result = json.loads(line)

    def own_lines(self, what):
        """[(side, figures)] of its lines of one kind: total, interval."""
        found = []
        for line in self.lines:
            match = re.fullmatch(rf"(prefill|decode) (pid=\d+) {what} ({PREFIX}.*)", line)
            if match:
                who, figures = parse_line(f"{match[2]} {match[3]}")
                assert who == f"pid={self.pids[match[1]]}", line
                found.append((match[1], figures))
        return found

    def scrape(self, side, accept=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[side]}/metrics",
                                         headers={"Accept": accept} if accept else {})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return answer.headers["Content-Type"], answer.read().decode()


def samples(text):
    """(name, le) -> (value, labels) of a text of metrics."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line).groups()
            labels = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            found[name.removeprefix("vllm:mooncake_"), labels.pop("le", None)] = float(value), labels
    return found


def gone(pid):
    """Neither running nor waiting to be reaped."""
    return not os.path.exists(f"/proc/{pid}")


def ended(pid):
    """Gone, or an orphan that the host's first process has yet to reap."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class FromOutside(XferCase):
    def example(self, *options, **env):
        example = Example(*options, **env)
        self.addCleanup(example.kill)
        return example

    def watched(self, example):
        """Run it with kvprobe attached; {side: figures of kvprobe's line}."""
        xfer = self.collector("xfer", "-p", ",".join(map(str, example.pids.values())))
        example.run()
        self.assertEqual(xfer.stop(), 0, xfer.errors)
        lines = self.lines(xfer)
        self.assertEqual(set(lines), {"all", *(f"pid={pid}" for pid in example.pids.values())})
        for name in COUNTS:
            self.assertEqual(lines["all"][name], sum(lines[f"pid={pid}"][name] for pid in example.pids.values()))
        return {side: lines[f"pid={pid}"] for side, pid in example.pids.items()}

    def assert_injected(self, figures, side, successes):
        self.assertEqual(tuple(figures[name] for name in COUNTS),
                         (successes if side == "prefill" else 0, *INJECTED[side]))

    def assert_metrics(self, example, side, figures):
        """Both forms of /metrics say what the line says."""
        kind, plain = example.scrape(side)
        self.assertTrue(kind.startswith("text/plain; version=0.0.4"), kind)
        kind, open_text = example.scrape(side, OPENMETRICS)
        self.assertTrue(kind.startswith("application/openmetrics-text"), kind)
        self.assertTrue(open_text.endswith("# EOF\n"))
        for text in (plain, open_text):
            found = samples(text)
            for _, labels in found.values():
                self.assertEqual(labels, {"model_name": "example", "engine": "0", "role": SIDES[side]})
            n = figures[COUNTS[0]]
            for family in ("xfer_time_seconds", "bytes_transferred", "num_descriptors"):
                self.assertEqual(found[f"{family}_count", None][0], n)
                buckets = [value for (name, _), (value, _) in found.items() if name == f"{family}_bucket"]
                self.assertEqual(buckets, sorted(buckets))
                self.assertEqual(found[f"{family}_bucket", "+Inf"][0], n)
            sums = [found[f"{family}_sum", None][0] for family in
                    ("xfer_time_seconds", "bytes_transferred", "num_descriptors")]
            for name, total, unit, printed in ((MEANS[0], sums[0], 1e-3, 0.001), (MEANS[1], sums[1], MIB, 0.001),
                                               (MEANS[3], sums[2], 1, 0.1)):
                self.assertAlmostEqual(figures[name], total / unit / n if n else 0, delta=printed)
            for name, counter in COUNTERS.items():
                self.assertEqual(found[f"{counter}_total", None][0], figures[name], name)

    def test_lines_and_metrics_agree(self):
        example = self.example("--requests", 60, "--hold", 600)
        seen = self.watched(example)
        own = dict(example.own_lines("total"))
        self.assertEqual(set(own), set(SIDES))
        for side in SIDES:
            with self.subTest(side=side):
                self.assert_figures(seen[side], own[side])
                self.assert_injected(own[side], side, 60)
                self.assertEqual(example.result[side]["reduced"], own[side])
                self.assert_metrics(example, side, own[side])
        self.assertEqual(round(own["prefill"][MEANS[1]] * 60), round(example.result["bytes"] / MIB))
        self.assertTrue(example.result["ok"])
        example.process.send_signal(signal.SIGINT)  # ends the holding, not the result
        self.assertEqual(example.process.wait(TIMEOUT), 0)
        self.assertTrue(gone(example.pids["prefill"]))

    def test_own_logging_off(self):
        """What the pair does not print itself is there for whoever asks from outside."""
        example = self.example("--requests", 30, "--streams", 4, "--no-log", *SMALL)
        seen = self.watched(example)
        self.assertFalse([line for line in example.lines if PREFIX in line])
        for side in SIDES:
            self.assert_injected(seen[side], side, 30)
            self.assert_figures(seen[side], example.result[side]["reduced"])
        self.assertEqual(example.process.wait(TIMEOUT), 0)

    def test_intervals_add_up(self):
        example = self.example("--duration", 2, "--rate", 100, *SMALL, VLLM_LOG_STATS_INTERVAL="0.5")
        seen = self.watched(example)
        intervals = [figures for side, figures in example.own_lines("interval") if side == "prefill"]
        total = dict(example.own_lines("total"))["prefill"]
        self.assertGreaterEqual(len(intervals), 2)
        for name in COUNTS:
            self.assertLessEqual(sum(figures[name] for figures in intervals), total[name], name)
        self.assert_figures(seen["prefill"], total)
        self.assertEqual(example.process.wait(TIMEOUT), 0)


class OnItsOwn(unittest.TestCase):
    """How a run of the example ends. Nothing is attached."""

    def start(self, *options):
        example = Example(*options, *SMALL)
        self.addCleanup(example.kill)
        return example

    def test_ctrl_c_leaves_nothing_behind(self):
        example = self.start("--duration", 600, "--rate", 10)
        example.press_enter()
        example.process.send_signal(signal.SIGINT)
        self.assertEqual(example.process.wait(TIMEOUT), 130)
        self.assertTrue(gone(example.pids["prefill"]))

    def test_ctrl_c_while_it_waits(self):
        example = self.start()
        example.process.send_signal(signal.SIGINT)
        self.assertEqual(example.process.wait(TIMEOUT), 130)
        self.assertTrue(gone(example.pids["prefill"]))

    def test_a_prefill_side_that_dies(self):
        example = self.start("--duration", 600, "--rate", 10)
        os.kill(example.pids["prefill"], signal.SIGKILL)
        example.press_enter()
        self.assertEqual(example.process.wait(TIMEOUT), 1)

    def test_a_decode_side_that_dies(self):
        example = self.start("--duration", 600, "--rate", 10)
        example.press_enter()
        example.process.kill()
        example.process.wait(TIMEOUT)
        wait_until(lambda: ended(example.pids["prefill"]), "the prefill side follows")

    def test_usage(self):
        for options in (("--requests", "0"), ("--rate", "x"), ("--hold", "-1"), ("--layers", "1024", "--blocks", "1024"),
                        ("more",)):
            with self.subTest(options=options):
                done = subprocess.run([sys.executable, EXAMPLE, *options], env=environment(), capture_output=True,
                                      timeout=TIMEOUT)
                self.assertEqual((done.returncode, done.stdout), (2, b""), done.stderr)

    def test_the_code_of_the_documentation(self):
        """What docs/pd_connector.md says to write into a connector, written into one."""
        blocks = re.findall(r"^```python\n(.*?)^```$", (REPO / "docs" / "pd_connector.md").read_text(), re.M | re.S)
        code = "\n".join([*blocks, textwrap.dedent("""
            class Engine:
                code = 0
                def batch_transfer_sync_write(self, session, sources, targets, lengths):
                    return self.code
            engine = Engine()
            assert send_blocks(engine, "127.0.0.1:1", [1, 2], [3, 4], [4096, 8192]) == 0
            engine.code = -800
            assert send_blocks(engine, "127.0.0.1:1", [1], [2], [4096]) == -800
            step()
            time.sleep(0.2)
            step()
            text = metrics.text()
            assert 'vllm:mooncake_bytes_transferred_sum{model_name="llama",engine="0",role="producer"} 12288' in text
            server.close()
        """)])
        done = subprocess.run([sys.executable, "-c", code], env=environment(VLLM_LOG_STATS_INTERVAL="0.1"),
                              capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr)
        who, figures = parse_line("own " + done.stdout.strip())
        self.assertEqual([figures[name] for name in (*COUNTS, MEANS[3])], [1, 1, 0, 0, 2.0])

    def test_help_teaches(self):
        done = subprocess.run([sys.executable, EXAMPLE, "--help"], env=environment(), capture_output=True, text=True,
                              timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0)
        for word in ("prefill", "decode", "kvprobe xfer", "--no-log", "examples:", "docs/pd_connector.md"):
            self.assertIn(word, done.stdout)


if __name__ == "__main__":
    unittest.main()
