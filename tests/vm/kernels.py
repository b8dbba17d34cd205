# SPDX-License-Identifier: Apache-2.0
"""Debian's kernel packages: found and fetched by apt, unpacked into a cache without being installed.

What a guest boots is made once per package, and works without a network from then on.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import lzma
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass

SERIES = ("6.1", "6.12")
# For a guest's devices: loaded only where it has them.
MODULES = {
    "base": ("virtio_pci", "9p", "9pnet_virtio", "overlay"),
    "disk": ("virtio_blk",),
    "roce": ("crc32_generic", "veth", "rdma_rxe", "rdma_ucm"),
}
COMMAND_SECONDS = 120
DOWNLOAD_SECONDS = 900
VMLINUX_MAX = 512 << 20
LAYOUT = 1  # of a cached kernel's directory
FETCHING, UNPACKING = "fetch-", "unpack-"


class KernelError(Exception):
    """No kernel to boot; the text says what to do about it."""


class NoSuchKernel(KernelError):
    """This host's apt has none of that name."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that is ready to boot."""

    release: str
    version: str
    directory: pathlib.Path

    @property
    def image(self):
        return self.directory / "vmlinux"

    @property
    def label(self):
        """What its tests are called by: Debian's release numbers say little, upstream's say all."""
        return self.version.partition("-")[0]

    def modules(self, groups):
        """The module files that these groups need, in the order in which to load them."""
        order = json.loads((self.directory / "modules.json").read_text(encoding="utf-8"))
        names = dict.fromkeys(name for group in groups for name in order[group])
        return [self.directory / "modules" / name for name in names]


def cache_directory():
    if os.environ.get("KVPROBE_VM_CACHE"):
        return pathlib.Path(os.environ["KVPROBE_VM_CACHE"]).resolve()
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(caches) / "kvprobe" / "vm"


def output_of(*argv, seconds=COMMAND_SECONDS, **kwargs):
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, **kwargs)
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"{argv[0]}: {error}") from error
    if done.returncode:
        raise KernelError(f"{' '.join(map(str, argv))}: {done.stderr.strip()[-500:]}")
    return done.stdout


def pattern_of(wanted):
    """Of the names of packages that 6.1, 6.1.0-57 or 6.1.0-57-amd64 means."""
    if re.fullmatch(r"\d+\.\d+", wanted):
        return re.compile(rf"linux-image-({re.escape(wanted)}\.[0-9][0-9.+a-z-]*?-amd64)$")
    return re.compile(rf"linux-image-({re.escape(wanted.removesuffix('-amd64'))}-amd64)$")


def is_flavoured(release):
    """The cloud and real-time kernels, which lack devices."""
    return re.search(r"-(cloud|rt)-amd64$", release) is not None


def by_version(left, right):
    """Debian's order of versions, which only dpkg knows."""
    if left[1] == right[1]:
        return 0
    less = subprocess.run(["dpkg", "--compare-versions", left[1], "lt", right[1]], timeout=COMMAND_SECONDS, check=False)
    return -1 if less.returncode == 0 else 1


def newest(found):
    return max(found, key=functools.cmp_to_key(by_version)) if found else None


def offered(wanted):
    """(release, version) of the newest package that apt's lists have, or None."""
    pattern = pattern_of(wanted)
    names = [name for name in output_of("apt-cache", "pkgnames", "linux-image-").split()
             if pattern.match(name) and not is_flavoured(name)]
    if not names:
        return None
    shown = output_of("apt-cache", "show", "--no-all-versions", *names)
    found = re.findall(r"^Package: linux-image-(\S+)\n(?:.*\n)*?Version: (\S+)$", shown, re.M)
    return newest(found)


def key_of_contents():
    """A cached kernel is made anew when what is wanted of it has changed."""
    return hashlib.sha256(json.dumps([LAYOUT, MODULES]).encode()).hexdigest()[:8]


def prepared(cache, wanted):
    """The newest cached kernel of that name, or None."""
    found = {}
    for about in cache.glob(f"*/{key_of_contents()}.json"):
        facts = json.loads(about.read_text(encoding="utf-8"))
        if pattern_of(wanted).match(f"linux-image-{facts['release']}"):
            found[facts["release"], facts["version"]] = about.parent
    best = newest(list(found))
    return Kernel(*best, found[best]) if best else None


@contextlib.contextmanager
def locked(cache):
    """The cache for oneself; what others left in it half made is removed."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in (FETCHING, UNPACKING):
            for path in cache.glob(f"{name}*"):
                shutil.rmtree(path)
        yield


def download(package, version, cache):
    """The .deb file; apt checks it against the signed lists."""
    for path in cache.glob(f"{package}_*.deb"):
        if path.name.startswith(f"{package}_{version.replace(':', '%3a')}_"):
            return path
    with tempfile.TemporaryDirectory(prefix=FETCHING, dir=cache) as where:
        user = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        output_of("apt-get", "-q", *user, "download", f"{package}={version}", cwd=where, seconds=DOWNLOAD_SECONDS)
        (path,) = pathlib.Path(where).glob("*.deb")
        return path.rename(cache / path.name)


def uncompress_image(bzimage):
    """The ELF kernel inside a bzImage: QEMU starts it without the guest's having to unpack it, which emulation does
    slowly. The offsets are those of the x86 boot protocol."""
    start = (bzimage[0x1f1] + 1) * 512 + struct.unpack_from("<I", bzimage, 0x248)[0]
    payload = bzimage[start:start + struct.unpack_from("<I", bzimage, 0x24c)[0]]
    if payload.startswith(b"\xfd7zXZ\0"):
        image = lzma.LZMADecompressor(format=lzma.FORMAT_XZ).decompress(payload, VMLINUX_MAX)
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        image = subprocess.run(["zstd", "-dcq"], input=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               timeout=COMMAND_SECONDS, check=False).stdout  # the size that follows is no frame
    else:
        image = b""
    if not image.startswith(b"\x7fELF"):
        raise KernelError("the kernel image is compressed in a way that is not known here")
    return image


def copy_module(source, target):
    data = source.read_bytes()
    target.write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)


def take_modules(root, release, into):
    """Copy what MODULES names with what it depends on; returns group -> file names in loading order."""
    output_of("depmod", "-b", str(root), release)
    (into / "modules").mkdir()
    order = {}
    for group, names in MODULES.items():
        listed = output_of("modprobe", "-d", str(root), "-S", release, "--show-depends", "-a", *names)
        files = dict.fromkeys(line.split()[1] for line in listed.splitlines() if line.startswith("insmod "))
        order[group] = []
        for file in map(pathlib.Path, files):
            name = file.name.removesuffix(".xz")
            copy_module(file, into / "modules" / name)
            order[group].append(name)
    (into / "modules.json").write_text(json.dumps(order), encoding="utf-8")


def unpack(deb, release, version, cache):
    """Make the directory that a Kernel stands for, whole or not at all."""
    target = cache / f"{release}_{version}_{key_of_contents()}"  # never made anew: a guest may be running of it
    with tempfile.TemporaryDirectory(prefix=UNPACKING, dir=cache) as where:
        root, made = pathlib.Path(where) / "root", pathlib.Path(where) / "made"
        made.mkdir()
        output_of("dpkg-deb", "-x", str(deb), str(root))
        (made / "vmlinux").write_bytes(uncompress_image((root / "boot" / f"vmlinuz-{release}").read_bytes()))
        take_modules(root, release, made)
        facts = {"release": release, "version": version}
        (made / f"{key_of_contents()}.json").write_text(json.dumps(facts), encoding="utf-8")
        made.rename(target)
    return Kernel(release, version, target)


def update_lists():
    """apt's lists, where there are none: an image of a container comes without."""
    if os.geteuid() == 0:
        output_of("apt-get", "-q", "update", seconds=DOWNLOAD_SECONDS)


def is_debian():
    """Whether the packages of this host are Debian's own: its kernels must be there then."""
    facts = pathlib.Path("/etc/os-release").read_text(encoding="utf-8")
    return re.search(r"^ID=debian$", facts, re.M) is not None


def fetched(wanted, have, cache, say):
    """What apt has that is newer than what is there, ready to boot; else what is there, or None."""
    latest = offered(wanted)
    if not latest and not have:
        update_lists()
        latest = offered(wanted)
    if latest and (not have or by_version((have.release, have.version), latest) < 0):
        say(f"fetching the kernel {latest[0]} ({latest[1]}) into {cache}")
        return unpack(download(f"linux-image-{latest[0]}", latest[1], cache), *latest, cache)
    return have


def obtain(wanted, say=print):
    """The newest kernel of a series, or the one of that release: from apt, or else from the cache."""
    cache = cache_directory()
    have = prepared(cache, wanted)
    try:
        with locked(cache):
            have = fetched(wanted, prepared(cache, wanted), cache, say)
    except (KernelError, OSError, subprocess.SubprocessError) as error:
        if not have:
            raise KernelError(f"kernel {wanted}: {error}") from error
        say(f"using the cached kernel {have.release}: {error}")
    if not have:
        raise NoSuchKernel(f"apt knows no Debian kernel package for '{wanted}', and none is in {cache}; "
                          "try: apt-get update")
    return have
