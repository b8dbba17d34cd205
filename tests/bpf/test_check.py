# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""kvprobe check accepts what is built and finds each thing that can be wrong in it."""

import os
import pathlib
import shutil
import struct
import tempfile
import unittest

from collector import BUILD, REPO, SITE_WORKER, notes, run_kvprobe

DEF = REPO / "perf_points.def"


class Binary:
    """A copy of the site worker, to be damaged."""

    def __init__(self, path):
        self.path = path
        shutil.copy(SITE_WORKER, path)
        self.bytes = bytearray(path.read_bytes())

    def offset_of(self, address):
        """The file offset of a link-time address."""
        phoff, phentsize, phnum = (struct.unpack_from("<Q", self.bytes, 32)[0],
                                   *struct.unpack_from("<HH", self.bytes, 54))
        for i in range(phnum):
            kind, _, offset, vaddr, _, filesz = struct.unpack_from("<IIQQQQ", self.bytes, phoff + i * phentsize)
            if kind == 1 and vaddr <= address < vaddr + filesz:
                return offset + address - vaddr
        raise AssertionError(f"{address:#x} is in no segment")

    def note_of(self, name):
        """Where the three addresses of a probe's note lie."""
        return self.bytes.index(b"kvstore\0" + name.encode() + b"\0") - 24

    def check(self, *args):
        self.path.write_bytes(self.bytes)
        return run_kvprobe("check", "--def", DEF, *args, self.path)


class CheckTest(unittest.TestCase):
    def setUp(self):
        if not SITE_WORKER.exists():
            self.skipTest("no site worker built")
        scratch = tempfile.TemporaryDirectory(prefix="kvprobe-check-")
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.binary = Binary(self.scratch / "binary")

    def refused(self, word, binary=None):
        ended = (binary or self.binary).check()
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)
        bad = [line for line in ended.stdout.splitlines() if "VIOLATION" in line]
        self.assertTrue(any(word in line for line in bad), bad)

    def test_what_is_built_stands(self):
        built = [path for path in (BUILD / "lib" / "libkvstore.so", BUILD / "bin" / "kvmaster", SITE_WORKER,
                                   *(BUILD / "python" / "kvprobe" / name for name in ("_store.abi3.so", "_stats.abi3.so")))
                 if path.exists()]
        ended = run_kvprobe("check", "--def", DEF, *built)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(len(ended.stdout.splitlines()), len(built))

    def test_verbose_prints_each_check(self):
        ended = self.binary.check("-v")
        self.assertEqual(ended.returncode, 0)
        for word in ("operands are", "base", "semaphore", "nop5", "followed by the return", "fork guard"):
            self.assertIn(word, ended.stdout)

    def test_key_that_has_no_note(self):
        more = self.scratch / "more.def"
        more.write_text(DEF.read_text() + '\nPERF_POINT(RC_NEW, RC, MODULE, f, "new")\n')
        ended = run_kvprobe("check", "--def", more, SITE_WORKER)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("RC_NEW: has exactly one note (has 0)", ended.stdout)
        self.assertIn("RC_NEW__start", ended.stdout)

    def test_note_that_is_no_key(self):
        at = self.binary.bytes.index(b"kvstore\0RC_REMOVE\0") + 8
        self.binary.bytes[at:at + 9] = b"RC_REMOVX"
        self.refused("RC_REMOVX: is a probe of the list")

    def test_operands(self):
        at = self.binary.bytes.index(b"8@%rdi 8@%rsi", self.binary.note_of("RC_REMOVE"))
        self.binary.bytes[at:at + 13] = b"8@%rsi 8@%rdi"
        self.refused("RC_REMOVE: operands are")

    def test_base(self):
        struct.pack_into("<Q", self.binary.bytes, self.binary.note_of("RC_REMOVE") + 8, 0)
        self.refused("RC_REMOVE: base")

    def test_site_bytes(self):
        site = self.binary.offset_of(notes()["RC_REMOVE"]["address"])
        for at in (0, 1, 5, 6, 15):
            with self.subTest(at=at):
                damaged = Binary(self.scratch / f"site{at}")
                damaged.bytes[site + at] ^= 1
                self.refused("RC_REMOVE: site bytes", damaged)

    def test_site_without_return(self):
        self.binary.bytes[self.binary.offset_of(notes()["RC_REMOVE"]["address"]) + 16] = 0x90
        self.refused("RC_REMOVE: site is followed by the return")

    def test_site_that_is_not_code(self):
        struct.pack_into("<Q", self.binary.bytes, self.binary.note_of("RC_REMOVE"), notes()["RC_REMOVE"]["semaphore"])
        self.refused("RC_REMOVE: site")

    def test_semaphore_missing_shared_or_elsewhere(self):
        for value, word in ((0, "has a semaphore"), (notes()["RC_GET_SIZE"]["semaphore"], "is not shared"),
                            (notes()["RC_REMOVE"]["address"], "lies in section .probes"),
                            (notes()["RC_REMOVE"]["semaphore"] + 1, "one aligned 32-bit word")):
            with self.subTest(word=word):
                damaged = Binary(self.scratch / f"semaphore{value}")
                struct.pack_into("<Q", damaged.bytes, damaged.note_of("RC_REMOVE") + 16, value)
                self.refused(word, damaged)

    def test_semaphore_that_is_raised_in_the_file(self):
        self.binary.bytes[self.binary.offset_of(notes()["RC_REMOVE"]["semaphore"])] = 1
        self.refused("RC_REMOVE: semaphore is 0 in the file")

    def test_safety_note(self):
        head = struct.pack("<III", 8, 32, 1) + b"kvprobe\0"
        at = self.binary.bytes.index(head) + len(head)
        for flags, word in ((1, "promises the fork guard"), (2, "promises sites without a red zone")):
            damaged = Binary(self.scratch / f"flags{flags}")
            struct.pack_into("<I", damaged.bytes, at + 4, flags)
            self.refused(word, damaged)
        self.binary.bytes[at - 8:at] = b"kvprobX\0"
        self.refused("has the kvprobe safety note")

    def test_names_out_of_the_file_reach_no_terminal_raw(self):
        at = self.binary.note_of("RC_REMOVE") + 24 + len(b"kvstore\0")
        self.binary.bytes[at:at + 3] = b"\x1b[A"
        ended = self.binary.check()
        self.assertEqual(ended.returncode, 1)
        self.assertNotIn("\x1b", ended.stdout + ended.stderr)
        self.assertIn("\\x1b[AREMOVE", ended.stdout)

    def test_files_that_are_none(self):
        fifo = self.scratch / "fifo"
        os.mkfifo(fifo)
        for path in ("/etc/passwd", "/nonexistent", "/dev/zero", self.scratch, fifo):
            ended = run_kvprobe("check", "--def", DEF, path)
            self.assertEqual(ended.returncode, 1, ended.stdout)
            self.assertTrue(ended.stderr)
        self.assertEqual(run_kvprobe("check", "--def", "/nonexistent", SITE_WORKER).returncode, 1)


if __name__ == "__main__":
    unittest.main()
