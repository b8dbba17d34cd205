#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of ./dev lint over every tracked file. Each check returns its complaints; none means it passed."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import gen_probe_docs
import perf_points

REPO = perf_points.REPO
SPDX = "SPDX-License-Identifier: Apache-2.0"
FILE_MAX_LINES = 700
C_SUFFIXES = (".c", ".h")
SPDX_SUFFIXES = (".c", ".h", ".py", ".sh", ".bt")
# Put together here, so that this file does not complain about itself.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MARKDOWN_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def tracked():
    """Paths that git tracks and that exist; in an unpacked archive without git, every file that a build did not make."""
    listed = subprocess.run(["git", "-C", str(REPO), "ls-files", "-z"], capture_output=True, text=True, timeout=60)
    if listed.returncode == 0:
        paths = [REPO / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in REPO.rglob("*") if not any(part.startswith(("build", ".git", "__pycache__"))
                                                             for part in path.relative_to(REPO).parts)]
    return [path for path in paths if path.is_file()]


def rel(path):
    return str(path.relative_to(REPO))


def read(path):
    return path.read_text(encoding="utf-8", errors="backslashreplace")


def is_script(path, interpreter):
    with open(path, "rb") as file:
        line = file.readline(200)
    return path.suffix == "" and line.startswith(b"#!") and interpreter in line


def check_format(paths):
    """clang-format, in the version whose layout the tree has."""
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not tool:
        return ["clang-format is not installed: ./dev setup"]
    files = [str(path) for path in paths if path.suffix in C_SUFFIXES]
    done = subprocess.run([tool, "--dry-run", "-Werror", "--style=file", *files], capture_output=True, text=True,
                          timeout=300, cwd=REPO)
    return [line for line in done.stderr.splitlines() if "error:" in line] or (
        [done.stderr] if done.returncode else [])


def check_spdx(paths):
    """The licence stands in the first three lines of every source file."""
    complaints = []
    for path in paths:
        is_command = path.suffix == "" and os.access(path, os.X_OK)
        if path.suffix in SPDX_SUFFIXES or is_command:
            if SPDX not in "\n".join(read(path).splitlines()[:3]):
                complaints.append(f"{rel(path)}: no '{SPDX}' in its first three lines")
    return complaints


def check_foreign_paths(paths):
    """Nothing names the place where it was written: this checkout's own path, or a home directory."""
    homes = re.compile(r"(?<![\w.])(/home/\w+|/root)/")
    complaints = []
    for path in paths:
        for number, line in enumerate(read(path).splitlines(), 1):
            if str(REPO) in line or homes.search(line):
                complaints.append(f"{rel(path)}:{number}: names a path of one machine: {line.strip()[:100]}")
    return complaints


def check_unfinished(paths):
    """No notes about work that is yet to be done."""
    return [f"{rel(path)}:{number}: {line.strip()[:100]}" for path in paths
            for number, line in enumerate(read(path).splitlines(), 1) if UNFINISHED.search(line)]


def check_length(paths):
    """No source file outgrows a sitting."""
    complaints = []
    for path in paths:
        if path.suffix in (*C_SUFFIXES, ".py"):
            lines = len(read(path).splitlines())
            if lines > FILE_MAX_LINES:
                complaints.append(f"{rel(path)}: {lines} lines, at most {FILE_MAX_LINES}")
    return complaints


def check_links(paths):
    """Links between the documents lead to files that are there, inside the repository."""
    complaints = []
    for path in paths:
        if path.suffix != ".md":
            continue
        for target in MARKDOWN_LINK.findall(read(path)):
            if re.match(r"[a-z]+:", target):
                continue
            aim = (path.parent / target).resolve()
            if not aim.exists() or not aim.is_relative_to(REPO):
                complaints.append(f"{rel(path)}: dead link {target}")
    return complaints


def check_shell(paths):
    """shellcheck, where it is installed; otherwise bash's own parser."""
    scripts = [str(path) for path in paths if path.suffix == ".sh" or is_script(path, b"sh")]
    tool = ["shellcheck"] if shutil.which("shellcheck") else ["bash", "-n"]
    complaints = []
    for script in scripts:
        done = subprocess.run([*tool, script], capture_output=True, text=True, timeout=120, cwd=REPO)
        if done.returncode:
            complaints.append(done.stdout + done.stderr)
    return complaints


def check_python(paths):
    """Every Python file compiles."""
    complaints = []
    for path in paths:
        if path.suffix == ".py" or is_script(path, b"python"):
            try:
                compile(read(path), rel(path), "exec")
            except SyntaxError as error:
                complaints.append(f"{rel(path)}:{error.lineno}: {error.msg}")
    return complaints


def check_probe_docs(_paths):
    """docs/probes.md is what perf_points.def makes."""
    return [] if gen_probe_docs.is_current() else ["docs/probes.md is stale: run scripts/gen_probe_docs.py"]


CHECKS = {name.removeprefix("check_"): function for name, function in list(globals().items())
          if name.startswith("check_")}


def main():
    paths = tracked()
    failed = 0
    for name, check in CHECKS.items():
        complaints = check(paths)
        print(f"{'FAILED' if complaints else 'ok':<7} {name}: {check.__doc__}")
        for complaint in complaints:
            print("        " + complaint)
        failed += bool(complaints)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
