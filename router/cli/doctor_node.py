"""`tandem doctor --preflight`: can KV cache be moved from and to this machine? Pure: judges a Node and a Trial."""

from __future__ import annotations

from dataclasses import dataclass

from router.cli.doctor_findings import Report, Run
from router.cli.node import Libfabric, Node

LEAST_SHM_BYTES = 1 << 30
"""A container has 64 MiB unless somebody asks for more."""
LEAST_MEMLOCK_BYTES = 1 << 30
DMABUF_SINCE = (5, 12)
PLUGIN_SINCE = "0.5.10"
"""Version of the EFA device plugin that knows p5en; older ones hand out nothing there."""
INSTALLER_SINCE = "1.47"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the machine must have."""

    num_efa: int = 0
    """EFA devices; 0: whatever there is will do, and KV cache goes by UCX."""
    least_gb_per_s: float = 0.0
    """Of the trial's largest copy, in gigabytes (10^9 bytes) per second; 0: any speed will do."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A copy between two agents of one process."""

    backend: str
    runs: tuple[Run, ...] = ()
    error: str = ""
    """Why there are no runs, in one sentence with its full stop."""
    missing: bool = False
    """NIXL is not installed here, as in a router's image."""


def check_node(report: Report, node: Node, wanted: Wanted) -> None:
    """Everything about the machine has been judged; what fails says what to do."""
    _check_devices(report, node, wanted)
    if wanted.num_efa:
        _check_provider(report, node)
        _check_libraries(report, node)
        _check_gpus(report, node)
        _check_hugepages(report, node)
    _check_memory(report, node, wanted)
    if wanted.num_efa:
        report.note(
            "security",
            "Cannot be seen from here: EFA's traffic passes only if the security group of the nodes allows all traffic "
            "from itself and to itself (0.0.0.0/0 is not enough). Try a pair with 'tandem doctor --url'.",
        )


def check_trial(report: Report, trial: Trial, wanted: Wanted) -> None:
    """The copy has been judged."""
    subject = f"trial {trial.backend}"
    if trial.missing:
        report.note(subject, "Not made: NIXL is not installed here; run it in the engine's image.")
        return
    if not trial.runs:
        report.fail(subject, trial.error)
        return
    told = ", ".join(run.text for run in trial.runs)
    wrong_bytes = sum(run.wrong_bytes for run in trial.runs)
    gb_per_s = max(run.num_bytes / run.seconds / 1e9 for run in trial.runs)
    if wrong_bytes:
        report.fail(subject, f"{wrong_bytes} BYTES ARRIVED WRONG ({told}): take this node out of service.")
    elif gb_per_s < wanted.least_gb_per_s:
        report.fail(
            subject,
            f"{gb_per_s:.2f} GB/s at most, less than {wanted.least_gb_per_s:g} ({told}): the fabric has fallen back to "
            "another path; look at provider and devices.",
        )
    else:
        report.good(subject, f"{told}; every byte is right.")


def _check_devices(report: Report, node: Node, wanted: Wanted) -> None:
    efa = [device for device in node.rdma if device.driver == "efa"]
    usable = [device for device in efa if device.usable]
    strange = [device.name for device in node.rdma if device.driver != "efa" and device.usable]
    if wanted.num_efa and not efa:
        report.fail(
            "devices",
            "This node has no EFA device: take an instance type with EFA, and network interfaces of the type efa.",
        )
    elif len(usable) < wanted.num_efa:
        report.fail(
            "devices",
            f"{len(usable)} EFA devices can be used here and {wanted.num_efa} are wanted; the node has {len(efa)}: ask "
            f"for vpc.amazonaws.com/efa: {wanted.num_efa}, with the EFA device plugin {PLUGIN_SINCE} or newer; "
            "status.allocatable of the node tells what it can give.",
        )
    elif usable:
        report.good("devices", f"{len(usable)} EFA devices: {', '.join(device.name for device in usable)}.")
    else:
        report.note("devices", "No EFA device is wanted, and none is here: KV cache goes by UCX.")
    if strange and wanted.num_efa:
        report.fail(
            "devices",
            f"{', '.join(strange)} can be opened here and is no EFA device, at which the EFA provider gives up: do not "
            "mount /dev/infiniband; the device plugin hands out what is needed.",
        )


def _check_provider(report: Report, node: Node) -> None:
    libfabric = node.libfabric
    if libfabric is None:
        report.warn(
            "provider",
            "fi_info is not here, so nobody can say which provider is taken; install the EFA installer's libfabric "
            f"({INSTALLER_SINCE} or newer) in this image.",
        )
    elif not libfabric.domains:
        report.fail(
            "provider",
            f"libfabric {libfabric.version} finds no provider efa ({libfabric.error or 'no reason given'}): use an "
            f"image with the EFA installer {INSTALLER_SINCE} or newer and let LD_LIBRARY_PATH begin with its folder.",
        )
    else:
        _check_rails(report, node, libfabric)
    provider = node.environ.get("FI_PROVIDER")
    if provider is None:
        report.warn("provider", "FI_PROVIDER is not set: set it to efa, or libfabric may take TCP without a word.")
    elif provider != "efa":
        report.fail("provider", f"FI_PROVIDER is {provider!r}, so EFA is not used: set it to efa.")


def _check_rails(report: Report, node: Node, libfabric: Libfabric) -> None:
    """Every device that may be opened is one that the provider has opened."""
    usable = [device.name for device in node.rdma if device.driver == "efa" and device.usable]
    dead = [name for name in usable if not any(domain.startswith(name) for domain in libfabric.domains)]
    versions = ", ".join(f"{name} {version}" for name, version in node.versions.items())
    told = f"libfabric {libfabric.version}" + (f", drivers {versions}" if versions else "")
    if dead:
        report.fail(
            "provider",
            f"The provider efa cannot open {', '.join(dead)} ({told}): restart the node, or take its driver and this "
            "image's EFA installer from one release.",
        )
    else:
        report.good("provider", f"efa with {len(libfabric.domains)} domains; {told}.")


def _check_libraries(report: Report, node: Node) -> None:
    if not node.libraries:
        report.warn("libraries", "No libfabric.so.1 is in the usual folders; NIXL then takes the one that it brings.")
    elif not node.libraries[0].startswith("/opt/amazon/efa/"):
        report.warn(
            "libraries",
            f"The loader takes {node.libraries[0]}, which may lack EFA: let LD_LIBRARY_PATH begin with "
            "/opt/amazon/efa/lib.",
        )
    else:
        report.good("libraries", f"The loader takes {node.libraries[0]}.")


def _check_gpus(report: Report, node: Node) -> None:
    if not node.num_gpus:
        report.note("gpus", "There is no GPU here, so GPUDirect is not examined.")
        return
    has_dmabuf = node.nvidia_open and node.kernel >= DMABUF_SINCE
    ways = sorted(node.modules) + ["dmabuf"] * has_dmabuf
    if not ways:
        report.fail(
            "gpus",
            "EFA cannot reach the memory of GPUs: load efa_nv_peermem or nvidia_peermem on the node, or run the open "
            f"NVIDIA driver on kernel {'.'.join(map(str, DMABUF_SINCE))} or newer.",
        )
    elif node.environ.get("FI_EFA_USE_DEVICE_RDMA") != "1":
        report.warn("gpus", "Set FI_EFA_USE_DEVICE_RDMA=1, or copies may go through the host's memory.")
    else:
        report.good("gpus", f"{node.num_gpus} GPUs, reached by {' or '.join(ways)}.")


def _check_hugepages(report: Report, node: Node) -> None:
    if node.num_free_hugepages:
        report.good("hugepages", f"{node.num_free_hugepages} free pages of 2 MiB on this node.")
    else:
        report.warn(
            "hugepages",
            "No huge pages are free, so EFA's own buffers take ordinary ones: reserve some on the node and ask for "
            "hugepages-2Mi (5120Mi is usual, requests equal to limits).",
        )


def _check_memory(report: Report, node: Node, wanted: Wanted) -> None:
    limit_bytes = node.memlock_bytes
    if limit_bytes is None or node.ipc_lock:
        report.good("memlock", f"Memory may be locked ({'IPC_LOCK' if node.ipc_lock else 'no limit'}).")
    elif limit_bytes < LEAST_MEMLOCK_BYTES:
        tell = report.fail if wanted.num_efa else report.warn
        tell(
            "memlock",
            f"The memlock limit is {limit_bytes >> 10} KiB, so KV cache cannot be registered: add the capability "
            "IPC_LOCK (no need for privileged), or raise the limit.",
        )
    else:
        report.good("memlock", f"{limit_bytes >> 20} MiB may be locked.")
    if node.shm_bytes < LEAST_SHM_BYTES:
        tell = report.fail if wanted.num_efa or node.num_gpus else report.warn
        tell(
            "shm",
            f"/dev/shm has {node.shm_bytes >> 20} MiB: mount an emptyDir of the medium Memory there, with a sizeLimit "
            "of 16Gi or more.",
        )
    else:
        report.good("shm", f"/dev/shm has {node.shm_bytes >> 20} MiB.")
