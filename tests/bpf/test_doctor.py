# SPDX-License-Identifier: Apache-2.0
# labels: kernel
"""kvprobe doctor: the verdict is proven, each obstacle is named with what mends it, and nothing stays behind."""

import errno
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
import time
import unittest

import collector
from collector import KVPROBE, Case, run_kvprobe
from test_rights import forbid_bpf, with_capabilities

KEYS = {"type", "can_trace", "verdict", "fix", "missing", "kernel", "machine", "attach_form", "form", "links", "loaded",
        "attached", "counted", "uprobe_multi", "ring_buffer", "jit", "cap_bpf", "cap_perfmon", "cap_sys_admin",
        "cap_sys_ptrace", "cap_dac_read_search", "bpf_errno", "tracefs", "lockdown", "memlock_bytes", "seccomp",
        "no_new_privs", "user_namespace", "host_pid_namespace", "unprivileged_bpf_disabled", "perf_event_paranoid",
        "workers", "workers_denied"}
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def findings(text):
    """name -> (state, text) of every finding, and the verdict."""
    lines = text.splitlines()
    found = [re.fullmatch(r"(ok|no|warn|info) +([^:]+): (.*)", line) for line in lines[:-1]]
    return {match[2]: (match[1], match[3]) for match in found if match}, lines[-1]


def kernel_before(major, minor):
    return tuple(map(int, re.match(r"(\d+)\.(\d+)", platform.release()).groups())) < (major, minor)


class Doctor(unittest.TestCase):
    """What needs no rights."""

    def test_help_teaches(self):
        ended = run_kvprobe("doctor", "--help")
        self.assertEqual(ended.returncode, 0)
        for word in ("Examples:", "kvprobe doctor --json", "Exit status:", "fix:"):
            self.assertIn(word, ended.stdout)
        self.assertIn("doctor", run_kvprobe("--help").stdout)

    def test_usage(self):
        for args in (["x"], ["--nonsense"], ["-p", "1"]):
            self.assertEqual(run_kvprobe("doctor", *args).returncode, 64)

    def test_fields_are_documented(self):
        words = set(re.findall(r"[a-z_]+", run_kvprobe("doctor", "--help").stdout))
        self.assertEqual(KEYS - words, set())

    def test_its_probe_is_not_a_workers(self):
        ended = run_kvprobe("list", KVPROBE)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("has no probes of provider kvstore", ended.stderr)


class Unprivileged(unittest.TestCase):
    """A binary that nobody may run, without any right."""

    def setUp(self):
        if os.geteuid() or not shutil.which("setpriv"):
            self.skipTest("giving up rights needs root and setpriv")
        self.binary = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="kvprobe-bpf-")))
        self.binary.chmod(0o755)
        self.binary /= "kvprobe"
        shutil.copy(KVPROBE, self.binary)
        self.binary.chmod(0o755)

    def run_as(self, *args, prefix=(), capabilities=(), **kwargs):
        caps = [f"--{kind}-caps=" + ",".join(f"+{name}" for name in capabilities) for kind in ("inh", "ambient")]
        return subprocess.run([*prefix, *AS_NOBODY, *(caps if capabilities else ()), self.binary, "doctor", *args],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=collector.TIMEOUT, **kwargs)

    def test_nobody(self):
        ended = self.run_as()
        self.assertEqual(ended.returncode, 3, ended.stdout + ended.stderr)
        found, verdict = findings(ended.stdout)
        self.assertEqual(verdict, "This user cannot trace here: rights are missing: CAP_BPF CAP_PERFMON")
        self.assertEqual(found["CAP_BPF"][0], "no")
        self.assertEqual(found["CAP_PERFMON"][0], "no")
        self.assertEqual(found["self-test"][0], "no")
        self.assertRegex(ended.stdout, rf"\n      fix: sudo setcap cap_\S+=ep {re.escape(str(self.binary))} ")

    def test_nobody_json(self):
        ended = self.run_as("--json")
        self.assertEqual(ended.returncode, 3)
        row = json.loads(ended.stdout)
        self.assertEqual((row["can_trace"], row["missing"], row["loaded"], row["counted"]),
                         (False, "CAP_BPF CAP_PERFMON", False, 0))
        self.assertIsNone(row["uprobe_multi"])
        self.assertTrue(row["fix"].startswith("sudo setcap "), row)
        self.assertEqual(set(row), KEYS)

    def test_the_fix_line_works(self):
        if not shutil.which("setcap"):
            self.skipTest("no setcap")
        command = json.loads(self.run_as("--json").stdout)["fix"].split()
        done = subprocess.run(command[1:], stderr=subprocess.PIPE, text=True, timeout=collector.TIMEOUT)
        if done.returncode:
            self.skipTest(f"this file system takes no capabilities: {done.stderr.strip()}")
        if os.statvfs(self.binary).f_flag & os.ST_NOSUID:
            self.skipTest("the scratch file system is mounted nosuid")
        ended = self.run_as()
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn("This user can trace here", ended.stdout)

    def test_two_capabilities_are_enough_with_multi_links(self):
        ended = self.run_as("--json", capabilities=("bpf", "perfmon"))
        row = json.loads(ended.stdout)
        if row["loaded"] and not row["uprobe_multi"] and not row["can_trace"]:
            self.assertEqual((ended.returncode, row["missing"]), (3, "CAP_SYS_ADMIN"))
            return
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual((row["can_trace"], row["counted"], row["cap_sys_ptrace"]), (True, 1, False))

    def test_unreadable_binary(self):
        self.binary.chmod(0o711)
        ended = self.run_as(capabilities=("bpf", "perfmon"))
        self.assertEqual(ended.returncode, 3, ended.stdout)
        self.assertIn("cannot read kvprobe's own binary", ended.stdout)

    def test_no_new_privileges_are_named(self):
        ended = self.run_as(prefix=["setpriv", "--no-new-privs"])
        self.assertEqual(findings(ended.stdout)[0]["no_new_privs"][0], "warn")


class DoctorHere(Case):
    """As root on a host on which kvprobe can attach."""

    def doctor(self, *args, prefix=(), **kwargs):
        return run_kvprobe("doctor", *args, prefix=prefix, **kwargs)

    def test_root(self):
        ended = self.doctor()
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(ended.stderr, "")
        found, verdict = findings(ended.stdout)
        form = collector.kernel_form()
        self.assertRegex(verdict, rf"^This user can trace here \(form {form}, one (link per file|perf event per site)\)\.$")
        self.assertNotIn("no", {state for state, _ in found.values()})
        self.assertIn(f"kernel {platform.release()}", found)
        self.assertIn(f"attach form {form}", found)
        for name in ("BPF system call", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE",
                     "CAP_DAC_READ_SEARCH", "uprobe_multi", "ring buffer", "JIT", "tracefs", "lockdown", "memlock",
                     "seccomp", "PID namespace", "unprivileged_bpf_disabled", "perf_event_paranoid", "workers",
                     "self-test"):
            self.assertIn(name, found)
        self.assertIn("one firing counted", found["self-test"][1])

    def test_json(self):
        ended = self.doctor("--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(len(ended.stdout.splitlines()), 1)
        row = json.loads(ended.stdout)
        self.assertEqual(set(row), KEYS)
        self.assertFalse([key for key, value in row.items() if isinstance(value, (dict, list))])
        self.assertEqual((row["type"], row["can_trace"], row["attached"], row["counted"], row["fix"], row["missing"]),
                         ("doctor", True, True, 1, None, ""))
        self.assertEqual(row["attach_form"], collector.kernel_form())
        self.assertEqual(row["kernel"], platform.release())
        self.assertEqual(row["bpf_errno"], errno.EINVAL)
        if not kernel_before(6, 8):
            self.assertTrue(row["uprobe_multi"])

    def test_single(self):
        row = json.loads(self.doctor("--single", "--json").stdout)
        self.assertEqual((row["can_trace"], row["links"], row["counted"], row["uprobe_multi"]),
                         (True, "single", 1, None))

    def test_more(self):
        plain, more = self.doctor().stdout, self.doctor("-v").stdout
        self.assertGreater(len(more.splitlines()), len(plain.splitlines()))

    def test_workers_are_counted(self):
        before = json.loads(self.doctor("--json").stdout)["workers"]
        worker = self.worker()
        self.assertGreaterEqual(json.loads(self.doctor("--json").stdout)["workers"], 1)
        self.assertIsInstance(before, int)
        self.assertEqual(worker.quit(), 0)

    def test_many_at_once_do_not_count_each_other(self):
        running = [subprocess.Popen([KVPROBE, "doctor", "--json"], stdout=subprocess.PIPE, text=True)
                   for _ in range(6)]
        rows = [json.loads(process.communicate(timeout=collector.TIMEOUT)[0]) for process in running]
        self.assertEqual([(row["can_trace"], row["counted"]) for row in rows], [(True, 1)] * 6)

    def test_each_capability_missing(self):
        for have, missing in (((), "CAP_BPF CAP_PERFMON"), (("bpf",), "CAP_PERFMON"), (("perfmon",), "CAP_BPF")):
            ended = self.doctor("--json", prefix=with_capabilities(*have))
            row = json.loads(ended.stdout)
            self.assertEqual((ended.returncode, row["can_trace"], row["missing"]), (3, False, missing), row)
            self.assertIn("setcap", row["fix"])
        ended = self.doctor("--json", prefix=with_capabilities("sys_admin"))
        self.assertEqual((ended.returncode, json.loads(ended.stdout)["missing"]), (0, ""), ended.stdout)

    def test_single_without_admin(self):
        ended = self.doctor("--single", "--json", prefix=with_capabilities("bpf", "perfmon"))
        row = json.loads(ended.stdout)
        if ended.returncode == 0:
            self.assertEqual(row["counted"], 1)  # a kernel that does not ask for it
        else:
            self.assertEqual((ended.returncode, row["missing"]), (3, "CAP_SYS_ADMIN"), row)
            self.assertIn("setcap cap_sys_admin", row["fix"])

    def test_bpf_forbidden(self):
        for error, words in ((errno.EPERM, "a seccomp filter is in force"), (errno.ENOSYS, "answers ENOSYS under a seccomp")):
            ended = self.doctor(preexec_fn=forbid_bpf(error))
            self.assertEqual(ended.returncode, 3, ended.stdout)
            found, verdict = findings(ended.stdout)
            self.assertEqual(found["BPF system call"][0], "no")
            self.assertIn(words, verdict)
            self.assertEqual(found["seccomp"][0], "warn")
            self.assertIn("fix: allow bpf", ended.stdout)

    def test_user_namespace(self):
        prefix = ["unshare", "--user", "--map-root-user"]
        if subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, timeout=collector.TIMEOUT).returncode:
            self.skipTest("no user namespaces here")
        ended = self.doctor(prefix=prefix)
        self.assertEqual(ended.returncode, 3, ended.stdout)
        self.assertEqual(findings(ended.stdout)[0]["user namespace"][0], "warn")

    def in_changed_mounts(self, script, *args, **kwargs):
        probe = subprocess.run(["unshare", "--mount", "sh", "-c", script], stderr=subprocess.PIPE, text=True,
                               timeout=collector.TIMEOUT)
        if probe.returncode:
            self.skipTest(f"cannot prepare a mount namespace: {probe.stderr.strip()}")
        return self.doctor(*args, prefix=["unshare", "--mount", "sh", "-c", f'{script} && exec "$0" "$@"'], **kwargs)

    def test_no_tracefs(self):
        script = "for i in 1 2 3; do umount -l -t tracefs -a; done; ! grep -q ' tracefs ' /proc/self/mounts"
        ended = self.in_changed_mounts(script, "--json")
        row = json.loads(ended.stdout)
        self.assertIsNone(row["tracefs"])
        self.assertEqual((ended.returncode, row["can_trace"]), (0, True), row)

    def test_no_tracefs_where_it_is_needed(self):
        script = "mount -t tmpfs none /sys/bus/event_source/devices && mount -t tmpfs none /sys/kernel/tracing"
        ended = self.in_changed_mounts(script, "--single")
        self.assertEqual(ended.returncode, 3, ended.stdout)
        found, verdict = findings(ended.stdout)
        self.assertEqual(found["tracefs"][0], "no")
        self.assertIn("tracefs", verdict)
        self.assertIn("fix: mount -t tracefs tracefs /sys/kernel/tracing", ended.stdout)

    def test_lockdown_is_named(self):
        if not os.path.isdir("/sys/kernel/security"):
            self.skipTest("no /sys/kernel/security")
        script = ("mount -t tmpfs none /sys/kernel/security && "
                  "echo 'none integrity [confidentiality]' > /sys/kernel/security/lockdown")
        found = findings(self.in_changed_mounts(script, preexec_fn=forbid_bpf(errno.EPERM)).stdout)[0]
        self.assertEqual(found["lockdown"][0], "warn")
        self.assertIn("confidentiality", found["lockdown"][1])
        self.assertEqual(findings(self.in_changed_mounts(script).stdout)[0]["lockdown"][0], "ok")

    def test_pid_namespace(self):
        ended = self.doctor(prefix=["unshare", "--pid", "--fork", "--mount-proc"])
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        found, _ = findings(ended.stdout)
        self.assertEqual(found["PID namespace"][0], "warn")
        for prefix in (["unshare", "--pid", "--fork"], ["unshare", "--mount", "sh", "-c",
                                                        'umount -l /proc && exec "$0" "$@"']):
            ended = self.doctor(prefix=prefix)
            self.assertIn(ended.returncode, (0, 3), ended.stdout + ended.stderr)
            self.assertEqual(findings(ended.stdout)[0]["workers"][0], "warn")

    def programs(self):
        """Our programs in the kernel."""
        bpftool = shutil.which("bpftool", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        if not bpftool:
            self.skipTest("no bpftool")
        for _ in range(20):  # a listing fails when a program goes away meanwhile
            listed = subprocess.run([bpftool, "-j", "prog", "list"], stdout=subprocess.PIPE, timeout=collector.TIMEOUT)
            if listed.returncode == 0:
                return {program["id"] for program in json.loads(listed.stdout)
                        if program.get("name") in ("kv_done", "kv_op_log")}
            time.sleep(0.1)
        self.fail("bpftool does not list the programs")

    def held_programs(self, pids="*"):
        """The programs that processes have open, themselves or through a link."""
        held = set()
        for path in pathlib.Path("/proc").glob(f"{pids}/fdinfo/*"):
            try:
                held.update(map(int, re.findall(r"^prog_id:\s*(\d+)$", path.read_text(), re.M)))
            except OSError:
                continue  # it has ended, or the descriptor was closed
        return held

    def test_nothing_stays_attached(self):
        stat_run = self.collector("stat", "--file", collector.SITE_WORKER)
        self.assertTrue(self.programs() & self.held_programs(stat_run.pid))  # the check sees what there is
        for args in ([], ["--single"]):
            self.assertEqual(self.doctor(*args).returncode, 0)
            collector.wait_until(lambda: not self.programs() - self.held_programs("[0-9]*"), "no program without a holder")
        self.assertEqual(stat_run.stop(), 0)
        events = pathlib.Path("/sys/kernel/tracing/uprobe_events")
        if events.exists():
            self.assertNotIn("kvprobe", events.read_text())

    def test_others_point_to_it(self):
        for command in ("stat", "log"):
            ended = run_kvprobe(command, "--file", collector.SITE_WORKER, prefix=with_capabilities())
            self.assertEqual(ended.returncode, 3)
            self.assertIn("kvprobe doctor says more", ended.stderr)


if __name__ == "__main__":
    unittest.main()
