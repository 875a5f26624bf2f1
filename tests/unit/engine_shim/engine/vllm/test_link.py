"""Both ends of the link, joined by a real socket: the worker half on a loopback fabric, the shim's end on this loop."""

import asyncio
import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from engine_shim.core.transfer_plan import SpanTable, TransferPlan
from engine_shim.engine.port import Prefilled, Seated
from engine_shim.engine.vllm import line, worker_half
from engine_shim.engine.vllm.line import Line
from engine_shim.engine.vllm.link import VllmLink
from engine_shim.engine.vllm.messages import BlocksHeld, Release, SchedulerHello, SeatsTaken, Unfit, WorkerHello
from engine_shim.engine.vllm.remote_writer import RemoteWriter
from engine_shim.engine.vllm.restarts import Restarts
from engine_shim.engine.vllm.runner import VllmRunner
from engine_shim.engine.vllm.worker_half import WorkerHalf
from engine_shim.fabric.loopback import LoopbackFabric, LoopbackNetwork
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, PeerName
from engine_shim.fabric.writer import CopyEnded, NoticeCame, Post, SendNotice
from router.contract.errors import HandshakeFailed, ModelUnusable
from router.contract.kv import KVLayout, KVOrder, Region
from tests.support.kitchens import until

LAYOUT = KVLayout(2, 1, 4, 4, 8, "float16", KVOrder.LAYER_FIRST, has_pages=True)
HELLO = SchedulerHello("smol,alias", 1024, 100, "digest")


def region_of(memory: np.ndarray) -> Region:
    return Region(memory.ctypes.data, memory.nbytes, "cpu")


class Site:
    """One worker half and the shim's end of its link, and a peer beside it."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.path = str(folder / "link")
        self.link = VllmLink(self.path, self.listener)
        self.network = LoopbackNetwork()
        self.ours = np.arange(LAYOUT.total_bytes, dtype=np.uint8)
        self.theirs = np.zeros(LAYOUT.total_bytes, dtype=np.uint8)
        self.peer = LoopbackFabric("peer", region_of(self.theirs), self.network)
        self.events: list[object] = []
        self.writer = RemoteWriter(self.link, "ours", "UCX")
        self.writer.on_event = self.events.append

    async def open(self) -> WorkerHalf:
        ours = await asyncio.to_thread(Line, self.path)
        hello = WorkerHello(LAYOUT, region_of(self.ours), "page")
        half = WorkerHalf(ours, hello, lambda name, _: LoopbackFabric(name, region_of(self.ours), self.network))
        assert await self.link.worker == hello
        return half


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    killed: list[int] = []
    for module in (worker_half, line):
        monkeypatch.setattr(module.os, "kill", lambda pid, _: killed.append(pid))
    site = Site(tmp_path)
    site.killed = killed
    yield site
    site.link.close()
    site.listener.close()
    # With the line cut they kill their process: before `os.kill` is the real one again, they must have done so.
    for thread in threading.enumerate():
        if thread.name in {"tandem-link", "tandem-line"}:
            await asyncio.to_thread(thread.join, 20.0)
            assert not thread.is_alive()


async def test_a_copy_and_a_notice_travel_through_the_worker(site: Site) -> None:
    await site.open()
    await site.writer.start()
    assert await site.writer.add_peer(site.peer.metadata()) == "peer"
    plan = TransferPlan(SpanTable(np.array([[0, 16, 32]], dtype=np.int64)))
    order = CopyOrder(CopyKey(7), CopyOp.WRITE, PeerName("peer"), plan, region_of(site.theirs), b"tag")
    heard: list[bytes] = []

    def listen() -> list[bytes]:
        heard.extend(notice for _, notice in site.peer.advance())
        return heard

    site.writer.tell(Post(order))
    await until(lambda: listen() == [b"tag"] and CopyEnded(CopyKey(7), None) in site.events)
    assert (site.theirs[16:48] == site.ours[:32]).all()
    site.writer.tell(SendNotice(PeerName("peer"), b"hello"))
    await until(lambda: listen() == [b"tag", b"hello"])
    name = site.peer.add_peer(b"ours")
    site.peer.notify(name, b"back")
    await until(lambda: NoticeCame(PeerName("peer"), b"back") in site.events)
    await asyncio.to_thread(site.writer.stop)


async def test_a_peer_that_cannot_be_added_is_told(site: Site) -> None:
    await site.open()
    await site.writer.start()
    with pytest.raises(HandshakeFailed):
        await site.writer.add_peer(b"nobody")


async def test_blocks_go_back_to_vllm_as_what_they_are(site: Site) -> None:
    half = await site.open()
    events: list[object] = []
    restarts = Restarts()
    runner = VllmRunner(site.link, restarts, asyncio.get_running_loop(), events.extend, lambda _: None)
    scheduler = await asyncio.to_thread(Line, site.path)
    scheduler.tell(HELLO)
    scheduler.tell(SeatsTaken("decode:a", "a-1", (1, 2), 0, 7))
    scheduler.tell(SeatsTaken("decode:b", "b-1", (3, 4), 0, 7))
    scheduler.tell(SeatsTaken("decode:c", "c-1", (5,), 7, 7))
    scheduler.tell(BlocksHeld("prefill:d", "d-1", (6, 7), 8))
    await until(lambda: len(events) == 4)
    assert events[0] == Seated("decode:a", (1, 2), 0, 7)
    assert events[3] == Prefilled("prefill:d", (6, 7), 8)
    assert runner.load.held_blocks == 6, "a sequence that wants nothing pins nothing"
    anew = restarts.expect("decode:b")
    runner.recompute("decode:b")
    assert anew.is_set()
    assert runner.load.quarantined_blocks == 2, "somebody may still write them"
    runner.kv_ready("decode:a")
    for seq_id in ("decode:b", "decode:c", "prefill:d", "decode:a", "unknown"):
        runner.unpin(seq_id)
    given: dict[Release, set[str]] = {release: set() for release in Release}

    def all_given() -> bool:
        for release, ids in half.take().items():
            given[release] |= ids
        return sum(map(len, given.values())) == 3

    await until(all_given)
    assert given == {Release.KV_READY: {"a-1"}, Release.KV_FAILED: {"b-1"}, Release.SENT: {"d-1"}}
    assert runner.load.held_blocks == 0


async def test_the_port_stays_taken_as_long_as_the_worker_lives(site: Site) -> None:
    """A refused call is proof of death to peers, so it must not come while this memory's writer lives."""
    await site.open()
    address = site.listener.getsockname()
    site.listener.close()
    _, writer = await asyncio.open_connection(*address)
    writer.close()


async def test_the_scheduler_half_does_not_hold_the_port(site: Site) -> None:
    scheduler = await asyncio.to_thread(Line, site.path)
    scheduler.let_go()
    address = site.listener.getsockname()
    site.listener.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)


async def test_a_worker_without_its_shim_ends_itself(site: Site) -> None:
    await site.open()
    site.link.close()
    await until(lambda: site.killed == [os.getpid()])


async def test_so_does_the_scheduler_half(site: Site) -> None:
    scheduler = await asyncio.to_thread(Line, site.path)
    scheduler.tell(HELLO)
    scheduler.end_with_it()
    await site.link.scheduler
    assert site.killed == []
    site.link.close()
    await until(lambda: site.killed == [os.getpid()])


async def test_what_does_not_fit_is_told_to_whoever_waits(site: Site) -> None:
    half = await asyncio.to_thread(Line, site.path)
    half.tell(Unfit("Serve something else."))
    with pytest.raises(ModelUnusable, match="something else"):
        await site.link.scheduler


async def test_the_end_of_either_half_is_the_engines_end(site: Site) -> None:
    await site.open()
    downs: list[object] = []
    site.link.on_down.append(downs.append)
    scheduler = await asyncio.to_thread(Line, site.path)
    scheduler.tell(HELLO)
    await site.link.scheduler
    scheduler.let_go()
    scheduler.connection.close()
    await until(lambda: len(downs) == 1)
