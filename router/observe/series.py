"""Series: the histograms of requests that are alike, and which time of a Record belongs into which.

    read ─ door ─ queue ─ place ─► legs sent ─────── prefill ──────► prefill done ─┐                    first content
                                       └─ registration ─► seats known ─────────────┴─ transfer ─► KV whole ─┘
                                                               └────────── kv_wait ──────────┘

Decode's shim tells two durations with its answer, `registration` and `kv_wait`; everything else is seen here. Where
it tells nothing, as engines without our shim do, there is no rendezvous to measure.
"""

from __future__ import annotations

from router.core.record import Record, rendezvous_of
from router.core.tail import Tail
from router.observe.histogram import E2E_S, OVERHEAD_S, PHASE_S, TPOT_S, TTFT_S, Histogram

PHASES = (
    *("door", "queue", "place", "prefill", "registration", "kv_wait", "transfer", "first_token_after_kv"),
    *("first_token", "stream"),
)

SEVERAL = frozenset({"n", "best_of", "beam_search", "several_prompts"})
"""Reasons for which one answer is of several sequences: no time per token can be told from the time of all."""


class Series:
    """The histograms of one (model, endpoint, stream, mode)."""

    __slots__ = ("e2e", "itl", "overhead", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_S)
        self.tpot = Histogram(TPOT_S)
        self.itl = Histogram(TPOT_S)
        self.e2e = Histogram(E2E_S)
        self.overhead = Histogram(OVERHEAD_S)

    def add(self, record: Record, passed: Tail | None) -> None:
        """One more good answer."""
        self.e2e.add(record.ended_s)
        self.overhead.add(record.placed_s - record.queued_s)
        first_s = record.content_s
        if not record.stream or not first_s:
            return
        self.ttft.add(first_s)
        streamed_s = record.last_byte_s - first_s
        # From usage where the client asked for it; otherwise engines send an event per step.
        tokens = record.completion_tokens or record.num_events
        if tokens > 1 and record.reason not in SEVERAL:
            self.tpot.add(streamed_s / (tokens - 1))
        if passed is not None:
            passed.count_gaps(self.itl.counts)
            self.itl.total += streamed_s


class Phases:
    """The phases of one mode."""

    __slots__ = ("first", "of", "overlap", "waits")

    def __init__(self) -> None:
        self.of = {name: Histogram(PHASE_S) for name in PHASES}
        self.waits = {waited: Histogram(PHASE_S) for waited in ("decode", "prefill")}
        """How long the side that was first at the Rendezvous waited for the other."""
        self.first = {"registered": 0, "prefilled": 0}
        self.overlap = Histogram(PHASE_S)

    def add(self, record: Record) -> None:
        """One more good answer."""
        of = self.of
        of["door"].add(record.door_s)
        if record.queued_s:
            of["queue"].add(record.queued_s)
        if not record.earlier:  # else the last attempt was placed after an earlier one had failed
            of["place"].add(record.sent_s - record.door_s - record.queued_s)
        if record.prefilled_s:
            of["prefill"].add(record.prefilled_s - record.sent_s)
        if record.kv_s or record.seats_s:
            self._add_rendezvous(record)
        if record.stream and record.content_s:
            of["first_token"].add(record.content_s - record.sent_s)
            of["stream"].add(record.last_byte_s - record.content_s)

    def _add_rendezvous(self, record: Record) -> None:
        of = self.of
        of["registration"].add(record.seats_s)
        of["kv_wait"].add(record.kv_s)
        _, registered_s, ready_s = rendezvous_of(record)
        prefilled_s = record.prefilled_s or ready_s  # decode's answer may overtake prefill's
        of["transfer"].add(max(0.0, ready_s - max(registered_s, prefilled_s)))
        if record.content_s:
            of["first_token_after_kv"].add(max(0.0, record.content_s - ready_s))
        if record.mode == "pull":
            return
        ahead_s = prefilled_s - registered_s
        self.first["registered" if ahead_s >= 0.0 else "prefilled"] += 1
        self.waits["decode" if ahead_s >= 0.0 else "prefill"].add(abs(ahead_s))
        self.overlap.add(min(record.seats_s, prefilled_s - record.sent_s))
