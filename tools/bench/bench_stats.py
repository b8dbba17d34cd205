#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What recording a KV transfer costs: in C on 1, 2, 4 and 8 threads, from Python, and in pure Python.

Each figure is the median of several rounds. The C figures are CPU time per record, snapshots included; from Python
the calls are a connector's, by keyword, with a snapshot after each batch that is not in the time, and the two classes
take turns batch by batch.
"""

import os
import re
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BUILD, BenchError, binary, median, run_bench, say  # noqa: E402

THREADS = (1, 2, 4, 8)
C_RECORDS = 8_000_000  # of all threads together
PY_RECORDS = 200_000
BATCH = 1000  # records between two snapshots
# Of the requirements.
C_RECORD_NS = 100
PY_TIMES_FASTER = 2


class PurePythonStats:
    """The same object written in Python: six lists and a lock."""

    COLUMNS = ("transfer_duration", "bytes_transferred", "num_descriptors", "num_failed_transfers",
               "num_failed_recvs", "num_kv_expired_reqs")

    def __init__(self):
        self._lock = threading.Lock()
        self.reset()

    def reset(self):
        self.data = {name: [] for name in self.COLUMNS}

    def record_transfer(self, duration_s, total_bytes, num_descs):
        with self._lock:
            self.data["transfer_duration"].append(duration_s)
            self.data["bytes_transferred"].append(total_bytes)
            self.data["num_descriptors"].append(num_descs)

    def clone_and_reset(self):
        snapshot = type(self)()
        with self._lock:
            snapshot.data = {name: list(column) for name, column in self.data.items()}
            self.reset()
        return snapshot

    @property
    def num_successful_transfers(self):
        return len(self.data["transfer_duration"])


class Connector:
    """Records as a connector's worker does, from an attribute of its own."""

    def __init__(self, xfer_stats):
        self.xfer_stats = xfer_stats

    def record_batch(self, duration, total_bytes, src_ptrs):
        for _ in range(BATCH):
            self.xfer_stats.record_transfer(duration_s=duration, total_bytes=total_bytes, num_descs=len(src_ptrs))


def ns_per_c_record(loop, threads):
    answer = re.fullmatch(r"ns ([0-9.]+)", loop.ask(f"run {threads} {C_RECORDS // threads}", 120))
    if not answer:
        raise BenchError("stats_loop gave no time")
    return float(answer.group(1))


def time_batch(connector):
    """The nanoseconds of a batch of records; the snapshot after it shows that they were kept."""
    src_ptrs = list(range(16))
    start = time.perf_counter_ns()
    connector.record_batch(0.00125, 1 << 20, src_ptrs)
    elapsed = time.perf_counter_ns() - start
    seen = connector.xfer_stats.clone_and_reset().num_successful_transfers
    if seen != BATCH:
        raise BenchError(f"{type(connector.xfer_stats).__name__} kept {seen} of {BATCH} records")
    return elapsed


def ns_per_py_record(connectors):
    """Of each, batch by batch in turns: what else the machine does meets all of them alike."""
    elapsed = [0] * len(connectors)
    for _ in range(PY_RECORDS // BATCH):
        for i, connector in enumerate(connectors):
            elapsed[i] += time_batch(connector)
    return [ns / PY_RECORDS for ns in elapsed]


def kvprobe_stats():
    sys.path.insert(0, os.path.join(BUILD, "python"))
    try:
        from kvprobe.stats import MooncakeKVConnectorStats
    except ImportError as error:
        raise BenchError(f"kvprobe.stats cannot be imported from {BUILD}: {error}") from None
    return MooncakeKVConnectorStats()


def measure_round(loop, connectors):
    costs = {f"c_{n}": ns_per_c_record(loop, n) for n in THREADS}
    costs["py"], costs["pure_python"] = ns_per_py_record(connectors)
    return costs


def bench_stats(bench):
    loop = bench.start([binary("stats_loop")])
    connectors = [Connector(kvprobe_stats()), Connector(PurePythonStats())]
    measure_round(loop, connectors)  # warm up
    rounds = []
    for number in range(bench.arguments.rounds):
        rounds.append(measure_round(loop, connectors))
        say(f"round {number + 1} of {bench.arguments.rounds}: "
            + " ".join(f"{name}={value:.1f}" for name, value in rounds[-1].items()))
    medians = {name: round(median([costs[name] for costs in rounds]), 2) for name in rounds[0]}
    figures = {
        "c_record_ns": {str(n): medians[f"c_{n}"] for n in THREADS},
        "py_record_ns": medians["py"],
        "pure_python_ns": medians["pure_python"],
        "py_times_faster": round(medians["pure_python"] / medians["py"], 3),
    }
    bench.require(medians["c_1"] <= C_RECORD_NS, f"a record in C on one thread takes at most {C_RECORD_NS} ns")
    bench.require(medians["pure_python"] >= PY_TIMES_FASTER * medians["py"],
                  f"a record from Python is at least {PY_TIMES_FASTER} times as fast as pure Python")
    return figures


def add_arguments(parser):
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all phases (default 7)")


if __name__ == "__main__":
    sys.exit(run_bench("stats", __doc__, bench_stats, add_arguments))
