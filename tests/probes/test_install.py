# SPDX-License-Identifier: Apache-2.0
"""What cmake --install puts below a prefix is complete, works from there, and carries the same probes."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import probe_elf
from probe_elf import BUILD, REPO, Binary, product_binaries, tool

PYTHON_DIR = "lib/python3/dist-packages"
FILES = ("bin/kvmaster", "bin/kvprobe", "include/kvstore.h", "include/kvstore_status.h",
         f"{PYTHON_DIR}/mooncake/store.py", f"{PYTHON_DIR}/kvprobe/store.py", f"{PYTHON_DIR}/kvprobe/stats.py")
SMOKE = ("import mooncake.store as m, kvprobe.store as k\n"
         "assert m.MooncakeDistributedStore is k.MooncakeDistributedStore\n"
         "s = m.MooncakeDistributedStore()\n"
         "assert s.setup('127.0.0.1', 'P2PHANDSHAKE', 16 << 20, 1 << 20, 'tcp', '', 'embedded') == 0\n"
         "assert s.put('k', b'value') == 0 and s.get('k') == b'value' and s.close() == 0\n"
         "print(open('/proc/self/maps').read())\n")
USER = """
#include <kvstore.h>
#include <stdio.h>
int main(void)
{
	kvstore_t *store = kvstore_create();
	puts(kvstore_version());
	int rc = store ? kvstore_health_check(store) : -1;
	kvstore_destroy(store);
	return rc != 1;
}
"""


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prefix = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvprobe-install-")))
        tool("cmake", "--install", str(BUILD), "--prefix", str(cls.prefix))
        # Debian's and others' library directories differ (lib, lib/x86_64-linux-gnu, lib64).
        cls.library = next(cls.prefix.glob("lib*/**/libkvstore.so"))

    def test_everything_is_there(self):
        self.assertEqual([name for name in FILES if not (self.prefix / name).is_file()], [])

    def test_probes(self):
        for name, path, layers in product_binaries(self.prefix, PYTHON_DIR):
            path = self.library if name == "libkvstore.so" else path
            with self.subTest(binary=name):
                self.assertEqual(probe_elf.all_complaints(Binary(path), layers), [])

    def test_python_from_the_prefix(self):
        done = subprocess.run([sys.executable, "-c", SMOKE], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, cwd="/",
                              env={**os.environ, "PYTHONPATH": str(self.prefix / PYTHON_DIR)})
        self.assertEqual(done.returncode, 0, done.stderr)
        mapped = set(re.findall(r"/\S*libkvstore\S*", done.stdout))
        self.assertEqual(mapped, {os.path.realpath(self.library)})

    def test_stats_from_the_prefix_without_the_store(self):
        script = ("import kvprobe.stats as s; stats = s.MooncakeKVConnectorStats(); stats.record_transfer(0.001, 1, 1);"
                  "assert stats.num_successful_transfers == 1; print(open('/proc/self/maps').read())")
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, cwd="/",
                              env={**os.environ, "PYTHONPATH": str(self.prefix / PYTHON_DIR)})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(str(self.prefix / PYTHON_DIR / "kvprobe" / "_stats.abi3.so"), done.stdout)
        self.assertNotIn("libkvstore", done.stdout)

    def test_a_program_against_the_prefix(self):
        source = self.prefix / "user.c"
        source.write_text(USER)
        program = self.prefix / "user"
        tool("gcc", "-Wall", "-Werror", f"-I{self.prefix}/include", str(source), f"-L{self.library.parent}", "-lkvstore",
             f"-Wl,-rpath,{self.library.parent}", "-o", str(program))
        version = re.search(r"VERSION ([\d.]+)", (REPO / "CMakeLists.txt").read_text().split("project(", 1)[1])[1]
        self.assertEqual(tool(str(program)).strip(), version)

    def test_the_tools_start(self):
        for name in ("kvprobe", "kvmaster"):
            self.assertIn(name, tool(str(self.prefix / "bin" / name), "--help"))

    def test_nothing_points_back_to_the_build(self):
        for path in (self.library, self.prefix / "bin" / "kvmaster", self.prefix / "bin" / "kvprobe",
                     self.prefix / PYTHON_DIR / "kvprobe" / "_store.abi3.so",
                     self.prefix / PYTHON_DIR / "kvprobe" / "_stats.abi3.so"):
            dynamic = tool("readelf", "-dW", str(path))
            self.assertNotIn(str(BUILD), dynamic)


if __name__ == "__main__":
    unittest.main()
