"""A toy engine with the promises of the Engine port: blocks, pins, a queue, and tokens that take time.

Its KV is make-believe: a block holds (attempt, index in the prompt). Decode may run only when each of its seats holds
exactly what belongs there, so wrong bytes are seen the moment they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine_shim.engine.port import Purpose
from engine_shim.simulation.engine_events import EngineEvent, Prefilled, Prefilling, Seated, TokenOut
from engine_shim.simulation.memory import ALL_LAYERS, BlockPool, Content
from engine_shim.simulation.scene import Scene
from engine_shim.simulation.story import Invariant, request_in
from engine_shim.simulation.timeline import Process
from router.contract.ids import TransferId

BLOCK_TOKENS = 16
STEP_S = 0.03
KEEPS = 0.25
"""How often what prefill has computed is still in its cache afterwards."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a request asks of an engine."""

    num_blocks: int
    num_tokens_out: int
    prefill_for_s: float
    cached: bool
    """Decode has all of it in its prefix cache."""
    streamed: bool
    conversation: str = ""
    """Its prompts begin alike, so that KV of one serves the next; empty: it belongs to none."""
    last_tokens: int = BLOCK_TOKENS
    """In its last block."""

    @property
    def num_tokens(self) -> int:
        """Of the prompt."""
        return (self.num_blocks - 1) * BLOCK_TOKENS + self.last_tokens


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence of the engine."""

    transfer_id: TransferId
    purpose: Purpose
    prompt: Prompt
    blocks: tuple[int, ...] = ()
    parked: bool = False
    num_computed: int = 0
    """Blocks of the prompt that prefill has computed."""
    num_out: int = 0

    @property
    def text(self) -> TransferId:
        """What its KV is of: only prompts of one conversation have any in common."""
        return TransferId(self.prompt.conversation) if self.prompt.conversation else self.transfer_id


class ToyEngine:
    """Belongs to a shim's process; `on_event` hears what its steps bring, a moment later and in order."""

    def __init__(
        self, scene: Scene, process: Process, num_blocks: int, on_event: Callable[[EngineEvent], None]
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self._scene = scene
        self._process = process
        self._on_event = on_event
        self._waiting: list[Sequence] = []
        self._running: dict[TransferId, Sequence] = {}
        self._pins: dict[TransferId, tuple[int, ...]] = {}
        self._told_at = 0.0
        self._told_aside_at = 0.0

    @property
    def num_sequences(self) -> int:
        """Sequences that have not ended."""
        return len(self._waiting) + len(self._running)

    @property
    def num_pins(self) -> int:
        """Transfers whose blocks are pinned."""
        return len(self._pins)

    def add(self, transfer_id: TransferId, purpose: Purpose, prompt: Prompt, *, ahead: bool = False) -> None:
        """The sequence is queued, `ahead` of those that wait."""
        self._waiting.insert(0 if ahead else len(self._waiting), Sequence(transfer_id, purpose, prompt))
        self._admit()

    def num_cached(self, prompt: Prompt) -> int:
        """Blocks of this prompt's beginning that need not be computed."""
        return len(self.pool.find_cached(TransferId(prompt.conversation), prompt.num_blocks - 1))

    def abort(self, transfer_id: TransferId) -> None:
        """The sequence has ended without further events; its pin, if any, stays."""
        self._waiting = [sequence for sequence in self._waiting if sequence.transfer_id != transfer_id]
        sequence = self._running.pop(transfer_id, None)
        if sequence is not None and sequence.blocks != self._pins.get(transfer_id):
            self._free(sequence.transfer_id, sequence.blocks)
        self._admit()

    def recompute(self, transfer_id: TransferId) -> None:
        """A sequence that waits for KV computes its prompt itself, in other blocks; its seats stay pinned."""
        parked = self._running.get(transfer_id)
        if parked is not None and parked.parked:
            del self._running[transfer_id]
            self._waiting.append(Sequence(transfer_id, Purpose.GENERATE, parked.prompt))
        for sequence in self._waiting:
            if sequence.transfer_id == transfer_id:
                sequence.purpose = Purpose.GENERATE
        self._admit()

    def kv_ready(self, transfer_id: TransferId) -> None:
        """The seats hold the KV; the pin ends and the sequence runs."""
        blocks = self._pins.pop(transfer_id, ())
        sequence = self._running.get(transfer_id)
        if sequence is None:
            self._free(transfer_id, blocks)
            return
        sequence.parked = False
        self._check_kv(sequence)
        self._remember(sequence, sequence.prompt.num_tokens // BLOCK_TOKENS)
        self._scene.timeline.timer(STEP_S, self._process, self._decode, sequence)

    def unpin(self, transfer_id: TransferId) -> None:
        """Nobody touches the pinned blocks any more; a sequence that still computes keeps them."""
        blocks, running = self._pins.pop(transfer_id, ()), self._running.get(transfer_id)
        if running is None or running.blocks != blocks:
            self._free(transfer_id, blocks)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            # Blocks for recomputing are nobody's seats: a WRITE that lands there is wrong.
            owner = (
                f"{sequence.transfer_id}, recomputed" if sequence.purpose is Purpose.GENERATE else sequence.transfer_id
            )
            blocks = self._reserve(sequence, TransferId(owner))
            if blocks is None:
                return
            del self._waiting[0]
            sequence.blocks = blocks
            self._running[sequence.transfer_id] = sequence
            if sequence.purpose is Purpose.HOLD:
                if sequence.num_computed and self._scene.chunk_blocks:
                    num_tokens = sequence.num_computed * BLOCK_TOKENS
                    self._tell_part(Prefilling(sequence.transfer_id, blocks, num_tokens))
                self._compute_more(sequence)
            elif sequence.purpose is Purpose.GENERATE:
                self._scene.timeline.timer(sequence.prompt.prefill_for_s, self._process, self._decode, sequence)
            else:
                self._seat(sequence)

    def _reserve(self, sequence: Sequence, owner: TransferId) -> tuple[int, ...] | None:
        """Blocks for its prompt, those in the prefix cache first; None when there are not enough."""
        prompt, cached = sequence.prompt, tuple[int, ...]()
        if prompt.conversation and sequence.purpose is not Purpose.GENERATE:
            cached = self.pool.find_cached(sequence.text, prompt.num_blocks - 1)
        self.pool.take_cached(cached, owner)
        fresh = self.pool.take(prompt.num_blocks - len(cached), owner)
        if fresh is None:
            self.pool.give(cached)
            return None
        sequence.num_computed = len(cached)
        return (*cached, *fresh)

    def _remember(self, sequence: Sequence, num_blocks: int) -> None:
        """The first blocks are in the prefix cache, for others of the conversation."""
        if sequence.prompt.conversation:
            for index in range(num_blocks):
                self.pool.remember(sequence.blocks[index], (sequence.text, index))

    def _seat(self, sequence: Sequence) -> None:
        prompt, end = sequence.prompt, sequence.prompt.num_tokens - 1
        first = end if prompt.cached else sequence.num_computed * BLOCK_TOKENS
        if prompt.cached:
            for index, block in enumerate(sequence.blocks):
                self.pool.put(block, _all((sequence.text, index)))
        if first == end:
            self._scene.timeline.timer(STEP_S, self._process, self._decode, sequence)
        else:
            sequence.parked = True
            self._pins[sequence.transfer_id] = sequence.blocks
        if "cache_after_kv_ready" in self._scene.off:
            self._remember(sequence, prompt.num_tokens // BLOCK_TOKENS)
        self._tell(Seated(sequence.transfer_id, sequence.blocks, (first, end)))

    def _compute_more(self, sequence: Sequence) -> None:
        """The next chunk of the prompt is computed after its share of the time."""
        num_blocks = sequence.prompt.num_blocks
        count = min(self._scene.chunk_blocks or num_blocks, num_blocks - sequence.num_computed)
        wait_s = sequence.prompt.prefill_for_s * (count / num_blocks)
        end = sequence.num_computed + count
        if end == num_blocks and self._scene.in_layers:
            for layer in ALL_LAYERS[:-1]:
                at_s = wait_s * (layer + 1) / len(ALL_LAYERS)
                self._scene.timeline.timer(at_s, self._process, self._end_layer, sequence, layer)
        self._scene.timeline.timer(wait_s, self._process, self._end_chunk, sequence, end)

    def _end_layer(self, sequence: Sequence, layer: int) -> None:
        """A layer of the last chunk is computed."""
        transfer_id, blocks = sequence.transfer_id, sequence.blocks
        if self._running.get(transfer_id) is not sequence:
            return
        for index in range(sequence.num_computed, len(blocks)):
            self.pool.put(blocks[index], [(sequence.text, index)], range(layer, layer + 1))
        self._tell_part(Prefilling(transfer_id, blocks, sequence.prompt.num_tokens, layer + 1))

    def _end_chunk(self, sequence: Sequence, num_blocks: int) -> None:
        transfer_id, blocks = sequence.transfer_id, sequence.blocks
        if self._running.get(transfer_id) is not sequence:
            return
        for index in range(sequence.num_computed, num_blocks):
            self.pool.put(blocks[index], _all((sequence.text, index)))
        sequence.num_computed = num_blocks
        if sequence.prompt.conversation and self._scene.rng.random() < KEEPS:
            self._remember(sequence, min(num_blocks, sequence.prompt.num_tokens // BLOCK_TOKENS))
        if num_blocks == len(blocks):
            del self._running[transfer_id]
            self._pins[transfer_id] = blocks
            self._tell(Prefilled(transfer_id, blocks, sequence.prompt.num_tokens))
            return
        self._tell_part(Prefilling(transfer_id, blocks, num_blocks * BLOCK_TOKENS))
        self._compute_more(sequence)

    def _tell_part(self, part: Prefilling) -> None:
        if "pin_chunks" not in self._scene.off:
            self._pins[part.transfer_id] = part.blocks
        if not self._scene.in_layers:
            self._tell(part)
            return
        # By a thread of its own, which may be slower than the end of the step.
        timeline, rng = self._scene.timeline, self._scene.rng
        self._told_aside_at = max(self._told_aside_at, timeline.now + rng.choice((0.002, 0.002, 0.3)) * rng.random())
        timeline.after(self._told_aside_at - timeline.now, self._process, self._on_event, part)

    def _decode(self, sequence: Sequence) -> None:
        if self._running.get(sequence.transfer_id) is not sequence:
            return
        is_last = sequence.num_out + 1 == sequence.prompt.num_tokens_out
        self._tell(TokenOut(sequence.transfer_id, sequence.num_out, is_last))
        sequence.num_out += 1
        if is_last:
            del self._running[sequence.transfer_id]
            self._free(sequence.transfer_id, sequence.blocks)
            self._admit()
        else:
            self._scene.timeline.timer(STEP_S, self._process, self._decode, sequence)

    def _check_kv(self, sequence: Sequence) -> None:
        for index, block in enumerate(sequence.blocks[: -(-(sequence.prompt.num_tokens - 1) // BLOCK_TOKENS)]):
            held = self.pool.held(block)
            if held != _all((sequence.text, index)):
                what = f"block {index} of {sequence.transfer_id} holds {', '.join(map(_content, held))}"
                self._scene.violate(Invariant.RIGHT_KV, request_in(sequence.transfer_id), what)
                return

    def _free(self, transfer_id: TransferId, blocks: tuple[int, ...]) -> None:
        if not blocks:
            return
        scene, request = self._scene, request_in(transfer_id)
        if scene.memory.reads(self.pool, blocks) is not None:
            scene.violate(Invariant.KV_SAFE, request, f"{self._process.name} frees KV of {transfer_id} under a copy")
        if scene.memory.writes(self.pool, blocks) is not None:
            scene.violate(Invariant.SEATS_SAFE, request, f"{self._process.name} frees seats of {transfer_id} early")
        self.pool.give(blocks)

    def _tell(self, event: EngineEvent) -> None:
        timeline = self._scene.timeline
        at = max(self._told_at, timeline.now + 0.004 * self._scene.rng.random())
        self._told_at = at
        timeline.after(at - timeline.now, self._process, self._on_event, event)


def _all(content: Content) -> list[Content]:
    """In all layers."""
    return [content] * len(ALL_LAYERS)


def _content(found: Content | None) -> str:
    return "nothing" if found is None else f"block {found[1]} of {found[0]}"
