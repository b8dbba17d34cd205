# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""What ./dev demo shows, once everything is built."""

import os
import re
import subprocess
import unittest

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("KVPROBE_BUILD", os.path.join(REPO, "build")))
DEMO = os.path.join(REPO, "tools", "demo", "demo.sh")
LIMIT_S = 60


def run_demo(build):
    return subprocess.run(["bash", DEMO], env=dict(os.environ, KVPROBE_BUILD=build), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)


class DemoTest(unittest.TestCase):
    def test_it_shows_the_log_and_the_table(self):
        if os.geteuid() != 0:
            self.skipTest("not root")
        result = run_demo(BUILD)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        for op in ("register_buffer", "batch_put_from_multi_buffers", "batch_is_exist",
                   "batch_get_into_multi_buffers"):
            self.assertRegex(result.stdout, re.compile(rf"^\[{op}\] elapsed_us=\d+", re.M))
        self.assertRegex(result.stdout, re.compile(
            r"^success=1 key=layer\.0\.req_0 size=262144 replica=memory endpoint=127\.0\.0\.1:\d+$", re.M))
        # The worker is over in a moment; its rows still say who it was.
        self.assertRegex(result.stdout, re.compile(r"^ *\d+\+ store_connector RC_BATCH_GET_INTO_MULTI +40 ", re.M))
        self.assertLess(len(result.stdout.splitlines()), 80, "more than a screen or two")

    def test_it_says_what_is_missing(self):
        result = run_demo("/nonexistent")
        self.assertEqual(result.returncode, 1)
        self.assertIn("is not built", result.stderr)


if __name__ == "__main__":
    unittest.main()
