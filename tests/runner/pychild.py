# SPDX-License-Identifier: Apache-2.0
"""Runs one unittest module in this process and writes a JSON line per result to a file.

    pychild.py REPORT MODULE.py [PATTERN]

The file, not the output, carries the results: what a test prints cannot be taken for one. The reading side
is read_report().
"""

import importlib.util
import json
import pathlib
import sys
import traceback
import unittest


class JsonResult(unittest.TestResult):
    def __init__(self, report):
        super().__init__()
        self._report = report
        self._bad = {}
        self.unreported = {}

    def put(self, **record):
        self._report.write(json.dumps(record) + "\n")
        self._report.flush()

    def plan(self, suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                self.plan(test)
            else:
                self.unreported[test.id()] = test
        return len(self.unreported)

    def outcome(self, test, outcome, reason="", detail=""):
        if test.id() in self.unreported:
            del self.unreported[test.id()]
            names = [test.id()]
        else:  # a class's or a module's set-up or tear-down: it speaks for those that it kept from running
            names = self._kept_from_running(test.id()) or [test.id()]
        for name in names:
            self.unreported.pop(name, None)
            self.put(test=name.partition(".")[2] or name, outcome=outcome, reason=reason, detail=detail)
        if detail:
            print(detail, file=sys.stderr, flush=True)

    def _kept_from_running(self, holder):
        """holder: 'setUpClass (module.Class)' or 'setUpModule (module)'"""
        what, _, where = holder.partition(" (")
        if not what.startswith("setUp"):
            return []
        return [name for name in self.unreported if name.startswith(where.rstrip(")") + ".")]

    def startTest(self, test):
        super().startTest(test)
        self.put(started=test.id().partition(".")[2])

    def addSuccess(self, test):
        self.outcome(test, "passed")

    def addFailure(self, test, err):
        self.outcome(test, "failed", detail="".join(traceback.format_exception(*err)))

    addError = addFailure

    def addSkip(self, test, reason):
        if isinstance(test, unittest.case._SubTest):
            test = test.test_case
            if test.id() not in self.unreported:
                return
        self.outcome(test, "skipped", reason=reason)

    def addExpectedFailure(self, test, err):
        self.outcome(test, "passed")

    def addUnexpectedSuccess(self, test):
        self.outcome(test, "failed", detail="passed, but was expected to fail")

    def addSubTest(self, test, subtest, err):
        # A test fails once, whatever the number of its parts that failed.
        if err is not None:
            detail = f"{subtest}\n" + "".join(traceback.format_exception(*err))
            self._bad.setdefault(test.id(), []).append(detail)

    def stopTest(self, test):
        super().stopTest(test)
        bad = self._bad.pop(test.id(), None)
        if bad and test.id() in self.unreported:
            self.outcome(test, "failed", detail="\n".join(bad))


def load(path, pattern):
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    loader = unittest.TestLoader()
    if pattern:
        loader.testNamePatterns = [f"*{pattern}*"]
    return loader.loadTestsFromModule(module)


def main():
    report_path, module_path, *rest = sys.argv[1:]
    with open(report_path, "w", encoding="utf-8") as report:
        result = JsonResult(report)
        suite = load(pathlib.Path(module_path), rest[0] if rest else None)
        result.put(planned=result.plan(suite))
        suite.run(result)
        result.put(ended=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
