#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the table of docs/kernels.md: what kvprobe can do on which kernel, tried and measured on this host and in guests.
./dev vm table calls it.

    tests/vm/table.py [--kernel VERSION]... [--no-host] [--write] [--build DIR]
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from runner import hostlock, plan, process  # noqa: E402
from vm import boot, guest, kernels  # noqa: E402

FACTS = pathlib.Path("tests") / "vm" / "facts.py"
PAGE = plan.REPO / "docs" / "kernels.md"
BEGIN, END = "<!-- ./dev vm table --write makes this table -->\n", "<!-- end of the table -->\n"
# An emulated processor is slow.
GUEST_BENCH = ("--rounds", "7", "--calls", "20000")
HOST_SECONDS = 900


class TableError(Exception):
    """Some kernel's column could not be made."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def facts_command(build, bench):
    return ["python3", str(FACTS), "--build", str(build), "--costs", "--", *bench]


def on_host(build):
    say("this host")
    ended = subprocess.run(facts_command(build, ()), cwd=plan.REPO, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           text=True, timeout=HOST_SECONDS, check=False)
    if ended.returncode:
        raise TableError(f"this host: ended with {ended.returncode}")
    return {**json.loads(ended.stdout), "where": "a host"}


def in_guest(wanted, build):
    kernel = kernels.obtain(wanted, say)
    say(f"a guest with {kernel.label}")
    script = f"exec 2>/dev/console; {shlex.join(facts_command(build, GUEST_BENCH))}\n"
    outcome = boot.run(guest.Guest(kernel), script, build)
    if outcome.trouble or outcome.status:
        raise TableError("\n".join([*outcome.console, f"{kernel.label}: {outcome.trouble or outcome.status}"]))
    where = "a guest, emulated" if guest.accelerator() == "tcg" else "a guest, KVM"
    return {**json.loads(outcome.output.splitlines()[-1]), "where": where}


def form_words(found):
    return "int3: no nop is optimised" if found["attach_form"] == "int3" else found["attach_form"]


def rights_words(names):
    return " + ".join(names) if names else ("none" if names == [] else "root only")


def hit_words(found):
    costs, form = found["costs"], found["attach_form"]
    words = f"{costs[f'{form}_of_syscall']:.1f}"
    return words if form == "int3" else f"{words} (int3: {costs['int3_of_syscall']:.1f})"


ROWS = {
    "attach form": form_words,
    "uprobe_multi links": lambda found: "yes" if found["uprobe_multi"] else "no: one uprobe per site",
    "ring buffer": lambda found: "yes" if found["ring_buffer"] else "no",
    "rights that attaching takes": lambda found: rights_words(found["rights"]),
    "the same without multi links": lambda found: rights_words(found["rights_without_multi"]),
    "a hit, in system calls": hit_words,
    "a hit through libbpf's own USDT attach, in system calls":
        lambda found: f"{found['costs']['libbpf_ns'] / found['costs']['syscall_ns']:.1f}",
    "an unwatched site, over one compiled out, in system calls":
        lambda found: f"{found['costs']['off_over_compiled_out_ns'] / found['costs']['syscall_ns']:.2f}",
    "a system call": lambda found: f"{found['costs']['syscall_ns']:.0f} ns",
    "measured in": lambda found: found["where"],
}


def table_of(columns):
    """columns: of facts. Returns the table as Markdown."""
    lines = ["| Linux | " + " | ".join(found["kernel"] for found in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, words in ROWS.items():
        lines.append(f"| {name} | " + " | ".join(words(found) for found in columns) + " |")
    return "\n".join(lines) + "\n"


def read_table(text):
    """kernel -> {row: words} of a page's table."""
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    rows = [re.split(r" \| ", line.strip("| ")) for line in lines if not line.startswith("|---")]
    return {kernel: {row[0]: row[at] for row in rows[1:]} for at, kernel in enumerate(rows[0]) if at} if rows else {}


def write(table):
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise TableError(f"{PAGE} has lost the marks between which the table stands")
    PAGE.write_text(before + begin + table + end + after, encoding="utf-8")


def main(argv):
    parser = argparse.ArgumentParser(description="Make the table of docs/kernels.md, on this host and in guests.")
    parser.add_argument("--kernel", action="append", metavar="VERSION", dest="kernels",
                        help="6.1, or a release that apt has; default: " + " and ".join(kernels.SERIES))
    parser.add_argument("--no-host", action="store_true", help="guests only")
    parser.add_argument("--write", action="store_true", help="put the table into docs/kernels.md")
    parser.add_argument("--build", type=pathlib.Path, default=plan.BUILD_DIRS["release"], help="the build tree")
    args = parser.parse_args(argv)
    if args.write and (args.kernels or args.no_host):
        parser.error("--write makes the whole table: without --kernel and --no-host")
    build = args.build.resolve()
    process.stop_on_signals()
    try:
        with hostlock.held(say):
            columns = [in_guest(wanted, build) for wanted in args.kernels or kernels.SERIES]
            columns += [] if args.no_host else [on_host(build)]
        table = table_of(columns)
        print(table, end="")
        if args.write:
            write(table)
    except (TableError, kernels.KernelError, OSError, subprocess.TimeoutExpired) as error:
        print(f"table: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
