#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call site costs: compiled out, with no one attached, and under each kind of attachment.

One process runs the loop through all the phases, a second one is the same loop with the probes compiled
out; the phases take turns, round after round, and each figure is the median of its rounds. Every attached
phase is warmed up first: the kernel turns a site into a call at its first hit. A form that this kernel does not
have is left out.
"""

import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from common import BenchError, binary, median, run_bench, say  # noqa: E402

KEY = "RC_IS_EXIST"
WATCHED_CALLS = 200_000
# What costs less is called so many times as often, what warms up a tenth as often.
PLAIN_TIMES = 50
SYSCALL_TIMES = 2
WARM_UP_PART = 10
# Of the requirements; the figures are ratios of medians of the same run.
OPTIMISED_OF_LIBBPF = 0.35
OFF_OVER_COMPILED_OUT_NS = 1.5


class Disturbed(Exception):
    """Someone else is attached to the loop."""


def measure(loop, command, calls, watchers=0):
    answer = re.fullmatch(r"ns ([0-9.]+) watchers (\d+)", loop.ask(f"{command} {calls}", 120))
    if not answer:
        raise BenchError("probe_loop gave no time")
    if int(answer.group(2)) != watchers:
        raise Disturbed(f"{answer.group(2)} tools watch the loop instead of {watchers}")
    return float(answer.group(1))


def own_form():
    """The cheapest form of attaching that this kernel has, as doctor found by trying."""
    try:
        doctor = subprocess.run([binary("kvprobe"), "doctor", "--json"], capture_output=True, text=True, timeout=120,
                                check=False)
        found = json.loads(doctor.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"kvprobe doctor: {error}") from error
    if not found["can_trace"]:
        raise BenchError(found["verdict"])
    return found["form"]


def even(count):
    """The loop finds every other key."""
    return max(2, count // 2 * 2)


def undisturbed(phase):
    """Another tool on this host that watches every process would be measured as well: wait until it is gone."""
    for _ in range(20):
        try:
            return phase()
        except Disturbed as disturbance:
            say(f"{disturbance}; trying again")
            time.sleep(2)
    raise BenchError("another tool on this host keeps watching every process with probes")


class Attachments:
    """Each method attaches one tool to the loop, measures and detaches, and makes sure that the tool saw
    every call: an attachment that counts nothing would look cheap."""

    def __init__(self, bench, loop):
        self.bench = bench
        self.loop = loop
        self.calls = bench.arguments.calls
        self.warm_up = even(self.calls // WARM_UP_PART)

    def check(self, who, calls):
        expected = self.warm_up + self.calls
        if calls != expected:
            raise BenchError(f"{who} counted {calls} of {expected} calls")

    def measure_and_detach(self, tool):
        try:
            measure(self.loop, "run", self.warm_up, 1)
            return measure(self.loop, "run", self.calls, 1)
        finally:
            tool.interrupt()

    def kvprobe(self, form):
        tool = self.bench.kvprobe("stat", "-p", str(self.loop.pid), "--json", f"--attach={form}")
        if f"form={form}" not in tool.attached:
            raise BenchError(f"kvprobe did not attach as {form}: {tool.attached}")
        cost = self.measure_and_detach(tool)
        rows = [json.loads(line) for line in tool.rest_of_output() if line.startswith("{")]
        self.check("kvprobe stat", sum(row["calls"] for row in rows
                                       if row["type"] == "total" and row["key"] == KEY))
        return cost

    def libbpf(self):
        tool = self.bench.start([binary("usdt_probe"), str(self.loop.pid), binary("probe_loop"), KEY])
        tool.wait_for("attached", 30)
        cost = self.measure_and_detach(tool)
        self.check("libbpf's attach", int(re.match(r"calls (\d+)", tool.answer(5)).group(1)))
        return cost

    def bpftrace(self):
        script = f'usdt:{binary("probe_loop")}:kvstore:{KEY} {{ @calls = count(); }} BEGIN {{ printf("ready\\n"); }}'
        argv = ["bpftrace", "-p", str(self.loop.pid), "-e", script]
        if not os.path.exists("/sys/kernel/tracing/events"):
            # bpftrace wants tracefs to detach; a mount of our own leaves the host as it is.
            argv = ["unshare", "--mount", "sh", "-c",
                    'mount -t tracefs tracefs /sys/kernel/tracing && exec "$@"', "sh", *argv]
        tool = self.bench.start(argv)
        tool.wait_for("ready", 60, tool.out)
        time.sleep(0.2)
        cost = self.measure_and_detach(tool)
        counted = [line for line in tool.rest_of_output() if line.startswith("@calls:")]
        self.check("bpftrace", int(counted[0].split()[1]) if counted else 0)
        return cost


def bench_probes(bench):
    cpu = max(os.sched_getaffinity(0))
    loop = bench.start([binary("probe_loop")], cpu=cpu)
    bare = bench.start([binary("probe_loop_bare")], cpu=cpu)
    attachments = Attachments(bench, loop)
    form = own_form()
    forms = dict.fromkeys((form, "int3"))
    plain_calls = PLAIN_TIMES * bench.arguments.calls
    phases = {
        "compiled_out_ns": lambda: measure(bare, "run", plain_calls),
        "off_ns": lambda: measure(loop, "run", plain_calls),
        **{f"{name}_ns": lambda name=name: attachments.kvprobe(name) for name in forms},
        "libbpf_ns": attachments.libbpf,
        "bpftrace_ns": attachments.bpftrace,
        "syscall_ns": lambda: measure(loop, "syscall", SYSCALL_TIMES * bench.arguments.calls),
    }
    for program in (loop, bare):
        undisturbed(lambda program=program: measure(program, "run", plain_calls))
    samples = {name: [] for name in phases}
    for number in range(bench.arguments.rounds):
        for name, phase in phases.items():
            samples[name].append(undisturbed(phase))
        say(f"round {number + 1} of {bench.arguments.rounds}: "
            + " ".join(f"{name}={values[-1]:.1f}" for name, values in samples.items()))
    figures = {name: round(median(values), 2) for name, values in samples.items()}
    figures["off_over_compiled_out_ns"] = round(figures["off_ns"] - figures["compiled_out_ns"], 2)
    for name in (*forms, "bpftrace"):
        figures[f"{name}_of_libbpf"] = round(figures[f"{name}_ns"] / figures["libbpf_ns"], 3)
    for name in forms:
        figures[f"{name}_of_syscall"] = round(figures[f"{name}_ns"] / figures["syscall_ns"], 2)
    figures["attach_form"] = form
    bench.require(form == "int3" or figures[f"{form}_of_libbpf"] <= OPTIMISED_OF_LIBBPF,
                  f"{form} costs at most {OPTIMISED_OF_LIBBPF} of libbpf's attach")
    bench.require(figures["off_over_compiled_out_ns"] <= OFF_OVER_COMPILED_OUT_NS,
                  f"an unwatched site costs at most {OFF_OVER_COMPILED_OUT_NS} ns over none")
    return figures


def call_count(text):
    count = int(text)
    if count < 2 or count % 2:
        raise ValueError(text)
    return count


def add_arguments(parser):
    parser.add_argument("--calls", type=call_count, default=WATCHED_CALLS, metavar="N",
                        help=f"calls that are watched, in each round; an even number (default {WATCHED_CALLS:,})")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all phases (default 5)")


if __name__ == "__main__":
    sys.exit(run_bench("probes", __doc__, bench_probes, add_arguments))
