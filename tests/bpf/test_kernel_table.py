# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""What docs/kernels.md says of the running kernel is so: its attach form, its links, and the rights that it takes."""

import json
import subprocess
import sys
import unittest

from collector import BUILD, REPO, TIMEOUT, Case

sys.path.insert(0, str(REPO / "tests"))
from vm import kernels, table  # noqa: E402

TIMED = {"measured in"} | {name for name in table.ROWS if "system call" in name}


def series(kernel):
    return kernel.split(".")[:2]


class KernelTableTest(Case):
    def test_the_page_is_right_about_this_kernel(self):
        ended = subprocess.run([sys.executable, REPO / table.FACTS, "--build", BUILD], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        found = json.loads(ended.stdout)
        self.assertTrue(found["can_trace"])
        columns = table.read_table(table.PAGE.read_text(encoding="utf-8"))
        said = [column for kernel, column in columns.items() if series(kernel) == series(found["kernel"])]
        if not said and ".".join(series(found["kernel"])) not in kernels.SERIES:
            self.skipTest(f"docs/kernels.md has no column for Linux {found['kernel']}")
        self.assertEqual(len(said), 1, "docs/kernels.md has no column for this kernel: ./dev vm table --write")
        for name in table.ROWS.keys() - TIMED:
            self.assertEqual(said[0][name], table.ROWS[name](found), name)


class TableTest(unittest.TestCase):
    FACTS = {"kernel": "9.9.9", "attach_form": "nop5", "uprobe_multi": True, "ring_buffer": False, "rights": [],
             "rights_without_multi": None, "where": "a test",
             "costs": {"nop5_of_syscall": 1.25, "int3_of_syscall": 5, "libbpf_ns": 300, "syscall_ns": 100,
                       "off_over_compiled_out_ns": 1}}

    def test_a_table_is_read_as_it_was_made(self):
        text = table.table_of([self.FACTS, {**self.FACTS, "kernel": "9.9.10", "attach_form": "int3"}])
        columns = table.read_table(f"before\n{table.BEGIN}{text}{table.END}after\n")
        self.assertEqual(list(columns), ["9.9.9", "9.9.10"])
        self.assertEqual(set(columns["9.9.9"]), set(table.ROWS))
        self.assertEqual(columns["9.9.9"]["attach form"], "nop5")
        self.assertEqual(columns["9.9.10"]["attach form"], "int3: no nop is optimised")
        self.assertEqual(columns["9.9.9"]["rights that attaching takes"], "none")
        self.assertEqual(columns["9.9.9"]["the same without multi links"], "root only")
        self.assertEqual(columns["9.9.9"]["a hit through libbpf's own USDT attach, in system calls"], "3.0")

    def test_a_page_without_a_table(self):
        self.assertEqual(table.read_table("nothing here\n"), {})


if __name__ == "__main__":
    unittest.main()
