# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""A Python worker that makes vLLM's calls, with log and stat attached to it from outside."""

import os
import re
import subprocess
import sys

from collector import BUILD, REPO, Case, Child, TIMEOUT

REQUESTS, BLOCKS, LAYERS, BLOCK_BYTES = 3, 4, 16, 65536
OBJECT = LAYERS * BLOCK_BYTES


class VllmSequence(Case):
    def test_every_call_is_seen(self):
        worker = Child([sys.executable, REPO / "examples" / "vllm_sequence.py", "--wait", "--requests", REQUESTS],
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                       env={**os.environ, "PYTHONPATH": os.fspath(BUILD / "python")})
        self.addCleanup(worker.kill)
        buffer = bytearray()
        worker.read_line(worker.process.stdout, buffer)
        log = self.collector("log", "-p", worker.pid)
        stat = self.collector("stat", "-p", worker.pid, "--json")
        worker.process.stdin.write(b"\n")
        worker.process.stdin.flush()
        self.assertEqual(worker.process.wait(TIMEOUT), 0)

        self.assertEqual(log.stop(), 0, log.errors)
        self.assertEqual(stat.stop(), 0, stat.errors)
        lines = log.output().decode().splitlines()
        summaries = [line.split()[0] for line in lines if line.startswith("[")]
        self.assertEqual(summaries, ["[register_buffer]"] + REQUESTS * [
            "[batch_is_exist]", "[batch_put_from_multi_buffers]", "[batch_is_exist]", "[batch_get_replica_desc]",
            "[batch_get_into_multi_buffers]"])
        put = re.compile(rf"success=1 key=llama@tp_rank:0@pcp0@dcp0@pp_rank:0@[0-9a-f]{{16}} size={OBJECT}")
        got = re.compile(put.pattern + r" replica=memory endpoint=127\.0\.0\.1:\d+")
        self.assertEqual(sum(bool(put.fullmatch(line)) for line in lines), REQUESTS * BLOCKS)
        self.assertEqual(sum(bool(got.fullmatch(line)) for line in lines), 2 * REQUESTS * BLOCKS)

        totals = stat.by_key(worker.pid)
        calls = {"STORE_PY_SETUP": 1, "STORE_PY_REGISTER_BUFFER": 1, "STORE_PY_BATCH_IS_EXIST": 2 * REQUESTS,
                 "STORE_PY_BATCH_PUT_MULTI": REQUESTS, "STORE_PY_BATCH_GET_REPLICA_DESC": REQUESTS,
                 "STORE_PY_BATCH_GET_INTO_MULTI": REQUESTS, "STORE_PY_REMOVE_ALL": 1, "STORE_PY_CLOSE": 1}
        self.assertEqual({key: totals[key]["calls"] for key in calls}, calls)
        self.assertEqual(totals["STORE_PY_REMOVE_ALL"]["keys"], REQUESTS * BLOCKS)
        for key in ("STORE_PY_BATCH_PUT_MULTI", "STORE_PY_BATCH_GET_INTO_MULTI"):
            self.assertEqual(totals[key]["bytes"], REQUESTS * BLOCKS * OBJECT)
        self.assertEqual(sum(row["failed_calls"] for row in totals.values()), 0)
