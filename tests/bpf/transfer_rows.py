# SPDX-License-Identifier: Apache-2.0
"""Rows of KV transfers for the tests of kvprobe xfer, the workers that record them, and what the line must say."""

import json
import os
import pathlib
import random
import subprocess
import sys

from collector import BUILD, Child, Worker

STATS_WORKER = pathlib.Path(__file__).with_name("stats_worker.py")
FAILURES = {"failed": ("XFER_WRITE", -800), "recv": ("XFER_RECV_FAILED", -800), "expired": ("XFER_REQ_EXPIRED", -901)}
PREFIX = "KV Transfer metrics: "
COUNTS = ("Num successful transfers", "Num failed transfers", "Num failed recvs", "Num KV expired reqs")
MEANS = ("Avg xfer time (ms)", "Avg MB per transfer", "Throughput (MB/s)", "Avg number of descriptors")
P90 = "P90 xfer time (ms)"
P90_ERROR = 0.03125
MIB = 1 << 20


def failures(failed=0, recv=0, expired=0):
    return [("failed", 0, 0, 0)] * failed + [("recv", 0, 0, 0)] * recv + [("expired", 0, 0, 0)] * expired


def random_rows(seed, n):
    """Transfers from 10 us to 50 ms in both directions, with failures of every kind among them."""
    chance = random.Random(seed)
    rows = [(chance.choice(("write", "read")), 10 ** chance.uniform(-5, -1.3), chance.randrange(64 * MIB),
             chance.randrange(1, 2000)) for _ in range(n)]
    rows += failures(failed=n // 10, recv=n // 20, expired=n // 50)
    chance.shuffle(rows)
    return rows


def percentile(values, fraction):
    """numpy.percentile of sorted values, as it does by default."""
    position = fraction * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (position - low) * (values[high] - values[low])


def reference(rows):
    """The figures that the rows make, by the definitions of the line."""
    moved = [row for row in rows if row[0] in ("write", "read")]
    kinds = [row[0] for row in rows]
    figures = dict.fromkeys(("Num successful transfers", MEANS[0], P90, *MEANS[1:]), 0)
    if moved:
        durations = sorted(row[1] for row in moved)
        mib = sum(row[2] for row in moved) / MIB
        figures = {
            "Num successful transfers": len(moved),
            "Avg xfer time (ms)": round(sum(durations) / len(moved) * 1e3, 3),
            P90: round(percentile(durations, 0.9) * 1e3, 3),
            "Avg MB per transfer": round(mib / len(moved), 3),
            "Throughput (MB/s)": round(mib / sum(durations), 3) if sum(durations) > 0 else 0.0,
            "Avg number of descriptors": round(sum(row[3] for row in moved) / len(moved), 1),
        }
    return figures | {"Num failed transfers": kinds.count("failed"), "Num failed recvs": kinds.count("recv"),
                      "Num KV expired reqs": kinds.count("expired")}


def parse_line(line):
    """(who, figures) of a line of kvprobe xfer, numbers as the text writes them."""
    who, _, rest = line.partition(" ")
    if not rest.startswith(PREFIX):
        raise AssertionError(f"not a line of transfers: {line!r}")
    return who, {name: json.loads(value) for name, _, value in
                 (item.partition("=") for item in rest[len(PREFIX):].split(", "))}


class SiteRecorder(Worker):
    """The C worker with the probes alone."""

    def record(self, rows):
        for kind, seconds, size, descriptors in rows:
            if kind in FAILURES:
                key, rc = FAILURES[kind]
                self.do(f"record {key} 1 0 0 0 1 {rc}")
            else:
                self.do(f"record XFER_{kind.upper()} 1 {max(1, round(seconds * 1e9))} {size} {descriptors} 0 0")

    def own(self):
        return None  # it has no statistics of its own


class PythonRecorder(Child):
    """A Python process with kvprobe.stats."""

    def __init__(self):
        super().__init__([sys.executable, STATS_WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         env={**os.environ, "PYTHONPATH": os.fspath(BUILD / "python")})
        self._buffer = bytearray()
        self.nspid = json.loads(self.read_line(self.process.stdout, self._buffer))["pid"]

    def ask(self, command):
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.read_line(self.process.stdout, self._buffer))

    def record(self, rows, threads=1):
        answer = self.ask({"record": rows, "threads": threads})
        if answer != {"recorded": len(rows)}:
            raise AssertionError(f"{len(rows)} rows: {answer}")

    def own(self):
        """Its own line and figures of everything recorded."""
        answer = self.ask({"line": True})
        return answer["line"], answer["figures"]

    def quit(self):
        self.process.stdin.close()
        return self.process.wait(60)
