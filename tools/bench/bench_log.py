#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The MC_LOG text from outside against the text from inside.

Equality: two workers of two threads each write their in-process log to files while kvprobe log collects the
same calls through the probe; the two texts must be equal line for line, per process and thread, in all but
elapsed_us. Cost: a third worker, without an in-process log, runs with and without kvprobe log attached, in
turns; ns per key inside the calls, medians.
"""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BenchError, binary, median, run_bench, say  # noqa: E402

WORKERS = 2
THREADS = 2
CYCLES = 25  # of 704 keys in 81 batches, four calls each: 281,600 lines
LINES_AT_LEAST = 200_000
COST_CYCLES = 300
LIMIT_S = 300

ELAPSED = re.compile(r"elapsed_us=\d+")
THREAD_OF_LINE = re.compile(r"^success=[01] key=(t\d+)\.")


def calls_by_thread(lines):
    """{thread: [the calls' lines, in order]}, a call being its summary and the lines up to the next one. A
    call without keys is the main thread's."""
    threads = {}
    call = []

    def keep():
        if not call:
            return
        found = THREAD_OF_LINE.match(call[1]) if len(call) > 1 else None
        thread = found.group(1) if found else "main"
        threads.setdefault(thread, []).extend([ELAPSED.sub("elapsed_us=", call[0]), *call[1:]])

    for line in lines:
        if line.startswith("["):
            keep()
            call = [line]
        else:
            call.append(line)
    keep()
    return threads


def collected_by_pid(path):
    pids = {}
    with open(path, encoding="ascii", errors="strict") as text:
        for line in text:
            prefix, rest = line.rstrip("\n").split(" ", 1)
            pids.setdefault(int(prefix.removeprefix("pid=")), []).append(rest)
    return pids


def compare(inside, outside):
    """(per-key lines compared, lines that differ). Missing and surplus lines differ."""
    lines = different = 0
    for thread in inside.keys() | outside.keys():
        ours, theirs = inside.get(thread, []), outside.get(thread, [])
        differing = [pair for pair in zip(ours, theirs) if pair[0] != pair[1]]
        for one, other in differing[:3]:
            say(f"  {thread}: inside  {one}\n  {thread}: outside {other}")
        if len(ours) != len(theirs):
            say(f"  {thread}: {len(ours)} lines inside, {len(theirs)} outside")
        different += len(differing) + abs(len(ours) - len(theirs))
        lines += sum(line.startswith("success=") for line in ours)
    return lines, different


def lost_keys(tool):
    """What a collector or a worker said it lost, in keys (or calls, for calls without keys)."""
    lost = 0
    for line in tool.err_lines:
        for calls, keys in re.findall(r"lost (\d+) calls? \((\d+) keys?\)", line):
            lost = max(lost, int(calls), int(keys))
    return lost


def compare_texts(bench):
    log_dir = os.path.join(bench.scratch, "inside")
    os.mkdir(log_dir)
    workers = [bench.start([binary("log_worker"), str(THREADS)],
                           env={"MC_LOG_ENABLE": "on", "MC_LOG_DIR": log_dir}) for _ in range(WORKERS)]
    outside_path = os.path.join(bench.scratch, "outside.log")
    tool = bench.kvprobe("log", "--pid", "-p", ",".join(str(worker.pid) for worker in workers),
                         stdout_path=outside_path)
    say(tool.attached)
    for worker in workers:
        worker.ask("open", 30)
    for worker in workers:
        worker.tell(f"go {CYCLES}")
    for worker in workers:
        worker.answer(LIMIT_S)
    for worker in workers:
        worker.close_stdin()
        worker.join(30)
    tool.interrupt(60, (0, 4))
    outside = collected_by_pid(outside_path)
    lines = different = 0
    for worker in workers:
        with open(os.path.join(log_dir, f"kvstore.{worker.pid}.log"), encoding="ascii") as text:
            inside = [line.rstrip("\n") for line in text]
        got_lines, got_different = compare(calls_by_thread(inside), calls_by_thread(outside.get(worker.pid, [])))
        lines += got_lines
        different += got_different
    return lines, different, lost_keys(tool) + sum(lost_keys(worker) for worker in workers)


def go(worker):
    answer = re.fullmatch(r"seconds ([0-9.]+) calls (\d+) keys (\d+)", worker.ask(f"go {COST_CYCLES}", LIMIT_S))
    if not answer:
        raise BenchError("log_worker gave no figures")
    worker.ask("clear", 60)
    return float(answer.group(1)), int(answer.group(3))


def measure_cost(bench):
    worker = bench.start([binary("log_worker"), "1"])
    worker.ask("open", 30)
    go(worker)  # the pool's pages come to life
    off, on, rates, lost = [], [], [], 0
    for number in range(bench.arguments.rounds):
        seconds, keys = go(worker)
        off.append(seconds / keys * 1e9)
        collected = os.path.join(bench.scratch, "cost.log")
        tool = bench.kvprobe("log", "-p", str(worker.pid), stdout_path=collected)
        seconds, keys = go(worker)
        on.append(seconds / keys * 1e9)
        tool.interrupt(60, (0, 4))
        with open(collected, "rb") as text:
            lines = sum(line.startswith(b"success=") for line in text)
        rates.append(lines / seconds)
        lost += lost_keys(tool) or keys - lines
        say(f"round {number + 1} of {bench.arguments.rounds}: off {off[-1]:.0f} on {on[-1]:.0f} ns a key, "
            f"{rates[-1]:.0f} lines/s")
    return median(off), median(on), median(rates), lost


def bench_log(bench):
    lines, different, lost = compare_texts(bench)
    say(f"{lines} lines compared, {different} different, {lost} lost")
    off, on, rate, lost_in_cost = measure_cost(bench)
    figures = {
        "lines": lines,
        "different": different,
        "lost": lost + lost_in_cost,
        "lines_per_s": round(rate),
        "worker_ns_per_key_off": round(off, 1),
        "worker_ns_per_key_on": round(on, 1),
    }
    bench.require(lines >= LINES_AT_LEAST, f"at least {LINES_AT_LEAST:,} lines are compared")
    bench.require(different == 0, "the two texts are equal")
    bench.require(figures["lost"] == 0, "nothing is lost")
    return figures


def add_arguments(parser):
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the cost measurement (default 5)")


if __name__ == "__main__":
    sys.exit(run_bench("log", __doc__, bench_log, add_arguments))
