# SPDX-License-Identifier: Apache-2.0
"""What the binding hands on to MC_LOG: one summary per call, and each key as it was given."""

import pathlib
import re
import tempfile
import textwrap
import unittest

import support


class TestMcLog(unittest.TestCase):
    maxDiff = None

    def log_of(self, body):
        """The in-process log of a program that calls `store`, a set-up store; times and ports cut out."""
        code = textwrap.dedent("""
            import ctypes
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig
            memory = ctypes.create_string_buffer(64)
            p = ctypes.addressof(memory)
            store = MooncakeDistributedStore()
            """) + textwrap.dedent(body)
        with tempfile.TemporaryDirectory(prefix="kvprobe-test-") as directory:
            done = support.run_python(code, MC_LOG_ENABLE="on", MC_LOG_DIR=directory)
            self.assertEqual(done.returncode, 0, done.stderr)
            (file,) = pathlib.Path(directory).iterdir()
            text = file.read_text(encoding="ascii")
        text = re.sub(r"elapsed_us=\d+", "elapsed_us=N", text)
        return re.sub(r"endpoint=127\.0\.0\.1:\d+", "endpoint=E", text).splitlines()

    SETUP = """
        assert store.setup("127.0.0.1", "P2PHANDSHAKE", 1 << 22, 1 << 20, "tcp", "", "embedded") == 0
        """

    def test_the_five_calls(self):
        lines = self.log_of(self.SETUP + """
        store.register_buffer(p, 64)
        store.batch_put_from_multi_buffers(["a", "b c"], [[p], [p, p]], [[8], [3, 4]])
        store.batch_is_exist(keys=["a", "z"])
        store.batch_get_into_multi_buffers(["a", "z"], [[p], [p]], [[64], [32]])
        store.batch_get_replica_desc(["a", "z"])
        store.get_replica_desc("a")
        store.get("a"); store.is_exist("a"); store.put("q", b"x"); store.put_from("r", p, 1); store.get_size("a")
        store.close()
        """)
        self.assertEqual(lines, [
            "[register_buffer] elapsed_us=N total_bytes=64",
            "[batch_put_from_multi_buffers] elapsed_us=N num_keys=2 total_bytes=15",
            "success=1 key=a size=8",
            r"success=1 key=b\x20c size=7",
            "[batch_is_exist] elapsed_us=N num_keys=2",
            "success=1 key=a",
            "success=0 key=z",
            "[batch_get_into_multi_buffers] elapsed_us=N num_keys=2",
            "success=1 key=a size=8 replica=memory endpoint=E",
            "success=0 key=z size=32",
            "[batch_get_replica_desc] elapsed_us=N num_keys=2",
            "success=1 key=a size=8 replica=memory endpoint=E",
            "success=0 key=z",
            "[batch_get_replica_desc] elapsed_us=N num_keys=1",
            "success=1 key=a size=8 replica=memory endpoint=E",
        ])

    def test_keys_that_no_store_can_hold(self):
        lines = self.log_of(self.SETUP + r"""
        keys = ["a\0b", "\ud800", "schlüssel", "line\nbreak"]
        store.batch_is_exist(keys)
        store.batch_put_from_multi_buffers(keys[:2], [[p]] * 2, [[8]] * 2)
        store.close()
        """)
        self.assertEqual(lines, [
            "[batch_is_exist] elapsed_us=N num_keys=4",
            r"success=0 key=a\x00b",
            r"success=0 key=\xed\xa0\x80",
            r"success=0 key=schl\xc3\xbcssel",
            r"success=0 key=line\x0abreak",
            "[batch_put_from_multi_buffers] elapsed_us=N num_keys=2 total_bytes=16",
            r"success=0 key=a\x00b size=8",
            r"success=0 key=\xed\xa0\x80 size=8",
        ])

    def test_lists_that_do_not_match(self):
        lines = self.log_of(self.SETUP + """
        store.batch_put_from_multi_buffers(["a", "b"], [[p]], [[8], [8]])
        store.batch_get_into_multi_buffers(["a", "b"], [[p], [p]], [])
        store.batch_put_from_multi_buffers(["a", "b"], [[p, p], [p]], [[1], [2]])
        store.batch_get_into_multi_buffers(["a", "b"], [[p, p], [p]], [[1], [2]])
        store.close()
        """)
        self.assertEqual(lines, [
            "[batch_put_from_multi_buffers] elapsed_us=N num_keys=2 total_bytes=0",
            "success=0 key=a",
            "success=0 key=b",
            "[batch_get_into_multi_buffers] elapsed_us=N num_keys=2",
            "success=0 key=a",
            "success=0 key=b",
            "[batch_put_from_multi_buffers] elapsed_us=N num_keys=2 total_bytes=2",
            "success=0 key=a",
            "success=1 key=b size=2",
            "[batch_get_into_multi_buffers] elapsed_us=N num_keys=2",
            "success=0 key=a",
            "success=1 key=b size=2 replica=memory endpoint=E",
        ])

    def test_empty_lists_a_config_refused_and_no_setup(self):
        lines = self.log_of("""
        assert store.batch_put_from_multi_buffers(["early"], [[p]], [[8]]) == []
        """ + self.SETUP + """
        store.batch_put_from_multi_buffers([], [], [])
        store.batch_get_into_multi_buffers([], [], [])
        store.batch_is_exist([])
        store.batch_get_replica_desc([])
        config = ReplicateConfig()
        config.dfs_replica_num = 1
        assert store.batch_put_from_multi_buffers(["c"], [[p]], [[8]], config) == [-1012]
        try:
            store.batch_is_exist([1])
        except TypeError:
            pass
        store.close()
        """)
        self.assertEqual(lines, [
            "[batch_put_from_multi_buffers] elapsed_us=N num_keys=1 total_bytes=8",
            "success=0 key=early size=8",
            "[batch_put_from_multi_buffers] elapsed_us=N num_keys=0 total_bytes=0",
            "[batch_get_into_multi_buffers] elapsed_us=N num_keys=0",
            "[batch_is_exist] elapsed_us=N num_keys=0",
            "[batch_get_replica_desc] elapsed_us=N num_keys=0",
            "[batch_put_from_multi_buffers] elapsed_us=N num_keys=1 total_bytes=8",
            "success=0 key=c size=8",
        ])


if __name__ == "__main__":
    unittest.main()
