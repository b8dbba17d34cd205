# SPDX-License-Identifier: Apache-2.0
"""Every check of scripts/lint.py over the tree, and proof that each can fail."""

import pathlib
import sys
import tempfile
import unittest

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "scripts"))

import lint  # noqa: E402
import perf_points  # noqa: E402


class Tree(unittest.TestCase):
    """One test per check, made below."""


def _add(name, check):
    def test(self):
        complaints = check(lint.tracked())
        if complaints:
            self.fail("\n".join(complaints))
    test.__doc__ = check.__doc__
    setattr(Tree, f"test_{name}", test)


for _name, _check in lint.CHECKS.items():
    _add(_name, _check)


class Checks(unittest.TestCase):
    """What each check is there to find, it finds."""

    def setUp(self):
        # Inside the tree, because the checks tell paths relative to it.
        self.dir = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix=".lint-", dir=REPO)))

    def complaints(self, check, name, text, mode=0o644):
        path = self.dir / name
        path.write_text(text)
        path.chmod(mode)
        return lint.CHECKS[check]([path])

    def test_format(self):
        self.assertTrue(self.complaints("format", "a.c", "int  main( void ){return 0;}\n"))

    def test_spdx(self):
        self.assertTrue(self.complaints("spdx", "a.c", "int x;\n"))
        self.assertTrue(self.complaints("spdx", "tool", "#!/bin/sh\n", 0o755))
        self.assertFalse(self.complaints("spdx", "b.c", f"/* {lint.SPDX} */\n"))

    def test_foreign_paths(self):
        self.assertTrue(self.complaints("foreign_paths", "a.md", f"see {REPO}/x\n"))
        self.assertTrue(self.complaints("foreign_paths", "b.md", "see " + "/ho" + "me/someone/x\n"))

    def test_unfinished(self):
        self.assertTrue(self.complaints("unfinished", "a.c", "/* FIX" + "ME */\n"))

    def test_length(self):
        self.assertTrue(self.complaints("length", "a.c", "\n" * (lint.FILE_MAX_LINES + 1)))

    def test_links(self):
        self.assertTrue(self.complaints("links", "a.md", "[x](nowhere.md)\n"))
        self.assertFalse(self.complaints("links", "b.md", "[x](a.md#part) [y](https://example.org/)\n"))

    def test_shell(self):
        self.assertTrue(self.complaints("shell", "a.sh", "#!/bin/bash\nif true; then\n"))

    def test_python(self):
        self.assertTrue(self.complaints("python", "a.py", "def f(:\n"))


class PerfPoints(unittest.TestCase):
    def parse(self, text):
        with tempfile.NamedTemporaryFile("w", suffix=".def") as file:
            file.write(text)
            file.flush()
            return perf_points.load(file.name)

    def test_well_formed(self):
        points = self.parse('/* head */ PERF_POINT(A_B, RC, MODULE, put, "a, (b)")\nPERF_POINT(C, PY, DEBUG,\n f, "x")\n')
        self.assertEqual([(p.name, p.layer, p.level, p.site, p.meaning) for p in points],
                         [("A_B", "RC", "MODULE", "put", "a, (b)"), ("C", "PY", "DEBUG", "f", "x")])

    def test_malformed(self):
        entry = 'PERF_POINT(A, RC, MODULE, put, "x")\n'
        for text in (entry + entry, entry + "PERF_POINT(B, RC)\n", entry.replace("RC", "NOWHERE"),
                     entry.replace("MODULE", "HIGH"), entry + "stray"):
            with self.subTest(text=text), self.assertRaises(ValueError):
                self.parse(text)


if __name__ == "__main__":
    unittest.main()
