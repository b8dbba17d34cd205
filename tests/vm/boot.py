# SPDX-License-Identifier: Apache-2.0
"""Boots a guest, runs one job in it, and says how both ended. Nothing of it is left behind."""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field

from runner import plan, process

from . import initramfs

SCRATCH = "kvprobe-vm-"
PREFIX = "kvprobe-guest: "
ALIVE = PREFIX + "alive"
# Emulation on a host that is busy with other things can stand still for some time.
SILENCE_SECONDS = 120
TAIL_LINES = 60
OUTPUT_MAX = 4 << 20
ECHO_SECONDS = 0.2
BAD = re.compile(r"Kernel panic|Oops|\bBUG: |WARNING: CPU|general protection fault|blocked for more than|cannot start")


@dataclass
class Outcome:
    """trouble: why the guest, not the job, has failed; None: it has not. status: the job's, None without an end."""

    status: int | None
    trouble: str | None
    boot_seconds: float
    seconds: float
    console: list = field(default_factory=list)
    output: str = ""


class Console:
    """Follows what the guest says: keeps the tail and the first signs of trouble."""

    def __init__(self, show=None):
        self.tail = collections.deque(maxlen=TAIL_LINES)
        self.bad = []
        self.job_at = None
        self._show = show

    def line(self, text):
        text = text.replace(ALIVE, "")  # something else may stand in the same line
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1bc|[\x00-\x08\x0b-\x1f]", "", text)
        if not text.strip():
            return
        self.tail.append(text)
        if BAD.search(text):
            self.bad = [*self.bad, text][:8]
        if self.job_at is None and text.startswith(PREFIX + "job "):
            self.job_at = time.monotonic()
        if self._show:
            self._show(text)


def read_limited(path):
    try:
        with open(path, "rb") as file:
            return file.read(OUTPUT_MAX).decode("utf-8", "backslashreplace")
    except FileNotFoundError:
        return ""


def trouble_of(ended, console, status):
    """What was wrong with the guest, in a sentence, or None."""
    signs = f": {console.bad[0].strip()}" if console.bad else ""
    if ended.silent:
        return f"the guest hangs: its console was silent for {SILENCE_SECONDS} s{signs}"
    if ended.timed_out:
        return f"the guest did not end in its time limit: killed after {ended.seconds:.0f} s{signs}"
    if status is None:
        return f"the guest went down before its job had ended (qemu: {ended.trouble() or 'exit status 0'}){signs}"
    if console.bad:
        return f"the guest's kernel complained{signs}"
    if ended.returncode:
        return f"qemu: {ended.trouble()}"
    return None


def sweep():
    """Remove what a run left that was killed before it could."""
    for path in pathlib.Path(tempfile.gettempdir()).glob(f"{SCRATCH}*-*"):
        owner = path.name.removeprefix(SCRATCH).partition("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def scratch(guest, job, build):
    """A directory with the initramfs and a directory of results, for as long as the guest runs."""
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as where:
        directory = pathlib.Path(where)
        results = directory / "results"
        results.mkdir()
        results.chmod(0o777)  # the job may be no one's
        settings = guest.settings(job, build)
        (directory / "initramfs").write_bytes(initramfs.make(guest.modules(), settings))
        yield directory, results


def with_parent(argv):
    """A command that dies with whoever started it, however that ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *argv]


@contextlib.contextmanager
def echoed(path, stream):
    """Copy a file to a stream as it grows, until the block has ended and all of it has been copied."""
    path.touch()
    ended = threading.Event()

    def copy():
        with open(path, "rb") as file:
            last = False
            while not last:
                last = ended.wait(ECHO_SECONDS)
                try:
                    shutil.copyfileobj(file, stream)
                    stream.flush()
                except BrokenPipeError:  # no one reads on: there is no more use for the guest
                    process.RUNNING.stop_all()
                    return

    copier = threading.Thread(target=copy)
    copier.start()
    try:
        yield
    finally:
        ended.set()
        copier.join()


def run(guest, script, build=plan.BUILD_DIRS["release"], show=None, collect=None, silence=SILENCE_SECONDS, echo=None,
        offer=()):
    """Boot, run a bash script in the repository's directory, power off.

    show(line) gets the console as it comes, echo, a binary stream, what the script says. collect(directory) sees the
    results before they go: what the script left in /mnt. offer: names of files there that anyone may write to.
    """
    console = Console(show)
    with scratch(guest, "script", build) as (directory, results):
        (results / "job").write_text(script, encoding="utf-8")
        (results / "job").chmod(0o644)
        for name in offer:
            (results / name).touch()
            (results / name).chmod(0o666)
        start = time.monotonic()
        with echoed(results / "output", echo) if echo else contextlib.nullcontext():
            ended = process.run(with_parent(guest.qemu(directory, results)), dict(os.environ), directory, guest.limit,
                                console.line, silence=silence)
        status = read_limited(results / "exit").strip()
        status = int(status) if status.isdigit() else None
        (results / "console").write_text("\n".join(console.tail) + "\n", encoding="utf-8")
        outcome = Outcome(status, trouble_of(ended, console, status), (console.job_at or start) - start, ended.seconds,
                          list(console.tail), read_limited(results / "output"))
        if collect:
            collect(results)
    return outcome
