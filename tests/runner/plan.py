# SPDX-License-Identifier: Apache-2.0
"""Which test programs there are, and under which builds each suite runs."""

import pathlib
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
    """parallel: its programs do not disturb one another. needs: builds that its tests look into besides their own."""

    name: str
    presets: tuple
    parallel: bool
    timeout: int = 300
    needs: tuple = ()


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
    )
}
QUICK_PRESETS = ("release",)


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
