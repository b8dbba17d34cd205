#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the store adds to moving the bytes.

Put and get of 1 MiB objects in 16 fragments, 8 a call, as a worker of an inference engine makes them: embedded
(memcpy) and over TCP between two processes; beside memcpy of the same fragments from a memory of the same size,
and a raw TCP stream of the same fragments. All of them take turns, round after round; each figure is the median of
its rounds, in 1e9 bytes a second.
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BenchError, binary, median, run_bench, say  # noqa: E402

ROUND_LIMIT_S = 120
EMBEDDED_GET_OF_MEMCPY = 0.8
TCP_GET_OF_RAW = 0.7


def one_round(child, command):
    answer = re.fullmatch(r"seconds ([0-9.]+) bytes (\d+)", child.ask(command, ROUND_LIMIT_S))
    if not answer:
        raise BenchError(f"store_rounds gave no figures for {command}")
    seconds, size = float(answer.group(1)), int(answer.group(2))
    return size / seconds / 1e9 if size else 0.0


def bench_store(bench):
    mib = bench.arguments.mib
    if mib < 8 or mib % 8:
        raise BenchError("--mib must be a multiple of 8: a call moves 8 objects of 1 MiB")
    program = binary("store_rounds")
    # Room for a round and for what the allocator and the eviction's watermark keep free.
    segment = mib + mib // 4 + 16
    memcpy = bench.start([program, "memcpy", str(mib)])
    embedded = bench.start([program, "store", str(mib), "embedded", str(segment)])
    _, master = bench.kvmaster()
    owner = bench.start([program, "owner", master, str(segment)])
    owner.answer(30)
    client = bench.start([program, "store", str(mib), master, "0"])
    source = bench.start([program, "source", str(mib)])
    port = source.answer(30).split()[1]
    sink = bench.start([program, "sink", str(mib), port])

    phases = [
        ("memcpy_gbps", memcpy, "copy"),
        ("embedded_put_gbps", embedded, "put"),
        ("embedded_get_gbps", embedded, "get"),
        (None, embedded, "clear"),
        ("raw_tcp_gbps", sink, "stream"),
        ("tcp_put_gbps", client, "put"),
        ("tcp_get_gbps", client, "get"),
        (None, client, "clear"),
    ]
    samples = {name: [] for name, _, _ in phases if name}
    for number in range(bench.arguments.rounds + 1):
        for name, child, command in phases:
            rate = one_round(child, command)
            if name and number > 0:  # the first round brings pages and connections to life
                samples[name].append(rate)
        if number > 0:
            say(f"round {number} of {bench.arguments.rounds}: "
                + " ".join(f"{name}={values[-1]:.2f}" for name, values in samples.items()))
    figures = {name: round(median(values), 3) for name, values in samples.items()}
    for name, reference in (("embedded_put", "memcpy"), ("embedded_get", "memcpy"),
                            ("tcp_put", "raw_tcp"), ("tcp_get", "raw_tcp")):
        figures[f"{name}_of_{reference}"] = round(figures[f"{name}_gbps"] / figures[f"{reference}_gbps"], 3)
    bench.require(figures["embedded_get_of_memcpy"] >= EMBEDDED_GET_OF_MEMCPY,
                  f"embedded get reaches {EMBEDDED_GET_OF_MEMCPY} of memcpy")
    bench.require(figures["tcp_get_of_raw_tcp"] >= TCP_GET_OF_RAW,
                  f"TCP get reaches {TCP_GET_OF_RAW} of a raw TCP stream")
    return figures


def add_arguments(parser):
    parser.add_argument("--rounds", type=int, default=7, help="rounds after the warm-up (default 7)")
    parser.add_argument("--mib", type=int, default=512, help="working set in MiB (default 512)")


if __name__ == "__main__":
    sys.exit(run_bench("store", __doc__, bench_store, add_arguments))
