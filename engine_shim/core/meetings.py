"""Meetings: how the Rendezvous of this prefill engine came about, timed by its one clock.

registered or prefill done ── waited ──► both ── moved ──► LANDED        every other end is only forgotten

A push may be on its way before prefill is done; what counts here is when the later of the two was there.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from engine_shim.core.prefill_effects import Walked
from router.contract.ids import TransferId
from router.contract.rendezvous import Arrival, JoinState

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Durations:
    """Counts of durations by BUCKETS_S, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def add(self, duration_s: float) -> None:
        """One more; a bucket includes its bound."""
        self.counts[bisect_left(BUCKETS_S, duration_s)] += 1
        self.total_s += duration_s

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts, `+Inf` last."""
        bounds = [*(str(bound) for bound in BUCKETS_S), "+Inf"]
        return list(zip(bounds, (float(count) for count in accumulate(self.counts)), strict=True))


@dataclass(slots=True)
class _Meeting:
    registered_at: float | None = None
    done_at: float | None = None

    @property
    def met_at(self) -> float | None:
        """When the later of the two came."""
        if self.registered_at is None or self.done_at is None:
            return None
        return max(self.registered_at, self.done_at)


class Meetings:
    """Fed with every Walked of one PrefillDesk, and with each prefill that is done."""

    def __init__(self) -> None:
        self.first = {"registered": 0, "prefilled": 0}
        """Which side came first, of those that met."""
        self.waits = {"decode": Durations(), "prefill": Durations()}
        """How long that side waited for the other."""
        self.moved = Durations()
        """From the meeting to the end of the copy, as prefill learns of it: what the hand-over adds to prefill."""
        self._open: dict[TransferId, _Meeting] = {}

    @property
    def num_open(self) -> int:
        """Those that have not ended."""
        return len(self._open)

    def on_done(self, transfer_id: TransferId, now: float) -> None:
        """Prefill is done at `now`, monotonic seconds; heard before the desk walks on."""
        meeting = self._open.setdefault(transfer_id, _Meeting())
        if meeting.done_at is None:
            meeting.done_at = now
            self._meet(meeting)

    def on_walked(self, walked: Walked, now: float) -> None:
        """A Rendezvous has moved at `now`, monotonic seconds."""
        if walked.state in (JoinState.SEATED, JoinState.FILLED, JoinState.MATCHED):
            meeting = self._open.setdefault(walked.transfer_id, _Meeting())
            if walked.arrival is Arrival.REGISTERED and meeting.registered_at is None:
                meeting.registered_at = now
                self._meet(meeting)
            return
        ended = self._open.pop(walked.transfer_id, None)
        if walked.state is JoinState.LANDED and ended is not None and ended.met_at is not None:
            self.moved.add(now - ended.met_at)

    def _meet(self, meeting: _Meeting) -> None:
        registered_at, done_at = meeting.registered_at, meeting.done_at
        if registered_at is None or done_at is None:
            return
        waits_for_prefill = registered_at <= done_at
        self.first["registered" if waits_for_prefill else "prefilled"] += 1
        self.waits["decode" if waits_for_prefill else "prefill"].add(abs(done_at - registered_at))
