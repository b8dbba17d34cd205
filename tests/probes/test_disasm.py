# SPDX-License-Identifier: Apache-2.0
"""What the compiler made of the sites: no red zone beneath them, and a hot path of a load, a test and a branch."""

import pathlib
import re
import shutil
import tempfile
import unittest

import probe_elf
from probe_elf import REPO, Binary, product_binaries, tool

INSTRUCTION = re.compile(r"([0-9a-f]+):\t(\S+)\s*(.*)")
JUMP_TARGET = re.compile(r"([0-9a-f]+) <")
FLAGS = ["-std=gnu17", "-Wall", "-Wextra", "-Werror", f"-I{REPO}", "-O2", "-fPIC", "-fvisibility=hidden"]
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]


def hot_path(instructions):
    """[(mnemonic, operands)] from a function's entry to its return with no conditional branch taken."""
    by_address = {}
    order = []
    for text in instructions:
        match = INSTRUCTION.match(text)
        by_address[int(match[1], 16)] = len(order)
        order.append((match[2], match[3]))
    path = []
    at = 0
    while True:
        mnemonic, operands = order[at]
        path.append((mnemonic, operands))
        if mnemonic.startswith("ret"):
            return path
        if mnemonic == "jmp":
            at = by_address[int(JUMP_TARGET.match(operands)[1], 16)]
        else:
            at += 1
        if len(path) > len(order):
            raise AssertionError(f"no way through: {instructions}")


def is_branch(mnemonic):
    return mnemonic.startswith("j") and mnemonic != "jmp"


class HotPath(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvprobe-disasm-")))

    def functions(self, compiler):
        built = self.dir / f"{compiler}.o"
        linked = self.dir / f"{compiler}.so"
        unit = self.dir / f"{compiler}-unit.o"
        tool(compiler, *FLAGS, "-c", str(REPO / "tests" / "probes" / "hot_site.c"), "-o", str(built))
        tool(compiler, *FLAGS, "-D_GNU_SOURCE", "-DKVP_UNIT_RC", "-c", str(REPO / "probes" / "perf_unit.c"), "-o",
             str(unit))
        tool(compiler, "-shared", str(built), str(unit), "-Wl,-u,instrumented", "-o", str(linked))
        return Binary(linked).disassembly()

    def test_unwatched_site(self):
        for compiler in COMPILERS:
            functions = self.functions(compiler)
            plain = hot_path(functions["plain"])
            for name in ("instrumented", "two_ways_out"):
                with self.subTest(compiler=compiler, function=name):
                    path = hot_path(functions[name])
                    self.assertFalse([step for step in path if step[0].startswith("call")], path)
                    branches = sum(is_branch(mnemonic) for mnemonic, _ in path)
                    loads = sum("kvp_watched_RC_REMOVE" in operands for _, operands in path)
                    # Begin and end: one load and one branch each; two_ways_out may have its own branch.
                    self.assertEqual(loads, 2, path)
                    self.assertLessEqual(branches, 2 + (name == "two_ways_out"), path)
                    self.assertFalse([step for step in path if step[0].startswith("lock") or step[0] == "syscall"])
            with self.subTest(compiler=compiler, function="instrumented, in all"):
                added = len(hot_path(functions["instrumented"])) - len(plain)
                # Two loads, two tests, two branches, and at most a frame around them to keep values across the
                # calls that are not made.
                self.assertLessEqual(added, 16, hot_path(functions["instrumented"]))


class RedZone(unittest.TestCase):
    def test_of_the_product(self):
        for name, path, _ in product_binaries():
            with self.subTest(binary=name):
                self.assertEqual(probe_elf.complaints_about_red_zone(Binary(path)), [])

    def test_no_jump_enters_or_leaves_a_site(self):
        """A site's function is nothing but its site: what calls it has made a call, and so has no red zone."""
        for name, path, _ in product_binaries():
            binary = Binary(path)
            functions = binary.disassembly()
            sites = {function for function in functions if function.startswith("site_")
                     and function != "site_is_whole_again"}
            self.assertEqual(len(sites), len(binary.notes), name)
            entered = {}
            for function, instructions in functions.items():
                for text in instructions:
                    match = re.search(r"\t(call|jmp|j\w+)\s+[0-9a-f]+ <(site_\w+)", text)
                    if match and match[2] in sites:
                        entered.setdefault(match[2], []).append((match[1], function))
            with self.subTest(binary=name):
                for site, entries in entered.items():
                    # A jump is a tail call: it leaves the caller's frame, which had no red zone either.
                    self.assertTrue(all(how in ("call", "jmp") and caller.startswith("kvp_")
                                        for how, caller in entries), (site, entries))
                self.assertEqual(set(entered), sites)


class TheCheckItself(unittest.TestCase):
    """The red-zone check finds a red zone."""

    def test_finds_one(self):
        with tempfile.TemporaryDirectory(prefix="kvprobe-disasm-") as where:
            source = pathlib.Path(where) / "a.c"
            source.write_text("int site_bad(int a);\nint site_bad(int a)\n{\n\tvolatile int x = a;\n\treturn x;\n}\n")
            library = pathlib.Path(where) / "a.so"
            for flags in (["-fomit-frame-pointer"], ["-fno-omit-frame-pointer"]):
                with self.subTest(flags=flags):
                    tool("gcc", "-O2", *flags, "-shared", "-fPIC", str(source), "-o", str(library))
                    self.assertTrue(any("site_bad" in text for text in
                                        probe_elf.complaints_about_red_zone(Binary(library))))
            tool("gcc", "-O2", "-mno-red-zone", "-fno-omit-frame-pointer", "-shared", "-fPIC", str(source), "-o",
                 str(library))
            self.assertEqual(probe_elf.complaints_about_red_zone(Binary(library)), [])


if __name__ == "__main__":
    unittest.main()
