# SPDX-License-Identifier: Apache-2.0
"""Reads what a cmocka program prints under CMOCKA_MESSAGE_OUTPUT=TAP."""

import collections
import re

from .report import Case

PLAN = re.compile(r"1\.\.(\d+)$")
RESULT = re.compile(r"(not )?ok (\d+) (?:- |(# SKIP) )(.*)$")
SKIP_REASON = re.compile(r"SKIP: (.+)$")
CONTEXT_LINES = 80


class TapReader:
    """Feed it the lines; finish() gives the cases. A test that is planned and says nothing has failed."""

    def __init__(self, program):
        self._program = program
        self._cases = []
        self._planned = 0
        self._seen = 0
        self._reason = None
        self._context = collections.deque(maxlen=CONTEXT_LINES)
        self._failed = None

    def line(self, text):
        plan = PLAN.match(text)
        result = RESULT.match(text)
        if plan:
            self._planned += int(plan[1])
        elif result:
            self._result(failed=bool(result[1]), number=int(result[2]), skipped=bool(result[3]), name=result[4])
        elif self._failed and text.startswith("# "):
            self._failed.detail.append(text)
        else:
            self._failed = None
            reason = SKIP_REASON.match(text)
            if reason:
                self._reason = reason[1]
            self._context.append(text)

    def _result(self, failed, number, skipped, name):
        case = Case(self._program, name, "passed")
        if number == 0:  # a group's set-up that failed: its tests are missing from the plan
            self._context.append(f"not ok: {name}")
            return
        self._seen += 1
        if skipped:
            case.outcome = "skipped"
            case.reason = self._reason or "no reason given"
        elif failed:
            case.outcome = "failed"
            case.detail = list(self._context)
        self._failed = case if case.outcome == "failed" else None
        self._cases.append(case)
        self._reason = None
        self._context.clear()

    def finish(self, ended):
        tail = list(self._context)
        missing = self._planned - self._seen
        for number in range(missing):
            self._cases.append(Case(self._program, f"(test {self._seen + number + 1} of {self._planned})", "failed",
                                    detail=tail + ["planned, but the program ended without its result"]))
        trouble = ended.trouble()
        if self._planned == 0:
            trouble = "no test plan in its output" + (f"; {trouble}" if trouble else "")
        has_failed = any(case.outcome == "failed" for case in self._cases)
        plain_failure = ended.returncode > 0 and not ended.timed_out
        if trouble and not (has_failed and plain_failure):
            self._cases.append(Case(self._program, "(program)", "failed", detail=tail + [trouble]))
        return self._cases
