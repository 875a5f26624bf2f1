import os
from pathlib import Path

import pytest

from router.cli.node import Libfabric, RdmaDevice, look, read_provider

FI_INFO = """provider: efa
    fabric: efa
    domain: rdmap79s0-rdm
    version: 201.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap80s0-rdm
    version: 201.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap79s0-rdm
    version: 201.0
    type: FI_EP_DGRAM
"""
VERSION = "fi_info: 2.1.0amzn3.0\nlibfabric: 2.1.0amzn3.0\nlibfabric api: 2.1\n"


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def device(root: Path, name: str, driver: str, verbs: str) -> None:
    folder = root / "sys/devices" / name
    (folder / "infiniband_verbs" / verbs).mkdir(parents=True)
    (root / "sys/bus/drivers" / driver).mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(root / "sys/bus/drivers" / driver)
    there = root / "sys/class/infiniband" / name
    there.mkdir(parents=True)
    (there / "device").symlink_to(folder)


@pytest.fixture
def root(tmp_path):
    device(tmp_path, "rdmap79s0", "efa", "uverbs0")
    device(tmp_path, "rdmap80s0", "efa", "uverbs1")
    device(tmp_path, "mlx5_0", "mlx5_core", "uverbs2")
    files = {
        "dev/infiniband/uverbs0": "",
        "dev/nvidia0": "",
        "dev/nvidia1": "",
        "dev/nvidiactl": "",
        "dev/shm/any": "",
        "proc/modules": "efa 45056 0 - Live 0x0\nnvidia_peermem 16384 0 - Live 0x0\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20\n",
        "proc/self/status": "Name:\tx\nCapEff:\t0000000000004000\n",
        "sys/module/efa/version": "2.15.3g\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "2560\n",
        "opt/amazon/efa/lib/libfabric.so.1": "",
        "usr/lib64/libfabric.so.1": "",
    }
    write(tmp_path, **files)
    return tmp_path


def test_a_node_is_seen_as_it_is(root):
    node = look(root, {"FI_PROVIDER": "efa", "HOME": "/", "PATH": ""})
    assert node.rdma == (
        RdmaDevice("mlx5_0", "mlx5_core", usable=False),
        RdmaDevice("rdmap79s0", "efa", usable=True),
        RdmaDevice("rdmap80s0", "efa", usable=False),
    )
    assert (node.num_gpus, node.nvidia_open, node.modules) == (2, True, {"nvidia_peermem"})
    assert (node.num_free_hugepages, node.versions, node.environ) == (2560, {"efa": "2.15.3g"}, {"FI_PROVIDER": "efa"})
    assert node.ipc_lock and node.shm_bytes > 0 and node.kernel > (2, 6)
    assert node.libraries == ("/opt/amazon/efa/lib/libfabric.so.1", "/usr/lib64/libfabric.so.1")


def test_the_loader_looks_where_it_is_told_first(root):
    write(root, **{"opt/mine/libfabric.so.1": ""})
    environ = {"LD_LIBRARY_PATH": f"/nothing{os.pathsep}/opt/mine"}
    assert look(root, environ).libraries[0] == "/opt/mine/libfabric.so.1"


def test_a_machine_without_any_of_it_is_seen_too(tmp_path):
    node = look(tmp_path, {"PATH": ""})
    assert (node.rdma, node.libfabric, node.libraries, node.num_gpus) == ((), None, (), 0)
    assert (node.num_free_hugepages, node.ipc_lock, node.shm_bytes, node.versions) == (0, False, 0, {})


def test_fi_info_is_run_where_it_is_found(root):
    program = root / "bin/fi_info"
    write(root, **{"bin/fi_info": f"#!/bin/sh\n[ $1 = --version ] && echo '{VERSION}' || echo 'none' >&2\n"})
    program.chmod(0o755)
    assert look(root, {"PATH": str(root / "bin")}).libfabric == Libfabric("2.1.0amzn3.0", (), "none")


def test_domains_are_counted_once():
    assert read_provider(VERSION, FI_INFO) == Libfabric("2.1.0amzn3.0", ("rdmap79s0-rdm", "rdmap80s0-rdm"))


def test_without_a_domain_its_reason_is_kept():
    assert read_provider("", "", "fi_getinfo: -61\n") == Libfabric("unknown", (), "fi_getinfo: -61")
