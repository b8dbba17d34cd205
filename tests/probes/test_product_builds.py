# SPDX-License-Identifier: Apache-2.0
"""The product itself, built in the ways that distributions and users build: the other compiler, link-time optimisation,
collected sections, stripped, linked into a static program."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import probe_elf
from probe_elf import BUILD, REPO, Binary, perf_points, product_binaries, tool

BUILD_TIMEOUT = 500
TARGETS = ("kvstore", "kvmaster", "store_py", "stats_py")
SECTIONS = "-ffunction-sections -fdata-sections"
STATIC_USER = r"""
#include <kvstore.h>
#include <string.h>
int main(void)
{
	char value[] = "value";
	kvstore_t *store = kvstore_create();
	int rc = kvstore_setup(store, "127.0.0.1", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", "embedded");
	rc |= kvstore_put(store, "k", value, sizeof(value), NULL);
	rc |= kvstore_get_size(store, "k") != sizeof(value);
	kvstore_destroy(store);
	return rc != 0;
}
"""


class Product(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvprobe-product-")))

    def build(self, compiler, build_type, link=""):
        argv = ["cmake", "-S", REPO, "-B", self.dir, "-G", "Ninja", f"-DCMAKE_C_COMPILER={compiler}",
                f"-DCMAKE_BUILD_TYPE={build_type}", "-DCMAKE_INTERPROCEDURAL_OPTIMIZATION=ON",
                f"-DCMAKE_C_FLAGS={SECTIONS}"]
        argv += [f"-DCMAKE_{kind}_LINKER_FLAGS=-Wl,--gc-sections {link}" for kind in ("EXE", "SHARED", "MODULE")]
        for step in (argv, ["cmake", "--build", self.dir, "--target", *TARGETS]):
            done = subprocess.run([str(word) for word in step], capture_output=True, text=True, timeout=BUILD_TIMEOUT,
                                  stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])

    def check(self):
        for name, path, layers in product_binaries(self.dir):
            with self.subTest(binary=name):
                self.assertEqual(probe_elf.all_complaints(Binary(path), layers), [])
                self.assertEqual(probe_elf.complaints_about_red_zone(Binary(path)), [])
                tool("strip", str(path))
                self.assertEqual(probe_elf.all_complaints(Binary(path), layers), [])
        script = ("import mooncake.store as m; s = m.MooncakeDistributedStore();"
                  "assert s.setup('127.0.0.1', 'P2PHANDSHAKE', 16 << 20, 1 << 20, 'tcp', '', 'embedded') == 0;"
                  "assert s.put('k', b'value') == 0 and s.get('k') == b'value' and s.close() == 0")
        done = subprocess.run(["python3", "-c", script], env={**os.environ, "PYTHONPATH": str(self.dir / "python")},
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_gcc_link_time_optimised(self):
        self.build("gcc", "Release")
        self.check()

    @unittest.skipUnless(shutil.which("clang") and shutil.which("ld.lld"), "no clang or no lld")
    def test_clang_link_time_optimised(self):
        self.build("clang", "RelWithDebInfo", "-fuse-ld=lld")
        self.check()

    def test_static_program(self):
        """A user who links libkvstore_static.a and reaches a few calls only still has every probe of its layers."""
        source = self.dir / "user.c"
        source.write_text(STATIC_USER)
        program = self.dir / "user"
        libraries = [f"-l{name}" for name in ("numa", "xxhash", "pthread")]
        tool("gcc", "-O2", *SECTIONS.split(), f"-I{REPO}/store/include", str(source),
             str(BUILD / "lib" / "libkvstore_static.a"), "-static", "-Wl,--gc-sections", *libraries, "-o", str(program))
        layers = perf_points.BINARIES["libkvstore.so"]
        self.assertEqual(probe_elf.all_complaints(Binary(program), layers), [])
        tool("strip", str(program))
        self.assertEqual(probe_elf.all_complaints(Binary(program), layers), [])
        tool(str(program))


if __name__ == "__main__":
    unittest.main()
