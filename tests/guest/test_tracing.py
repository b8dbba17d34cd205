# SPDX-License-Identifier: Apache-2.0
# labels: settings
"""kvprobe in this guest, by this user: it traces where the kernel lets it, and elsewhere says which right is missing.
doctor foretells it."""

import json
import pathlib
import platform
import re
import signal
import sys
import unittest

import machine

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bpf"))
import collector  # noqa: E402
from collector import SITE_WORKER, Collector, Worker, run_kvprobe  # noqa: E402

KEY = "RC_REMOVE"


def missing():
    """The capabilities that this kernel wants and this user has not, as the tool names them."""
    have = machine.capabilities()
    if have is None:
        return set()
    wanted = set(collector.attach_capabilities())
    if not {"bpf", "perfmon"} <= have:
        wanted.discard("sys_admin")  # wanted too, but the others come first
    return {f"CAP_{name.upper()}" for name in wanted - have}


def obstacles():
    """What keeps this user from tracing here, in words that the tool must say."""
    return {"locked down"} if machine.settings()["lockdown"] == "confidentiality" else missing()


class TracingTest(unittest.TestCase):
    def doctor(self):
        ended = run_kvprobe("doctor", "--json")
        print(run_kvprobe("doctor").stdout)
        self.assertIn(ended.returncode, (0, 3), ended.stderr)
        return ended.returncode, json.loads(ended.stdout.splitlines()[-1])

    def test_doctor_foretells(self):
        code, found = self.doctor()
        self.assertEqual(code, 3 if obstacles() else 0, found)
        self.assertEqual(found["can_trace"], not obstacles())
        self.assertEqual(found["counted"], not obstacles())
        for name in obstacles():
            self.assertIn(name, json.dumps([found["missing"], found["verdict"], found["fix"]]))

    def test_doctor_knows_the_kernel(self):
        _, found = self.doctor()
        self.assertEqual(found["attach_form"], collector.kernel_form())
        self.assertEqual(found["kernel"], platform.release())
        settings = machine.settings()
        text = run_kvprobe("doctor").stdout
        if settings["lockdown"] != "none":
            self.assertRegex(text, rf"lockdown: .*{settings['lockdown']}")
        if machine.capabilities() is None and settings["tracefs"] == "0":
            self.assertRegex(text, r"tracefs: .*not mounted|no tracefs")

    def test_stat_counts_or_names_the_right(self):
        worker = Worker()
        self.addCleanup(worker.kill)
        if obstacles():
            ended = run_kvprobe("stat", "-d", "0.1", "--file", SITE_WORKER)
            self.assertEqual(ended.returncode, 3, ended.stderr)
            for name in obstacles():
                self.assertIn(name, ended.stderr)
            if missing():
                self.assertIn("setcap", ended.stderr)
            return
        stat = Collector("stat", "--json", "--perf-key", KEY, "--file", SITE_WORKER)
        self.addCleanup(stat.kill)
        worker.fire(KEY, 2, 500, size=3)
        self.assertEqual(stat.stop(signal.SIGINT), 0, stat.errors)
        row = stat.by_key(worker.pid)[KEY]
        self.assertEqual((row["calls"], row["bytes"]), (1000, 3000))
        self.assertEqual(stat.summary()["attach_form"], collector.kernel_form())

    def test_list_of_a_file_needs_no_rights(self):
        self.assertEqual(run_kvprobe("list", SITE_WORKER).returncode, 0)

    def test_log_prints_or_names_the_right(self):
        ended = run_kvprobe("log", "-d", "0.1", "--file", SITE_WORKER)
        self.assertEqual(ended.returncode, 3 if obstacles() else 0, ended.stderr)
        for name in obstacles():
            self.assertIn(name, ended.stderr)


if __name__ == "__main__":
    unittest.main()
