# SPDX-License-Identifier: Apache-2.0
"""store_connector_bench as an operator runs it: what it prints, counts, refuses and returns."""

import json
import os
import pathlib
import re
import subprocess
import unittest

BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
SMALL = ["--num_requests=6", "--num_layers=4", "--layer_size=64K", "--warmup_requests=2",
         "--global_segment_size=64M", "--local_buffer_size=0"]
LIMIT_S = 120


def bench(*arguments, env=None):
    return subprocess.run([BUILD / "bin/store_connector_bench", *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, env={**os.environ, **(env or {})}, check=False)


def last_object(run):
    return json.loads(run.stdout.splitlines()[-1])


class Embedded(unittest.TestCase):
    def check_all_phases(self, run, requests=6, layers=4, size=65536):
        self.assertEqual(run.returncode, 0, run.stderr)
        result = last_object(run)
        self.assertEqual(result["failed_keys"], 0)
        for phase in ("write", "is_exist", "get"):
            counts = result[phase]
            self.assertEqual((counts["queries"], counts["failed_queries"]), (requests, 0), phase)
            self.assertEqual((counts["keys"], counts["failed_keys"]), (requests * layers, 0), phase)
            self.assertEqual(counts["bytes"], 0 if phase == "is_exist" else requests * layers * size, phase)
            ordered = [counts[name] for name in ("min_us", "p50_us", "p90_us", "p99_us", "max_us")]
            self.assertEqual(ordered, sorted(ordered), phase)
            self.assertGreater(counts["min_us"], 0, phase)
            self.assertGreater(counts["keys_per_s"], 0, phase)
        return result

    def test_all_phases(self):
        run = bench(*SMALL, "--json")
        self.check_all_phases(run)
        for heading in ("WRITE", "IS_EXIST", "GET"):
            self.assertRegex(run.stdout, rf"(?m)^{heading}$")

    def test_threads_share_the_requests(self):
        # more threads than requests: two of them have nothing to do
        self.check_all_phases(bench(*SMALL, "--num_threads=8", "--json"))
        self.check_all_phases(bench(*SMALL, "--num_threads=4", "--json"))

    def test_one_phase(self):
        for scenario in ("write", "is_exist", "get"):
            run = bench(*SMALL, f"--scenario={scenario}", "--json")
            self.assertEqual(run.returncode, 0, run.stderr)
            phases = {name for name in last_object(run) if name in ("write", "is_exist", "get")}
            self.assertEqual(phases, {scenario})

    def test_odd_sizes(self):
        run = bench("--num_requests=3", "--num_layers=2", "--layer_size=12345", "--warmup_requests=0",
                    "--global_segment_size=16M", "--json")
        self.check_all_phases(run, 3, 2, 12345)

    def test_without_json_there_is_none(self):
        run = bench(*SMALL)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn("{", run.stdout)

    def test_keys_are_those_of_the_connector(self):
        run = bench("--num_requests=2", "--num_layers=2", "--layer_size=4K", "--warmup_requests=0",
                    "--global_segment_size=16M", env={"MC_LOG_ENABLE": "on"})
        self.assertEqual(run.returncode, 0, run.stderr)
        keys = re.findall(r"(?m)^success=1 key=(\S+) size=4096$", run.stderr)
        self.assertEqual(keys, ["layer.0.req_0", "layer.1.req_0", "layer.0.req_1", "layer.1.req_1"])


class Refusals(unittest.TestCase):
    def test_a_pool_that_is_too_small_is_named_beforehand(self):
        run = bench("--num_requests=100", "--num_layers=4", "--layer_size=1M", "--global_segment_size=64M")
        self.assertEqual(run.returncode, 1)
        self.assertIn("the pool is too small", run.stderr)
        self.assertIn("--global_segment_size", run.stderr)
        self.assertEqual(run.stdout, "")

    def test_a_host_that_is_too_small_is_named_beforehand(self):
        run = bench("--num_requests=1", "--num_layers=1", "--layer_size=900T", "--warmup_requests=0",
                    "--global_segment_size=2000T")
        self.assertEqual(run.returncode, 1)
        self.assertIn("of memory available", run.stderr)

    def test_usage_errors(self):
        for arguments in (["--num_layers=0"], ["--layer_size=1X"], ["--scenario=read"], ["--num_threads=no"],
                          ["extra"], ["--unknown"]):
            self.assertEqual(bench(*arguments).returncode, 64, arguments)

    def test_help_has_examples(self):
        run = bench("--help")
        self.assertEqual(run.returncode, 0)
        self.assertIn("Examples:", run.stdout)

    def test_no_master(self):
        run = bench(*SMALL, "--master=127.0.0.1:1")
        self.assertEqual(run.returncode, 1)
        self.assertIn("-900", run.stderr)


class Remote(unittest.TestCase):
    def setUp(self):
        self.master = subprocess.Popen([BUILD / "bin/kvmaster", "--rpc_address=127.0.0.1", "--rpc_port=0"],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(self.end_master)
        self.address = self.master.stdout.readline().split()[-1]

    def end_master(self):
        self.master.terminate()
        self.master.wait(LIMIT_S)
        self.master.stdout.close()

    def test_all_phases(self):
        run = bench(*SMALL, f"--master={self.address}", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(last_object(run)["failed_keys"], 0)

    def test_a_pool_without_memory(self):
        run = bench(*SMALL, f"--master={self.address}", "--global_segment_size=0", "--json")
        self.assertEqual(run.returncode, 1)
        self.assertIn("-200", run.stderr)
        result = last_object(run)
        self.assertEqual(result["write"]["failed_queries"], 6)
        self.assertEqual(result["failed_keys"], 3 * 6 * 4)


if __name__ == "__main__":
    unittest.main()
