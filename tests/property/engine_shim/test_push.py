"""A push in chunks, and in layers of the last one: only what is there is posted, everything once, and decode is ready
exactly when all has landed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.core.prefill_effects import FreeKV, FreeSeats, PrefillEffect, Write
from engine_shim.core.push import Chunk, PushLimits
from engine_shim.core.receive import Landing, ReceiveCounter
from engine_shim.core.rendezvous import PrefillClocks, PrefillDesk
from router.contract.ids import EngineId, Epoch, TransferId, digest_of
from router.contract.instance import Mode
from router.contract.notices import LANDED
from router.contract.rendezvous import JoinState, PrefillDone, Registration
from router.contract.tags import OPEN, Tag

T, P, D = TransferId("r.1"), EngineId("p@1"), EngineId("d@1")
NUM_LAYERS = 6


@dataclass
class Hall:
    """One desk, one transfer, and what is under way; every step is checked."""

    limits: PushLimits
    num_tokens: int
    wanted: tuple[int, int]
    num_computed: int = 0
    num_layers: int = 0
    """Of all that is not computed."""
    done: bool = False
    abandoned: bool = False
    failed: bool = False
    flying: list[Chunk] = field(default_factory=list)
    landed: list[Chunk] = field(default_factory=list)
    freed_kv: bool = False
    freed_seats: bool = False

    def __post_init__(self) -> None:
        self.desk = PrefillDesk(PrefillClocks(), self.limits)
        self.desk.on_leg(T, 0.0)
        num_blocks = -(-self.num_tokens // self.limits.block_tokens)
        self.blocks = tuple(range(num_blocks))
        self.registration = Registration(T, Mode.PUSH, D, P, self.blocks, *self.wanted)
        self.posted = np.zeros((self.num_tokens, NUM_LAYERS), dtype=np.int64)
        """How often each token of each layer has been."""

    def run(self, effects: list[PrefillEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Write):
                assert not self.abandoned and not self.failed, "a stale attempt may not begin to land"
                self._take(effect.chunk)
            elif isinstance(effect, FreeKV):
                assert not self.flying, "KV is read by a WRITE"
                self.freed_kv = True
            elif isinstance(effect, FreeSeats):
                assert not self.flying, "seats are written by a WRITE"
                # A registration that comes again is answered so, and frees what has long been used.
                self.freed_seats = self.freed_seats or effect.reason != LANDED

    def _take(self, chunk: Chunk) -> None:
        limits = self.limits
        tokens, layers = range(chunk.first_token, chunk.end_token), chunk.layers or range(NUM_LAYERS)
        there = np.zeros_like(self.posted)
        there[: self.num_computed] = 1
        there[:, : self.num_layers] = 1
        part = slice(tokens.start, tokens.stop), slice(layers.start, layers.stop)
        assert tokens and layers and there[part].all(), "what is not there may not go"
        self.posted[part] += 1
        assert chunk.seq == len(self.landed) + len(self.flying)
        is_last = bool(self.posted[slice(*self.wanted)].all())
        assert chunk.total == (chunk.seq + 1 if is_last else OPEN)
        assert is_last or chunk.layers or chunk.end_token % limits.block_tokens == 0
        assert self.done or not is_last, "the last one waits for prefill"
        assert chunk.early is not self.done
        assert chunk.layers is None or limits.num_layers
        weight, longest = len(tokens) * len(layers), limits.longest_tokens * NUM_LAYERS
        if chunk.early:
            assert weight >= min(limits.least_tokens * NUM_LAYERS, longest - len(tokens) + 1)
        assert weight <= longest or len(layers) == 1
        self.flying.append(chunk)
        assert len(self.flying) <= limits.most_writes

    def compute(self, count: int) -> None:
        if self.done or self.freed_kv:
            return
        if self.num_layers:  # it was in its last chunk
            count = self.num_tokens
        self.num_computed = min(self.num_computed + count, self.num_tokens)
        self.done = self.num_computed == self.num_tokens
        part = PrefillDone(T, self.blocks, self.num_computed)
        self.run(self.desk.on_prefilled(part, 1.0) if self.done else self.desk.on_prefilling(part, 1.0))

    def compute_layers(self, count: int) -> None:
        """The last chunk, whatever is left, has so many layers more, but not all."""
        if self.done or self.freed_kv:
            return
        self.num_layers = min(self.num_layers + count, NUM_LAYERS - 1)
        self.run(self.desk.on_layers(PrefillDone(T, self.blocks, self.num_tokens), self.num_layers, 1.0))

    def end_write(self, which: int, error: str) -> None:
        if self.flying:
            chunk = self.flying.pop(which % len(self.flying))
            self.failed = self.failed or bool(error)
            if not error:
                self.landed.append(chunk)
            self.run(self.desk.on_written(T, error, 2.0))

    def register(self) -> None:
        self.run(self.desk.on_registered(self.registration, 0.0))

    def abandon(self) -> None:
        open_before = not self.desk.state_of(T).closed
        effects = self.desk.on_abandoned(T, "cancelled", 3.0)
        self.abandoned = self.abandoned or open_before
        self.run(effects)


@st.composite
def halls(draw: st.DrawFn) -> Hall:
    block = draw(st.sampled_from((1, 4, 16)))
    limits = PushLimits(
        block,
        draw(st.integers(1, 40)),
        draw(st.sampled_from((1, 24, 64, 1 << 40))),
        draw(st.integers(1, 3)),
        draw(st.sampled_from((0, NUM_LAYERS, NUM_LAYERS))),
    )
    num_tokens = draw(st.integers(2, 120))
    first = draw(st.integers(0, num_tokens - 1)) // block * block
    return Hall(limits, num_tokens, (first, max(num_tokens - 1, first)))


VERBS = ("compute",) * 4 + ("layers",) * 3 + ("write",) * 3 + ("register", "fail", "abandon")
steps = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(1, 40)), min_size=6, max_size=25)


def play(hall: Hall, trace: list[tuple[str, int]]) -> None:
    for verb, number in trace:
        match verb:
            case "compute":
                hall.compute(number)
            case "layers":
                hall.compute_layers(number % 4 + 1)
            case "write":
                hall.end_write(number, "")
            case "fail":
                hall.end_write(number, "transfer_failed")
            case "register":
                hall.register()
            case "abandon":
                hall.abandon()


def settle(hall: Hall) -> None:
    hall.register()
    while hall.flying or not (hall.done or hall.freed_kv):
        hall.end_write(0, "")
        hall.compute(16)


@settings(max_examples=300)
@given(halls(), steps, st.booleans())
def test_whatever_happens_nothing_is_freed_under_a_write_and_all_ends(
    hall: Hall, trace: list[tuple[str, int]], registers_first: bool
) -> None:
    if registers_first:
        hall.register()
    play(hall, trace)
    settle(hall)
    state = hall.desk.state_of(T)
    assert state.closed and hall.desk.faults == 0
    assert hall.freed_kv or not hall.num_computed
    if state is JoinState.LANDED:
        assert not hall.abandoned and not hall.failed and not hall.freed_seats
        first, end = hall.wanted
        assert (hall.posted[first:end] == 1).all() and not hall.posted[:first].any() and not hall.posted[end:].any()
    else:
        assert (hall.abandoned or hall.failed) and hall.freed_seats


@given(halls(), steps, st.randoms(use_true_random=False))
def test_decode_is_ready_with_the_last_tag_and_not_before(
    hall: Hall, trace: list[tuple[str, int]], rng: Random
) -> None:
    play(hall, [step for step in trace if step[0] not in ("fail", "abandon")])
    settle(hall)
    counter = ReceiveCounter(digest_of(T), Epoch(1))
    tags = [Tag(digest_of(T), Epoch(1), 0, 1, chunk.seq, chunk.total) for chunk in hall.landed]
    rng.shuffle(tags)
    landings = [counter.land(tag) for tag in tags]
    assert landings[:-1] == [Landing.COUNTED] * (len(tags) - 1)
    assert landings[-1:] == [Landing.READY] * bool(tags)


def test_a_short_prompt_is_one_write() -> None:
    hall = Hall(PushLimits(16, 32, 1 << 40), 40, (0, 39))
    hall.register()
    hall.compute(40)
    assert [(chunk.seq, chunk.total, chunk.early) for chunk in hall.flying] == [(0, 1, False)]


def test_layers_of_the_last_chunk_go_while_it_is_computed_and_only_a_few_are_left_at_its_end() -> None:
    hall = Hall(PushLimits(16, 16, num_layers=NUM_LAYERS), 100, (0, 99))
    hall.register()
    hall.compute(40)
    for layers in (1, 2, 3, 5):
        hall.compute_layers(layers - hall.num_layers)
        hall.end_write(0, "")
    hall.compute(60)
    went = [(chunk.first_token, chunk.end_token, chunk.layers) for chunk in (*hall.landed, *hall.flying)]
    rest = [(32, 99, range(*layers)) for layers in ((0, 2), (2, 5), (5, 6))]
    assert went == [(0, 32, None), *rest], "a layer of 67 tokens weighs less than all layers of 16"


def test_small_chunks_go_whole() -> None:
    hall = Hall(PushLimits(16, 64, num_layers=NUM_LAYERS), 60, (0, 59))
    hall.register()
    hall.compute_layers(5)
    hall.compute(60)
    assert [(chunk.seq, chunk.total, chunk.layers) for chunk in hall.flying] == [(0, 1, None)]


def test_layers_of_a_shorter_prompt_than_decode_wants_do_not_go() -> None:
    hall = Hall(PushLimits(16, 1, num_layers=NUM_LAYERS), 60, (0, 59))
    hall.register()
    hall.run(hall.desk.on_layers(PrefillDone(T, hall.blocks, 58), 3, 1.0))
    assert not hall.flying


def test_what_is_told_late_changes_nothing() -> None:
    hall = Hall(PushLimits(16, 16, num_layers=NUM_LAYERS), 60, (0, 59))
    hall.compute(60)
    effects = hall.desk.on_layers(PrefillDone(T, hall.blocks, 60), 3, 1.0)
    effects += hall.desk.on_prefilling(PrefillDone(T, hall.blocks, 32), 1.0)
    assert effects == [] and hall.desk.faults == 0
    hall.register()
    assert [(chunk.end_token, chunk.total) for chunk in hall.flying] == [(59, 1)]


def test_a_prefix_that_decode_has_is_not_pushed() -> None:
    hall = Hall(PushLimits(16, 16, 1 << 40, 3), 100, (48, 99))
    hall.register()
    for _ in range(7):
        hall.compute(16)
    assert [(chunk.first_token, chunk.end_token) for chunk in hall.flying] == [(48, 64), (64, 80), (80, 96)]
