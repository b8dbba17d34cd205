# SPDX-License-Identifier: Apache-2.0
"""Runs this project's suites in one guest after another, and hands back their cases as if they had run here."""

import pathlib
import shlex
import shutil
import tempfile

from runner import hostlock, plan, process, remote, report

from . import boot, kernels
from .guest import Guest

SERIES = kernels.SERIES
SUITES = ("guest", "bpf", "probes")
# One emulated processor: a hundredth of the load, and far more patience.
SCALE = "0.01"
PATIENCE = "4"


def guests(kernel):
    """The machines of the matrix, and what each runs: suite -> pattern of the tests' names, or None for all."""
    everything = dict.fromkeys(SUITES)
    special = {"guest": "test_"}  # its modules; the programs are about devices that these guests do not have
    return (
        (Guest(kernel, numa_nodes=2, roce=True, disk_mb=64), everything),
        (Guest(kernel, lockdown="integrity", cgroup=1), special),
        (Guest(kernel, tracefs=False), special),
        (Guest(kernel, capabilities=("bpf", "perfmon")), special),
        (Guest(kernel, capabilities=()), special),
    )


def script_of(guest, suite, pattern, build, args):
    """The command that runs one suite inside."""
    words = ["python3", "tests/run.py", "--in-guest", "--label", plan.KERNEL_LABEL, "--report", "/mnt/cases",
             "--build", build]
    if args.verbose:
        words.append("-v")
    if pattern or args.pattern:
        words += ["-k", args.pattern or pattern]
    return " ".join(map(shlex.quote, map(str, [*words, suite])))


def program_of(guest, path):
    return plan.Program(plan.SUITES["vm"], guest.label, path)


def guest_case(guest, outcome, status_matters):
    """The guest itself is a test: that it came up and went down well, and that what ran there said what failed."""
    case = report.Case(program_of(guest, pathlib.Path("guest.py")), "boots, runs and powers off", "passed")
    trouble = outcome.trouble
    if not trouble and status_matters and outcome.status:
        trouble = f"its tests ended with status {outcome.status} and report no failure"
    if trouble:
        case.outcome = "failed"
        case.detail = [*outcome.output.splitlines()[-20:], "--- console", *outcome.console, "---", trouble]
    return case


def keep_results(guest, results, say):
    kept = pathlib.Path(tempfile.mkdtemp(prefix="kvprobe-vm-kept-"))
    shutil.copytree(results, kept, dirs_exist_ok=True)
    say(f"[{guest.label}] results kept in {kept}")


def run_guest(guest, suites, args, say):
    """Boot one guest and run the suites in it; returns the cases."""
    build = pathlib.Path(args.build).resolve() if args.build else plan.BUILD_DIRS["release"]
    lines = ["export KV_TEST_SCALE=" + SCALE, "export KV_TEST_PATIENCE=" + PATIENCE, "status=0"]
    for suite, pattern in suites.items():
        lines.append(f"{script_of(guest, suite, pattern, build, args)} || status=$?")
    found = []

    def collect(results):
        found.extend(remote.read(results / "cases", guest.label))
        if args.keep:
            keep_results(guest, results, say)

    show = (lambda text: say(f"{guest.label}| {text}")) if args.verbose else None
    outcome = boot.run(guest, "\n".join([*lines, "exit $status"]) + "\n", build, show, collect)
    if args.verbose:
        say(outcome.output)
    failed = any(case.outcome == "failed" for case in found)
    # a pattern of the user's own may well match nothing in this guest
    cases = [*found, guest_case(guest, outcome, not failed and (bool(found) or not args.pattern))]
    passed, bad, skipped = report.count(cases)
    say(f"[{guest.label}] {', '.join(suites)}: {passed} passed, {bad} failed, {skipped} skipped  "
        f"(boot {outcome.boot_seconds:.1f} s, in all {outcome.seconds:.1f} s)")
    return cases


def chosen(suites, args):
    """Of a guest's suites those that were asked for."""
    return {name: pattern for name, pattern in suites.items() if not args.guest_suites or name in args.guest_suites}


def no_kernel(wanted, error, was_asked_for):
    """What a kernel that cannot be had counts as: of another distribution's packages nobody expects it."""
    case = report.Case(plan.Program(plan.SUITES["vm"], wanted, pathlib.Path("kernel.py")), "is there to boot", "failed",
                       detail=str(error).splitlines())
    if isinstance(error, kernels.NoSuchKernel) and not was_asked_for and not kernels.is_debian():
        case.outcome, case.reason, case.detail = "skipped", str(error), []
    return case


def run(args, say):
    """All guests of the kernels asked for, one at a time; returns their cases."""
    cases = []
    with hostlock.held(say):
        for wanted in args.kernels or SERIES:
            try:
                kernel = kernels.obtain(wanted, say)
            except kernels.KernelError as error:
                cases.append(no_kernel(wanted, error, bool(args.kernels)))
                continue
            for guest, suites in guests(kernel):
                suites = chosen(suites, args)
                if suites and not process.RUNNING.stopped:
                    cases += run_guest(guest, suites, args, say)
    return cases
