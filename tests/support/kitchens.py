"""Drivers with fake engines over the loopback fabric, on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from engine_shim.core.fates import Address, Call, FateClocks, FateDesk
from engine_shim.core.prefill_effects import Walked
from engine_shim.core.push import PushLimits
from engine_shim.core.rendezvous import PrefillClocks, PrefillDesk
from engine_shim.core.seats import DecodeClocks, SeatDesk
from engine_shim.driver.driver import Bench, Driver
from engine_shim.driver.hand_over import Desks, KVFailure
from engine_shim.driver.handshake import PROTOCOL_VERSION, Answer, Caller, PeerCard
from engine_shim.driver.peers import Peers
from engine_shim.driver.recall import RecallRules
from engine_shim.engine.port import SamplingParams, SequenceRequest
from engine_shim.engine.thread import EngineThread
from engine_shim.fabric.loopback import LoopbackFabric, LoopbackNetwork
from engine_shim.fabric.writer import FabricEvent, WriterThread
from router.contract.errors import HandshakeFailed, TandemError
from router.contract.ids import EngineId, Epoch, InstanceId, TransferId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Mode, Role
from router.contract.kv import KVLayout
from router.contract.seal import Seal
from router.contract.wire import DecodeHandoff
from tests.support.fake_engine import FakeEngine

ids = count(1)


def small_layout(block_tokens: int = 4, num_blocks: int = 64, num_layers: int = 2) -> KVLayout:
    return KVLayout(num_layers, 1, 4, block_tokens, num_blocks, "float16")


@dataclass
class Clocks:
    prefill: PrefillClocks = field(default_factory=PrefillClocks)
    decode: DecodeClocks = field(default_factory=DecodeClocks)
    fates: FateClocks = field(default_factory=FateClocks)


@dataclass
class Site:
    """Shims that can reach each other without HTTP: a handshake is a call."""

    network: LoopbackNetwork = field(default_factory=LoopbackNetwork)
    drivers: dict[str, Driver] = field(default_factory=dict)
    walked: list[Walked] = field(default_factory=list)
    kv_failure: KVFailure = KVFailure.FAIL
    recomputed: list[tuple[TransferId, str]] = field(default_factory=list)
    limits: PushLimits = field(default_factory=PushLimits)
    """How pushes are cut."""
    layers_from_tokens: int = 0
    """Last chunks of so many tokens are told of in layers; 0: none is."""
    recall: RecallRules | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    """What a call to this engine brings, where it is not answered."""

    async def open(self, role: Role, engine: FakeEngine, clocks: Clocks | None = None) -> Driver:
        """A started Driver."""
        clocks = clocks or Clocks()
        instance_id, epoch = InstanceId(f"{role}-{next(ids)}"), Epoch(1)
        engine_id = engine_id_of(instance_id, epoch)
        holder: list[Driver] = []

        def on_event(event: FabricEvent) -> None:
            holder[0].on_fabric_event(event)

        loop = asyncio.get_running_loop()
        writer = WriterThread(lambda: LoopbackFabric(engine_id, engine.region, self.network), loop, on_event)
        metadata, address, seal = await writer.start(), Address("127.0.0.1", 1), Seal()
        card = PeerCard(PROTOCOL_VERSION, engine_id, epoch, address, "same", engine.layout, engine.region, metadata)
        desks = Desks(
            Peers(card, writer, SiteCaller(self), FateDesk(clocks.fates)),
            writer,
            seal,
            PrefillDesk(clocks.prefill, replace(self.limits, block_tokens=engine.layout.block_tokens)),
            SeatDesk(engine_id, clocks.decode),
            self.walked.append,
            self.kv_failure,
            lambda transfer_id, error: self.recomputed.append((transfer_id, error.code)),
            layers_from_tokens=self.layers_from_tokens,
        )
        kv = KVIdentity(engine_id, "127.0.0.1", 1, engine.layout, "same", (Mode.PUSH, Mode.PULL, Mode.LOCAL))
        instance = Instance(instance_id, role, epoch, "http://127.0.0.1:1", "fake", 4096, kv)
        run_engine = partial(EngineThread, engine)
        driver = Driver(Bench(engine.card, run_engine, None, instance, desks, engine, self.recall))
        holder.append(driver)
        driver.start()
        self.drivers[engine_id] = driver
        return driver

    async def aclose(self) -> None:
        for driver in self.drivers.values():
            await driver.aclose()


class SiteCaller(Caller):
    """Handshakes by calling the other Driver of the Site."""

    def __init__(self, site: Site) -> None:
        super().__init__(Seal())
        self._site = site

    async def call(self, ours: PeerCard, engine_id: EngineId, address: Address) -> Answer:
        call = self._site.calls.get(engine_id, Call.ANSWERED)
        if call is not Call.ANSWERED:
            return Answer(call, error=HandshakeFailed(f"{engine_id}: {call}"))
        hand_over = self._site.drivers[engine_id].hand_over
        assert hand_over is not None
        try:
            await hand_over.peers.welcome(ours)
        except TandemError as error:
            return Answer(Call.SILENT, error=HandshakeFailed(error.message))
        return Answer(Call.ANSWERED, hand_over.peers.card)


def prompt_request(prompt: tuple[int, ...], max_tokens: int = 3) -> SequenceRequest:
    return SequenceRequest("unset", prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))


def decode_handoff(transfer_id: str, prefill: Driver, mode: Mode) -> DecodeHandoff:
    kv = prefill.instance.kv
    assert kv is not None
    return DecodeHandoff(TransferId(transfer_id), mode, kv.engine_id, "127.0.0.1", 1)


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait for a fact that other threads bring about."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def quiet(driver: Driver, engine: FakeEngine) -> bool:
    """Nothing is held: the quiet check of every test."""
    load = driver.load()
    facts = (load.open_tickets, load.live_transfers, load.held_blocks, load.quarantined_blocks, len(engine.sequences))
    return facts == (0, 0, 0, 0, 0) and len(engine.free) == engine.layout.num_blocks
