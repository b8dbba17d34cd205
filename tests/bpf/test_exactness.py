# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""./dev bench exactness, with fewer calls: on this kernel, in every form of attaching that it has, what the kernel counts
of two workers, a master and a peer that dies is what their calls returned."""

import json
import os
import subprocess
import sys
import unittest

from collector import BUILD, REPO, TIMEOUT, Case, kernel_form, scaled

BENCH = REPO / "tools" / "bench" / "bench_exactness.py"


class ExactnessTest(Case):
    def test_counts_are_the_workers_own(self):
        for form in sorted({kernel_form(), "int3"}):
            with self.subTest(attach=form):
                calls = scaled(100_000, least=4_000)
                ended = subprocess.run([sys.executable, BENCH, "--json", "--calls", str(calls), "--attach", form],
                                       stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT,
                                       env={**os.environ, "KVPROBE_BUILD": str(BUILD)}, check=False)
                self.assertEqual(ended.returncode, 0, ended.stderr)
                figures = json.loads(ended.stdout.splitlines()[-1])
                self.assertGreaterEqual(figures["calls"], calls)
                self.assertEqual((figures["mismatches"], figures["lost"]), (0, 0), ended.stderr)
                self.assertGreater(figures["keys_compared"], 100)
                self.assertGreater(figures["failed_firings"], 0)


if __name__ == "__main__":
    unittest.main()
