# SPDX-License-Identifier: Apache-2.0
"""Single results, and how they are told."""

import collections
import json
from dataclasses import dataclass, field

DETAIL_LINES = 80


@dataclass
class Case:
    """One test. outcome: passed, failed or skipped."""

    program: object
    name: str
    outcome: str
    reason: str = ""
    detail: list = field(default_factory=list)

    @property
    def title(self):
        return f"[{self.program.preset}] {self.program.name}: {self.name}"


def read_records(path):
    """The objects of a file of JSON lines that another process wrote, up to the one that its death cut short."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return


def count(cases):
    tally = collections.Counter(case.outcome for case in cases)
    return tally["passed"], tally["failed"], tally["skipped"]


def program_line(program, cases, seconds):
    passed, failed, skipped = count(cases)
    parts = [f"{passed} passed"]
    if failed:
        parts.append(f"{failed} FAILED")
    if skipped:
        parts.append(f"{skipped} skipped")
    return f"[{program.preset}] {program.name:<34} {', '.join(parts)}  ({seconds:.1f} s)"


def print_failures(cases):
    for case in cases:
        if case.outcome == "failed":
            print(f"\n=== FAILED {case.title}")
            for line in case.detail[-DETAIL_LINES:]:
                print("    " + line)


def print_skips(cases):
    skipped = [case for case in cases if case.outcome == "skipped"]
    if not skipped:
        return
    print("\nskipped:")
    for case in skipped:
        print(f"  {case.title}: {case.reason}")


def print_times(times):
    """times: {(preset, suite): seconds of its programs, wall clock}"""
    print("\ntime per suite:")
    for (preset, suite), seconds in times.items():
        print(f"  {preset:<8} {suite:<12} {seconds:7.1f} s")


def last_line(cases):
    passed, failed, skipped = count(cases)
    return f"{passed} passed, {failed} failed, {skipped} skipped"
