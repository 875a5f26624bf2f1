"""A push in chunks: only what is there is posted, everything once, and decode is ready exactly when all has landed."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

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


@dataclass
class Hall:
    """One desk, one transfer, and what is under way; every step is checked."""

    limits: PushLimits
    num_tokens: int
    wanted: tuple[int, int]
    num_computed: int = 0
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
        posted = [*self.landed, *self.flying]
        assert chunk.first_token == max((one.end_token for one in posted), default=self.wanted[0])
        assert chunk.first_token < chunk.end_token <= min(self.num_computed, self.wanted[1])
        assert chunk.seq == len(posted)
        is_last = chunk.end_token == self.wanted[1]
        assert chunk.total == (chunk.seq + 1 if is_last else OPEN)
        assert is_last or chunk.end_token % limits.block_tokens == 0
        assert self.done or not is_last, "the last one waits for prefill"
        assert chunk.early is not self.done
        if chunk.early:
            assert chunk.end_token - chunk.first_token >= min(limits.least_tokens, limits.longest_tokens)
        assert chunk.end_token - chunk.first_token <= limits.longest_tokens
        self.flying.append(chunk)
        assert len(self.flying) <= limits.most_writes

    def compute(self, count: int) -> None:
        if self.done or self.freed_kv:
            return
        self.num_computed = min(self.num_computed + count, self.num_tokens)
        self.done = self.num_computed == self.num_tokens
        part = PrefillDone(T, self.blocks, self.num_computed)
        self.run(self.desk.on_prefilled(part, 1.0) if self.done else self.desk.on_prefilling(part, 1.0))

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
        block, draw(st.integers(1, 40)), draw(st.sampled_from((1, 24, 64, 1 << 40))), draw(st.integers(1, 3))
    )
    num_tokens = draw(st.integers(2, 120))
    first = draw(st.integers(0, num_tokens - 1)) // block * block
    return Hall(limits, num_tokens, (first, max(num_tokens - 1, first)))


VERBS = ("compute",) * 4 + ("write",) * 3 + ("register", "fail", "abandon")
steps = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(1, 40)), min_size=6, max_size=25)


def play(hall: Hall, trace: list[tuple[str, int]]) -> None:
    for verb, number in trace:
        match verb:
            case "compute":
                hall.compute(number)
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
        assert sum(chunk.end_token - chunk.first_token for chunk in hall.landed) == hall.wanted[1] - hall.wanted[0]
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


def test_a_prefix_that_decode_has_is_not_pushed() -> None:
    hall = Hall(PushLimits(16, 16, 1 << 40, 3), 100, (48, 99))
    hall.register()
    for _ in range(7):
        hall.compute(16)
    assert [(chunk.first_token, chunk.end_token) for chunk in hall.flying] == [(48, 64), (64, 80), (80, 96)]
