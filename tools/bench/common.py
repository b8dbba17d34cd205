# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: where the build is, children with time limits, the report.

A benchmark calls run_bench(name, description, main). main gets a Bench and returns the figures; what it
measured is printed as a table, or with --json as one object on the last line of stdout. Progress goes to
stderr. A requirement that is not met is recorded with bench.require and makes the exit status 1.
"""

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(os.environ.get("KVPROBE_BUILD", os.path.join(REPO, "build")))


class BenchError(Exception):
    """The benchmark could not measure: a child failed, or did not answer in time."""


def binary(name):
    path = os.path.join(BUILD, "bin", name)
    if not os.access(path, os.X_OK):
        raise BenchError(f"{path} is not built: ./dev build")
    return path


def say(text):
    print(text, file=sys.stderr, flush=True)


class Child:
    """A child process whose lines are read as they come. It is always ended by its pid, and every wait for
    it has a limit."""

    def __init__(self, argv, env=None, cpu=None, stdout_path=None):
        self.name = os.path.basename(argv[0])
        full_env = {k: v for k, v in os.environ.items() if not k.startswith("MC_")}
        full_env.update(env or {})
        out = open(stdout_path, "wb") if stdout_path else subprocess.PIPE
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE,
                                        env=full_env)
        if stdout_path:
            out.close()
        self.pid = self.process.pid
        if cpu is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(self.pid, {cpu})
        self.out, self.err = queue.Queue(), queue.Queue()
        self.err_lines = []
        self.threads = []
        if not stdout_path:
            self._read(self.process.stdout, self.out, None)
        self._read(self.process.stderr, self.err, self.err_lines)

    def _read(self, stream, lines, keep):
        def reader():
            for raw in stream:
                line = raw.decode("utf-8", "replace").rstrip("\n")
                if keep is not None:
                    keep.append(line)
                lines.put(line)
            lines.put(None)

        thread = threading.Thread(target=reader, daemon=True)
        thread.start()
        self.threads.append(thread)

    def fail(self, what):
        tail = " | ".join(self.err_lines[-5:])
        return BenchError(f"{self.name} (pid {self.pid}) {what}" + (f"; it said: {tail}" if tail else ""))

    def tell(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.fail("ended before its next command") from None

    def next_line(self, lines, limit, what):
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            raise self.fail(f"did not {what} within {limit:.0f} s") from None
        if line is None:
            lines.put(None)
            raise self.fail(f"ended ({self.process.wait(5)}) and did not {what}")
        return line

    def answer(self, limit):
        """Its next line on stdout."""
        return self.next_line(self.out, limit, "answer")

    def ask(self, line, limit):
        self.tell(line)
        return self.answer(limit)

    def wait_for(self, start, limit, lines=None):
        """The next line (of stderr unless told) that begins with start."""
        deadline = time.monotonic() + limit
        while True:
            left = deadline - time.monotonic()
            line = self.next_line(lines or self.err, max(left, 0.01), f"say '{start}'")
            if line.startswith(start):
                return line

    def rest_of_output(self):
        lines = []
        while True:
            line = self.out.get(timeout=10)
            if line is None:
                return lines
            lines.append(line)

    def close_stdin(self):
        with contextlib.suppress(BrokenPipeError, OSError):
            self.process.stdin.close()

    def join(self, limit, status=(0,)):
        """Wait for its own end."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise self.fail(f"did not end within {limit:.0f} s") from None
        for thread in self.threads:
            thread.join(5)
        if status is not None and code not in status:
            raise self.fail(f"ended with status {code}")
        return code

    def interrupt(self, limit=30, status=(0,)):
        """What Ctrl-C does: the tool prints its totals and ends."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.join(limit, status)

    def end(self):
        """For cleaning up: whatever state it is in."""
        self.close_stdin()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)


class Bench:
    def __init__(self, name, arguments):
        self.name = name
        self.arguments = arguments
        self.children = []
        self.unmet = []
        self.scratch = tempfile.mkdtemp(prefix=f"kvprobe-bench-{name}-")

    def start(self, argv, **options):
        child = Child(argv, **options)
        self.children.append(child)
        return child

    def kvprobe(self, *arguments, limit=60, **options):
        """Start the collector and wait until it has attached."""
        tool = self.start([binary("kvprobe"), *arguments], **options)
        tool.attached = tool.wait_for("attached:", limit)
        return tool

    def kvmaster(self, *arguments):
        """A kvmaster on a free port of loopback; returns (child, "host:port")."""
        child = self.start([binary("kvmaster"), "--rpc_address=127.0.0.1", "--rpc_port=0", *arguments])
        line = child.wait_for("kvmaster listening on ", 10, child.out)
        return child, line.split()[-1]

    def require(self, met, text):
        if not met:
            self.unmet.append(text)

    def close(self):
        for child in reversed(self.children):
            child.end()
        shutil.rmtree(self.scratch, ignore_errors=True)


def median(values):
    return statistics.median(values)


def show(figures):
    """The readable form: one figure a line, large numbers grouped."""
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            text = str(value)
        elif isinstance(value, int):
            text = f"{value:,}"
        else:
            text = f"{value:,.3f}"
        print(f"  {name:<{width}}  {text}")


def run_bench(name, description, main, add_arguments=None):
    parser = argparse.ArgumentParser(prog=f"bench_{name}.py", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")
    if add_arguments:
        add_arguments(parser)
    arguments = parser.parse_args()
    bench = Bench(name, arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda signum, frame: sys.exit(128 + signum))
    try:
        figures = main(bench)
    except BenchError as error:
        say(f"bench {name}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        bench.close()
    if arguments.json:
        print(json.dumps(figures), flush=True)
    else:
        print(f"bench {name}")
        show(figures)
    for text in bench.unmet:
        say(f"bench {name}: requirement not met: {text}")
    return 1 if bench.unmet else 0
