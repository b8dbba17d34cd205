# SPDX-License-Identifier: Apache-2.0
"""A Python worker for the tests of the tools: it records KV transfers and failures of each kind, again and again until
stdin ends.

    traced_recorder.py      "ready" on stdout after the first round
"""

import sys
import threading

from kvprobe.stats import MooncakeKVConnectorStats


def main():
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    stats = MooncakeKVConnectorStats()
    number = 0
    while not stop.wait(0.002):
        stats.record_transfer(duration_s=0.0015, total_bytes=3 << 20, num_descs=12)
        stats.record_transfer(duration_s=0.0031, total_bytes=1 << 20, num_descs=4, direction="read")
        stats.record_failed_transfer()
        stats.record_failed_recv()
        stats.record_kv_expired_req()
        stats.clone_and_reset()
        number += 1
        if number == 1:
            print("ready", flush=True)


main()
