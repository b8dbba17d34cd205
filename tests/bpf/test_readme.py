# SPDX-License-Identifier: Apache-2.0
"""Every command of README.md, run in its order in one shell, as a reader does; each block must show what the line
before it promises."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from doc_blocks import REPO, runnable_blocks

BUILD = os.path.abspath(os.environ.get("KVPROBE_BUILD", os.path.join(REPO, "build")))
LIMIT_S = 240
MARK = "=== block "
# Not run here: they would run this test, or are run by CI as they stand.
NOT_RUN = {"./dev demo", "./dev test"}
SCRATCH = ("kvprobe-worker.py", "kvprobe-slow.txt", "kvprobe-pair.txt", "kvprobe-with-rights", "kvprobe-logs",
           "kvprobe-install", "kvprobe-example", "kvprobe-example.c")
SCRIPT = """set -eu
trap 'status=$?; trap - EXIT; kill $(jobs -p) 2>/dev/null || true; exit $status' EXIT
"""


class ReadmeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest("not root")
        for tool in ("bpftrace", "jq", "setcap", "setpriv", "unshare", "cmake", "cc"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"no {tool}")
        cls.addClassCleanup(cls.remove_scratch)
        cls.blocks = runnable_blocks("README.md")
        # A directory in which the README's paths are right, whatever build is tested.
        cls.place = tempfile.mkdtemp(prefix="kvprobe-readme-")
        cls.addClassCleanup(shutil.rmtree, cls.place)
        for name in ("tools", "dev", "perf_points.def", "docs", "examples"):
            os.symlink(os.path.join(REPO, name), os.path.join(cls.place, name))
        os.symlink(BUILD, os.path.join(cls.place, "build"))
        cls.outputs, cls.status = cls.run_all()

    @classmethod
    def remove_scratch(cls):
        for name in SCRATCH:
            path = os.path.join("/tmp", name)
            if os.path.isdir(path):
                shutil.rmtree(path)
            elif os.path.exists(path):
                os.unlink(path)

    @classmethod
    def run_all(cls):
        script = SCRIPT + "".join(f"echo '{MARK}{number}'\n{commands}" for number, (_, commands) in enumerate(cls.blocks))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MC_")}
        environment["KVPROBE_BUILD"] = BUILD
        with tempfile.TemporaryFile() as out:
            shell = subprocess.Popen(["bash", "-c", script], cwd=cls.place, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=subprocess.STDOUT, env=environment, start_new_session=True)
            try:
                status = shell.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                status = f"still running after {LIMIT_S} s"
            finally:
                cls.end_session(shell)
            out.seek(0)
            text = out.read().decode("utf-8", "replace")
        parts = re.split(f"^{MARK}(\\d+)\n", text, flags=re.M)
        return dict(zip(map(int, parts[1::2]), parts[2::2])), status

    @staticmethod
    def end_session(shell):
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        shell.wait(10)

    def test_every_block_ran(self):
        last = max(self.outputs, default=None)
        self.assertEqual(self.status, 0, f"block {last}:\n{self.outputs.get(last, '')[-4000:]}")
        self.assertEqual(len(self.outputs), len(self.blocks))

    def test_every_block_shows_what_it_promises(self):
        for number, (pattern, commands) in enumerate(self.blocks):
            with self.subTest(commands.splitlines()[0]):
                if pattern:
                    self.assertRegex(self.outputs.get(number, "(did not run)"), re.compile(pattern, re.M))

    def test_other_commands_are_known(self):
        """What looks like a command and is not run is one of two."""
        with open(os.path.join(REPO, "README.md"), encoding="utf-8") as text:
            consoles = re.findall(r"^```console\n(.*?)^```$", text.read(), re.M | re.S)
        lines = {line.split("#")[0].strip() for block in consoles for line in block.splitlines()}
        self.assertEqual(lines, NOT_RUN)


if __name__ == "__main__":
    unittest.main()
