"""Exchange: the protocol of one rank, without waiting. Facts come in as landings; what must travel goes out as puts.

    begin       counts to all, the first rows of each target into their private places        -> COUNTS, DISPATCH
    dispatched  once all counts are here: what went beyond the private places follows         -> OVERFLOW
                once all rows are here: they are spread into the final layout
    answer      each source's answers go back, in the order in which its rows came            -> COMBINE
    combined    once all answers are here: the weighted sums

Every rank says something to every rank in COUNTS, DISPATCH and COMBINE, if only a Signal, so each wait is for all of
them; OVERFLOW comes from those whose counts say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from engine_shim.experts.plan import Route, check_choices, check_rows, route
from engine_shim.experts.port import Dispatched, Flight, Phase
from engine_shim.experts.regions import Regions
from engine_shim.experts.signal import Landings, Signal
from engine_shim.experts.spread import Arrival, Traffic, arrival_of, partial_sums, spread, traffic_of, weighted_sums
from engine_shim.experts.transport import Put, Transport
from engine_shim.experts.wire import answer_bytes, carried_bytes, row_bytes
from router.contract.errors import Impossible


@dataclass(slots=True)
class _Step:
    """One flight on this rank."""

    epoch: int
    topk: torch.Tensor
    weights: torch.Tensor
    route: Route
    out_dtype: torch.dtype
    awaited: frozenset[int]
    """Ranks that take part."""
    traffic: Traffic | None = None
    """Once all counts are here."""
    arrival: Arrival | None = None
    answered: bool = False


@dataclass(slots=True)
class Exchange:
    """Steps of one rank."""

    regions: Regions
    rank: int
    transport: Transport
    masked: frozenset[int] = frozenset()
    landings: Landings = field(default_factory=Landings)
    _epoch: int = 0
    _steps: dict[int, _Step] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The last epoch that has begun."""
        return self._epoch

    @property
    def has_room(self) -> bool:
        """True when the epoch whose memory the next one uses is over."""
        return self._epoch + 1 - self.first_open < self.regions.flights

    @property
    def first_open(self) -> int:
        """The first epoch that is not over on this rank."""
        return min(self._steps, default=self._epoch + 1)

    def start_at(self, epoch: int) -> None:
        """The next flight is `epoch`; what comes of earlier ones is stale."""
        self._epoch = epoch - 1
        self.landings.end(self._epoch)

    def begin(self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor) -> Flight:
        """Counts and private rows are on their way. Raises BadRequest, and then nothing is.

        There must be room.
        """
        shape = self.regions.shape
        if self.masked:
            check_choices(topk, shape)
            topk = self._without_masked(topk.to(torch.int64))
        one = route(topk, shape)
        awaited = frozenset(range(shape.num_ranks)) - self.masked
        step = _Step(self._epoch + 1, topk.to(torch.int64), weights, one, x.dtype, awaited)
        self._write_outbox(step, x)
        self._epoch = step.epoch
        self._steps[step.epoch] = step
        self.transport.scatter([*self._counts_puts(step), *self._private_puts(step)])
        return Flight(step.epoch)

    def dispatched(self, flight: Flight) -> Dispatched | None:
        """This rank's rows in their final layout; None while some are missing."""
        step = self._step(flight)
        if step.answered:
            raise Impossible(f"The rows of flight {flight} are asked for after its answers.")
        if step.traffic is None and self._all_here(step, Phase.COUNTS):
            step.traffic = self._read_traffic(step)
            self.transport.scatter(self._overflow_puts(step, step.traffic))
        if step.traffic is None or self.missing(flight):
            return None
        step.arrival = arrival_of(self.regions, self.rank, step.traffic, self.transport.inbox, step.epoch)
        target = step.traffic.target
        return Dispatched(spread(step.arrival, target, self.regions.shape), target)

    def answer(self, flight: Flight, answers: torch.Tensor) -> None:
        """Every source's answers are on their way back. Raises BadRequest, and then none is."""
        step, shape = self._step(flight), self.regions.shape
        if step.traffic is None or step.arrival is None or step.answered:
            raise Impossible(f"Answers for flight {flight} come before its rows, or twice.")
        check_rows(answers, int(step.traffic.target.expert_offsets[-1]), shape, "Answers")
        back = partial_sums(step.arrival, answers, shape) if shape.deduplicates else answers[step.arrival.slots]
        raw = answer_bytes(back, shape)
        begin = self.regions.outbox_combine(step.epoch)
        self.transport.outbox[begin : begin + raw.numel()] = raw.view(-1)
        step.answered = True
        self.transport.scatter(self._combine_puts(step, step.traffic))

    def combined(self, flight: Flight) -> torch.Tensor | None:
        """[T, H] weighted sums, and the flight is over; None while answers are missing."""
        step, shape = self._step(flight), self.regions.shape
        if not step.answered:
            raise Impossible(f"The sums of flight {flight} are asked for before its answers were sent.")
        if self.missing(flight):
            return None
        begin = self.regions.inbox_combine(step.epoch)
        num_rows = len(step.route.rank_order if shape.deduplicates else step.route.order)
        raw = self.transport.inbox[begin : begin + num_rows * shape.combine_row_bytes].view(
            num_rows, shape.combine_row_bytes
        )
        out = weighted_sums(raw, step.route, step.weights, shape)
        del self._steps[flight]
        self.landings.end(self.first_open - 1)
        return out.to(step.out_dtype)

    def num_tokens(self, flight: Flight) -> int:
        """The tokens of this rank in the flight."""
        return len(self._step(flight).topk)

    def phase(self, flight: Flight) -> Phase:
        """What this flight waits for, or waits for first."""
        step = self._step(flight)
        if step.answered:
            return Phase.COMBINE
        if step.traffic is None:
            return Phase.COUNTS
        return Phase.DISPATCH if not self._all_here(step, Phase.DISPATCH) else Phase.OVERFLOW

    def expected(self, flight: Flight) -> frozenset[int]:
        """The ranks that this flight's phase needs."""
        step = self._step(flight)
        if step.traffic is None or self.phase(flight) is not Phase.OVERFLOW:
            return step.awaited
        private = self.regions.private_rows
        return frozenset(source for source, sent in enumerate(step.traffic.sent) if sent[self.rank] > private)

    def missing(self, flight: Flight) -> frozenset[int]:
        """Those of them that have not come."""
        return self.expected(flight) - self.landings.of(flight, self.phase(flight))

    def _step(self, flight: Flight) -> _Step:
        step = self._steps.get(flight)
        if step is None:
            raise Impossible(f"Flight {flight} is not under way: it is over, or has never begun.")
        return step

    def _all_here(self, step: _Step, phase: Phase) -> bool:
        return step.awaited <= self.landings.of(step.epoch, phase)

    def _without_masked(self, topk: torch.Tensor) -> torch.Tensor:
        ranks = topk.div(self.regions.shape.local_experts, rounding_mode="floor")
        return topk.masked_fill(torch.isin(ranks, torch.tensor(sorted(self.masked)).to(ranks)), -1)

    def _write_outbox(self, step: _Step, x: torch.Tensor) -> None:
        regions, shape, outbox = self.regions, self.regions.shape, self.transport.outbox
        counts = torch.cat((step.route.counts, step.route.rank_counts)).view(torch.uint8)
        begin = regions.outbox_counts(step.epoch)
        outbox[begin : begin + len(counts)] = counts
        order = step.route.rank_order if shape.deduplicates else step.route.order // shape.top_k
        begin = regions.outbox_dispatch(step.epoch)
        rows = outbox[begin : begin + len(order) * regions.dispatch_bytes].view(len(order), regions.dispatch_bytes)
        rows[:, : shape.dispatch_row_bytes] = row_bytes(x, shape)[order]
        if shape.deduplicates:
            carried = carried_bytes(step.topk, step.weights, step.route, shape)
            rows[:, shape.dispatch_row_bytes : shape.dispatch_row_bytes + carried.shape[1]] = carried

    def _read_traffic(self, step: _Step) -> Traffic:
        shape = self.regions.shape
        width = shape.num_experts + shape.num_ranks
        counts = torch.zeros(shape.num_ranks, width, dtype=torch.int64)
        for source in step.awaited:
            begin = self.regions.inbox_counts(step.epoch, source)
            counts[source] = self.transport.inbox[begin : begin + 4 * width].view(torch.int32)
        return traffic_of(counts, self.rank, shape)

    def _counts_puts(self, step: _Step) -> list[Put]:
        source, target = self.regions.outbox_counts(step.epoch), self.regions.inbox_counts(step.epoch, self.rank)
        signal = Signal(step.epoch, Phase.COUNTS)
        return [Put(peer, source, target, self.regions.counts_bytes, signal) for peer in sorted(step.awaited)]

    def _private_puts(self, step: _Step) -> list[Put]:
        regions, signal = self.regions, Signal(step.epoch, Phase.DISPATCH)
        begins, counts = self._my_rows(step)
        target = regions.inbox_private(step.epoch, self.rank)
        first, size = regions.outbox_dispatch(step.epoch), regions.dispatch_bytes
        return [
            Put(peer, first + begins[peer] * size, target, min(counts[peer], regions.private_rows) * size, signal)
            for peer in sorted(step.awaited)
        ]

    def _overflow_puts(self, step: _Step, traffic: Traffic) -> list[Put]:
        regions, private, signal = self.regions, self.regions.private_rows, Signal(step.epoch, Phase.OVERFLOW)
        begins, counts = self._my_rows(step)
        first, size = regions.outbox_dispatch(step.epoch), regions.dispatch_bytes
        target = regions.inbox_overflow(step.epoch)
        puts = []
        for peer, num_rows in enumerate(counts):
            if num_rows > private:
                before = sum(max(sent[peer] - private, 0) for sent in traffic.sent[: self.rank])
                source = first + (begins[peer] + private) * size
                puts.append(Put(peer, source, target + before * size, (num_rows - private) * size, signal))
        return puts

    def _combine_puts(self, step: _Step, traffic: Traffic) -> list[Put]:
        size, signal, sent = self.regions.shape.combine_row_bytes, Signal(step.epoch, Phase.COMBINE), traffic.sent
        source, target = self.regions.outbox_combine(step.epoch), self.regions.inbox_combine(step.epoch)
        puts = []
        for peer in sorted(step.awaited):
            # Where our answers begin among those that we hold, and among those that this peer awaits.
            here, there = sum(row[self.rank] for row in sent[:peer]), sum(sent[peer][: self.rank])
            num_bytes = sent[peer][self.rank] * size
            puts.append(Put(peer, source + here * size, target + there * size, num_bytes, signal))
        return puts

    def _my_rows(self, step: _Step) -> tuple[list[int], list[int]]:
        """Where this rank's rows for each target begin among those that leave, and how many they are."""
        shape = self.regions.shape
        offsets = step.route.rank_offsets if shape.deduplicates else step.route.offsets[:: shape.local_experts]
        begins = offsets.tolist()
        return begins[:-1], [end - begin for begin, end in pairwise(begins)]
