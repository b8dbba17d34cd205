# SPDX-License-Identifier: Apache-2.0
# labels: settings
"""The guest has the devices and the limits that it was given."""

import os
import pathlib
import re
import subprocess
import unittest

import machine

REPO = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVPROBE_BUILD", REPO / "build"))
# include/uapi/linux/capability.h
CAPABILITY_BITS = {"sys_admin": 21, "perfmon": 38, "bpf": 39}


class MachineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.settings = machine.settings()

    def test_numa_nodes(self):
        nodes = int(self.settings["numa_nodes"])
        shown = subprocess.run(["numactl", "-H"], capture_output=True, text=True, timeout=60, check=True).stdout
        print(shown)
        self.assertIn(f"available: {nodes} nodes", shown)
        sizes = [int(size) for size in re.findall(r"^node \d+ size: (\d+) MB$", shown, re.M)]
        self.assertEqual(len(sizes), nodes)
        self.assertGreater(min(sizes), 200)

    def test_memory_can_be_bound_to_each_node(self):
        for node in range(int(self.settings["numa_nodes"])):
            subprocess.run(["numactl", f"--membind={node}", "true"], timeout=60, check=True)

    def test_soft_roce(self):
        """The devices; what they can do is a program's to try, which must have been built."""
        devices = pathlib.Path("/sys/class/infiniband")
        found = sorted(entry.name for entry in devices.iterdir()) if devices.exists() else []
        self.assertEqual(found, ["rxe0", "rxe1"] if self.settings["roce"] == "1" else [])
        if found:
            self.assertTrue((BUILD / "tests" / "guest-rdma").exists(), "built without libibverbs")

    def test_second_disk(self):
        size = int(self.settings["disk_mb"]) << 20
        if not size:
            self.assertFalse(os.path.exists("/dev/vda"))
            return
        with open("/dev/vda", "r+b") as disk:
            self.assertEqual(disk.seek(0, os.SEEK_END), size)
            disk.seek(size - 4096)
            disk.write(b"kvprobe!" * 512)
            disk.flush()
            os.fsync(disk.fileno())
            os.posix_fadvise(disk.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            disk.seek(size - 4096)
            self.assertEqual(disk.read(), b"kvprobe!" * 512)

    def test_cgroup_version(self):
        unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        self.assertEqual(unified, self.settings["cgroup"] == "2")
        if not unified:
            self.assertTrue(os.path.exists("/sys/fs/cgroup/pids/tasks"))  # v2 has no such file

    def test_lockdown(self):
        mode = re.search(r"\[(\w+)\]", pathlib.Path("/sys/kernel/security/lockdown").read_text(encoding="utf-8"))[1]
        self.assertEqual(mode, self.settings["lockdown"])

    def test_tracefs(self):
        mounts = pathlib.Path("/proc/self/mounts").read_text(encoding="utf-8")
        self.assertEqual(" tracefs " in mounts, self.settings["tracefs"] == "1")

    def test_capabilities(self):
        wanted = machine.capabilities()
        self.assertEqual(os.geteuid() == 0, wanted is None)
        if wanted is not None:
            effective = int(re.search(r"^CapEff:\s*(\w+)$", pathlib.Path("/proc/self/status").read_text(), re.M)[1], 16)
            self.assertEqual(effective, sum(1 << CAPABILITY_BITS[name] for name in wanted))


if __name__ == "__main__":
    unittest.main()
