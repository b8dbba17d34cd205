#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the running kernel lets kvprobe do, found by trying, as one JSON object. Needs root.

    tests/vm/facts.py [--build DIR] [--costs]

table runs it on the host and in guests. With --costs it takes a minute or more.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

REPO = pathlib.Path(__file__).resolve().parents[2]
DOCTOR_SECONDS = 240
BENCH_SECONDS = 900
# The least first.
CAPABILITIES = ((), ("bpf",), ("perfmon",), ("bpf", "perfmon"), ("sys_admin",), ("bpf", "perfmon", "sys_admin"))
NOBODY = "65534"


class FactsError(Exception):
    """A tool that is to find out something did not."""


def doctor(kvprobe, *options, capabilities=None):
    """What doctor found; capabilities: as nobody with these alone."""
    prefix = []
    if capabilities is not None:
        kept = "".join(f",+{name}" for name in capabilities)
        prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                  f"--inh-caps=-all{kept}", f"--ambient-caps=-all{kept}", f"--bounding-set=-all{kept}"]
    ended = subprocess.run([*prefix, kvprobe, "doctor", "--json", *options], stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=DOCTOR_SECONDS, check=False)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise FactsError(f"kvprobe doctor ended with {ended.returncode}: {ended.stderr.strip()}") from None


def least_rights(kvprobe, *options):
    """The fewest of CAPABILITIES with which someone who is not root can trace; None: not even with all of them."""
    for names in CAPABILITIES:
        if doctor(kvprobe, *options, capabilities=names)["can_trace"]:
            return [f"CAP_{name.upper()}" for name in names]
    return None


def costs(build, arguments):
    ended = subprocess.run([sys.executable, REPO / "tools" / "bench" / "bench_probes.py", "--json", *arguments],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=BENCH_SECONDS,
                           env={**os.environ, "KVPROBE_BUILD": str(build)}, check=False)
    lines = ended.stdout.splitlines()
    if not lines:  # a requirement that is not met makes it fail, and prints figures all the same
        raise FactsError(f"bench probes ended with {ended.returncode}")
    return json.loads(lines[-1])


def kernel_version():
    """Upstream's number: of Debian's kernels the release says only the series."""
    found = re.search(r"Debian (\d+\.\d+\.\d+)", platform.version())
    return found[1] if found else re.match(r"[\d.]*\d", platform.release())[0]


def find(build):
    with tempfile.TemporaryDirectory(prefix="kvprobe-facts-") as where:
        kvprobe = pathlib.Path(where) / "kvprobe"  # where nobody can reach it
        os.chmod(where, 0o755)
        shutil.copy(build / "bin" / "kvprobe", kvprobe)
        kvprobe.chmod(0o755)
        root = doctor(kvprobe)
        return {
            "kernel": kernel_version(),
            "can_trace": root["can_trace"],
            "attach_form": root["form"],
            "uprobe_multi": root["uprobe_multi"],
            "ring_buffer": root["ring_buffer"],
            "rights": least_rights(kvprobe),
            "rights_without_multi": least_rights(kvprobe, "--single"),
        }


def main(argv):
    parser = argparse.ArgumentParser(description="What this kernel lets kvprobe do, found by trying.")
    parser.add_argument("--build", type=pathlib.Path, default=REPO / "build", help="the build tree")
    parser.add_argument("--costs", action="store_true", help="also what a hit costs")
    parser.add_argument("bench", nargs="*", help="after --: arguments of bench probes")
    args = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("facts: needs root, to give rights away", file=sys.stderr)
        return 3
    try:
        found = find(args.build)
        if args.costs:
            found["costs"] = costs(args.build.resolve(), args.bench)
    except (FactsError, OSError, subprocess.TimeoutExpired) as error:
        print(f"facts: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
