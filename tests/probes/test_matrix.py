# SPDX-License-Identifier: Apache-2.0
"""The probes survive the ways in which programs are built: compilers, optimisation, LTO, linkers, PIE, static, strip."""

import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

import probe_elf
import tracer
from probe_elf import BUILD, REPO, Binary, tool

KVPROBE = BUILD / "bin" / "kvprobe"
LAYERS = ("RC", "MASTER")
ROUNDS = 10
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
LINKERS = [name for name in ("bfd", "gold", "lld") if shutil.which(f"ld.{name}")]
OPTIMISATIONS = {"O0": ["-O0"], "O2": ["-O2"], "O3": ["-O3"], "lto": ["-O2", "-flto"]}
KINDS = {"pie": ["-pie"], "nopie": ["-no-pie"], "static": ["-static"], "shared": ["-shared"]}
COMMON = ["-std=gnu17", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", f"-I{REPO}", f"-I{REPO}/store/include",
          "-ffunction-sections", "-fdata-sections", "-fvisibility=hidden"]


def unit_flags():
    """What the build itself compiles the probe unit with: the rules of cmake/Probes.cmake as they came out."""
    for entry in json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8")):
        if "kvstore_sites.dir" in entry["command"] and entry["file"].endswith("perf_unit.c"):
            return [word for word in entry["command"].split() if re.match(r"-(O|fno|fcf|fstack|m)", word)]
    raise AssertionError("the build compiles no probe unit for kvstore")


def can_link(compiler, optimisation, linker):
    """Who reads whose intermediate code: lld not gcc's; the others clang's by a plugin that not every host has."""
    if optimisation != "lto":
        return True
    if compiler == "gcc":
        return linker != "lld"
    return linker == "lld" or pathlib.Path(tool("clang", "-print-file-name=LLVMgold.so").strip()).exists()


def lto_linker(compiler):
    return "lld" if compiler == "clang" else "bfd"


class Matrix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="kvprobe-matrix-")))
        cls.objects = {}

    def compile(self, compiler, source, name, flags):
        key = (compiler, name, *flags)
        if key not in self.objects:
            path = self.dir / f"{len(self.objects)}-{name}.o"
            tool(compiler, *COMMON, *flags, "-c", str(source), "-o", str(path))
            self.objects[key] = path
        return self.objects[key]

    def build(self, compiler, optimisation, kind, linker, collect=True):
        """The binary that carries the probes, and the program to run."""
        position = ["-fno-pic", "-fno-pie"] if kind in ("nopie", "static") else ["-fPIC"]
        layers = [f"-DKVP_UNIT_{layer}" for layer in LAYERS]
        library = ["-DMATRIX_LIBRARY"] if kind == "shared" else []
        unit = self.compile(compiler, REPO / "probes" / "perf_unit.c", "unit", unit_flags() + position + layers)
        site = self.compile(compiler, REPO / "tests" / "probes" / "matrix_site.c", "site",
                            OPTIMISATIONS[optimisation] + position + library)
        stem = self.dir / f"{compiler}-{optimisation}-{kind}-{linker}"
        carrier = pathlib.Path(f"{stem}.so" if kind == "shared" else stem)
        link = [compiler, *OPTIMISATIONS[optimisation], f"-fuse-ld={linker}"]
        tool(*link, *KINDS[kind], *(["-Wl,--gc-sections"] if collect else []), str(site), str(unit), "-lpthread",
             "-o", str(carrier))
        if kind != "shared":
            return carrier, carrier
        caller = self.compile(compiler, REPO / "tests" / "probes" / "matrix_site.c", "caller", ["-DMATRIX_CALLER"])
        tool(compiler, str(caller), str(carrier), f"-Wl,-rpath,{self.dir}", "-o", str(stem))
        return carrier, stem

    def check(self, carrier, program):
        binary = Binary(carrier)
        self.assertEqual(probe_elf.all_complaints(binary, LAYERS), [])
        self.assertEqual(probe_elf.complaints_about_red_zone(binary), [])
        tool(str(program), str(ROUNDS))
        tool("strip", str(carrier))
        self.assertEqual(probe_elf.all_complaints(Binary(carrier), LAYERS), [])
        tool(str(program), str(ROUNDS))

    def fires(self, carrier, program):
        """bpftrace, which knows nothing of us, counts the calls and their codes."""
        script = "".join(f"usdt:{carrier}:kvstore:{key} {{ @c[probe, (int64)arg4] = count(); @b[probe] = sum(arg1); }} "
                         for key in ("RC_REMOVE", "MASTER_RPC_REMOVE"))
        with tracer.Bpftrace(script) as watch:
            tool(str(program), str(ROUNDS))
            maps, _ = watch.stop()
        where = f"usdt:{carrier}:kvstore:"
        failed = ROUNDS + ROUNDS // 2
        self.assertEqual(maps["@c"], {f"{where}RC_REMOVE,-704": failed,
                                      f"{where}RC_REMOVE,0": 3 * ROUNDS - failed,
                                      f"{where}MASTER_RPC_REMOVE,-704": ROUNDS})
        self.assertEqual(maps["@b"], {f"{where}RC_REMOVE": 4096 * (3 * ROUNDS - failed),
                                      f"{where}MASTER_RPC_REMOVE": 12288 * ROUNDS})

    def test_notes_in_every_build(self):
        for compiler in COMPILERS:
            for optimisation in OPTIMISATIONS:
                for kind in KINDS:
                    for linker in LINKERS:
                        if not can_link(compiler, optimisation, linker):
                            continue
                        with self.subTest(compiler=compiler, optimisation=optimisation, kind=kind, linker=linker):
                            self.check(*self.build(compiler, optimisation, kind, linker))

    def test_without_section_collection(self):
        for compiler in COMPILERS:
            for kind in KINDS:
                with self.subTest(compiler=compiler, kind=kind):
                    self.check(*self.build(compiler, "O2", kind, "bfd", collect=False))

    @unittest.skipIf(tracer.why_not(), tracer.why_not())
    def test_fires_when_stripped_and_link_time_optimised(self):
        for compiler in COMPILERS:
            for kind in KINDS:
                with self.subTest(compiler=compiler, kind=kind):
                    carrier, program = self.build(compiler, "lto", kind, lto_linker(compiler))
                    tool("strip", str(carrier))
                    self.fires(carrier, program)

    def test_kvprobe_check_agrees(self):
        for compiler in COMPILERS:
            for kind in KINDS:
                with self.subTest(compiler=compiler, kind=kind):
                    carrier, _ = self.build(compiler, "lto", kind, lto_linker(compiler))
                    tool("strip", str(carrier))
                    tool(str(KVPROBE), "check", "--def", str(REPO / "perf_points.def"), str(carrier))

    def test_program_and_library_keep_their_own_semaphores(self):
        """The same keys in a program and in a library that it loads: watching one is not watching the other."""
        library, _ = self.build("gcc", "O2", "shared", "bfd")
        unit = self.compile("gcc", REPO / "probes" / "perf_unit.c", "unit",
                            unit_flags() + ["-fPIC"] + [f"-DKVP_UNIT_{layer}" for layer in LAYERS])
        own = self.dir / "own.c"
        own.write_text('#include <stdio.h>\n#include "probes/perf_points.h"\nint matrix_calls(int rounds);\n'
                       "int main(void)\n{\n\tfor (int i = 0; i < 7; i++) {\n"
                       "\t\tPERF_SCOPE(RC_REMOVE, perf, 1, 1, 0);\n\t\tperf_set(&perf, 1, 1, 0, 0);\n\t}\n"
                       f"\treturn matrix_calls({ROUNDS}) == 0;\n}}\n")
        program = self.dir / "program"
        tool("gcc", *COMMON, "-O2", str(own), str(unit), str(library), f"-Wl,-rpath,{self.dir}", "-o", str(program))
        self.assertEqual(probe_elf.all_complaints(Binary(program), LAYERS), [])
        self.assertEqual(tool("readelf", "--dyn-syms", "-W", str(program)).count("semaphore"), 0)
        if tracer.why_not():
            self.skipTest(f"the notes are right; counting them: {tracer.why_not()}")
        with tracer.Bpftrace(f"usdt:{program}:kvstore:RC_REMOVE {{ @own = count(); }}") as watch:
            tool(str(program))
            maps, _ = watch.stop()
        self.assertEqual(maps, {"@own": 7})


if __name__ == "__main__":
    unittest.main()
