# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""Each way in which kvprobe may not or cannot do its work has its message and its exit code."""

import ctypes
import errno
import os
import pathlib
import platform
import shutil
import struct
import subprocess
import time
import unittest

import collector
from collector import KVPROBE, SITE_WORKER, Case, run_kvprobe

SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine())


# tracefs is reached in two ways; without sysfs' type of uprobe events it is the only way to single uprobes.
HIDE_TRACEFS = ("mount -t tmpfs none /sys/bus/event_source/devices && mount -t tmpfs none /sys/kernel/tracing && "
                "{ ! [ -d /sys/kernel/debug ] || mount -t tmpfs none /sys/kernel/debug; }")


def with_capabilities(*names):
    """A command prefix: root, but with these capabilities only."""
    keep = "".join(f",+{name}" for name in names)
    return ["setpriv", f"--bounding-set=-all{keep}", f"--inh-caps=-all{keep}"]


def forbid_bpf(error):
    """Makes bpf(2) of the process to be fail with this errno: what a container's seccomp profile does."""
    ret_allow, ret_errno = 0x7fff0000, 0x00050000 | error
    filters = b"".join(struct.pack("HBBI", *f) for f in (
        (0x20, 0, 0, 0),             # load the system call's number
        (0x15, 0, 1, SYS_BPF),       # bpf?
        (0x06, 0, 0, ret_errno),
        (0x06, 0, 0, ret_allow)))
    buffer = ctypes.create_string_buffer(filters)
    program = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)

    def apply():
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
            os._exit(99)
    apply.keep = buffer
    return apply


class UsageTest(unittest.TestCase):
    def test_wrong_usage_is_64(self):
        for args in ([], ["nonsense"], ["log", "--nonsense"], ["stat", "-i", "0"], ["stat", "-i", "x"],
                     ["stat", "-c", "-1"], ["stat", "--sort", "colour"], ["stat", "--level", "HIGH"],
                     ["stat", "--attach=nop7"], ["stat", "--workers", "0"], ["stat", "--workers", "5000"],
                     ["log", "-n", "0"], ["log", "--op", "batch"], ["log", "--min-us", "-1"], ["log", "--ring-mb", "3"],
                     ["log", "-d", "-1"], ["stat", "extra"], ["check"], ["check", "--def", "x"], ["help", "nonsense"],
                     ["list", "-p", "1", "file"]):
            with self.subTest(args=args):
                ended = run_kvprobe(*args)
                self.assertEqual(ended.returncode, 64, ended.stderr)
                self.assertTrue(ended.stderr)
                self.assertEqual(ended.stdout, "")

    def test_pids_that_are_none_are_64(self):
        for command in ("log", "stat", "list"):
            for pid in ("0", "-1", "2147483648", "99999999999999999999", "x", "1,", ",1", "1 ", "0x10", ""):
                with self.subTest(command=command, pid=pid):
                    self.assertEqual(run_kvprobe(command, "-p", pid).returncode, 64)

    def test_unknown_command_lists_the_commands(self):
        self.assertIn("list log stat xfer check", run_kvprobe("slow").stderr)

    def test_help(self):
        for args in (["--help"], ["help"], ["--version"], ["help", "log"]):
            ended = run_kvprobe(*args)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("kvprobe", ended.stdout)
        for command in ("list", "log", "stat", "check"):
            self.assertIn("Examples:", run_kvprobe(command, "--help").stdout)

    def test_list_of_a_file_needs_no_rights(self):
        with open(SITE_WORKER, "rb") as file:  # the build tree may be closed to others: hand the file over
            ended = run_kvprobe("list", "/proc/self/fd/0", prefix=[]) if os.geteuid() else subprocess.run(
                ["setpriv", "--bounding-set=-all", "--inh-caps=-all", KVPROBE, "list", SITE_WORKER], stdin=file,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=collector.TIMEOUT)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("RC_BATCH_PUT_MULTI_INTERNAL", ended.stdout)

    def test_files_that_are_no_binaries(self):
        for path, word in (("/etc/passwd", "not an ELF file"), ("/nonexistent", "No such file"), ("/", "regular file"),
                           (shutil.which("true"), "has no probes")):
            ended = run_kvprobe("list", path)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(word, ended.stderr)


class NoMatchTest(Case):
    def dead_pid(self):
        child = subprocess.Popen(["true"])
        child.wait()
        return child.pid

    def test_dead_pid(self):
        for command in ("log", "stat", "list"):
            pid = self.dead_pid()
            ended = run_kvprobe(command, "-p", pid)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(f"no process {pid}", ended.stderr)

    def test_process_without_probes(self):
        child = subprocess.Popen(["sleep", "60"])
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        for command in ("log", "stat", "list"):
            ended = run_kvprobe(command, "-p", child.pid)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn("has no probes", ended.stderr)

    def test_thread_of_a_process(self):
        worker = self.worker()
        worker.send("fire RC_REMOVE 1 2000000000 0 1 0 0")
        tasks = collector.wait_until(lambda: [int(t) for t in os.listdir(f"/proc/{worker.pid}/task")
                                              if int(t) != worker.pid], "a thread")
        ended = run_kvprobe("stat", "-p", tasks[0])
        self.assertEqual(ended.returncode, 2)
        self.assertIn(f"thread of process {worker.pid}", ended.stderr)

    def test_no_key_of_that_name(self):
        self.assertEqual(run_kvprobe("stat", "--perf-key", "NO_SUCH").returncode, 2)


class RightsTest(Case):
    def setUp(self):
        super().setUp()
        if not shutil.which("setpriv"):
            self.skipTest("no setpriv")

    def test_no_capabilities(self):
        for command in ("stat", "log"):
            ended = run_kvprobe(command, "--file", SITE_WORKER, prefix=with_capabilities())
            self.assertEqual(ended.returncode, 3, ended.stderr)
            self.assertIn("CAP_BPF and CAP_PERFMON are missing", ended.stderr)
            self.assertIn("setcap cap_bpf,cap_perfmon", ended.stderr)
            self.assertEqual(ended.stdout, "")

    def test_cap_bpf_alone(self):
        ended = run_kvprobe("stat", "--file", SITE_WORKER, prefix=with_capabilities("bpf"))
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("CAP_PERFMON is missing", ended.stderr)

    def test_cap_bpf_and_perfmon_are_enough_with_multi_links(self):
        if not collector.has_multi():
            self.skipTest("this kernel has no uprobe_multi")
        worker = self.worker()
        stat = self.collector("stat", "--json", "-v", "--file", SITE_WORKER,
                              prefix=with_capabilities("bpf", "perfmon"))
        worker.fire("RC_REMOVE", 2, 50)
        self.assertEqual(stat.stop(), 0, stat.errors)
        self.assertEqual(stat.by_key(worker.pid)["RC_REMOVE"]["calls"], 100)

    def test_without_multi_links_the_same_message_comes_by_itself(self):
        if collector.has_multi():
            self.skipTest("this kernel has uprobe_multi: nothing else is wanted")
        for command in (["stat", "-d", "0.1"], ["log", "-d", "0.1"]):
            ended = run_kvprobe(*command, "--file", SITE_WORKER, prefix=with_capabilities("bpf", "perfmon"))
            self.assertEqual(ended.returncode, 3 if "sys_admin" in collector.attach_capabilities() else 0, ended.stderr)
            if ended.returncode:
                self.assertIn("CAP_SYS_ADMIN is missing", ended.stderr)
                self.assertIn("setcap cap_sys_admin", ended.stderr)
            ended = run_kvprobe(*command, "--file", SITE_WORKER,
                                prefix=with_capabilities("bpf", "perfmon", "sys_admin"))
            self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_single_uprobes_say_what_they_want(self):
        ended = run_kvprobe("stat", "--single", "--perf-key", "RC_REMOVE", "-d", "0.1", "--file", SITE_WORKER,
                            prefix=with_capabilities("bpf", "perfmon"))
        if ended.returncode != 0:  # kernels since July 2025
            self.assertEqual(ended.returncode, 3, ended.stderr)
            self.assertIn("CAP_SYS_ADMIN", ended.stderr)

    def test_other_processes_want_cap_sys_ptrace(self):
        worker = self.worker()
        for command in ("stat", "log", "list"):
            ended = run_kvprobe(command, "-p", worker.pid, prefix=with_capabilities("bpf", "perfmon"))
            self.assertEqual(ended.returncode, 3, ended.stderr)
            self.assertIn("CAP_SYS_PTRACE", ended.stderr)
        ended = run_kvprobe("stat", "-d", "0.1", prefix=with_capabilities("bpf", "perfmon"))
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("could not be looked into", ended.stderr)

    def test_documented_capabilities_suffice_for_pids(self):
        worker = self.worker()
        stat = self.collector("stat", "--json", "-p", worker.pid,
                              prefix=with_capabilities(*collector.attach_capabilities(), "sys_ptrace",
                                                        "dac_read_search"))
        worker.fire("RC_REMOVE", 1, 5)
        self.assertEqual(stat.stop(), 0)
        self.assertEqual(stat.by_key(worker.pid)["RC_REMOVE"]["calls"], 5)


class KernelTest(Case):
    def run_without_bpf(self, error, prefix=()):
        return subprocess.run([*prefix, KVPROBE, "stat", "--file", SITE_WORKER], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=collector.TIMEOUT,
                              preexec_fn=forbid_bpf(error))

    def test_bpf_forbidden_by_seccomp(self):
        ended = self.run_without_bpf(errno.EPERM)
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("seccomp", ended.stderr)

    def test_bpf_not_there(self):
        ended = self.run_without_bpf(errno.ENOSYS)
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("ENOSYS", ended.stderr)

    def in_changed_sys(self, script, *args, **kwargs):
        """Run kvprobe in a mount namespace in which script has changed something."""
        probe = subprocess.run(["unshare", "--mount", "sh", "-c", script], stderr=subprocess.PIPE, text=True)
        if probe.returncode:
            self.skipTest(f"cannot prepare a mount namespace: {probe.stderr.strip()}")
        return subprocess.run(["unshare", "--mount", "sh", "-c", f'{script} && exec "$0" "$@"', KVPROBE, *args],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=collector.TIMEOUT,
                              **kwargs)

    def test_lockdown_is_named(self):
        security = pathlib.Path("/sys/kernel/security")
        if not security.is_dir():
            self.skipTest("no /sys/kernel/security")
        script = (f"mount -t tmpfs none {security} && "
                  f"echo 'none integrity [confidentiality]' > {security}/lockdown")
        ended = self.in_changed_sys(script, "stat", "--file", SITE_WORKER, preexec_fn=forbid_bpf(errno.EPERM))
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("confidentiality", ended.stderr)

    def test_no_tracefs_is_named_where_it_is_needed(self):
        script = HIDE_TRACEFS
        ended = self.in_changed_sys(script, "stat", "--single", "--file", SITE_WORKER, "--perf-key", "RC_REMOVE")
        self.assertEqual(ended.returncode, 3, ended.stderr)
        self.assertIn("mount -t tracefs", ended.stderr)

    def test_proc_that_is_not_ours(self):
        for prefix, words in ((["unshare", "--pid", "--fork"], "another pid namespace"),
                              (["unshare", "--mount", "sh", "-c", 'umount -l /proc && exec "$0" "$@"'],
                               "/proc is not mounted")):
            ended = run_kvprobe("stat", "-d", "0.1", prefix=prefix)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertIn(words, ended.stderr)

    def test_workers_that_proc_hides_keep_their_row(self):
        worker = self.worker()
        caps = ",".join(f"+{name}" for name in collector.attach_capabilities())
        prefix = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$0" "$@"',
                  "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={caps}",
                  f"--ambient-caps={caps}"]
        stat = self.collector("stat", "--json", "--file", SITE_WORKER, "-i", "0.5", "-c", "6", prefix=prefix)
        for _ in range(3):
            worker.fire("RC_REMOVE", 1, 5)
            time.sleep(1.1)  # the collector looks for ended workers once a second
        stat.finish()
        rows = [row for row in stat.rows() if row["pid"] == worker.pid]
        self.assertEqual([(row["calls"], row["exited"]) for row in rows], [(15, False)], stat.errors)

    def test_few_descriptors_are_named(self):
        worker = self.worker()
        ended = run_kvprobe("stat", "-d", "0.1", "-p", worker.pid, prefix=["prlimit", "--nofile=10:10"])
        self.assertEqual(ended.returncode, 1)
        self.assertIn("ulimit -n", ended.stderr)
        ended = run_kvprobe("stat", "-d", "0.1", "-p", worker.pid, prefix=["prlimit", "--nofile=10:1024"])
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_multi_links_need_no_tracefs(self):
        script = HIDE_TRACEFS
        ended = self.in_changed_sys(script, "stat", "-v", "--file", SITE_WORKER, "-d", "0.1")
        if "no uprobe_multi" in ended.stderr:
            self.skipTest("this kernel has no uprobe_multi")
        self.assertEqual(ended.returncode, 0, ended.stderr)


if __name__ == "__main__":
    unittest.main()
