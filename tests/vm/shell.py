#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A shell in a guest, or one command, with the repository and the build tree in place. ./dev vm shell calls it.

    tests/vm/shell.py [--kernel VERSION] [--numa N] [--roce] [--disk MB] [--caps NAMES] [--lockdown MODE]
                      [--no-tracefs] [--cgroup 1|2] [--limit SECONDS] [--build DIR] [-- COMMAND [ARGUMENT...]]

The guest is gone when the shell or the command ends. Ctrl-A x ends a shell's guest at once, Ctrl-C a command's.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from runner import plan, process  # noqa: E402
from vm import boot, guest, kernels  # noqa: E402


NO_END = 1


def capability_names(text):
    """The names of a list with commas; setpriv, which will be given them, knows all there are."""
    names = tuple(filter(None, text.split(",")))
    known = subprocess.run(["setpriv", "--list-caps"], stdout=subprocess.PIPE, text=True, timeout=60,
                           check=True).stdout.split()
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no capability '{name}'; setpriv --list-caps shows all")
    return names


def disk_size(text):
    size = int(text)
    if not 0 <= size <= 1 << 20:
        raise ValueError(text)
    return size


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description="A shell in a guest, or a command: its output, with what it says on stderr, comes to stdout, and its "
                    "exit status is this one's. Ctrl-A x ends a shell's guest at once, Ctrl-C a command's.",
        epilog="example: ./dev vm shell --kernel 6.1 --caps bpf,perfmon -- build/bin/kvprobe doctor")
    parser.add_argument("--kernel", default=kernels.SERIES[-1], help="6.1, or a release that apt has")
    parser.add_argument("--numa", type=int, choices=range(1, 5), default=1, metavar="N", help="NUMA nodes")
    parser.add_argument("--roce", action="store_true", help="a pair of soft-RoCE devices, rxe0 and rxe1")
    parser.add_argument("--disk", type=disk_size, default=0, metavar="MB", help="a second disk, /dev/vda")
    parser.add_argument("--caps", type=capability_names, help="as nobody with these capabilities only: bpf,perfmon; '' for none")
    parser.add_argument("--lockdown", choices=("integrity", "confidentiality"))
    parser.add_argument("--no-tracefs", action="store_true")
    parser.add_argument("--cgroup", type=int, choices=(1, 2), default=2)
    parser.add_argument("--limit", type=int, default=3600, metavar="SECONDS", help="for a command (default 3600)")
    parser.add_argument("--build", type=pathlib.Path, default=plan.BUILD_DIRS["release"], help="the build tree")
    parser.add_argument("command", nargs="*", help="what to run there in place of a shell; after --")
    return parser.parse_args(argv)


def interactive(machine, build):
    with boot.scratch(machine, "shell", build) as (directory, results):
        subprocess.run(boot.with_parent(machine.qemu(directory, results, serial="mon:stdio")), check=False)
        status = boot.read_limited(results / "exit").strip()
    return int(status) if status.isdigit() else NO_END


def run_command(machine, build, command):
    """The command's status; what it says is shown as it comes."""
    outcome = boot.run(machine, shlex.join(command) + "\n", build, echo=sys.stdout.buffer)
    if outcome.trouble and not process.RUNNING.stopped:
        print(*outcome.console, outcome.trouble, sep="\n", file=sys.stderr)
    return NO_END if outcome.status is None else outcome.status


def run_there(args):
    kernel = kernels.obtain(args.kernel, lambda text: print(text, file=sys.stderr))
    machine = guest.Guest(kernel, numa_nodes=args.numa, roce=args.roce, disk_mb=args.disk, capabilities=args.caps,
                          lockdown=args.lockdown, tracefs=not args.no_tracefs, cgroup=args.cgroup, limit=args.limit)
    if not args.command:
        return interactive(machine, args.build.resolve())
    return run_command(machine, args.build.resolve(), args.command)


def main(argv):
    args = parse_args(argv)
    process.stop_on_signals()
    try:
        return run_there(args)
    except kernels.KernelError as error:
        print(error, file=sys.stderr)
        return NO_END
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
