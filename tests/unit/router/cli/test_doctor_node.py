from dataclasses import replace

import pytest

from router.cli.doctor_findings import Level, Report, Run
from router.cli.doctor_node import Trial, Wanted, check_node, check_trial
from router.cli.node import Libfabric, Node, RdmaDevice

NAMES = ("rdmap79s0", "rdmap80s0", "rdmap96s0", "rdmap97s0")
P5EN = Node(
    rdma=tuple(RdmaDevice(name, "efa", usable=True) for name in NAMES),
    libfabric=Libfabric("2.1.0amzn3.0", tuple(f"{name}-rdm" for name in NAMES)),
    libraries=("/opt/amazon/efa/lib/libfabric.so.1",),
    num_gpus=8,
    kernel=(6, 12),
    modules=frozenset(),
    nvidia_open=True,
    versions={"efa": "2.15.3", "nvidia": "570.133.20"},
    num_free_hugepages=2560,
    memlock_bytes=None,
    ipc_lock=True,
    shm_bytes=16 << 30,
    environ={"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "LD_LIBRARY_PATH": "/opt/amazon/efa/lib"},
)
"""A node on which everything is as it should be."""
FOUR = Wanted(num_efa=4)


def told(node: Node, wanted: Wanted = FOUR) -> dict[tuple[Level, str], str]:
    """Sentences by level and subject, all but good ones."""
    report = Report()
    check_node(report, node, wanted)
    return {(one.level, one.subject): one.sentence for one in report.findings if one.level is not Level.GOOD}


def test_a_good_node_has_nothing_to_change_but_what_cannot_be_seen_is_said():
    report = Report()
    check_node(report, P5EN, FOUR)
    assert report.is_well
    assert {one.subject for one in report.findings if one.level is Level.GOOD} == {
        *("devices", "provider", "libraries", "gpus", "hugepages", "memlock", "shm"),
    }
    (security,) = [one for one in report.findings if one.level is Level.NOTE]
    assert security.subject == "security" and "from itself and to itself" in security.sentence


def _devices(**usable: bool) -> tuple[RdmaDevice, ...]:
    return tuple(RdmaDevice(name, "efa", usable=one) for name, one in usable.items())


MLX = RdmaDevice("mlx5_0", "mlx5_core", usable=True)
ENV = dict(P5EN.environ)


@pytest.mark.parametrize(
    ("changes", "level", "subject", "words"),
    [
        ({"rdma": ()}, Level.FAILURE, "devices", "no EFA device: take an instance type with EFA"),
        (
            {"rdma": _devices(a=True, b=True, c=False, d=False)},
            Level.FAILURE,
            "devices",
            "2 EFA devices can be used here and 4 are wanted; the node has 4: ask for vpc.amazonaws.com/efa: 4",
        ),
        ({"rdma": (*P5EN.rdma, MLX)}, Level.FAILURE, "devices", "mlx5_0 can be opened here and is no EFA device"),
        ({"libfabric": None}, Level.WARNING, "provider", "fi_info is not here"),
        (
            {"libfabric": Libfabric("2.1.0", (), "fi_getinfo: -61 (No data available)")},
            Level.FAILURE,
            "provider",
            "libfabric 2.1.0 finds no provider efa (fi_getinfo: -61 (No data available)): use an image",
        ),
        (
            {"libfabric": Libfabric("2.1.0", tuple(f"{name}-rdm" for name in NAMES[1:]))},
            Level.FAILURE,
            "provider",
            "cannot open rdmap79s0 (libfabric 2.1.0, drivers efa 2.15.3, nvidia 570.133.20)",
        ),
        ({"environ": ENV | {"FI_PROVIDER": "tcp"}}, Level.FAILURE, "provider", "FI_PROVIDER is 'tcp'"),
        ({"environ": {}}, Level.WARNING, "provider", "FI_PROVIDER is not set"),
        ({"environ": {"FI_PROVIDER": "efa"}}, Level.WARNING, "gpus", "Set FI_EFA_USE_DEVICE_RDMA=1"),
        ({"nvidia_open": False}, Level.FAILURE, "gpus", "load efa_nv_peermem or nvidia_peermem"),
        ({"kernel": (5, 10)}, Level.FAILURE, "gpus", "kernel 5.12 or newer"),
        ({"num_gpus": 0}, Level.NOTE, "gpus", "There is no GPU here"),
        (
            {"libraries": ("/usr/lib/x86_64-linux-gnu/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1")},
            Level.WARNING,
            "libraries",
            "let LD_LIBRARY_PATH begin with /opt/amazon/efa/lib",
        ),
        ({"libraries": ()}, Level.WARNING, "libraries", "No libfabric.so.1"),
        ({"num_free_hugepages": 0}, Level.WARNING, "hugepages", "hugepages-2Mi"),
        (
            {"memlock_bytes": 65536, "ipc_lock": False},
            Level.FAILURE,
            "memlock",
            "The memlock limit is 64 KiB, so KV cache cannot be registered: add the capability IPC_LOCK",
        ),
        ({"shm_bytes": 64 << 20}, Level.FAILURE, "shm", "/dev/shm has 64 MiB: mount an emptyDir"),
    ],
)
def test_what_is_wrong_with_a_node_is_said_with_what_to_do(changes, level, subject, words):
    assert words in told(replace(P5EN, **changes))[level, subject]


@pytest.mark.parametrize("module", ["efa_nv_peermem", "nvidia_peermem"])
def test_a_peer_memory_module_does_where_there_is_no_dmabuf(module):
    node = replace(P5EN, nvidia_open=False, modules=frozenset({module}))
    assert [subject for _, subject in told(node)] == ["security"]


def test_enough_memory_that_may_be_locked_is_good_without_the_capability():
    assert [one for _, one in told(replace(P5EN, memlock_bytes=8 << 30, ipc_lock=False))] == ["security"]


def test_without_efa_a_small_machine_fails_nothing():
    laptop = Node(memlock_bytes=8 << 20, shm_bytes=64 << 20, rdma=(MLX,))
    findings = told(laptop, Wanted())
    assert {level for level, _ in findings} == {Level.NOTE, Level.WARNING}
    assert {subject for _, subject in findings} == {"devices", "memlock", "shm"}


RUN = Run(num_bytes=1 << 26, num_spans=1, seconds=0.01, wrong_bytes=0)


@pytest.mark.parametrize(
    ("trial", "level", "words"),
    [
        (Trial("UCX", (RUN,)), Level.GOOD, "64 MiB 10000 us 6.71 GB/s; every byte is right."),
        (Trial("UCX", missing=True), Level.NOTE, "NIXL is not installed here"),
        (Trial("LIBFABRIC", error="Its process died of SIGSEGV."), Level.FAILURE, "died of SIGSEGV"),
        (Trial("UCX", (Run(1 << 26, 1, 0.01, 3),)), Level.FAILURE, "3 BYTES ARRIVED WRONG"),
        (Trial("LIBFABRIC", (Run(1 << 26, 1, 0.1, 0),)), Level.FAILURE, "0.67 GB/s at most, less than 5"),
    ],
)
def test_a_trial_is_judged_by_its_end_its_bytes_and_its_speed(trial, level, words):
    report = Report()
    check_trial(report, trial, Wanted(num_efa=4, least_gb_per_s=5.0))
    (finding,) = report.findings
    assert (finding.level, finding.subject) == (level, f"trial {trial.backend}")
    assert words in finding.sentence
