"""One suite, all Fabrics: loopback is the specification, NIXL (UCX, host memory) the real thing.

Both also staged, and loopback also mapped.
"""

import ctypes
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from engine_shim.core.copy_costs import Path
from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.copier import open_ring
from engine_shim.fabric.loopback import LoopbackFabric, LoopbackNetwork
from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, Fabric, PeerName
from engine_shim.fabric.ring import make_ring
from engine_shim.fabric.staged import StagedFabric, Staging
from router.contract.errors import HandshakeFailed, PeerGone, TransferFailed
from router.contract.kv import Region
from router.contract.seal import Seal
from tests.support.host_mapper import HostMapper

SIZE = 64 * 1024
names = itertools.count()


class Agent:
    """A Fabric with memory of its own."""

    def __init__(self, make: Callable[[str, Region], Fabric], name: str) -> None:
        self.memory = ctypes.create_string_buffer(SIZE)
        self.region = Region(ctypes.addressof(self.memory), SIZE, "cpu")
        self.name = f"{name}-{next(names)}@1"
        self.fabric = make(self.name, self.region)
        self.notices: list[tuple[PeerName, bytes]] = []
        self.posted: list[CopyKey] = []

    def post(self, order: CopyOrder) -> None:
        self.fabric.post(order)
        self.posted.append(order.key)


Pair = tuple[Agent, Agent]


@pytest.fixture(params=["loopback", "nixl", "loopback-staged", "nixl-staged", "loopback-mapped"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    kind, _, way = request.param.partition("-")
    path = Path(way or "direct")
    if kind == "nixl" and importlib.util.find_spec("nixl_cu12") is None:
        pytest.skip("looked for the package nixl_cu12")
    network = LoopbackNetwork()

    def plain(name: str, region: Region, ring: Region | None = None) -> Fabric:
        return NixlFabric(name, region, ring=ring) if kind == "nixl" else LoopbackFabric(name, region, network)

    def wrapped(name: str, region: Region) -> Fabric:
        mapper = HostMapper(region) if path is Path.MAPPED else None
        ring = make_ring(*open_ring(region, 8 * 4096), time.monotonic, mapper)
        fabric = StagedFabric(name, region, plain(name, region, ring.card.region), Staging(ring, Seal("k" * 16)))
        fabric.force = path
        return fabric

    make: Callable[[str, Region], Fabric] = wrapped if way else plain

    a, b = Agent(make, "a"), Agent(make, "b")
    assert a.fabric.add_peer(b.fabric.metadata()) == b.name
    assert b.fabric.add_peer(a.fabric.metadata()) == a.name
    yield a, b
    a.fabric.close()
    b.fabric.close()


def pump(pair: Pair, until: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not until():
        assert time.monotonic() < ends_at, "the fabric did not get there"
        for agent in pair:
            agent.notices += agent.fabric.advance()
            for key in agent.posted:
                agent.fabric.poll(key)


def finish(pair: Pair, agent: Agent, key: CopyKey) -> CopyState:
    pump(pair, lambda: agent.fabric.poll(key) is not CopyState.BUSY)
    state = agent.fabric.poll(key)
    agent.posted.remove(key)
    agent.fabric.release(key)
    return state


def order(key: int, op: CopyOp, peer: Agent, spans: list[tuple[int, int, int]], tag: bytes = b"") -> CopyOrder:
    plan = TransferPlan(tuple(Span(*span) for span in spans))
    return CopyOrder(CopyKey(key), op, PeerName(peer.name), plan, peer.region, tag)


def test_a_write_lands_where_planned_and_its_tag_comes_after_the_bytes(pair: Pair) -> None:
    a, b = pair
    a.memory.raw = bytes(range(256)) * (SIZE // 256)
    a.post(order(1, CopyOp.WRITE, b, [(0, 100, 10), (256, 1000, 300)], b"the tag"))
    pump(pair, lambda: b.notices != [])
    assert b.memory.raw[100:110] == bytes(range(10))
    assert b.memory.raw[1000:1300] == bytes(range(256)) + bytes(range(44))
    assert b.memory.raw[:100] == bytes(100)
    assert b.memory.raw[110:1000] == bytes(890)
    assert b.memory.raw[1300:] == bytes(SIZE - 1300)
    assert b.notices == [(a.name, b"the tag")]
    assert finish(pair, a, CopyKey(1)) is CopyState.DONE


def test_a_read_brings_the_peers_bytes(pair: Pair) -> None:
    a, b = pair
    b.memory.raw = b"\x07" * SIZE
    a.post(order(1, CopyOp.READ, b, [(0, 50, 20)]))
    assert finish(pair, a, CopyKey(1)) is CopyState.DONE
    assert a.memory.raw[:50] == bytes(50)
    assert a.memory.raw[50:70] == b"\x07" * 20
    assert a.memory.raw[70:] == bytes(SIZE - 70)


def test_a_fragmented_write_lands_whole_and_leaves_gaps_alone(pair: Pair) -> None:
    a, b = pair
    a.memory.raw = bytes(range(256)) * (SIZE // 256)
    a.post(order(1, CopyOp.WRITE, b, [(512 * k, 1024 * k + 512, 256) for k in range(60)], b"tag"))
    pump(pair, lambda: b.notices != [])
    for k in range(60):
        assert b.memory.raw[1024 * k : 1024 * k + 1024] == bytes(512) + bytes(range(256)) + bytes(256)
    assert b.notices == [(a.name, b"tag")]
    assert finish(pair, a, CopyKey(1)) is CopyState.DONE


def test_many_copies_at_once_all_land_and_each_tag_comes_once(pair: Pair) -> None:
    a, b = pair
    a.memory.raw = b"\x01" * SIZE
    for k in range(40):
        a.post(order(k, CopyOp.WRITE, b, [(k * 64, k * 64, 32)], b"tag-%d" % k))
    pump(pair, lambda: len(b.notices) == 40)
    assert sorted(notice for _, notice in b.notices) == sorted(b"tag-%d" % k for k in range(40))
    for k in range(40):
        assert finish(pair, a, CopyKey(k)) is CopyState.DONE
        assert b.memory.raw[k * 64 : k * 64 + 64] == b"\x01" * 32 + bytes(32)


def test_notices_pass_both_ways_in_order_and_whole(pair: Pair) -> None:
    a, b = pair
    long = bytes(range(256)) * 32
    for k in range(20):
        a.fabric.notify(PeerName(b.name), b"%d:" % k + long)
    b.fabric.notify(PeerName(a.name), b"back")
    pump(pair, lambda: len(b.notices) == 20 and len(a.notices) == 1)
    assert b.notices == [(a.name, b"%d:" % k + long) for k in range(20)]
    assert a.notices == [(b.name, b"back")]


def test_a_peer_that_was_never_met_or_was_dropped_is_gone(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(PeerGone):
        a.fabric.notify(PeerName("nobody@1"), b"hello")
    a.fabric.drop_peer(PeerName(b.name))
    a.fabric.drop_peer(PeerName(b.name))
    with pytest.raises(PeerGone):
        a.fabric.notify(PeerName(b.name), b"hello")
    with pytest.raises(PeerGone):
        a.fabric.post(order(1, CopyOp.WRITE, b, [(0, 0, 8)]))


def test_a_dropped_peer_can_be_met_again(pair: Pair) -> None:
    a, b = pair
    a.fabric.drop_peer(PeerName(b.name))
    assert a.fabric.add_peer(b.fabric.metadata()) == b.name
    a.fabric.notify(PeerName(b.name), b"again")
    pump(pair, lambda: b.notices != [])
    assert b.notices == [(a.name, b"again")]


@pytest.mark.parametrize("span", [(0, SIZE - 4, 8), (SIZE - 4, 0, 8), (0, SIZE, 1)])
def test_a_span_outside_a_region_is_refused_and_writes_nothing(pair: Pair, span: tuple[int, int, int]) -> None:
    a, b = pair
    a.memory.raw = b"\x01" * SIZE
    with pytest.raises(TransferFailed):
        a.fabric.post(order(1, CopyOp.WRITE, b, [(0, 0, 8), span], b"tag"))
    b.fabric.notify(PeerName(a.name), b"after")
    pump(pair, lambda: a.notices != [])
    assert b.memory.raw == bytes(SIZE)
    assert b.notices == []


def test_metadata_that_is_none_is_a_failed_handshake(pair: Pair) -> None:
    with pytest.raises(HandshakeFailed):
        pair[0].fabric.add_peer(b"not metadata")
