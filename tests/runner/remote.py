# SPDX-License-Identifier: Apache-2.0
"""Carries cases from one run of tests/run.py to another: out of a guest, or of anything else that dies half-way."""

import json
import pathlib

from . import plan
from .report import Case, read_records


def append(path, cases):
    """Add these cases to a report; each is there once this returns."""
    with open(path, "a", encoding="utf-8") as file:
        for case in cases:
            program = case.program
            file.write(json.dumps({"suite": program.suite.name, "program": str(program.path), "test": case.name,
                                   "outcome": case.outcome, "reason": case.reason, "detail": case.detail}) + "\n")


def read(path, label):
    """The cases of a report, as cases of a machine of that name."""
    cases = []
    for record in read_records(path):
        program = plan.Program(plan.SUITES[record["suite"]], label, pathlib.Path(record["program"]))
        cases.append(Case(program, record["test"], record["outcome"], record["reason"], record["detail"]))
    return cases
