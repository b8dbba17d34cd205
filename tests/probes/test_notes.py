# SPDX-License-Identifier: Apache-2.0
"""The probes of the built binaries are exactly those that perf_points.def says, by readelf and by bpftrace."""

import os
import re
import subprocess
import unittest

import probe_elf
import tracer
from probe_elf import BUILD, REPO, Binary, perf_points, product_binaries, tool

NOPROBES = REPO / "build-noprobes"
# PERF_SCOPE, its variants, PERF_BEGIN and PERF_RECORD; the macros' own definitions live in probes/, which is not searched.
SCOPE_USE = re.compile(r"\bPERF_(?:SCOPE|SCOPE_TIMED|BEGIN|RECORD)\(\s*([A-Z][A-Z0-9_]*)\s*(##)?")
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)


class Notes(unittest.TestCase):
    def test_equal_the_keys(self):
        for name, path, layers in product_binaries():
            with self.subTest(binary=name):
                self.assertEqual(probe_elf.complaints_about_notes(Binary(path), layers), [])

    def test_sites_are_the_exact_bytes(self):
        for name, path, _ in product_binaries():
            with self.subTest(binary=name):
                self.assertEqual(probe_elf.complaints_about_sites(Binary(path)), [])

    def test_safety_note(self):
        for name, path, layers in product_binaries():
            with self.subTest(binary=name):
                self.assertEqual(probe_elf.complaints_about_safety(Binary(path), layers), [])

    def test_semaphores_are_hidden(self):
        for name, path, _ in product_binaries():
            with self.subTest(binary=name):
                exported = tool("readelf", "--dyn-syms", "-W", str(path))
                self.assertNotIn("_semaphore", exported)
                self.assertNotIn("kvp_", exported)

    def test_kv_transfers_are_in_the_stats_extension_alone(self):
        """A process that records transfers need not load the store, nor does the store carry their keys."""
        keys = {"XFER_WRITE", "XFER_READ", "XFER_RECV_FAILED", "XFER_REQ_EXPIRED"}
        notes = {name: {note.name for note in Binary(path).notes} for name, path, _ in product_binaries()}
        self.assertEqual(notes.pop("_stats.abi3.so"), keys | {f"{key}__start" for key in keys})
        self.assertEqual([name for name, of_binary in notes.items() if of_binary & keys], [])

    def test_every_key_is_in_some_binary(self):
        somewhere = set()
        for _, path, _ in product_binaries():
            somewhere |= {note.name for note in Binary(path).notes}
        everything = set(perf_points.expected_notes(perf_points.LAYERS))
        self.assertEqual(somewhere, everything)

    @unittest.skipIf(tracer.why_not(), tracer.why_not())
    def test_bpftrace_lists_the_same(self):
        for name, path, layers in product_binaries():
            with self.subTest(binary=name):
                listed = tool("bpftrace", "-l", f"usdt:{path}:*").split()
                expected = [f"usdt:{path}:kvstore:{probe}" for probe in perf_points.expected_notes(layers)]
                self.assertEqual(sorted(listed), sorted(expected))

    def test_kvprobe_check_agrees(self):
        for name, path, _ in product_binaries():
            with self.subTest(binary=name):
                done = subprocess.run([BUILD / "bin" / "kvprobe", "check", "--def", perf_points.DEF, path],
                                      capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class Sources(unittest.TestCase):
    """A key exists if and only if some shipped code fires it."""

    def setUp(self):
        self.used = set()
        lists = " ".join(self.sources("*.def"))
        for text in self.sources("*.[ch]"):
            for name, pasted in SCOPE_USE.findall(text):
                # A scope in an X-macro: its prefix with what the list that is expanded there may name.
                self.used |= self.pasted(name, lists) if pasted else {name}

    @staticmethod
    def sources(pattern):
        return [C_COMMENT.sub("", path.read_text(encoding="utf-8")) for path in sorted((REPO / "store").rglob(pattern))]

    @staticmethod
    def pasted(prefix, lists):
        known = {point.name for point in perf_points.load()}
        return {prefix + word for word in re.findall(r"\b[A-Z][A-Z0-9_]+\b", lists)} & known

    def test_scopes_and_keys_are_the_same(self):
        self.assertEqual(self.used, {point.name for point in perf_points.load()})


    def test_what_begins_in_halves_ends(self):
        text = "\n".join(self.sources("*.[ch]"))
        begun, ended = (set(re.findall(rf"\bPERF_{half}\(\s*(\w+)", text)) for half in ("BEGIN", "END"))
        self.assertEqual(begun, ended)

    def test_the_site_is_a_function(self):
        """The site that a key names is a function of the store, or a method of the Python class."""
        text = "\n".join(self.sources("*.[ch]"))
        missing = [point.name for point in perf_points.load()
                   if not re.search(rf"\b(\w+_)?{point.site}\s*\(|METHOD\({point.site}[,)]", text)]
        self.assertEqual(missing, [])


class Contract(unittest.TestCase):
    """The keys of the vLLM path: names, layers and levels that others rely on."""

    KEY_MODULE = {
        "PY": ("STORE_PY_SETUP STORE_PY_REGISTER_BUFFER STORE_PY_BATCH_PUT_MULTI STORE_PY_BATCH_GET_INTO_MULTI "
               "STORE_PY_BATCH_IS_EXIST STORE_PY_BATCH_GET_REPLICA_DESC STORE_PY_REMOVE_ALL STORE_PY_CLOSE"),
        "RC": ("RC_SETUP_REAL RC_TEARDOWN_ALL RC_REMOVE_ALL RC_BATCH_IS_EXIST RC_REGISTER_BUFFER RC_BATCH_PUT_MULTI "
               "RC_BATCH_GET_INTO_MULTI RC_BATCH_GET_REPLICA_DESC"),
    }
    MODULE = {
        "RC": ("RC_SETUP_INTERNAL RC_TEARDOWN_ALL_INTERNAL RC_REMOVE_ALL_INTERNAL RC_BATCH_IS_EXIST_INTERNAL "
               "RC_REGISTER_BUFFER_INTERNAL RC_BATCH_PUT_MULTI_INTERNAL RC_BATCH_GET_INTO_MULTI_INTERNAL"),
        "CLIENT": "CLIENT_BATCH_QUERY PUT_BATCH_FULL",
    }

    def test_25_keys(self):
        wanted = {(name, layer, level) for level in ("KEY_MODULE", "MODULE")
                  for layer, names in getattr(self, level).items() for name in names.split()}
        self.assertEqual(len(wanted), 25)
        self.assertEqual(wanted - {(point.name, point.layer, point.level) for point in perf_points.load()}, set())


class CompiledOut(unittest.TestCase):
    def setUp(self):
        self.library = NOPROBES / "lib" / "libkvstore.so"
        if not self.library.exists():
            self.skipTest("no noprobes build: ./dev build noprobes")

    def test_no_notes_and_no_semaphores(self):
        for path in (self.library, NOPROBES / "bin" / "kvmaster"):
            with self.subTest(binary=path.name):
                binary = Binary(path)
                self.assertEqual(binary.notes, [])
                self.assertEqual(tool("readelf", "-sW", str(path)).count("_semaphore"), 0)

    def test_it_works(self):
        script = ("import mooncake.store as m; s = m.MooncakeDistributedStore();"
                  "assert s.setup('127.0.0.1', 'P2PHANDSHAKE', 16 << 20, 1 << 20, 'tcp', '', 'embedded') == 0;"
                  "assert s.put('k', b'value') == 0; assert s.get('k') == b'value'; assert s.close() == 0")
        done = subprocess.run(["python3", "-c", script], env={**os.environ, "PYTHONPATH": str(NOPROBES / "python")},
                              capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
