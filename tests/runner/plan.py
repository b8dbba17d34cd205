# SPDX-License-Identifier: Apache-2.0
"""Which test programs there are, and under which builds each suite runs."""

import pathlib
import re
from dataclasses import dataclass

REPO = pathlib.Path(__file__).resolve().parents[2]
BUILD_DIRS = {
    "release": REPO / "build",
    "asan": REPO / "build-asan",
    "tsan": REPO / "build-tsan",
    "noprobes": REPO / "build-noprobes",
}
PRESETS = ("release", "asan", "tsan")
EVERY_PRESET = PRESETS
RELEASE_ONLY = ("release",)


@dataclass(frozen=True)
class Suite:
    """parallel: its programs do not disturb one another. needs: builds that its tests look into besides their own.
    guest_only: it is about devices and settings that only the guests of the vm suite have."""

    name: str
    presets: tuple
    parallel: bool
    timeout: int = 300
    needs: tuple = ()
    guest_only: bool = False


SUITES = {
    suite.name: suite
    for suite in (
        Suite("lint", RELEASE_ONLY, parallel=True),
        Suite("runner", RELEASE_ONLY, parallel=True),
        Suite("unit", EVERY_PRESET, parallel=True),
        Suite("fuzz", EVERY_PRESET, parallel=True),
        Suite("integration", EVERY_PRESET, parallel=True),
        Suite("python", EVERY_PRESET, parallel=True),
        Suite("stats", EVERY_PRESET, parallel=True),
        Suite("engine", EVERY_PRESET, parallel=True),
        # Probes are watched host-wide: two of these programs at once would see each other's calls.
        Suite("probes", RELEASE_ONLY, parallel=False, timeout=600, needs=("noprobes",)),
        Suite("bpf", RELEASE_ONLY, parallel=False, timeout=600),
        Suite("guest", RELEASE_ONLY, parallel=False, guest_only=True),
        # Its programs test the harness; the guests' own cases come with it.
        Suite("vm", RELEASE_ONLY, parallel=False, timeout=600),
    )
}
QUICK_PRESETS = ("release",)
NO_TEST_RAN = 5  # the exit status
# What depends on the running kernel, and is run in the guests.
KERNEL_LABEL = "kernel"
# What depends on how a guest was made, and is run in every one of them.
SETTINGS_LABEL = "settings"
LABELS = re.compile(r"^# labels: (.+)$", re.M)
HEAD_SIZE = 2048


@dataclass(frozen=True)
class Program:
    """One process to start: a cmocka binary or a unittest module."""

    suite: Suite
    preset: str
    path: pathlib.Path

    @property
    def is_python(self):
        return self.path.suffix == ".py"

    @property
    def name(self):
        stem = self.path.stem if self.is_python else self.path.name.removeprefix(self.suite.name + "-")
        return f"{self.suite.name}/{stem}"

    @property
    def labels(self):
        """A module's are in a comment at its beginning; a whole suite that is for guests is about the kernel."""
        labels = {KERNEL_LABEL} if self.suite.guest_only else set()
        if self.is_python:
            with open(self.path, encoding="utf-8") as file:
                found = LABELS.search(file.read(HEAD_SIZE))
            labels |= set(found[1].split()) if found else set()
        return labels


def discover(suite, preset, build, tests=REPO / "tests"):
    """The programs of a suite in one build tree, by name."""
    binaries = sorted(p for p in (build / "tests").glob(f"{suite.name}-*") if p.is_file() and not p.suffix)
    modules = sorted((tests / suite.name).glob("test_*.py"))
    return [Program(suite, preset, path) for path in binaries + modules]


def needed_builds(suite_names, presets):
    """The builds that must exist before these suites run, in the order to make them."""
    needed = []
    for preset in (*PRESETS, "noprobes"):
        for name in suite_names:
            suite = SUITES[name]
            runs = preset in presets and preset in suite.presets
            if runs or (preset in suite.needs and "release" in presets):
                needed.append(preset)
                break
    return needed
