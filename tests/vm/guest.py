# SPDX-License-Identifier: Apache-2.0
"""What a guest is made of, as a QEMU command line and as the settings that init reads."""

import os
import pathlib
import re
import shutil
from dataclasses import dataclass

from runner import plan

from .kernels import Kernel, KernelError

LIMIT_SECONDS = 900
TRUSTED_FLAGS = {"vmx", "svm"}


def accelerator():
    """KVM where the processor has it. A /dev/kvm whose processor does not say vmx or svm belongs to a host that is a
    guest itself, of a kind in which Debian's kernels do not start."""
    forced = os.environ.get("KVPROBE_VM_ACCEL")
    if forced:
        if forced not in ("kvm", "tcg"):
            raise KernelError(f"KVPROBE_VM_ACCEL is '{forced}': it can be kvm or tcg")
        return forced
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    flags = re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    return "kvm" if flags and TRUSTED_FLAGS & set(flags[1].split()) else "tcg"


@dataclass(frozen=True)
class Guest:
    """A machine to boot.

    numa_nodes: memory is divided among so many; the one processor is in the first.
    roce: soft-RoCE devices rxe0 and rxe1 on the two ends of a veth pair, kvroce0 and kvroce1.
    disk_mb: a second disk, /dev/vda. capabilities: the job runs as nobody with these alone; None: as root.
    lockdown: integrity or confidentiality. tracefs: whether it is mounted. cgroup: the version, 1 or 2.
    limit: seconds, from power-on to power-off.
    """

    kernel: Kernel
    numa_nodes: int = 1
    roce: bool = False
    disk_mb: int = 0
    capabilities: tuple | None = None
    lockdown: str | None = None
    tracefs: bool = True
    cgroup: int = 2
    memory_mb: int = 2048
    limit: int = LIMIT_SECONDS

    @property
    def label(self):
        """The kernel, and what is unusual about the machine."""
        words = [self.kernel.label]
        if self.capabilities is not None:
            words.append("+".join(self.capabilities) or "no capabilities")
        if self.lockdown:
            words.append(f"lockdown={self.lockdown}")
        if not self.tracefs:
            words.append("no tracefs")
        if self.cgroup != 2:
            words.append(f"cgroup v{self.cgroup}")
        return " ".join(words)

    def modules(self):
        groups = ["base"] + ["disk"] * bool(self.disk_mb) + ["roce"] * self.roce
        return self.kernel.modules(groups)

    def settings(self, job, build):
        """What init and job read. The guest's tests learn from them what they must find."""
        return {
            "GUEST_JOB": job,
            "GUEST_REPO": str(plan.REPO),
            "GUEST_KEEP": f"{plan.REPO}\n{build}",
            "GUEST_ROCE": str(int(self.roce)),
            "GUEST_TRACEFS": str(int(self.tracefs)),
            "GUEST_CGROUP": str(self.cgroup),
            "GUEST_CAPABILITIES": "root" if self.capabilities is None else " ".join(self.capabilities),
            "GUEST_NUMA_NODES": str(self.numa_nodes),
            "GUEST_DISK_MB": str(self.disk_mb),
            "GUEST_LOCKDOWN": self.lockdown or "none",
            "GUEST_ROWS": str(shutil.get_terminal_size().lines),
            "GUEST_COLUMNS": str(shutil.get_terminal_size().columns),
        }

    def kernel_command_line(self):
        # loglevel=5: the kernel's own warnings are level 4, and are to be seen
        words = ["console=ttyS0", "quiet", "loglevel=5", "panic=-1", "oops=panic", "random.trust_cpu=1",
                 "watchdog_thresh=60", "rcupdate.rcu_expedited=1"]
        if self.lockdown:
            words.append(f"lockdown={self.lockdown}")
        return " ".join(words)

    def _numa(self):
        arguments = []
        for node in range(self.numa_nodes):
            size = self.memory_mb // self.numa_nodes
            if node == self.numa_nodes - 1:
                size = self.memory_mb - node * size
            arguments += ["-object", f"memory-backend-ram,id=memory{node},size={size}M",
                          "-numa", f"node,nodeid={node},memdev=memory{node}" + (",cpus=0" if node == 0 else "")]
        return arguments if self.numa_nodes > 1 else []

    def _disk(self, directory):
        if not self.disk_mb:
            return []
        image = directory / "disk"
        with open(image, "wb") as file:
            file.truncate(self.disk_mb << 20)
        return ["-drive", f"file={image},format=raw,if=none,id=disk", "-device", "virtio-blk-pci,drive=disk"]

    def qemu(self, directory, results, serial="stdio"):
        """The command. directory: scratch, with the initramfs. One processor: emulation of two is no faster, and guests
        died of it."""
        kvm = accelerator() == "kvm"
        return ["qemu-system-x86_64", "-accel", "kvm" if kvm else "tcg,thread=single", "-cpu", "host" if kvm else "max",
                "-M", "q35", "-smp", "1", "-m", f"{self.memory_mb}M", "-nodefaults", "-no-user-config",
                "-display", "none", "-serial", serial, "-no-reboot", "-nic", "none",
                "-kernel", str(self.kernel.image), "-initrd", str(directory / "initramfs"),
                "-append", self.kernel_command_line(),
                "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
                "-virtfs", f"local,path={results},mount_tag=results,security_model=none,multidevs=remap",
                *self._numa(), *self._disk(directory)]
