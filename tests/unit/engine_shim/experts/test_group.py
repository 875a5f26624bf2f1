"""Waiting, and how it ends: rank 0 is a group, the others are moved by hand whenever it pauses."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import torch

from engine_shim.experts.exchange import Exchange
from engine_shim.experts.group import ExpertGroup, Waiting
from engine_shim.experts.local import LocalNetwork, LocalTransport
from engine_shim.experts.port import Flight, Phase
from engine_shim.experts.regions import plan_regions
from engine_shim.experts.shape import ExpertShape, RowFormat
from engine_shim.experts.signal import Signal
from engine_shim.experts.transport import Put
from router.contract.errors import BadRequest, Impossible, RankGone

SHAPE = ExpertShape(3, 6, 2, 8, 4, dispatch_format=RowFormat.F32, combine_format=RowFormat.F32)
X = torch.arange(16.0).view(2, 8)
TOPK = torch.tensor([[0, 5], [3, -1]])
WEIGHTS = torch.tensor([[1.0, 2.0], [0.5, 9.0]])


class Table:
    """Rank 0's group, ranks 1 and 2 beside it, and a clock that goes on 10 ms with every look."""

    def __init__(self, deadline_s: float = 1.0) -> None:
        regions = plan_regions(SHAPE)
        self.network = LocalNetwork(regions, Random(1))
        self.now_s = 0.0
        transport = self.network.transport(0)
        self.group = ExpertGroup.over(transport, regions, 0, Waiting(deadline_s, self._clock, lambda _: None))
        self.others = {rank: Exchange(regions, rank, self.network.transport(rank)) for rank in (1, 2)}
        self.go: Callable[[], None] = self.everybody
        self._begun: set[int] = set()

    def everybody(self, *, but_not: int = 0, combining: bool = True) -> None:
        """Whatever is under way lands; the others take their part of the step."""
        self.nobody()
        for rank, exchange in self.others.items():
            if rank != but_not:
                self._part(rank, exchange, combining)

    def nobody(self) -> None:
        """Whatever is under way lands, and nobody else does anything."""
        for _ in range(50):
            self.network.move()

    def _part(self, rank: int, exchange: Exchange, combining: bool) -> None:
        for source, signal in exchange.transport.poll():
            exchange.landings.land(source, signal)
        if rank not in self._begun:
            self._begun.add(rank)
            exchange.begin(X[:0], TOPK[:0], WEIGHTS[:0])
        if exchange.phase(Flight(1)) is not Phase.COMBINE:
            found = exchange.dispatched(Flight(1))
            if found is not None and combining:
                exchange.answer(Flight(1), found.rows.numbers * 2)

    def _clock(self) -> float:
        self.go()
        self.now_s += 0.01
        return self.now_s


def test_a_step_with_experts_that_double() -> None:
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    found = table.group.dispatch_receive(flight)
    table.group.combine_send(flight, found.rows.numbers * 2)

    y = table.group.combine_receive(flight)

    assert torch.equal(y, torch.stack((X[0] * 6, X[1])))
    assert not table.group.status.failed
    assert table.group.stats.num_steps == 1
    assert table.group.stats.expert_rows == [1, 0]


def test_only_the_leading_tokens_count() -> None:
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS, num_tokens=torch.tensor(1, dtype=torch.int32))
    found = table.group.dispatch_receive(flight)
    table.group.combine_send(flight, found.rows.numbers * 2)
    assert torch.equal(table.group.combine_receive(flight), X[:1] * 6)


@pytest.mark.parametrize(
    ("phase", "go"),
    [
        (Phase.COUNTS, lambda table: table.everybody(but_not=2)),
        (Phase.COMBINE, lambda table: table.everybody(combining=False)),
    ],
)
def test_a_rank_that_does_not_come_is_named(phase: Phase, go: Callable[[Table], None]) -> None:
    table = Table()
    table.go = lambda: go(table)
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)

    with pytest.raises(RankGone, match=phase.name.lower()):
        table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers)
        table.group.combine_receive(flight)

    status = table.group.status
    assert (status.epoch, status.phase, status.expected) == (1, phase, 3)
    assert (status.peer, status.seen) == ((2, 2) if phase is Phase.COUNTS else (1, 1))
    assert table.now_s < 1.2, "no later than the deadline of one wait, in steps of 10 ms"
    with pytest.raises(RankGone):
        table.group.dispatch_send(X, TOPK, WEIGHTS)


def test_who_gives_up_tells_the_others_at_once() -> None:
    table = Table(deadline_s=1000.0)
    table.go = table.nobody
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.others[1].transport.scatter([Put(0, 0, 0, 0, Signal(1, Phase.REFUSED, culprit=2))])

    with pytest.raises(RankGone, match="rank 2"):
        table.group.dispatch_receive(flight)

    assert table.group.status.phase is Phase.REFUSED


@pytest.mark.parametrize("num_tokens", [-1, len(X) + 1])
def test_token_counts_that_cannot_be_are_refused_and_told(num_tokens: int) -> None:
    table = Table()
    with pytest.raises(BadRequest, match=f"and {num_tokens} tokens do not fit"):
        table.group.dispatch_send(X, TOPK, WEIGHTS, num_tokens)
    assert table.group.status.phase is Phase.REFUSED


def test_a_refusal_of_later_epochs_does_not_end_this_one() -> None:
    table, looks = Table(), iter(range(100))
    table.others[1].transport.scatter([Put(0, 0, 0, 0, Signal(2, Phase.REFUSED, culprit=1))])
    table.go = lambda: table.nobody() if next(looks) < 9 else table.everybody()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers)
    assert torch.equal(table.group.combine_receive(flight)[1], X[1])


@pytest.mark.parametrize(
    "given",
    [
        (torch.zeros(5, 8), torch.zeros(5, 2, dtype=torch.int64), torch.zeros(5, 2)),
        (torch.zeros(2, 7), TOPK, WEIGHTS),
        (X, torch.tensor([[0, 6], [1, 1]]), WEIGHTS),
        (X, TOPK, WEIGHTS[:, :1]),
        (X, TOPK.float(), WEIGHTS),
    ],
    ids=["too many tokens", "another width", "no such expert", "a weight for each token", "no integers"],
)
@pytest.mark.parametrize("masked", [frozenset(), frozenset({2})], ids=["all", "one masked"])
def test_what_does_not_fit_is_refused_before_a_byte_leaves(
    given: tuple[torch.Tensor, ...], masked: frozenset[int]
) -> None:
    table = Table()
    table.go = table.nobody
    table.group.mask(masked)

    with pytest.raises(BadRequest):
        table.group.dispatch_send(*given)

    for _ in range(50):
        table.network.move()
    assert (table.others[1].transport.inbox == 0xFF).all()
    told = {(source, signal.phase) for source, signal in table.others[1].transport.poll()}
    assert told == {(0, Phase.REFUSED)}


def test_a_long_wait_leaves_the_processor_to_others() -> None:
    table, paused = Table(deadline_s=5.0), []
    table.group._waiting = replace(table.group._waiting, pause=paused.append)
    table.go = lambda: None
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    with pytest.raises(RankGone):
        table.group.dispatch_receive(flight)
    assert len(paused) > 100
    assert table.group.stats.num_steps == 1


def test_what_has_landed_when_a_rank_that_was_stopped_looks_again_counts() -> None:
    table = Table(deadline_s=1.0)
    table.go = table.nobody
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.everybody(combining=False)
    table.nobody()

    def stopped() -> None:
        table.now_s += 5.0

    table.go = stopped
    assert table.group.dispatch_receive(flight).target.expert_counts.tolist() == [1, 0]


def test_nothing_is_kept_of_flights_that_are_over() -> None:
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers)
    table.group.combine_receive(flight)
    landings = table.group._exchange.landings
    assert (landings.over, landings._parts, landings._complete) == (1, {}, {})


def test_a_rank_that_is_known_to_be_dead_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalTransport, "gone", frozenset({2}))
    table = Table(deadline_s=1000.0)
    table.go = table.nobody
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    with pytest.raises(RankGone, match="counts: 1 of 3 ranks had come, and rank 2 had not"):
        table.group.dispatch_receive(flight)
    assert table.now_s < 1
    assert refusals(table) == {(0, 1, 2)}
    assert not {one.phase for _, one in table.others[2].transport.poll()} & {Phase.REFUSED}, "nobody tells the dead"


def test_who_has_its_sums_stays_until_its_answers_have_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([frozenset({1}), frozenset({1, 2}), frozenset({2}), frozenset()])
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers)
    monkeypatch.setattr(LocalTransport, "busy", property(lambda _: next(left)))
    table.group.combine_receive(flight)
    assert list(left) == []


def test_nobody_stays_for_longer_than_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers)
    monkeypatch.setattr(LocalTransport, "busy", frozenset({1}))
    began_s = table.now_s
    table.group.combine_receive(flight)
    assert 1.0 < table.now_s - began_s < 1.2


def refusals(table: Table) -> set[tuple[int, int, int]]:
    """Of rank 0, as rank 1 sees them: epoch and culprit of each, and from whom."""
    table.nobody()
    told = table.others[1].transport.poll()
    return {(source, one.epoch, one.culprit) for source, one in told if one.phase is Phase.REFUSED}


def test_who_leaves_in_the_middle_of_a_flight_says_so_of_that_flight() -> None:
    table = Table()
    table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.close()
    assert refusals(table) == {(0, 1, 0)}


def test_what_is_refused_later_ends_the_flights_that_wait_for_this_rank() -> None:
    table = Table()
    table.group.dispatch_send(X, TOPK, WEIGHTS)
    with pytest.raises(BadRequest):
        table.group.dispatch_send(X[:, :7], TOPK, WEIGHTS)
    assert table.group.status.epoch == 2
    assert refusals(table) == {(0, 1, 0)}


def test_the_peers_are_told_whatever_is_raised() -> None:
    table = Table()
    with pytest.raises((ValueError, RuntimeError)):
        table.group.dispatch_send(X, TOPK, WEIGHTS, num_tokens=torch.tensor([1, 2]))
    assert refusals(table) == {(0, 1, 0)}


@pytest.mark.parametrize(
    "answers",
    [torch.ones(1, 16), torch.ones(1, 4), torch.ones(0, 8), torch.ones(8), torch.ones(1, 8, dtype=torch.int64)],
    ids=["too wide", "too narrow", "too few", "one dimension", "integers"],
)
def test_answers_that_do_not_fit_are_refused_and_told(answers: torch.Tensor) -> None:
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.dispatch_receive(flight)
    with pytest.raises(BadRequest, match=r"Answers must be .* \[1 or more, 8\]"):
        table.group.combine_send(flight, answers)
    assert refusals(table) == {(0, 1, 0)}


def test_sums_go_into_the_leading_rows_of_an_output() -> None:
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS, num_tokens=1)
    table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers * 2)
    out = torch.full((3, 8), 7.0)
    for unfit in (out[:0], out[:, :4], out.long()):
        with pytest.raises(BadRequest, match="The output must be"):
            table.group.combine_receive(flight, unfit)

    assert table.group.combine_receive(flight, out) is out

    assert torch.equal(out, torch.stack((X[0] * 6, torch.full((8,), 7.0), torch.full((8,), 7.0))))


def test_halves_out_of_order_are_a_bug_of_the_caller() -> None:
    table = Table()
    with pytest.raises(Impossible, match="Flight 1 is not under way"):
        table.group.dispatch_receive(Flight(1))
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    found = table.group.dispatch_receive(flight)
    with pytest.raises(Impossible, match="before its answers were sent"):
        table.group.combine_receive(flight)
    table.group.combine_send(flight, found.rows.numbers)
    with pytest.raises(Impossible, match="after its answers"):
        table.group.dispatch_receive(flight)
    table.group.combine_receive(flight)
    with pytest.raises(Impossible, match="Flight 1 is not under way"):
        table.group.combine_receive(flight)


def test_answers_before_their_rows_are_a_bug_and_told() -> None:
    table = Table()
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    with pytest.raises(Impossible, match="come before its rows"):
        table.group.combine_send(flight, X[:1])
    assert refusals(table) == {(0, 1, 0)}


def test_more_flights_than_there_is_memory_for_are_refused() -> None:
    table = Table()
    table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.dispatch_send(X, TOPK, WEIGHTS)
    with pytest.raises(Impossible, match="2 flights"):
        table.group.dispatch_send(X, TOPK, WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32])
def test_choices_of_masked_ranks_are_none_in_every_type_of_integers(dtype: torch.dtype) -> None:
    table = Table()
    table.go = table.nobody
    table.group.mask(frozenset({1, 2}))
    flight = table.group.dispatch_send(X, torch.tensor([[0, 5], [3, 2]]).to(dtype), WEIGHTS)
    table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers * 2)
    assert torch.equal(table.group.combine_receive(flight), torch.stack((X[0] * 2, torch.zeros(8))))


def test_nobody_stays_for_what_masked_ranks_do_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalTransport, "busy", frozenset({1, 2}))
    table = Table(deadline_s=1000.0)
    table.go = table.nobody
    table.group.mask(frozenset({1, 2}))
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    table.group.combine_send(flight, table.group.dispatch_receive(flight).rows.numbers)
    table.group.combine_receive(flight)
    assert table.now_s < 1


def test_no_rank_masks_itself() -> None:
    with pytest.raises(BadRequest, match="Rank 0 cannot mask itself"):
        Table().group.mask(frozenset({0, 1}))


def test_masked_ranks_are_neither_written_nor_awaited() -> None:
    table = Table()
    table.go = table.nobody
    table.group.mask(frozenset({1, 2}))
    flight = table.group.dispatch_send(X, TOPK, WEIGHTS)
    found = table.group.dispatch_receive(flight)
    table.group.combine_send(flight, found.rows.numbers * 2)

    y = table.group.combine_receive(flight)

    assert torch.equal(y, torch.stack((X[0] * 2, torch.zeros(8)))), "only expert 0 answers"
    assert (table.others[1].transport.inbox == 0xFF).all()


def test_who_has_given_up_says_so_once() -> None:
    table = Table()
    with pytest.raises(BadRequest):
        table.group.dispatch_send(X[:, :7], TOPK, WEIGHTS)
    assert refusals(table) == {(0, 1, 0)}
    table.group.close()
    assert refusals(table) == set()


def test_closing_tells_the_others_and_may_be_repeated() -> None:
    table = Table()
    table.group.close()
    table.group.close()
    for _ in range(50):
        table.network.move()
    assert {(source, signal.epoch) for source, signal in table.others[2].transport.poll()} == {(0, 1)}
