#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the kernel's counts the workers' own? Two workers of four threads make at least a million calls of every
kind, failures included; one runs its master inside itself and copies by memcpy, the other asks a kvmaster and
reads and writes over TCP the memory of a third process, which is killed at the end: transfers fail then. Each worker says what every key must show, told from
the results that its calls returned; kvprobe stat, attached before the first call, says what the kernel counted.
Calls, failed calls, keys, failed keys and bytes must be equal for every key of every process.
"""

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import REPO, BenchError, binary, run_bench, say  # noqa: E402

COLUMNS = ("calls", "failed_calls", "keys", "failed_keys", "bytes")
SEGMENT_MIB = 64
# Of the calls, the part that the worker with the embedded master makes; the other waits for its sockets.
EMBEDDED_SHARE = 0.6
LIMIT_S = 900

# What no caller can know: how often a thread in the background ran, and how many connections a pool opened.
NOT_DERIVABLE = {
    "MASTER_RPC_PING": "pings come from a timer",
    "MASTER_BG_BATCH_EVICT": "background thread",
    "MASTER_BG_DISCARD_EXPIRED": "background thread",
    "MASTER_BG_CLIENT_MONITOR": "background thread",
    "MASTER_BG_CLIENT_UNMOUNT": "background thread",
    "TCP_CONNECT": "connections are pooled",
}


def layers():
    """{key: layer} of perf_points.def."""
    with open(os.path.join(REPO, "perf_points.def"), encoding="utf-8") as text:
        return dict(re.findall(r"^PERF_POINT\((\w+), (\w+),", text.read(), re.M))


def expected_rows(report, worker_pid, master_pid, layer_of):
    """{(pid, key): counts} of one worker's report. The master's keys belong to the process it runs in."""
    rows = {}
    for key, counts in report.items():
        if key == "calls" or key in NOT_DERIVABLE or layer_of[key] in ("PY", "XFER"):
            continue
        pid = master_pid if layer_of[key] == "MASTER" else worker_pid
        rows[(pid, key)] = tuple(counts)
    return rows


def counted_rows(lines):
    """({(pid, key): counts}, summary) of kvprobe stat --json."""
    rows, summary = {}, None
    for line in lines:
        row = json.loads(line)
        if row["type"] == "total":
            rows[(row["pid"], row["key"])] = tuple(row[column] for column in COLUMNS)
        elif row["type"] == "summary":
            summary = row
    if summary is None:
        raise BenchError("kvprobe stat printed no summary")
    return rows, summary


def compare(expected, counted, names):
    """The number of (process, key) whose counts differ; each is shown."""
    mismatches = 0
    nothing = (0,) * len(COLUMNS)
    for row in sorted(expected.keys() | counted.keys()):
        want, got = expected.get(row, nothing), counted.get(row, nothing)
        if row[1] in NOT_DERIVABLE or want == got:
            continue
        mismatches += 1
        say(f"MISMATCH {names.get(row[0], row[0])} {row[1]}: "
            + ", ".join(f"{column} {a} returned, {b} counted"
                        for column, a, b in zip(COLUMNS, want, got) if a != b))
    return mismatches


def bench_exactness(bench):
    program = binary("exact_worker")
    wanted = bench.arguments.calls
    master, address = bench.kvmaster()
    owner = bench.start([binary("store_rounds"), "owner", address, str(SEGMENT_MIB)])
    owner.answer(30)
    quiet = {"MC_LOG_LEVEL": "ERROR"}  # the store warns of some of what the workers do on purpose
    embedded_calls = int(wanted * EMBEDDED_SHARE)
    embedded = bench.start([program, "embedded", str(SEGMENT_MIB), str(embedded_calls + 1)], env=quiet)
    remote = bench.start([program, address, "0", str(wanted - embedded_calls + 1)], env=quiet)
    names = {embedded.pid: "embedded worker", remote.pid: "TCP worker", master.pid: "kvmaster"}

    tool = bench.kvprobe("stat", "--json", "-p", f"{embedded.pid},{remote.pid},{master.pid}",
                         f"--attach={bench.arguments.attach}")
    say(tool.attached)
    for worker in (embedded, remote):
        worker.tell("go")
    if remote.answer(LIMIT_S) != "end the owner":
        raise BenchError("the TCP worker did not come to its last part")
    owner.process.kill()
    owner.join(10, None)
    remote.tell("ended")
    reports = {worker.pid: json.loads(worker.answer(LIMIT_S)) for worker in (embedded, remote)}
    tool.interrupt(60)
    counted, summary = counted_rows(tool.rest_of_output())
    for worker in (embedded, remote):
        worker.close_stdin()
        worker.join(30)

    layer_of = layers()
    expected = expected_rows(reports[embedded.pid], embedded.pid, embedded.pid, layer_of)
    expected |= expected_rows(reports[remote.pid], remote.pid, master.pid, layer_of)
    mismatches = compare(expected, counted, names)
    calls = sum(report["calls"] for report in reports.values())
    sums = [sum(row[i] for row in expected.values()) for i in range(len(COLUMNS))]
    figures = {
        "calls": calls,
        "mismatches": mismatches,
        "keys_compared": sum(any(row) for row in expected.values()),
        "firings": sums[0],
        "failed_firings": sums[1],
        "events": summary["events"],
        "lost": summary["lost"],
        "attach_form": summary["attach_form"],
        "excluded": sorted(NOT_DERIVABLE),
    }
    never = {key for key, layer in layer_of.items() if layer not in ("PY", "XFER") and key not in NOT_DERIVABLE
             and not any(any(row) for (_, name), row in expected.items() if name == key)}
    if never:
        say("no call of this benchmark reaches: " + " ".join(sorted(never)))
    bench.require(calls >= 1_000_000 or wanted < 1_000_000, "at least 1,000,000 calls")
    bench.require(mismatches == 0, "every count equals the workers' own")
    bench.require(summary["lost"] == 0, "nothing is lost")
    return figures


def add_arguments(parser):
    parser.add_argument("--attach", default="auto", help="the attach form, as of kvprobe stat (default auto)")
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls of both workers (default 1,000,000)")


if __name__ == "__main__":
    sys.exit(run_bench("exactness", __doc__, bench_exactness, add_arguments))
