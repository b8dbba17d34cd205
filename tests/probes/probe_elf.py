# SPDX-License-Identifier: Apache-2.0
"""What the probe tests know of a binary: its notes as readelf prints them, its bytes, its disassembly."""

import functools
import os
import pathlib
import re
import struct
import subprocess
import sys
from dataclasses import dataclass

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "scripts"))

import perf_points  # noqa: E402

BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", REPO / "build"))
TOOL_TIMEOUT = 120
PAGE = 4096
# A site: the 1-byte nop, the two that some kernel turns into a call, and the return of the site's function.
SITE_NOPS = bytes.fromhex("90" "0f1f440000" "662e0f1f840000000000")
SITE_CODE = SITE_NOPS + b"\xc3"
SITE_ALIGN = 32
OPERAND = re.compile(r"-?[0-9]+@%[a-z0-9]+$")
# The functions of the probe unit: what a hit may be on top of.
UNIT_FUNCTION = re.compile(r"(site_|kvp_start_|kvp_done_|kvp_op_log|perf_clock_ns|elapsed_since|may_fire)")
BELOW_STACK = re.compile(r"-0x[0-9a-f]+\(%[re]sp")
BELOW_FRAME = re.compile(r"-(0x[0-9a-f]+)\(%rbp")
FRAME_MADE = re.compile(r"\bmov\s+%rsp,%rbp$")


@dataclass(frozen=True)
class Note:
    provider: str
    name: str
    location: int
    base: int
    semaphore: int
    args: str


@dataclass(frozen=True)
class Section:
    name: str
    address: int
    offset: int
    size: int
    flags: int

    def holds(self, address, length=1):
        return self.address <= address and address + length <= self.address + self.size


@dataclass(frozen=True)
class SafetyNote:
    version: int
    flags: int
    layers: int
    skipped_address: int
    base: int


def tool(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TOOL_TIMEOUT, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))}: {done.stderr.strip()[:500]}")
    return done.stdout


class Binary:
    """A 64-bit little-endian ELF file."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self._image = self.path.read_bytes()

    @functools.cached_property
    def sections(self):
        """{name: Section}"""
        table, = struct.unpack_from("<Q", self._image, 0x28)
        entry_size, count, names_index = struct.unpack_from("<HHH", self._image, 0x3A)
        raw = [struct.unpack_from("<IIQQQQIIQQ", self._image, table + i * entry_size) for i in range(count)]
        names = raw[names_index][4]
        found = {}
        for name, _, flags, address, offset, size, *_ in raw:
            text = self._image[names + name:self._image.index(b"\0", names + name)].decode()
            found[text] = Section(text, address, offset, size, flags)
        return found

    @functools.cached_property
    def loads(self):
        """[(address, offset, bytes in the file)] of the loaded segments"""
        table, = struct.unpack_from("<Q", self._image, 0x20)
        entry_size, count = struct.unpack_from("<HH", self._image, 0x36)
        raw = [struct.unpack_from("<IIQQQQQQ", self._image, table + i * entry_size) for i in range(count)]
        return [(address, offset, size) for kind, _, offset, address, _, size, *_ in raw if kind == 1]

    def mappings_of(self, address):
        """How many segments map the page of the file that holds an address."""
        section = next(s for s in self.sections.values() if s.address and s.holds(address))
        page = (section.offset + address - section.address) // PAGE
        return sum(offset // PAGE <= page <= (offset + size - 1) // PAGE for _, offset, size in self.loads if size)

    @functools.cached_property
    def notes(self):
        """The stapsdt notes of our provider, as readelf reads them; a static program has those of its C library
        besides."""
        pattern = re.compile(r"Provider: (\S+)\s+Name: (\S+)\s+Location: (0x[0-9a-f]+), Base: (0x[0-9a-f]+), "
                             r"Semaphore: (0x[0-9a-f]+)\s+Arguments: (.*)")
        text = tool("readelf", "-nW", str(self.path))
        notes = [Note(m[1], m[2], int(m[3], 16), int(m[4], 16), int(m[5], 16), m[6].strip())
                 for m in pattern.finditer(text)]
        if len(notes) != text.count("NT_STAPSDT"):
            raise ValueError(f"{self.path}: {text.count('NT_STAPSDT')} notes, of which {len(notes)} could be read")
        return [note for note in notes if note.provider == perf_points.PROVIDER]

    @functools.cached_property
    def safety_notes(self):
        section = self.sections.get(".note.kvprobe")
        found = []
        at = section.offset if section else 0
        end = at + section.size if section else 0
        while at + 12 <= end:
            name_size, desc_size, kind = struct.unpack_from("<III", self._image, at)
            name = self._image[at + 12:at + 12 + name_size]
            desc = at + 12 + (name_size + 3) // 4 * 4
            if name == b"kvprobe\0" and kind == 1:
                version, flags, layers, _ = struct.unpack_from("<IIII", self._image, desc)
                skipped, base = struct.unpack_from("<QQ", self._image, desc + 16)
                found.append(SafetyNote(version, flags, layers, skipped, base))
            at = desc + (desc_size + 3) // 4 * 4
        return found

    def read(self, address, length):
        for section in self.sections.values():
            if section.address and section.holds(address, length):
                start = section.offset + address - section.address
                return self._image[start:start + length]
        raise ValueError(f"{self.path}: no section holds {address:#x}")

    def site_address(self, note):
        """Where the note's site is. A linker or prelinker that moved things moved .stapsdt.base with them."""
        return note.location + self.sections[".stapsdt.base"].address - note.base

    def disassembly(self, *names):
        """{function: [instruction, ...]}; of all functions, or of these."""
        argv = ["objdump", "-d", "--no-show-raw-insn", "-w", *(f"--disassemble={n}" for n in names), str(self.path)]
        functions = {}
        current = None
        for line in tool(*argv).splitlines():
            head = re.match(r"[0-9a-f]+ <([^>]+)>:$", line)
            if head:
                current = functions.setdefault(head[1], [])
            elif current is not None and re.match(r"\s+[0-9a-f]+:\t", line):
                current.append(line.strip())
        return functions


def complaints_about_notes(binary, layers):
    """How the notes differ from what perf_points.def says for these layers."""
    wrong = []
    expected = perf_points.expected_notes(layers)
    found = {}
    for note in binary.notes:
        if note.name in found:
            wrong.append(f"{note.name}: two notes")
        found[note.name] = note
    wrong += [f"{name}: no note" for name in expected if name not in found]
    wrong += [f"{name}: a note, but no key of these layers" for name in found if name not in expected]
    base = binary.sections.get(".stapsdt.base")
    probes = binary.sections.get(".probes")
    if not base or not probes:
        return wrong + ["no .stapsdt.base or no .probes section"]
    semaphores = [note.semaphore for note in found.values()]
    if len(set(semaphores)) != len(semaphores):
        wrong.append("two probes share a semaphore")
    for name, note in found.items():
        if name in expected and note.args != expected[name]:
            wrong.append(f"{name}: arguments '{note.args}', expected '{expected[name]}'")
        if not all(OPERAND.match(operand) for operand in note.args.split()):
            wrong.append(f"{name}: an operand that is not N@%reg: {note.args}")
        if note.base == 0 or note.base != base.address:
            wrong.append(f"{name}: base {note.base:#x}, .stapsdt.base is at {base.address:#x}")
        if not probes.holds(note.semaphore, 2):
            wrong.append(f"{name}: semaphore {note.semaphore:#x} outside .probes")
        elif binary.mappings_of(note.semaphore) != 1:
            wrong.append(f"{name}: the page of semaphore {note.semaphore:#x} is mapped twice")
        if not binary.sections[".text"].holds(binary.site_address(note), len(SITE_NOPS)):
            wrong.append(f"{name}: site {note.location:#x} outside .text")
    return wrong


def complaints_about_sites(binary):
    """Sites whose bytes are not the three nops and a return, or that are not where a kernel can replace them."""
    wrong = []
    for note in binary.notes:
        address = binary.site_address(note)
        code = binary.read(address, len(SITE_CODE))
        if code != SITE_CODE:
            wrong.append(f"{note.name}: site bytes {code.hex()}")
        if address % SITE_ALIGN:
            wrong.append(f"{note.name}: site at {address:#x} is not at the start of its function")
        if address % PAGE + len(SITE_NOPS) > PAGE:
            wrong.append(f"{note.name}: site at {address:#x} crosses a page")
    return wrong


def complaints_about_safety(binary, layers):
    """The note by which the tool takes the optimised form: it must be there once, and be true."""
    if len(binary.safety_notes) != 1:
        return [f"{len(binary.safety_notes)} safety notes"]
    note = binary.safety_notes[0]
    wrong = []
    layer_bits = sum(1 << (perf_points.LAYERS.index(layer) + 1) for layer in layers)
    if (note.version, note.flags, note.layers) != (1, 3, layer_bits):
        wrong.append(f"safety note says {note}, expected layers {layer_bits:#x}")
    if note.base != binary.sections[".stapsdt.base"].address:
        wrong.append("safety note: base is not .stapsdt.base")
    section = binary.sections.get(".bss")
    if not section or not section.holds(note.skipped_address, 4):
        wrong.append(f"safety note: no counter at {note.skipped_address:#x}")
    return wrong


def below_stack(instructions):
    """The instructions that touch memory below the stack pointer: by way of it, or of a frame pointer in a function
    that moves the stack pointer down by less than that."""
    found = [text for text in instructions if BELOW_STACK.search(text)]
    framed = next((i for i, text in enumerate(instructions) if FRAME_MADE.search(text)), None)
    if framed is None or any(re.search(r"\b(sub|add|and|lea)\b.*,%rsp$", text) for text in instructions):
        return found
    room = 8 * sum(bool(re.search(r"\tpush\b", text)) for text in instructions[framed:])
    return found + [text for text in instructions for match in [BELOW_FRAME.search(text)]
                    if match and int(match[1], 16) > room]


def complaints_about_red_zone(binary):
    """Instructions of the probe unit that touch memory below the stack pointer. Needs symbols."""
    wrong = []
    seen = 0
    for function, instructions in binary.disassembly().items():
        if not UNIT_FUNCTION.match(function):
            continue
        seen += 1
        wrong += [f"{function}: {text}" for text in below_stack(instructions)]
    if seen < len(binary.notes):
        wrong.append(f"only {seen} functions of the probe unit found: no symbols?")
    return wrong


def all_complaints(binary, layers):
    return (complaints_about_notes(binary, layers) + complaints_about_sites(binary)
            + complaints_about_safety(binary, layers))


def product_binaries(root=BUILD, python="python"):
    """(name, path, layers) of what carries probes, in a build tree or below an installation's prefix."""
    extensions = root / python / "kvprobe"
    paths = {"libkvstore.so": root / "lib" / "libkvstore.so", "kvmaster": root / "bin" / "kvmaster",
             "_store.abi3.so": extensions / "_store.abi3.so", "_stats.abi3.so": extensions / "_stats.abi3.so"}
    for name, layers in perf_points.BINARIES.items():
        yield name, paths[name], layers
