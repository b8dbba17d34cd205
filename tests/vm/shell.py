#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A shell in a guest, with the repository and the build tree in place. ./dev vm shell calls it.

    tests/vm/shell.py [--kernel VERSION] [--numa N] [--roce] [--disk MB] [--caps NAMES] [--lockdown MODE]
                      [--no-tracefs] [--cgroup 1|2] [--build DIR]

The guest is gone when the shell ends; Ctrl-A x ends it at once.
"""

import argparse
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from runner import plan  # noqa: E402
from vm import boot, guest, kernels  # noqa: E402


def parse_args(argv):
    parser = argparse.ArgumentParser(description="A shell in a guest. Ctrl-A x ends the guest at once.")
    parser.add_argument("--kernel", default=kernels.SERIES[-1], help="6.1, or a release that apt has")
    parser.add_argument("--numa", type=int, choices=range(1, 5), default=1, metavar="N", help="NUMA nodes")
    parser.add_argument("--roce", action="store_true", help="a pair of soft-RoCE devices, rxe0 and rxe1")
    parser.add_argument("--disk", type=int, default=0, metavar="MB", help="a second disk, /dev/vda")
    parser.add_argument("--caps", help="as nobody with these capabilities only: bpf,perfmon; '' for none")
    parser.add_argument("--lockdown", choices=("integrity", "confidentiality"))
    parser.add_argument("--no-tracefs", action="store_true")
    parser.add_argument("--cgroup", type=int, choices=(1, 2), default=2)
    parser.add_argument("--build", type=pathlib.Path, default=plan.BUILD_DIRS["release"], help="the build tree")
    return parser.parse_args(argv)


def main(argv):
    args = parse_args(argv)
    capabilities = None if args.caps is None else tuple(filter(None, args.caps.split(",")))
    try:
        kernel = kernels.obtain(args.kernel, lambda text: print(text, file=sys.stderr))
    except kernels.KernelError as error:
        print(error, file=sys.stderr)
        return 1
    machine = guest.Guest(kernel, numa_nodes=args.numa, roce=args.roce, disk_mb=args.disk, capabilities=capabilities,
                          lockdown=args.lockdown, tracefs=not args.no_tracefs, cgroup=args.cgroup)
    with boot.scratch(machine, "shell", args.build.resolve()) as (directory, results):
        subprocess.run(boot.with_parent(machine.qemu(directory, results, serial="mon:stdio")), check=False)
        status = boot.read_limited(results / "exit").strip()
    return int(status) if status.isdigit() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
