"""An Engine without a model: KV of a token is a pattern of its id, so a wrong byte anywhere is seen.

Token t of a prompt leaves `(t * 7 + position) % 251 + 1` in all bytes of its place; the answer is the sum of the
prompt, then counts up. A RECEIVE sequence checks each wanted byte of its seats before it answers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Semaphore

from engine_shim.engine.port import (
    EngineEvent,
    EngineLoad,
    FinishReason,
    ModelCard,
    Prefilled,
    Prefilling,
    Purpose,
    Seated,
    SequenceFailed,
    SequenceRequest,
    TokensOut,
)
from router.contract.errors import EngineDown, NoSeats, StaleAttempt
from router.contract.kv import KVLayout, Region


@dataclass
class FakeSequence:
    request: SequenceRequest
    blocks: tuple[int, ...] = ()
    parked: bool = False
    num_out: int = 0
    num_computed: int = 0
    num_layers: int = 0
    """Of the last part."""


@dataclass
class FakeEngine:
    """Steps one token per sequence; `slow_steps` holds HOLD sequences back for so many steps.

    A HOLD sequence that is asked for in parts computes `part_tokens` of its prompt in each step, if that is set; the
    last of them one layer a step, told early, if it is asked for layers.
    """

    layout: KVLayout
    slow_steps: int = 0
    part_tokens: int = 0
    fail_prompts: frozenset[int] = frozenset()
    """First tokens whose sequences fail in the engine."""
    sequences: dict[str, FakeSequence] = field(default_factory=dict)
    pins: dict[str, tuple[int, ...]] = field(default_factory=dict)
    quarantine: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Seats of sequences that compute for themselves."""
    gate: Semaphore | None = None
    """Where set, a step waits for it."""
    broken: bool = False
    cached_tokens: int = 0
    """What it says to have of any prompt."""
    mismatches: int = 0

    def __post_init__(self) -> None:
        self.memory = ctypes.create_string_buffer(self.layout.total_bytes)
        self.region = Region(ctypes.addressof(self.memory), self.layout.total_bytes, "cpu")
        self.free = list(range(self.layout.num_blocks))
        self.card = ModelCard("fake", "fake", 4096, 32000, (2,), "0" * 16, 0)
        self.prefix_hit_tokens = 0
        self.tell: Callable[[Prefilling], None] | None = None

    def tell_early(self, tell: Callable[[Prefilling], None]) -> None:
        self.tell = tell

    def add(self, request: SequenceRequest) -> None:
        if request.seq_id in self.sequences:
            raise StaleAttempt("in use")
        if self.layout.blocks_for(len(request.prompt)) > self.layout.num_blocks:
            raise NoSeats("too long for this cache")
        self.sequences[request.seq_id] = FakeSequence(request)

    def abort(self, seq_id: str) -> None:
        sequence = self.sequences.pop(seq_id, None)
        if sequence is not None and seq_id not in self.pins:
            self.free += sequence.blocks

    def kv_ready(self, seq_id: str) -> None:
        sequence = self.sequences.get(seq_id)
        if sequence is None:
            self.unpin(seq_id)
            return
        self.pins.pop(seq_id)
        sequence.parked = False

    def recompute(self, seq_id: str) -> None:
        sequence = self.sequences.get(seq_id)
        if sequence is None or (sequence.blocks and not sequence.parked):
            return
        # The old seats leave with the pin; the new sequence takes blocks like any other.
        self.quarantine[seq_id] = self.pins.pop(seq_id, ())
        sequence.request = replace(sequence.request, purpose=Purpose.GENERATE)
        sequence.blocks, sequence.parked = (), False

    def unpin(self, seq_id: str) -> None:
        self.free += self.quarantine.pop(seq_id, ())
        blocks = self.pins.pop(seq_id, ())
        if seq_id not in self.sequences:
            self.free += blocks

    def num_cached(self, prompt: tuple[int, ...]) -> int:
        return min(self.cached_tokens, (len(prompt) - 1) // self.layout.block_tokens * self.layout.block_tokens)

    def has_work(self) -> bool:
        return any(not s.parked for s in self.sequences.values()) or self.broken

    def step(self) -> list[EngineEvent]:
        if self.broken:
            raise RuntimeError("the fake engine was told to break")
        if self.gate is not None:
            self.gate.acquire(timeout=10.0)
        events: list[EngineEvent] = []
        for seq_id, sequence in list(self.sequences.items()):
            if not sequence.parked:
                events += self._advance(seq_id, sequence)
        return events

    def load(self) -> EngineLoad:
        given_up = sum(len(blocks) for blocks in self.quarantine.values())
        held = sum(len(blocks) for blocks in self.pins.values()) + given_up
        quarantined = given_up + sum(
            len(b) for s, b in self.pins.items() if s not in self.sequences and s.startswith("decode")
        )
        running = sum(not s.parked for s in self.sequences.values())
        parked = len(self.sequences) - running
        return EngineLoad(running, 0, parked, 0, len(self.free), self.layout.num_blocks, held, quarantined, 0, 0, 0)

    def _advance(self, seq_id: str, sequence: FakeSequence) -> list[EngineEvent]:
        request = sequence.request
        if request.prompt[0] in self.fail_prompts:
            del self.sequences[seq_id]
            return [SequenceFailed(seq_id, EngineDown("this prompt breaks the engine"))]
        if not sequence.blocks:
            needed = self.layout.blocks_for(len(request.prompt))
            if needed > len(self.free):
                return []
            sequence.blocks = tuple(self.free[:needed])
            del self.free[:needed]
            if request.purpose is Purpose.RECEIVE and len(request.prompt) > 1:
                sequence.parked = True
                self.pins[seq_id] = sequence.blocks
                return [Seated(seq_id, sequence.blocks, 0, len(request.prompt) - 1)]
            if request.purpose is Purpose.RECEIVE:
                return [Seated(seq_id, sequence.blocks, 0, 0)]
        if request.purpose is Purpose.HOLD:
            return self._hold(seq_id, sequence)
        return [self._emit(seq_id, sequence)]

    def _hold(self, seq_id: str, sequence: FakeSequence) -> list[EngineEvent]:
        sequence.num_out += 1
        if sequence.num_out <= self.slow_steps:
            return []
        prompt = sequence.request.prompt
        end = len(prompt)
        if sequence.request.in_parts and self.part_tokens:
            end = min(sequence.num_computed + self.part_tokens, end)
        self.pins[seq_id] = sequence.blocks
        if end == len(prompt) and 0 < sequence.request.layers_from_tokens <= end - sequence.num_computed:
            sequence.num_layers += 1
            self._write_some(sequence, end, range(sequence.num_layers - 1, sequence.num_layers))
            if sequence.num_layers < self.layout.num_layers:
                assert self.tell is not None
                self.tell(Prefilling(seq_id, sequence.blocks, end, sequence.num_layers))
                return []
        else:
            self._write_some(sequence, end, range(self.layout.num_layers))
        sequence.num_computed = end
        if end < len(prompt):
            return [Prefilling(seq_id, sequence.blocks, end)]
        del self.sequences[seq_id]
        last = TokensOut(seq_id, (sum(prompt),), "x", finish_reason=FinishReason.LENGTH)
        return [Prefilled(seq_id, sequence.blocks, len(prompt)), last]

    def _emit(self, seq_id: str, sequence: FakeSequence) -> TokensOut:
        request = sequence.request
        if request.purpose is Purpose.RECEIVE and sequence.num_out == 0:
            self._check(sequence)
        token = sum(request.prompt) + sequence.num_out
        sequence.num_out += 1
        finish = FinishReason.LENGTH if sequence.num_out == request.sampling.max_tokens else None
        if finish:
            del self.sequences[seq_id]
            self.free += sequence.blocks
        return TokensOut(seq_id, (token,), f"{token} ", finish_reason=finish)

    def _places(self, blocks: tuple[int, ...], position: int) -> list[int]:
        """Byte offsets of this token's slabs (block_first only)."""
        shape = self.layout
        block, place = blocks[position // shape.block_tokens], position % shape.block_tokens
        slab = shape.block_tokens * shape.slab_token_bytes
        start = block * shape.block_bytes + place * shape.slab_token_bytes
        return [start + k * slab for k in range(2 * shape.num_layers)]

    def _write_some(self, sequence: FakeSequence, end: int, layers: range) -> None:
        for position in range(sequence.num_computed, end):
            byte = (sequence.request.prompt[position] * 7 + position) % 251 + 1
            for place in self._places(sequence.blocks, position)[2 * layers.start : 2 * layers.stop]:
                ctypes.memset(self.region.base + place, byte, self.layout.slab_token_bytes)

    def _check(self, sequence: FakeSequence) -> None:
        prompt = sequence.request.prompt
        for position, token in enumerate(prompt[:-1]):
            want = bytes([(token * 7 + position) % 251 + 1]) * self.layout.slab_token_bytes
            for place in self._places(sequence.blocks, position):
                if ctypes.string_at(self.region.base + place, len(want)) != want:
                    self.mismatches += 1
