"""VllmRunner: vLLM as the Driver's engine. Its sequences come by HTTP; pins and their ends come and go by the link."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass

from engine_shim.engine.port import EngineEvent, EngineLoad, Prefilled, Seated, SequenceRequest
from engine_shim.engine.vllm.link import VllmLink
from engine_shim.engine.vllm.messages import (
    BlocksHeld,
    FromScheduler,
    GiveBack,
    Release,
    SchedulerHello,
    SchedulerLoad,
    SeatsTaken,
)
from engine_shim.engine.vllm.restarts import Restarts
from router.contract.errors import EngineDown, Impossible


@dataclass(slots=True)
class _Pin:
    request_id: str
    num_blocks: int
    received: bool
    """Seats, as against finished KV."""
    ended: bool = False
    """Its sequence is over."""


class VllmRunner:
    """An EngineRunner. `abort` only takes note: whoever asked for a sequence ends it by closing its HTTP call."""

    def __init__(
        self,
        link: VllmLink,
        restarts: Restarts,
        _loop: AbstractEventLoop,
        on_events: Callable[[list[EngineEvent]], None],
        on_down: Callable[[EngineDown], None],
    ) -> None:
        self._link = link
        self._restarts = restarts
        self._on_events = on_events
        self._pins: dict[str, _Pin] = {}
        self._load = SchedulerLoad(0, 0, 0, 0, 0, 0)
        link.on_scheduler = self._on_message
        link.on_down.append(on_down)

    @property
    def load(self) -> EngineLoad:
        """As of vLLM's last step. Blocks that two sequences share are counted for each."""
        load = self._load
        return EngineLoad(
            running_seqs=load.running_seqs,
            waiting_seqs=load.waiting_seqs,
            parked_seqs=load.parked_seqs,
            queued_prompt_tokens=load.queued_prompt_tokens,
            free_blocks=load.free_blocks,
            total_blocks=load.total_blocks,
            held_blocks=sum(pin.num_blocks for pin in self._pins.values()),
            quarantined_blocks=sum(pin.num_blocks for pin in self._pins.values() if pin.received and pin.ended),
            preemptions=0,
            prefix_hit_tokens=0,
            prefix_query_tokens=0,
        )

    def start(self) -> None:
        """vLLM steps by itself."""

    def stop(self) -> None:
        """vLLM is ended by whoever started it, after the fabric."""

    async def add(self, request: SequenceRequest) -> None:
        """The sequence itself goes to vLLM by HTTP."""

    async def num_cached(self, prompt: tuple[int, ...]) -> int:
        """vLLM does not tell."""
        return 0

    def abort(self, seq_id: str) -> None:
        """Its seats, if any, are in Quarantine from now on."""
        pin = self._pins.get(seq_id)
        if pin is not None:
            pin.ended = True

    def kv_ready(self, seq_id: str) -> None:
        """See Engine."""
        self._give_back(seq_id, Release.KV_READY)

    def recompute(self, seq_id: str) -> None:
        """Whoever asked for the sequence asks for it anew; its seats are in Quarantine from now on."""
        self.abort(seq_id)
        self._restarts.ask(seq_id)

    def unpin(self, seq_id: str) -> None:
        """See Engine."""
        pin = self._pins.get(seq_id)
        if pin is not None:
            self._give_back(seq_id, Release.KV_FAILED if pin.received else Release.SENT)

    def _give_back(self, seq_id: str, release: Release) -> None:
        pin = self._pins.pop(seq_id, None)
        if pin is not None:
            self._link.tell_worker(GiveBack(pin.request_id, release))

    def _on_message(self, message: FromScheduler) -> None:
        match message:
            case SchedulerLoad():
                self._load = message
            case SeatsTaken(seq_id, request_id, seats, first_token, num_tokens):
                if first_token < num_tokens:
                    self._pins[seq_id] = _Pin(request_id, len(seats), received=True)
                self._on_events([Seated(seq_id, seats, first_token, num_tokens)])
            case BlocksHeld(seq_id, request_id, blocks, num_tokens):
                self._pins[seq_id] = _Pin(request_id, len(blocks), received=False)
                self._on_events([Prefilled(seq_id, blocks, num_tokens)])
            case SchedulerHello():
                raise Impossible("The link keeps this to itself.")
