# SPDX-License-Identifier: Apache-2.0
"""What the tests of the KV transfer stats share: the build tree, rows, threads, other processes."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", HERE.parents[1] / "build")).resolve()
PRESET = os.environ.get("KVPROBE_PRESET", "release")
SCALE = float(os.environ.get("KV_TEST_SCALE", "1")) * (1.0 if PRESET == "release" else 0.2)
sys.path[:0] = [str(BUILD / "python"), str(HERE.parent)]

from concurrently import run_threads  # noqa: E402,F401
from kvprobe.stats import MooncakeKVConnectorStats  # noqa: E402

WAIT_S = 60
MIB = 1 << 20
ROW_KEYS = ("transfer_duration", "bytes_transferred", "num_descriptors")
FAILURE_KEYS = ("num_failed_transfers", "num_failed_recvs", "num_kv_expired_reqs")
KEYS = ROW_KEYS + FAILURE_KEYS
FIGURES = (
    "Num successful transfers",
    "Avg xfer time (ms)",
    "P90 xfer time (ms)",
    "Avg MB per transfer",
    "Throughput (MB/s)",
    "Avg number of descriptors",
    "Num failed transfers",
    "Num failed recvs",
    "Num KV expired reqs",
)


def empty_data():
    return {key: [] for key in KEYS}


def stats_of(*rows, failed=0, recvs=0, expired=0, cls=MooncakeKVConnectorStats, **arguments):
    """An object with these rows (seconds, bytes, descriptors) and so many failures."""
    stats = cls(**arguments)
    for duration_s, total_bytes, num_descs in rows:
        stats.record_transfer(duration_s=duration_s, total_bytes=total_bytes, num_descs=num_descs)
    for _ in range(failed):
        stats.record_failed_transfer()
    for _ in range(recvs):
        stats.record_failed_recv()
    for _ in range(expired):
        stats.record_kv_expired_req()
    return stats


def run_python(code, timeout=WAIT_S, path="", **environment):
    """Run a program text in a fresh interpreter. Returns the CompletedProcess with text output."""
    modules = os.pathsep.join(part for part in (str(path), str(BUILD / "python")) if part)
    env = dict(os.environ, PYTHONPATH=modules, **environment)
    return subprocess.run(
        [sys.executable, "-c", code], env=env, timeout=timeout, capture_output=True, text=True, check=False
    )
