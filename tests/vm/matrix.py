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
# Well below a guest's own limit: what a program that hangs leaves to the others.
PROGRAM_SECONDS = 400


def guests(kernel):
    """The machines of the matrix, and what each runs: suite -> label of its programs."""
    everything = dict.fromkeys(SUITES, plan.KERNEL_LABEL)
    special = {"guest": plan.SETTINGS_LABEL}
    return (
        (Guest(kernel, numa_nodes=2, roce=True, disk_mb=64), everything),
        (Guest(kernel, lockdown="integrity", cgroup=1), special),
        (Guest(kernel, lockdown="confidentiality"), special),
        (Guest(kernel, tracefs=False), special),
        (Guest(kernel, capabilities=("bpf", "perfmon")), special),
        (Guest(kernel, capabilities=()), special),
    )


def script_of(suites, build, args):
    """The commands that run the suites inside; its status is that of the last one that failed."""
    lines = [f"export KV_TEST_SCALE={SCALE} KV_TEST_PATIENCE={PATIENCE}", "status=0"]
    # where the user's pattern matches nothing, nothing has failed
    fails = f"[ $? = {plan.NO_TEST_RAN} ] || status=1" if args.pattern else "status=1"
    for suite, label in suites.items():
        words = ["python3", "tests/run.py", "--in-guest", "--label", label, "--report", "/mnt/cases",
                 "--timeout", PROGRAM_SECONDS, "--build", build]
        words += ["-v"] * args.verbose + (["-k", args.pattern] if args.pattern else [])
        lines.append(f"{shlex.join(map(str, [*words, suite]))} || {{ {fails}; }}")
    return "\n".join([*lines, "exit $status"]) + "\n"


def program_of(guest, path):
    return plan.Program(plan.SUITES["vm"], guest.label, path)


def guest_case(guest, outcome, said_failed):
    """The guest itself is a test: that it came up and went down well, and that what ran there said what failed."""
    case = report.Case(program_of(guest, pathlib.Path("guest.py")), "boots, runs and powers off", "passed")
    trouble = outcome.trouble
    if not trouble and outcome.status and not said_failed:
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
    found = []

    def collect(results):
        found.extend(remote.read(results / "cases", guest.label))
        if args.keep:
            keep_results(guest, results, say)

    show = (lambda text: say(f"{guest.label}| {text}")) if args.verbose else None
    outcome = boot.run(guest, script_of(suites, build, args), build, show, collect, offer=["cases"])
    if args.verbose:
        say(outcome.output)
    itself = guest_case(guest, outcome, any(case.outcome == "failed" for case in found))
    # that a guest boots is not what a pattern asks for
    cases = found if args.pattern and not found and itself.outcome == "passed" else [*found, itself]
    passed, bad, skipped = report.count(cases)
    say(f"[{guest.label}] {', '.join(suites)}: {passed} passed, {bad} failed, {skipped} skipped  "
        f"(boot {outcome.boot_seconds:.1f} s, in all {outcome.seconds:.1f} s)")
    return cases


def chosen(suites, args):
    """Of a guest's suites those that were asked for."""
    return {name: label for name, label in suites.items() if not args.guest_suites or name in args.guest_suites}


def cannot(wanted, name, error):
    """A failure that has no guest to belong to."""
    nobody = plan.Program(plan.SUITES["vm"], wanted, pathlib.Path("kernel.py"))
    return report.Case(nobody, name, "failed", detail=str(error).splitlines())


def no_kernel(wanted, error, was_asked_for):
    """What a kernel that cannot be had counts as: of another distribution's packages nobody expects it."""
    case = cannot(wanted, "is there to boot", error)
    if isinstance(error, kernels.NoSuchKernel) and not was_asked_for and not kernels.is_debian():
        case.outcome, case.reason, case.detail = "skipped", str(error), []
    return case


def run_kernel(wanted, args, say):
    """The guests of one kernel, one at a time."""
    cases = []
    for guest, suites in guests(kernels.obtain(wanted, say)):
        suites = chosen(suites, args)
        if suites and not process.RUNNING.stopped:
            with hostlock.held(say):
                cases += run_guest(guest, suites, args, say)
    return cases


def run(args, say):
    """All guests of the kernels asked for; returns their cases."""
    cases = []
    for wanted in args.kernels or SERIES:
        try:
            cases += run_kernel(wanted, args, say)
        except kernels.KernelError as error:
            cases.append(no_kernel(wanted, error, bool(args.kernels)))
        except TimeoutError as error:
            cases.append(cannot(wanted, "has the host for itself", error))
    return cases
