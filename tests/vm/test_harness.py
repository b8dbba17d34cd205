# SPDX-License-Identifier: Apache-2.0
"""The harness reports a guest that panics, hangs or runs a broken BPF program, with the cause, and leaves nothing."""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", REPO / "build"))
sys.path.insert(0, str(REPO / "tests"))

from concurrently import wait_until  # noqa: E402
from runner import plan  # noqa: E402
from vm import boot, kernels, matrix  # noqa: E402
from vm.guest import Guest  # noqa: E402

KERNEL = kernels.SERIES[-1]
START_SECONDS = 120
# The verifier refuses it: a pointer that may be null is followed.
BROKEN = r"""
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, int);
	__type(value, long);
} table SEC(".maps");
SEC("uprobe") int broken(void *ctx)
{
	int key = 1;
	long *value = bpf_map_lookup_elem(&table, &key);
	return (int)*value;
}
char LICENSE[] SEC("license") = "GPL";
"""
# A program of a suite, as the runner knows them.
LOADER = """#!/bin/sh
echo 1..1
if bpftool prog load {object} /sys/fs/bpf/broken 2>&1; then
    echo 'ok 1 - loads'
else
    echo 'not ok 1 - loads'
    exit 1
fi
"""


def processes_naming(text):
    """The pids of all processes but this one whose command line has the text."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


class HarnessCase(unittest.TestCase):
    """Each test has a directory for temporary files of its own, in which nothing may be left."""

    @classmethod
    def setUpClass(cls):
        for program in ("qemu-system-x86_64", "setpriv", "depmod"):
            if not shutil.which(program):
                raise unittest.SkipTest(f"no {program}")
        try:
            cls.kernel = kernels.obtain(KERNEL)
        except kernels.NoSuchKernel as error:
            if kernels.is_debian():
                raise
            raise unittest.SkipTest(str(error)) from error

    def setUp(self):
        self.temporary = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvprobe-harness-")))
        before, tempfile.tempdir = tempfile.tempdir, str(self.temporary)
        self.addCleanup(setattr, tempfile, "tempdir", before)
        self.mounts = pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8")

    def assert_nothing_left(self):
        self.assertEqual([path.name for path in self.temporary.iterdir() if path.name != "kvprobe-tests.lock"], [])
        self.assertEqual(processes_naming(str(self.temporary)), [])
        self.assertEqual(pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8"), self.mounts)

    def boot(self, script, silence=boot.SILENCE_SECONDS, **options):
        return boot.run(Guest(self.kernel, memory_mb=1024, **options), script, BUILD, silence=silence)


class EndTest(HarnessCase):
    def test_status_output_and_files_come_back(self):
        seen = {}

        def collect(results):
            seen["file"] = (results / "file").read_text()

        outcome = boot.run(Guest(self.kernel, memory_mb=1024), "uname -r; pwd; echo made > /mnt/file; exit 7", BUILD,
                           collect=collect)
        self.assertIsNone(outcome.trouble, outcome.console)
        self.assertEqual(outcome.status, 7)
        self.assertEqual(outcome.output.splitlines(), [self.kernel.release, str(REPO)])
        self.assertEqual(seen, {"file": "made\n"})
        self.assertGreater(outcome.boot_seconds, 0)
        self.assertLess(outcome.boot_seconds, outcome.seconds)
        self.assert_nothing_left()

    def test_what_a_guest_writes_stays_in_it(self):
        mark = REPO / "tests" / f"written-{os.getpid()}"
        outcome = self.boot(f"echo x > {mark} && cat {mark}; echo y > /etc/{mark.name} && cat /etc/{mark.name}")
        self.assertEqual(outcome.output.splitlines(), ["x", "y"])
        self.assertFalse(mark.exists())
        self.assertFalse(os.path.exists(f"/etc/{mark.name}"))

    def test_panic(self):
        outcome = self.boot("echo before; echo c > /proc/sysrq-trigger; echo after")
        self.assertIsNone(outcome.status)
        self.assertIn("went down", outcome.trouble)
        self.assertIn("sysrq triggered crash", outcome.trouble)
        self.assertIn("sysrq triggered crash", "\n".join(outcome.console))
        self.assertEqual(outcome.output, "before\n")
        self.assert_nothing_left()

    def test_warning_of_the_kernel(self):
        # At the level of the kernel's own WARN(), which no test can make happen.
        outcome = self.boot("echo '<4>WARNING: CPU: 0 PID: 1 at kernel/nowhere.c:1' > /dev/kmsg; sleep 1")
        self.assertEqual(outcome.status, 0)
        self.assertIn("complained: ", outcome.trouble)
        self.assertIn("nowhere.c", outcome.trouble)

    def test_job_that_hangs(self):
        outcome = self.boot("echo before; sleep 1000", limit=25)
        self.assertIsNone(outcome.status)
        self.assertIn("time limit", outcome.trouble)
        self.assertEqual(outcome.output, "before\n")
        self.assert_nothing_left()

    def test_guest_that_hangs(self):
        # The only processor is taken away from everything else; since 6.12 something is left to the others otherwise.
        script = ("echo -1 > /proc/sys/kernel/sched_rt_runtime_us\n"
                  "for share in /sys/kernel/debug/sched/fair_server/cpu*/runtime; do\n"
                  "    [ ! -e $share ] || echo 0 > $share\ndone\n"
                  "exec chrt --fifo 99 sh -c 'while :; do :; done'")
        outcome = self.boot(script, silence=20, limit=120)
        self.assertIsNone(outcome.status)
        self.assertIn("hangs", outcome.trouble)
        self.assertTrue(any("job" in line for line in outcome.console), outcome.console)
        self.assert_nothing_left()

    def test_guest_that_cannot_start(self):
        empty = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=self.temporary.parent)))
        shutil.copytree(self.kernel.directory, empty / "kernel")
        module = next((empty / "kernel" / "modules").glob("overlay.ko"))
        module.write_bytes(b"not a module")
        broken = kernels.Kernel(self.kernel.release, self.kernel.version, empty / "kernel")
        outcome = boot.run(Guest(broken, memory_mb=1024), "true", BUILD)
        self.assertIsNone(outcome.status)
        self.assertIn("insmod overlay.ko", outcome.trouble)


class SuiteTest(HarnessCase):
    def run_broken(self, build, say):
        """The programs of that build tree whose names say that they are broken."""
        args = argparse.Namespace(build=build, pattern="broken", verbose=False, keep=False, guest_suites=["guest"],
                                  kernels=[KERNEL])
        return matrix.run_guest(Guest(self.kernel, memory_mb=1024), {"guest": plan.KERNEL_LABEL}, args, say)

    def test_broken_bpf_program_is_a_failure_with_the_verifiers_words(self):
        build = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvprobe-broken-",
                                                                           dir=self.temporary.parent)))
        (build / "tests").mkdir()
        source, program = build / "broken.bpf.c", build / "tests" / "guest-broken"
        source.write_text(BROKEN)
        multiarch = subprocess.run(["gcc", "-print-multiarch"], capture_output=True, text=True, timeout=60, check=True)
        subprocess.run(["clang", "-target", "bpf", "-O2", "-g", f"-I/usr/include/{multiarch.stdout.strip()}", "-c",
                        source, "-o", build / "broken.o"], check=True, timeout=60)
        program.write_text(LOADER.format(object=build / "broken.o"))
        program.chmod(0o755)
        said = []
        cases = self.run_broken(build, said.append)
        outcomes = {case.name: case for case in cases}
        self.assertEqual(outcomes["loads"].outcome, "failed")
        self.assertEqual(outcomes["loads"].program.preset, self.kernel.label)
        self.assertIn("invalid mem access", "\n".join(outcomes["loads"].detail))
        self.assertEqual(outcomes["boots, runs and powers off"].outcome, "passed")
        self.assertIn("1 failed", said[-1])
        self.assert_nothing_left()

    def test_panic_in_the_middle_keeps_what_had_passed(self):
        build = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvprobe-panic-",
                                                                           dir=self.temporary.parent)))
        (build / "tests").mkdir()
        for name, last in (("a", "true"), ("b", "echo c > /proc/sysrq-trigger"), ("c", "true")):
            program = build / "tests" / f"guest-broken-{name}"
            program.write_text(f"#!/bin/sh\necho 1..1\n{last}\necho 'ok 1 - {name}'\n")
            program.chmod(0o755)
        cases = self.run_broken(build, lambda text: None)
        self.assertEqual([(case.name, case.outcome) for case in cases],
                         [("a", "passed"), ("boots, runs and powers off", "failed")])
        self.assertIn("sysrq triggered crash", "\n".join(cases[-1].detail))


class CacheTest(HarnessCase):
    """A cache that cannot be used is named; one that cannot be written to is used."""

    def obtain(self, cache):
        with mock.patch.object(kernels, "cache_directory", lambda: cache):
            said = []
            return kernels.obtain(KERNEL, said.append), said

    def test_no_place_for_it(self):
        with self.assertRaisesRegex(kernels.KernelError, "Not a directory"):
            self.obtain(pathlib.Path("/etc/passwd/cache"))

    def test_disk_full(self):
        with mock.patch.object(kernels, "fetched", side_effect=OSError(28, "No space left on device")):
            with self.assertRaisesRegex(kernels.KernelError, "No space left"):
                self.obtain(self.temporary / "cache")
            kernel, said = self.obtain(kernels.cache_directory())
        self.assertEqual(kernel, self.kernel)
        self.assertRegex(said[0], "using the cached kernel .*No space left")

    def test_leftovers_are_removed(self):
        left = self.temporary / "cache" / "unpack-x" / "root"
        left.mkdir(parents=True)
        with mock.patch.object(kernels, "fetched", lambda wanted, have, cache, say: self.kernel):
            self.obtain(self.temporary / "cache")
        self.assertFalse(left.parent.exists())


class NoKernelTest(unittest.TestCase):
    """A kernel that apt does not know."""

    def outcome(self, debian, asked_for, error):
        with mock.patch.object(kernels, "is_debian", lambda: debian):
            case = matrix.no_kernel("6.1", error, asked_for)
        self.assertIn("which one", case.reason or "\n".join(case.detail))
        return case.outcome

    def test_is_expected_of_debian_only_unless_asked_for(self):
        error = kernels.NoSuchKernel("which one")
        self.assertEqual(self.outcome(False, False, error), "skipped")
        self.assertEqual(self.outcome(False, True, error), "failed")
        self.assertEqual(self.outcome(True, False, error), "failed")

    def test_other_trouble_is_a_failure(self):
        self.assertEqual(self.outcome(False, False, kernels.KernelError("which one: disk full")), "failed")


class InterruptTest(HarnessCase):
    def start(self):
        """The runner with a guest in it that is up; returns the process."""
        env = {**os.environ, "TMPDIR": str(self.temporary)}
        runner = subprocess.Popen([sys.executable, str(REPO / "tests" / "run.py"), "vm", "--kernel", KERNEL, "--build",
                                   str(BUILD), "guest"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env=env)
        self.addCleanup(lambda: runner.poll() is None and runner.kill())
        wait_until(lambda: list(self.temporary.glob("kvprobe-vm-*/results/output")), "the guest's job", START_SECONDS)
        return runner

    def test_signals_end_everything(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                runner = self.start()
                runner.send_signal(number)
                self.assertEqual(runner.wait(60), 130)
                self.assert_nothing_left()

    def test_kill_9_takes_the_guest_along_and_the_next_run_sweeps(self):
        runner = self.start()
        runner.kill()
        runner.wait(60)
        wait_until(lambda: not processes_naming(str(self.temporary)), "the guest's end")
        boot.sweep()
        self.assert_nothing_left()


class ShellTest(HarnessCase):
    def start(self, *command):
        env = {**os.environ, "TMPDIR": str(self.temporary)}
        shell = subprocess.Popen([sys.executable, str(REPO / "tests" / "vm" / "shell.py"), "--kernel", KERNEL, "--build",
                                  str(BUILD), "--caps", "", "--", *command], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.addCleanup(shell.wait)
        self.addCleanup(shell.kill)
        for pipe in (shell.stdout, shell.stderr):
            self.addCleanup(pipe.close)
        return shell

    def test_a_command_has_its_output_and_its_status(self):
        shell = self.start("sh", "-c", "echo \"$0\"; id -u; echo to stderr >&2; exit 5", "a 'quoted' $word")
        output, errors = shell.communicate(timeout=START_SECONDS)
        self.assertEqual(output.splitlines(), ["a 'quoted' $word", "65534", "to stderr"], errors)
        self.assertEqual(shell.returncode, 5)
        self.assert_nothing_left()

    def test_no_one_reads_on(self):
        shell = self.start("sh", "-c", "echo begun; sleep 3; echo more; sleep 1000")
        self.assertEqual(shell.stdout.readline(), "begun\n")
        shell.stdout.close()
        self.assertEqual((shell.wait(START_SECONDS), shell.stderr.read()), (1, ""))
        self.assert_nothing_left()

    def test_wrong_options(self):
        for option, value, word in (("--caps", "bpf,nonsense", "no capability 'nonsense'"), ("--caps", "all", "'all'"),
                                    ("--disk", "-5", "--disk"), ("--numa", "9", "--numa"),
                                    ("--kernel", "4.9", "apt knows no Debian kernel")):
            ended = subprocess.run([sys.executable, REPO / "tests" / "vm" / "shell.py", option, value],
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_SECONDS)
            self.assertIn(ended.returncode, (1, 2))
            self.assertIn(word, ended.stderr)
            self.assertNotIn("Traceback", ended.stderr)

    def test_output_comes_as_it_is_made_and_ctrl_c_ends_the_guest(self):
        shell = self.start("sh", "-c", "echo begun; sleep 1000")
        self.assertEqual(shell.stdout.readline(), "begun\n")
        shell.send_signal(signal.SIGINT)
        _, errors = shell.communicate(timeout=60)
        self.assertEqual((shell.returncode, errors), (130, ""))
        self.assert_nothing_left()


if __name__ == "__main__":
    unittest.main()
