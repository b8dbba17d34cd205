# SPDX-License-Identifier: Apache-2.0
"""Reads perf_points.def for scripts, tests and benchmarks, and says which probes each binary has to carry."""

import pathlib
import re
from dataclasses import dataclass

REPO = pathlib.Path(__file__).resolve().parents[1]
DEF = REPO / "perf_points.def"

LAYERS = ("PY", "RC", "CLIENT", "TRANSFER", "MASTER", "XFER")
LEVELS = {"SUB_SYSTEM": 1, "KEY_MODULE": 2, "MODULE": 3, "DEBUG": 4}

# Which layers are linked into which binary.
BINARIES = {
    "libkvstore.so": ("RC", "CLIENT", "TRANSFER", "MASTER"),
    "kvmaster": ("MASTER",),
    "_store.abi3.so": ("PY",),
    "_stats.abi3.so": ("XFER",),
}

PROVIDER = "kvstore"
REGISTERS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
DONE_ARGS = (("elapsed_ns", 8), ("bytes", 8), ("n_keys", 8), ("n_failed", 8), ("rc", -8), ("op_id", 8))
START_ARGS = (("op_id", 8), ("n_keys", 8), ("bytes_offered", 8))
OP_LOG_ARGS = (("block", 8), ("block_bytes", 8), ("op_id", 8), ("elapsed_ns", 8), ("op", 8), ("n_keys", 8))

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_POINT = re.compile(r'\s*PERF_POINT\(\s*(\w+)\s*,\s*(\w+)\s*,\s*(\w+)\s*,\s*(\w+)\s*,\s*"((?:[^"\\]|\\.)*)"\s*\)')


@dataclass(frozen=True)
class Point:
    name: str
    layer: str
    level: str
    site: str
    meaning: str


def load(path=DEF):
    """Every key, in the order of the file. ValueError for anything that is not a well-formed, unique entry."""
    text = _COMMENT.sub(" ", pathlib.Path(path).read_text(encoding="utf-8"))
    points = []
    at = 0
    while text[at:].strip():
        match = _POINT.match(text, at)
        if not match:
            raise ValueError(f"{path}: not a PERF_POINT entry: {text[at:].strip()[:80]!r}")
        point = Point(*match.groups())
        if point.layer not in LAYERS or point.level not in LEVELS:
            raise ValueError(f"{path}: {point.name}: no layer {point.layer} or no level {point.level}")
        if any(point.name == other.name for other in points):
            raise ValueError(f"{path}: {point.name} stands there twice")
        points.append(point)
        at = match.end()
    return points


def args_text(args):
    """The argument string of a note, as the x86-64 ABI fixes it."""
    return " ".join(f"{size}@%{register}" for (_, size), register in zip(args, REGISTERS))


def expected_notes(layers, points=None):
    """{probe name: argument string} for a binary that carries these layers."""
    notes = {}
    for point in points if points is not None else load():
        if point.layer in layers:
            notes[point.name] = args_text(DONE_ARGS)
            notes[point.name + "__start"] = args_text(START_ARGS)
    if "RC" in layers:
        notes["op_log"] = args_text(OP_LOG_ARGS)
    return notes
