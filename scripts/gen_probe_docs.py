#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/probes.md, the probe reference, from perf_points.def. --check: only say whether it is up to date."""

import sys

import perf_points

OUTPUT = perf_points.REPO / "docs" / "probes.md"

LAYER_TITLES = {
    "PY": "Python binding",
    "RC": "RealClient: the public operations",
    "CLIENT": "Client service: lookup and transfer",
    "TRANSFER": "Transfer",
    "MASTER": "Master",
    "XFER": "KV transfer (peer to peer)",
}

ARG_MEANINGS = {
    "elapsed_ns": "nanoseconds of the call, CLOCK_MONOTONIC; at least 1, or 0 for a call that began before anyone watched",
    "bytes": "bytes moved for the keys that succeeded",
    "n_keys": "keys of the call; 0 for a call that takes none",
    "n_failed": "keys with a negative result",
    "rc": "the first negative per-key code, else 0 (signed)",
    "op_id": "made once per public call, carried by every probe and frame on its way",
    "bytes_offered": "sum of the sizes that the caller offered",
    "block": "address of the call's packed per-key records (probes/probe_abi.h)",
    "block_bytes": "their length; 0: the call began before anyone watched",
    "op": "1 put, 2 is_exist, 3 get, 4 register_buffer, 5 replica_desc",
}

HEAD = """\
<!-- Generated from perf_points.def by scripts/gen_probe_docs.py. Do not edit: ./dev lint compares. -->

# Probe reference

Provider `{provider}`. For each PerfKey K below a binary of its layer carries two USDT probes: `K`, fired when the call
is done, and `K__start`, fired when it begins. libkvstore carries `op_log` besides. {total} keys in all.

* One call, one firing per key, whatever the way out. A call that fails fires too, with its code in `rc`.
* A site that no one watches costs one load, one test and one branch; the duration is measured only while someone
  watches.
* A key's level says how deep it lies: SUB_SYSTEM (1), KEY_MODULE (2, a public entry), MODULE (3, a phase of one), DEBUG
  (4, a step of a phase). `kvprobe --level` filters by it.
* All arguments are 64-bit and in the calling convention's registers. One site per probe and binary, in a function of
  its own without a red zone; on x86-64 it is a 1-byte, a 5-byte and a 10-byte nop. Tools attach to the first; `kvprobe`
  to the one that the running kernel turns into a call.

## Arguments

"""

USE = """\
## Which binary carries which layer

| binary | layers |
|---|---|
{binaries}

The same master runs in kvmaster and, with the master address `embedded`, inside a worker: its keys are in both.

The keys of layer XFER are fired where the KV transfer stats (`kvprobe.stats`) record, with what the connector measured:
once per record, `K__start` and `K` together. `XFER_WRITE` and `XFER_READ` carry `elapsed_ns`, `bytes` and descriptors
as `n_keys`; a failure has `elapsed_ns`, `bytes` and `n_keys` 0, `n_failed` 1 and a negative `rc`, and collectors count
it as an event, not as a call that began before anyone watched. `kvprobe xfer` prints them as the line that the worker
would log.

## How to watch them

With the collector (every process on the host, those that start later included):

```
kvprobe stat -i 1
kvprobe log --op batch_put_from_multi_buffers
kvprobe xfer -i 10
kvprobe list build/lib/libkvstore.so
```

With any other USDT tool, for example bpftrace:

```
bpftrace -l 'usdt:build/lib/libkvstore.so:*'
bpftrace -e 'usdt:build/lib/libkvstore.so:kvstore:RC_BATCH_PUT_MULTI {{ @ns = hist(arg0); @bytes = sum(arg1); }}'
bpftrace -e 'usdt:build/bin/kvmaster:kvstore:MASTER_RPC_* /(int64)arg4 < 0/ {{ @failed[probe, (int64)arg4] = count(); }}'
readelf -n build/lib/libkvstore.so
```

`tools/bpftrace/` has ready scripts.

"""


def argument_tables():
    kinds = (("K", "when the call is done", perf_points.DONE_ARGS),
             ("K__start", "when the call begins", perf_points.START_ARGS),
             ("op_log", "once per logged call, with its per-key results", perf_points.OP_LOG_ARGS))
    for name, when, args in kinds:
        yield f"`{name}`, {when}; the note reads `{perf_points.args_text(args)}`:\n\n"
        yield "| argument | name | meaning |\n|---|---|---|\n"
        for number, (arg, _) in enumerate(args):
            yield f"| arg{number} | {arg} | {ARG_MEANINGS[arg]} |\n"
        yield "\n"


def key_tables(points):
    yield "## Keys\n\n"
    for layer in perf_points.LAYERS:
        of_layer = [point for point in points if point.layer == layer]
        if not of_layer:
            continue
        yield f"### {LAYER_TITLES[layer]} ({len(of_layer)})\n\n"
        yield "| key | level | site | meaning |\n|---|---|---|---|\n"
        for point in of_layer:
            yield f"| {point.name} | {point.level} | {point.site} | {point.meaning} |\n"
        yield "\n"


def text():
    points = perf_points.load()
    binaries = "\n".join(f"| {name} | {', '.join(layers)} |" for name, layers in perf_points.BINARIES.items())
    parts = [HEAD.format(provider=perf_points.PROVIDER, total=len(points)), *argument_tables(),
             USE.format(binaries=binaries), *key_tables(points)]
    return "".join(parts).rstrip("\n") + "\n"


def is_current():
    return OUTPUT.exists() and OUTPUT.read_text(encoding="utf-8") == text()


def main():
    if sys.argv[1:] == ["--check"]:
        if is_current():
            return 0
        print(f"{OUTPUT.relative_to(perf_points.REPO)} is stale: run scripts/gen_probe_docs.py", file=sys.stderr)
        return 1
    OUTPUT.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
