# SPDX-License-Identifier: Apache-2.0
"""How a program is started under each build, and where the sanitizers' reports go."""

import functools
import os
import subprocess
import sys

from .plan import REPO

RUNTIMES = {"asan": ("libasan.so", "libubsan.so"), "tsan": ("libtsan.so",)}


@functools.cache
def runtime_libraries(preset):
    """The sanitizer runtimes that an uninstrumented interpreter has to load first."""
    compiler = os.environ.get("CC", "gcc")
    paths = []
    for name in RUNTIMES.get(preset, ()):
        found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, timeout=30,
                               check=True).stdout.strip()
        paths.append(os.path.realpath(found))
    return paths


def environment(program, build, reports):
    """reports: a directory. Every process of the program, the servers it starts included, reports there."""
    env = dict(os.environ)
    env.update(KVPROBE_BUILD=str(build), KVPROBE_PRESET=program.preset, CMOCKA_MESSAGE_OUTPUT="TAP",
               PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
    for name in ("CMOCKA_XML_FILE", "LD_PRELOAD", "MC_LOG_ENABLE"):
        env.pop(name, None)
    log = f"log_path={reports}/report"
    if program.preset == "asan":
        # CPython itself leaks by design, so leaks are looked for in the C programs only.
        leaks = 0 if program.is_python else 1
        env["ASAN_OPTIONS"] = f"{log}:detect_leaks={leaks}:handle_segv=2:detect_stack_use_after_return=1"
        env["UBSAN_OPTIONS"] = f"{log}:print_stacktrace=1"
    elif program.preset == "tsan":
        # No reports of unjoined threads: a process may end without close(), and then no one joins those that the
        # store has left behind.
        env["TSAN_OPTIONS"] = (f"{log}:die_after_fork=0:halt_on_error=1:exitcode=66:second_deadlock_stack=1"
                               ":report_thread_leaks=0")
        if program.is_python:
            env["TSAN_OPTIONS"] += f":suppressions={REPO / 'tests' / 'tsan.supp'}"
    return env


def command(program, report_file, pattern):
    """argv for a program."""
    if program.is_python:
        pychild = os.path.join(os.path.dirname(__file__), "pychild.py")
        argv = [sys.executable, pychild, str(report_file), str(program.path)] + ([pattern] if pattern else [])
        if program.preset in RUNTIMES:
            # env, so that setarch itself need not live with the runtime.
            argv = ["env", "LD_PRELOAD=" + ":".join(runtime_libraries(program.preset))] + argv
    else:
        argv = [str(program.path)]
    if program.preset == "tsan":
        argv = ["setarch", "-R"] + argv  # gcc's runtime knows fewer address layouts than today's kernels use
    return argv


def reports_of(directory):
    """(file name, lines) for each report that a process of the program left."""
    found = []
    for path in sorted(directory.glob("report*")):
        found.append((path.name, path.read_text(encoding="utf-8", errors="backslashreplace").splitlines()))
    return found
