"""Node: what a machine offers for moving KV cache, as this process may use it. Looks, and judges nothing."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

CAP_IPC_LOCK = 14
PROVIDER_FOR_S = 20.0
OF_INTEREST = ("FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "FI_EFA_FORK_SAFE", "LD_LIBRARY_PATH")
PEER_MEMORY = ("efa_nv_peermem", "nvidia_peermem", "nv_peer_mem")
"""Kernel modules by which a network device reaches the memory of a GPU; newer ones do without (dmabuf)."""


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """One device of /sys/class/infiniband."""

    name: str
    driver: str
    """`efa`, `mlx5_core`, ..."""
    usable: bool
    """This process may open its device node."""


@dataclass(frozen=True, slots=True)
class Libfabric:
    """What `fi_info` says of the EFA provider."""

    version: str
    domains: tuple[str, ...]
    """One for each device that the provider can open; their names begin with the device's."""
    error: str = ""
    """Why there are none, in fi_info's words."""


@dataclass(frozen=True, slots=True)
class Node:
    """One look at a machine."""

    rdma: tuple[RdmaDevice, ...] = ()
    libfabric: Libfabric | None = None
    """None when there is no fi_info."""
    libraries: tuple[str, ...] = ()
    """Every libfabric.so.1 that the loader might take, the one that it takes first."""
    num_gpus: int = 0
    kernel: tuple[int, int] = (0, 0)
    modules: frozenset[str] = frozenset()
    """Of PEER_MEMORY, those that are loaded."""
    nvidia_open: bool = False
    """The NVIDIA driver is the open one, which knows dmabuf."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of kernel drivers, by name."""
    num_free_hugepages: int = 0
    """Of 2 MiB, on the whole node."""
    memlock_bytes: int | None = 0
    """How much memory this process may lock; None: as much as it likes."""
    ipc_lock: bool = False
    """It has the capability IPC_LOCK."""
    shm_bytes: int = 0
    """Size of /dev/shm."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The variables OF_INTEREST that are set."""


def look(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Node:
    """This machine as it is now; `root` is where /sys, /proc and /dev are looked for."""
    proc, soft = root / "proc", resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    modules = {line.partition(" ")[0] for line in _text(proc / "modules").splitlines()}
    nvidia = _text(proc / "driver/nvidia/version")
    capabilities = re.search(r"^CapEff:\s*(\w+)$", _text(proc / "self/status"), re.MULTILINE)
    versions = {name: _text(root / f"sys/module/{name}/version").strip() for name in ("efa", "nvidia", "gdrdrv")}
    return Node(
        rdma=tuple(_rdma(root)),
        libfabric=_ask_libfabric(environ),
        libraries=tuple(_libraries(root, environ)),
        num_gpus=sum(1 for path in (root / "dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)),
        kernel=(int(release[1]), int(release[2])) if release else (0, 0),
        modules=frozenset(modules.intersection(PEER_MEMORY)),
        nvidia_open="Open Kernel Module" in nvidia,
        versions={name: version for name, version in versions.items() if version},
        num_free_hugepages=int(_text(root / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") or 0),
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
        ipc_lock=bool(capabilities and int(capabilities[1], 16) >> CAP_IPC_LOCK & 1),
        shm_bytes=_size_bytes(root / "dev/shm"),
        environ={name: environ[name] for name in OF_INTEREST if environ.get(name)},
    )


def read_provider(version: str, told: str, error: str = "") -> Libfabric:
    """What `fi_info --version` and `fi_info -p efa` have printed."""
    found = re.search(r"libfabric: (\S+)", version)
    domains = dict.fromkeys(re.findall(r"^\s*domain: (\S+)$", told, re.MULTILINE))
    return Libfabric(found[1] if found else "unknown", tuple(domains), "" if domains else error.strip())


def _ask_libfabric(environ: Mapping[str, str]) -> Libfabric | None:
    path = shutil.which("fi_info", path=f"{environ.get('PATH', '')}{os.pathsep}/opt/amazon/efa/bin")
    if path is None:
        return None
    version, told = (_run([path, *words], environ) for words in (("--version",), ("-p", "efa")))
    return read_provider(version[0], *told)


def _run(words: list[str], environ: Mapping[str, str]) -> tuple[str, str]:
    """What a program has printed, and what it has complained of."""
    try:
        done = subprocess.run(
            words, env=dict(environ), capture_output=True, text=True, check=False, timeout=PROVIDER_FOR_S
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {PROVIDER_FOR_S:g} s"
    except OSError as error:
        return "", str(error.strerror)
    return done.stdout, done.stderr


def _rdma(root: Path) -> Iterator[RdmaDevice]:
    for path in sorted((root / "sys/class/infiniband").glob("*")):
        nodes = [root / "dev/infiniband" / verbs.name for verbs in (path / "device/infiniband_verbs").glob("uverbs*")]
        driver = (path / "device/driver").resolve().name
        yield RdmaDevice(path.name, driver, any(os.access(node, os.R_OK | os.W_OK) for node in nodes))


def _libraries(root: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """In the loader's order: LD_LIBRARY_PATH, then its own folders."""
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for folder in (*folders, "/opt/amazon/efa/lib", "/opt/amazon/efa/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        if (root / folder.lstrip("/") / "libfabric.so.1").exists():
            yield f"{folder}/libfabric.so.1"


def _size_bytes(path: Path) -> int:
    try:
        filesystem = os.statvfs(path)
    except OSError:
        return 0
    return filesystem.f_blocks * filesystem.f_frsize


def _text(path: Path) -> str:
    """A file of the kernel's, empty when it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
