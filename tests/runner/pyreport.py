# SPDX-License-Identifier: Apache-2.0
"""Reads what pychild.py wrote about one unittest module."""

from .report import Case, read_records


def read_report(program, path, ended, tail):
    """The cases of a module. One that did not say its end has failed, together with what it did not get to."""
    cases = []
    planned = None
    started = None
    complete = False
    for record in read_records(path):
        if "planned" in record:
            planned = record["planned"]
        elif "started" in record:
            started = record["started"]
        elif "ended" in record:
            complete = True
        else:
            cases.append(Case(program, record["test"], record["outcome"], record["reason"],
                              record["detail"].splitlines()))
    trouble = ended.trouble()
    if planned is None:
        return [Case(program, "(module)", "failed", detail=tail + ["it could not be loaded", trouble or ""])]
    if not complete:
        for number in range(planned - len(cases)):
            name = started if number == 0 and started else f"(test {len(cases) + 1} of {planned})"
            detail = tail + [f"the module ended before this test's result: {trouble or 'exit status 0'}"]
            cases.append(Case(program, name, "failed", detail=detail))
    if trouble and not any(case.outcome == "failed" for case in cases):
        cases.append(Case(program, "(module)", "failed", detail=tail + [trouble]))
    return cases
