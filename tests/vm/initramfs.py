# SPDX-License-Identifier: Apache-2.0
"""The archive that a guest boots into: busybox, the modules it needs, init and its settings."""

import gzip
import pathlib
import shlex
import shutil

INSIDE = pathlib.Path(__file__).resolve().parent / "inside"
DIRECTORIES = ("bin", "dev", "proc", "sys", "modules")


class Archive:
    """A cpio archive in the kernel's "newc" format."""

    def __init__(self):
        self._parts = []
        self._count = 0

    def _member(self, name, mode, data):
        self._count += 1
        encoded = name.encode() + b"\0"
        head = [self._count, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0]
        member = b"070701" + b"".join(b"%08x" % number for number in head) + encoded
        member += bytes(-len(member) % 4) + data
        self._parts.append(member + bytes(-len(member) % 4))

    def directory(self, name):
        self._member(name, 0o040755, b"")

    def file(self, name, data, executable=False):
        self._member(name, 0o100755 if executable else 0o100644, data)

    def finish(self):
        self._member("TRAILER!!!", 0, b"")
        return b"".join(self._parts)


def busybox():
    path = shutil.which("busybox")
    if not path:
        raise FileNotFoundError("no busybox: install busybox-static")
    data = pathlib.Path(path).read_bytes()
    if b"/ld-linux" in data:
        raise FileNotFoundError(f"{path} is not static: install busybox-static")
    return data


def make(modules, settings):
    """modules: files in loading order. settings: name -> value, which init reads as shell variables."""
    archive = Archive()
    for name in DIRECTORIES:
        archive.directory(name)
    archive.file("bin/busybox", busybox(), executable=True)
    archive.file("init", (INSIDE / "init").read_bytes(), executable=True)
    for module in modules:
        archive.file(f"modules/{module.name}", module.read_bytes())
    archive.file("modules/order", "".join(f"{module.name}\n" for module in modules).encode())
    archive.file("settings", "".join(f"{name}={shlex.quote(value)}\n" for name, value in settings.items()).encode())
    return gzip.compress(archive.finish(), 1)
