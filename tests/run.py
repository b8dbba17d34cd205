#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs kvprobe's tests.

    tests/run.py [-k PATTERN] [--preset P]... [--quick] [--build DIR] [-v] [suite...]
    tests/run.py vm [--kernel VERSION]... [--keep] [suite...]

The second form boots guests and runs the suites there; -k, --build and -v are handed on. ./dev test builds what is needed and calls this. A suite is the cmocka programs <build>/tests/<suite>-* and the
unittest modules tests/<suite>/test_*.py. The last line is "N passed, N failed, N skipped".
"""

import argparse
import collections
import concurrent.futures
import contextlib
import os
import pathlib
import sys
import tempfile
import threading
import time

from runner import hostlock, plan, process, remote, report, sanitizer
from runner.cmocka import TapReader
from runner.pyreport import read_report
from vm import matrix

TAIL_LINES = 60
PRINT_LOCK = threading.Lock()


def say(text):
    with PRINT_LOCK:
        print(text, flush=True)


def run_program(program, build, args, pattern):
    """Run one program; returns its cases and its time."""
    tail = collections.deque(maxlen=TAIL_LINES)
    tap = TapReader(program)

    def on_line(text):
        tail.append(text)
        if not program.is_python:
            tap.line(text)
        if args.verbose:
            say(f"{program.name}| {text}")

    with tempfile.TemporaryDirectory(prefix="kvprobe-test-") as scratch:
        scratch = pathlib.Path(scratch)
        report_file = scratch / "results"
        argv = sanitizer.command(program, report_file, pattern)
        env = sanitizer.environment(program, build, scratch)
        if args.in_guest:
            say(f"{program.name} begins")  # should the guest not live to tell its end
        ended = process.run(argv, env, plan.REPO, args.timeout or program.suite.timeout, on_line)
        if program.is_python:
            cases = read_report(program, report_file, ended, list(tail))
        else:
            cases = tap.finish(ended)
        for name, lines in sanitizer.reports_of(scratch):
            cases.append(report.Case(program, f"(sanitizer {name})", "failed", detail=lines))
    if cases or not pattern:
        say(report.program_line(program, cases, ended.seconds))
    if args.report:
        with PRINT_LOCK:
            remote.append(args.report, cases)
    return cases


def pattern_for(program, pattern):
    """(whether to run the program, what its tests are filtered by)"""
    if not pattern or pattern in program.name or pattern in program.path.stem:
        return True, None
    return program.is_python, pattern


def run_suite(suite, preset, args):
    build = plan.BUILD_DIRS[preset]
    if args.build:
        build = pathlib.Path(args.build).resolve()
    work = []
    programs = plan.discover(suite, preset, build)
    for program in programs:
        wanted, pattern = pattern_for(program, args.pattern)
        if wanted and (not args.label or args.label in program.labels):
            work.append((program, build, args, pattern))
    if not programs:
        nobody = plan.Program(suite, preset, build / "tests" / suite.name)
        say(f"[{preset}] {suite.name}: NO TESTS FOUND")
        return [report.Case(nobody, "(suite)", "failed", detail=[f"no test of suite {suite.name} in {build}"])]
    jobs = args.jobs if suite.parallel else 1
    alone = contextlib.nullcontext() if suite.parallel or not work else hostlock.held(say)
    with alone, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(run_program, *item) for item in work]
        return [case for future in futures for case in future.result()]


def run_all(suites, presets, args):
    cases = []
    times = {}
    for preset in presets:
        for suite in suites:
            if preset not in suite.presets or (suite.guest_only and not args.in_guest):
                say(f"[{preset}] {suite.name}: not applicable")
                continue
            start = time.monotonic()
            if suite.name != "vm" or not args.guest_suites:
                cases += run_suite(suite, preset, args)
            if suite.name == "vm":
                cases += matrix.run(args, say)
            times[preset, suite.name] = time.monotonic() - start
            if process.RUNNING.stopped:
                return cases, times
    return cases, times


def parse_args(argv):
    parser = argparse.ArgumentParser(description="Run kvprobe's tests.", epilog="suites: " + " ".join(plan.SUITES))
    parser.add_argument("suites", nargs="*", metavar="suite")
    parser.add_argument("-k", dest="pattern", help="only programs, or unittest tests, whose name contains it")
    parser.add_argument("--preset", action="append", choices=plan.PRESETS, help="default: all")
    parser.add_argument("--quick", action="store_true", help="the release build only")
    parser.add_argument("--build", help="another build tree; with one --preset (default release)")
    parser.add_argument("--timeout", type=int, help="seconds per program")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-v", "--verbose", action="store_true", help="show the programs' output as it comes")
    parser.add_argument("--label", help="only programs that have this label")
    parser.add_argument("--report", help="also write each result to this file, as a line of JSON")
    parser.add_argument("--in-guest", action="store_true", help="this is a guest: run the suites that are for guests")
    parser.add_argument("--kernel", action="append", dest="kernels", metavar="VERSION",
                        help="vm: 6.1, or a release that apt has; default: " + " and ".join(matrix.SERIES))
    parser.add_argument("--keep", action="store_true", help="vm: keep the consoles and results, and say where")
    parser.add_argument("--list-suites", action="store_true", help="print the suites that would run and leave")
    parser.add_argument("--list-builds", action="store_true", help="print the builds that are needed and leave")
    args = parser.parse_intermixed_args(argv)
    for name in args.suites:
        if name not in plan.SUITES:
            parser.error(f"no suite '{name}'; there are: {' '.join(plan.SUITES)}")
    args.guest_suites = []
    if (args.kernels or args.keep) and args.suites[:1] != ["vm"]:
        parser.error("--kernel and --keep are for vm, which comes before the suites that guests are to run")
    if args.suites[:1] == ["vm"]:
        args.guest_suites, args.suites = args.suites[1:], ["vm"]
        unknown = set(args.guest_suites) - set(matrix.SUITES)
        if unknown:
            parser.error(f"no guest runs {' '.join(sorted(unknown))}; they run: {' '.join(matrix.SUITES)}")
    if args.build and not args.preset:
        args.preset = ["release"]
    if args.build and len(args.preset) != 1:
        parser.error("--build takes one --preset")
    return args


def main(argv):
    args = parse_args(argv)
    names = args.suites or [name for name in plan.SUITES if not (args.quick and name == "vm")]
    presets = args.preset or (plan.QUICK_PRESETS if args.quick else plan.PRESETS)
    if args.list_builds:
        print(*plan.needed_builds(names, presets))
        return 0
    if args.list_suites:
        print(*names)
        return 0
    process.stop_on_signals()
    try:
        cases, times = run_all([plan.SUITES[name] for name in names], presets, args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    report.print_failures(cases)
    report.print_skips(cases)
    report.print_times(times)
    passed, failed, _ = report.count(cases)
    if passed + failed == 0:
        print("\nno test ran")
    print("\n" + report.last_line(cases))
    if passed + failed == 0:
        return plan.NO_TEST_RAN
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
