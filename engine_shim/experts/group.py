"""ExpertGroup: the Experts port of one rank, over any Transport. It waits, with an end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from engine_shim.experts.exchange import Exchange
from engine_shim.experts.plan import check_given, check_rows
from engine_shim.experts.port import Dispatched, Flight, Phase, Status
from engine_shim.experts.regions import Regions
from engine_shim.experts.shape import ExpertShape
from engine_shim.experts.signal import Signal
from engine_shim.experts.stats import ExpertStats
from engine_shim.experts.transport import Put, Transport
from router.contract.errors import BadRequest, Impossible, RankGone

Result = TypeVar("Result")

EAGER_POLLS = 200
"""So many polls of a wait follow each other at once; then the processor is left to others between them."""
PAUSE_S = 20e-6


@dataclass(frozen=True, slots=True)
class Waiting:
    """How a group waits."""

    deadline_s: float = 10.0
    """The longest that one half may wait for its landings."""
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class ExpertGroup:
    """See Experts."""

    _exchange: Exchange
    _waiting: Waiting
    stats: ExpertStats
    _status: Status = field(default_factory=Status)
    _refused: dict[int, Signal] = field(default_factory=dict)
    """Ranks that give up from an epoch on."""
    _closed: bool = False

    @classmethod
    def over(
        cls, transport: Transport, regions: Regions, rank: int, waiting: Waiting | None = None, first_epoch: int = 1
    ) -> ExpertGroup:
        """Rank `rank` of a group whose ranks all begin with `first_epoch`."""
        exchange = Exchange(regions, rank, transport)
        exchange.start_at(first_epoch)
        return cls(exchange, waiting or Waiting(), ExpertStats(regions.shape.local_experts))

    @property
    def shape(self) -> ExpertShape:
        """See Experts."""
        return self._exchange.regions.shape

    @property
    def rank(self) -> int:
        """See Experts."""
        return self._exchange.rank

    @property
    def device(self) -> torch.device:
        """Where tensors that it is given must lie, and those that it gives."""
        return self._exchange.transport.inbox.device

    @property
    def status(self) -> Status:
        """See Experts."""
        return self._status

    def dispatch_send(
        self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, num_tokens: int | torch.Tensor | None = None
    ) -> Flight:
        """See Experts."""
        self._check_well()
        if not self._exchange.has_room:
            raise Impossible(f"{self._exchange.regions.flights} flights are under way; receive one before the next.")
        began = self._waiting.clock()
        with self._done_or_refused(self._exchange.epoch + 1):
            live = len(topk) if num_tokens is None else int(num_tokens)
            check_given(x, topk, weights, live, self.shape)
            flight = self._exchange.begin(x[:live], topk[:live], weights[:live])
        self.stats.sent(self._waiting.clock() - began)
        return flight

    def dispatch_receive(self, flight: Flight) -> Dispatched:
        """See Experts."""
        dispatched = self._wait(flight, self._exchange.dispatched)
        self.stats.received(dispatched.target.expert_counts)
        return dispatched

    def combine_send(self, flight: Flight, answers: torch.Tensor) -> None:
        """See Experts."""
        self._check_well()
        began = self._waiting.clock()
        with self._done_or_refused(flight):
            self._exchange.answer(flight, answers)
        self.stats.answered(self._waiting.clock() - began)

    def combine_receive(self, flight: Flight, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Experts."""
        if out is not None:
            check_rows(out, self._exchange.num_tokens(flight), self.shape, "The output")
        combined = self._wait(flight, self._exchange.combined)
        self._settle()
        if out is None:
            return combined
        out[: len(combined)] = combined
        return out

    def mask(self, peers: frozenset[int]) -> None:
        """See Experts."""
        if self.rank in peers:
            raise BadRequest(f"Rank {self.rank} cannot mask itself.")
        self._exchange.masked = peers & frozenset(range(self.shape.num_ranks))

    def close(self) -> None:
        """See Experts. The peers are told, so that none of them waits for this rank."""
        if self._closed:
            return
        self._closed = True
        if not self._status.failed:
            self._give_up(Status(self._exchange.epoch + 1, Phase.REFUSED, self.rank))
        self._exchange.transport.close()

    @contextmanager
    def _done_or_refused(self, epoch: int) -> Iterator[None]:
        """Whatever is raised in the block, the peers are told, or they would wait for this rank."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self._give_up(Status(epoch, Phase.REFUSED, self.rank))

    def _wait(self, flight: Flight, attempt: Callable[[Flight], Result | None]) -> Result:
        self._check_well()
        began, polls = self._waiting.clock(), 0
        phase = self._exchange.phase(flight)
        latest: int | None = None
        while (result := attempt(flight)) is None:
            # Asked before the look at what has landed: who was stopped for long finds all of it there.
            is_late = self._waiting.clock() - began > self._waiting.deadline_s
            latest = self._advance(flight, latest)
            polls += 1
            if is_late and self._exchange.missing(flight):
                self._fail(flight)
            if polls > EAGER_POLLS:
                self._waiting.pause(PAUSE_S)
        self.stats.waited(phase, self._waiting.clock() - began, latest)
        return result

    def _settle(self) -> None:
        """Nothing of ours needs this rank's attention to arrive, however long it now stays away."""
        ends_at, polls = self._waiting.clock() + self._waiting.deadline_s, 0
        while self._exchange.transport.busy - self._exchange.masked and self._waiting.clock() < ends_at:
            self._take_landed()
            polls += 1
            if polls > EAGER_POLLS:
                self._waiting.pause(PAUSE_S)

    def _advance(self, flight: Flight, latest: int | None) -> int | None:
        """Take what has landed; the rank that came last, of those that this flight waits for."""
        exchange = self._exchange
        for source, signal in self._take_landed():
            if signal.epoch == flight:
                latest = source
        missing = exchange.missing(flight)
        for source in missing & self._refused.keys():
            refusal = self._refused[source]
            if refusal.epoch <= flight:
                self._give_up(Status(flight, Phase.REFUSED, refusal.culprit))
                self._check_well()
        if missing & exchange.transport.gone:
            self._fail(flight)
        return latest

    def _take_landed(self) -> list[tuple[int, Signal]]:
        """Count what has landed, and return it."""
        landed = self._exchange.transport.poll()
        for source, signal in landed:
            if signal.phase is Phase.REFUSED:
                self._refused.setdefault(source, signal)
            else:
                self._exchange.landings.land(source, signal)
        return landed

    def _fail(self, flight: Flight) -> None:
        """Raise RankGone, after saying so to the others."""
        exchange = self._exchange
        expected, missing = exchange.expected(flight), exchange.missing(flight)
        gone = missing & exchange.transport.gone
        peer = min(gone or missing)
        self._give_up(Status(flight, exchange.phase(flight), peer, len(expected), len(expected) - len(missing)))
        self._check_well()

    def _give_up(self, status: Status) -> None:
        """This rank takes no further part, and the others know: also those that wait for it in an earlier flight."""
        self._status = status
        signal = Signal(self._exchange.first_open, Phase.REFUSED, culprit=status.peer)
        peers = set(range(self.shape.num_ranks)) - self._exchange.masked - self._exchange.transport.gone - {self.rank}
        self._exchange.transport.scatter([Put(peer, 0, 0, 0, signal) for peer in sorted(peers)])

    def _check_well(self) -> None:
        status = self._status
        if not status.failed:
            return
        if status.phase is Phase.REFUSED:
            what = f"rank {status.peer} takes no part any more"
        else:
            what = f"{status.seen} of {status.expected} ranks had come, and rank {status.peer} had not"
        raise RankGone(f"Expert step {status.epoch}, {status.phase.name.lower()}: {what}; start the ranks again.")
