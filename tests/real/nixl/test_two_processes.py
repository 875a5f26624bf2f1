"""NIXL between processes: bytes, notices, and what a peer's death looks like through our Fabric."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.nixl_process import NixlProcess

MIB = 1 << 20


@pytest.fixture(params=["", "tcp"], ids=["default", "tcp"])
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[str], NixlProcess]]:
    environ = {"UCX_TLS": "tcp"} if request.param else {}
    started: list[NixlProcess] = []

    def begin(name: str, size: int = 64 * MIB) -> NixlProcess:
        started.append(NixlProcess(name, size, environ))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def couple(start: Callable[[str], NixlProcess]) -> tuple[NixlProcess, NixlProcess]:
    p, d = start("p@1"), start("d@1")
    p.meet(d)
    d.meet(p)
    return p, d


def write(p: NixlProcess, d: NixlProcess, spans: list[list[int]], **extra: object) -> dict[str, object]:
    answer: dict[str, object] = p.ask(
        "copy", op="WRITE", peer=d.name, base=d.base, size=d.size, spans=spans, tag="landed", **extra
    )
    return answer


def wait_for_notices(process: NixlProcess, count: int) -> list[str]:
    ends_at = time.monotonic() + 10
    while time.monotonic() < ends_at:
        notices: list[str] = process.ask("notices")["notices"]
        if len(notices) >= count:
            return notices
    raise AssertionError("the notices did not come")


def test_fragments_land_and_are_announced_once(couple: tuple[NixlProcess, NixlProcess]) -> None:
    p, d = couple
    p.ask("fill", byte=9)
    spans = [[k * 8192, k * 16384, 4096] for k in range(512)]
    assert write(p, d, spans)["state"] == "done"
    assert wait_for_notices(d, 1) == ["landed"]
    for k in (0, 1, 255, 511):
        assert d.ask("read", at=k * 16384, count=4097)["bytes"] == [9] * 4096 + [0]


def test_a_read_fetches_the_peers_bytes(couple: tuple[NixlProcess, NixlProcess]) -> None:
    p, d = couple
    p.ask("fill", byte=5)
    answer = d.ask("copy", op="READ", peer=p.name, base=p.base, size=p.size, spans=[[0, 4096, MIB]])
    assert answer["state"] == "done"
    assert d.ask("read", at=4095, count=3)["bytes"] == [0, 5, 5]


def test_a_killed_peer_is_told_at_once_and_its_next_start_is_served(
    couple: tuple[NixlProcess, NixlProcess], start: Callable[[str], NixlProcess]
) -> None:
    p, d = couple
    assert write(p, d, [[0, 0, MIB]])["state"] == "done"
    d.kill()
    answers = [write(p, d, [[0, 0, MIB]], wait_for_s=5.0) for _ in range(2)]
    for answer in answers:
        assert answer.get("state") == "failed" or answer.get("error") in ("peer_gone", "transfer_failed"), answer
    p.ask("drop", peer=d.name)
    reborn = start("d@2")
    p.meet(reborn)
    reborn.meet(p)
    p.ask("fill", byte=3)
    assert write(p, reborn, [[0, 0, MIB]])["state"] == "done"
    assert reborn.ask("read", at=MIB - 1, count=2)["bytes"] == [3, 0]


def test_a_stopped_peer_keeps_the_copy_open_and_costs_no_other_peer(
    couple: tuple[NixlProcess, NixlProcess], start: Callable[[str], NixlProcess]
) -> None:
    p, d = couple
    other = start("e@1")
    p.meet(other)
    other.meet(p)
    os.kill(d.process.pid, signal.SIGSTOP)
    try:
        p.ask("fill", byte=6)
        write(p, d, [[0, 0, 4096]], wait_for_s=0.3)
        assert write(p, other, [[0, 0, 4096]])["state"] == "done"
        assert other.ask("read", at=0, count=1)["bytes"] == [6]
    finally:
        os.kill(d.process.pid, signal.SIGCONT)
