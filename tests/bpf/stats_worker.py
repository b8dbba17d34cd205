# SPDX-License-Identifier: Apache-2.0
"""A Python worker for the tests of kvprobe xfer: it records rows that it is told into KV transfer stats and logs
nothing by itself. One JSON command a line on stdin, one JSON answer a line on stdout:

    {"record": [[kind, seconds, bytes, descriptors], ...], "threads": N}    how many; kinds as in transfer_rows.py
    {"line": true}                  the line that its own logging would write of everything so far, and the figures
    end of input                    quit
"""

import json
import os
import sys
import threading

from kvprobe.stats import MooncakeKVConnectorStats


def record(stats, rows):
    for kind, seconds, size, descriptors in rows:
        if kind in ("write", "read"):
            direction = {"direction": "read"} if kind == "read" else {}
            stats.record_transfer(duration_s=seconds, total_bytes=size, num_descs=descriptors, **direction)
        else:
            {"failed": stats.record_failed_transfer, "recv": stats.record_failed_recv,
             "expired": stats.record_kv_expired_req}[kind]()


def record_from_threads(stats, rows, n):
    threads = [threading.Thread(target=record, args=(stats, rows[i::n])) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    stats = MooncakeKVConnectorStats()
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "record" in command:
            record_from_threads(stats, command["record"], command["threads"])
            answer = {"recorded": len(command["record"])}
        else:
            figures = stats.reduce()
            text = ", ".join(f"{name}={value}" for name, value in figures.items())
            answer = {"line": f"KV Transfer metrics: {text}", "figures": figures}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
