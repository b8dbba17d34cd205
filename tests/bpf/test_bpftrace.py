# SPDX-License-Identifier: Apache-2.0
"""Every script of tools/bpftrace and every one-liner of docs/bpftrace.md, run as it stands against a working
store: kvmaster, an owner of memory and a Python worker. What each prints must have the shape that its header
promises."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("KVPROBE_BUILD", os.path.join(REPO, "build")))
SCRIPTS = os.path.join(REPO, "tools", "bpftrace")
sys.path.insert(0, os.path.join(REPO, "tools", "bench"))
os.environ.setdefault("KVPROBE_BUILD", BUILD)
import common  # noqa: E402
from doc_blocks import runnable_blocks  # noqa: E402

SECONDS = 2.2  # after bpftrace has attached
LIMIT_S = 60

PUT = r"RC_BATCH_PUT_MULTI\]: [1-9]\d*"
HISTOGRAM = r"^\[\d+[KM]?, \d+[KM]?\) +\d+ \|@+"
STATS = r": count [1-9]\d*, average \d+, total \d+"

# script: (arguments, what the output must contain)
EXPECTED = {
    "calls.bt": ([], [PUT, r"RC_BATCH_GET_INTO_MULTI__start\]: [1-9]\d*", r"CLIENT_BATCH_QUERY\]: [1-9]\d*"]),
    "latency.bt": ([], [r"^@us\[usdt:.*:RC_BATCH_IS_EXIST\]:", HISTOGRAM]),
    "bandwidth.bt": ([], [r"^\d\d:\d\d:\d\d KiB in the last second", r"^@kib\[put\]: [1-9]\d*",
                          r"^@kib\[get\]: [1-9]\d*"]),
    "failures.bt": ([], [r"^@calls\[usdt:.*:RC_BATCH_GET_INTO_MULTI, -704\]: [1-9]\d*",
                         r"^@keys\[usdt:.*:RC_BATCH_GET_REPLICA_DESC, -704\]: [1-9]\d*"]),
    "slow.bt": (["1"], [r"^calls of 1 us and more", r"^put +\d+ us  8 keys 0 failed  pid \d+ python3\S*  op [0-9a-f]+",
                        r"^get +\d+ us  8 keys 1 failed", r"^@slowest_us\[exist\]: [1-9]\d*"]),
    "slow_phases.bt": (["1"], [r"^put +\d+ us = start [1-9]\d*, submit \d+, wait \d+, end [1-9]\d*  pid {worker}  op",
                               r"^get +\d+ us = query [1-9]\d*, submit \d+, wait \d+  pid {worker}  op [0-9a-f]{16}$"]),
    "by_process.bt": ([], [r"^@put_calls\[{worker}, python3\S*\]: [1-9]\d*",
                           r"^@get_mib\[{worker}, python3\S*\]: \d+"]),
    "lookup_or_data.bt": ([], [r"^@us\[lookup\]" + STATS, r"^@us\[data\]" + STATS, HISTOGRAM]),
    "batch_sizes.bt": ([], [r"^@keys\[get\]:", r"^\[8, 16\) +[1-9]\d* \|@+"]),
    "in_flight.bt": ([], [r"^at \d+ ms"]),
    "follow.bt": ([], [r"^following op [0-9a-f]+", r"^master get_replica +\d+ us  8 keys rc -?\d+  pid {master} \S+",
                       r"^client query +\d+ us  8 keys", r"^client wait +\d+ us",
                       r"^get +\d+ us  8 keys rc -704  pid {worker}"]),
    "put_phases.bt": ([], [r"^@us\[1 all\]" + STATS, r"^@us\[3 start at the master\]" + STATS,
                           r"^@us\[5 wait\]" + STATS]),
    "master.bt": ([], [r"^@ns\[batch_get_replica\]" + STATS, r"^@ns\[batch_put_start\]" + STATS]),
    "python.bt": ([], [r"^@us\[get, python\]" + STATS, r"^@us\[get, store\]" + STATS]),
    "transfers.bt": ([], [r"^@us\[{recorder}, python3\S*\]:",
                          r"^\[1K, 2K\) +[1-9]\d* \|@+", r"^\[2K, 4K\) +[1-9]\d* \|@+",
                          r"^@kib\[{recorder}, python3\S*\]: count [1-9]\d*, average [12]\d{3}, total [1-9]\d*",
                          *(rf"^@{kind}\[{{recorder}}, python3\S*\]: [1-9]\d*"
                            for kind in ("failed_transfers", "failed_recvs", "expired_reqs"))]),
    "connections.bt": ([], [r"^pid {worker} python3\S*  connected in \d+ us", r"^@attempts\[{worker}, 0\]: [1-9]\d*"]),
}


class BpftraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("bpftrace"):
            raise unittest.SkipTest("no bpftrace")
        if os.geteuid() != 0:
            raise unittest.SkipTest("not root")
        cls.bench = common.Bench("bpftrace-test", None)
        cls.addClassCleanup(cls.bench.close)
        cls.master, address = cls.bench.kvmaster()
        owner = cls.bench.start([common.binary("store_rounds"), "owner", address, "64"])
        owner.answer(30)
        cls.worker = cls.start_python("traced_worker.py", address)
        cls.recorder = cls.start_python("traced_recorder.py")
        cls.env = dict(os.environ, KVPROBE_BUILD=BUILD,
                       LIB=os.path.realpath(os.path.join(BUILD, "lib", "libkvstore.so")))

    @classmethod
    def start_python(cls, name, *arguments):
        worker = cls.bench.start(["python3", os.path.join(REPO, "tests", "bpf", name), *arguments],
                                 env={"PYTHONPATH": os.path.join(BUILD, "python")})
        worker.wait_for("ready", 30, worker.out)
        return worker

    def run_traced(self, argv):
        """Run until it has printed for SECONDS, or has ended; then interrupt it, as a user does."""
        with tempfile.TemporaryFile() as out:
            tool = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                    env=self.env, start_new_session=True)
            try:
                self.wait_for_attach(tool, out)
                try:
                    tool.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(tool.pid, signal.SIGINT)
                tool.wait(LIMIT_S)
            finally:
                if tool.poll() is None:
                    os.killpg(tool.pid, signal.SIGKILL)
                    tool.wait(10)
            out.seek(0)
            return tool.returncode, out.read().decode("utf-8", "replace")

    def wait_for_attach(self, tool, out):
        import time

        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and tool.poll() is None:
            if b"Attaching" in os.pread(out.fileno(), 1 << 16, 0):
                return
            time.sleep(0.05)

    def check(self, output, patterns):
        pids = {"{worker}": self.worker.pid, "{recorder}": self.recorder.pid, "{master}": self.master.pid}
        for pattern in patterns:
            for name, pid in pids.items():
                pattern = pattern.replace(name, str(pid))
            self.assertRegex(output, re.compile(pattern, re.M))

    def test_every_script_is_tested(self):
        scripts = {name for name in os.listdir(SCRIPTS) if name.endswith(".bt")}
        self.assertEqual(scripts, set(EXPECTED))
        self.assertGreaterEqual(len(scripts), 10)

    def test_headers_say_what_and_how(self):
        for name in EXPECTED:
            with open(os.path.join(SCRIPTS, name), encoding="utf-8") as text:
                head = text.read().split("\n\n", 1)[0]
            self.assertIn(f"tools/bpftrace/run {name}", head)
            self.assertIn("?", head, "no question")

    def test_one_liners_of_the_documentation(self):
        found = runnable_blocks("docs/bpftrace.md")
        self.assertGreaterEqual(len(found), 5)
        for pattern, command in found:
            with self.subTest(command):
                self.assertTrue(pattern, "says nothing of what it shows")
                _, output = self.run_traced(["sh", "-c", command])
                self.check(output, [pattern])

    def test_run_finds_the_library_of_a_process(self):
        code, output = self.run_traced([os.path.join(SCRIPTS, "run"), "-p", str(self.worker.pid), "batch_sizes.bt"])
        self.assertEqual(code, 0, output)
        self.check(output, [r"^@keys\[get\]:"])

    def test_run_says_what_is_missing(self):
        result = subprocess.run([os.path.join(SCRIPTS, "run"), "nosuch.bt"], env=self.env, capture_output=True,
                                text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(result.returncode, 2)
        self.assertIn("no such script", result.stderr)


def script_test(name, arguments, patterns):
    def test(self):
        code, output = self.run_traced([os.path.join(SCRIPTS, "run"), name, *arguments])
        self.assertEqual(code, 0, output)
        self.check(output, patterns)

    return test


for _name, (_arguments, _patterns) in EXPECTED.items():
    setattr(BpftraceTest, "test_" + _name.removesuffix(".bt"), script_test(_name, _arguments, _patterns))


if __name__ == "__main__":
    unittest.main()
