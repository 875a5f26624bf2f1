"""Meetings: how the Rendezvous of this prefill engine came about, timed by its one clock.

SEATED or FILLED ── waited ──► MATCHED ── moved ──► LANDED        every other end is only forgotten
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from engine_shim.core.prefill_effects import Walked
from router.contract.ids import TransferId
from router.contract.rendezvous import JoinState

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


class Meetings:
    """Fed with every Walked of one PrefillDesk."""

    def __init__(self) -> None:
        self.first = {"registered": 0, "prefilled": 0}
        """Which side came first, of those that met."""
        self.waits = {"decode": Durations(), "prefill": Durations()}
        """How long that side waited for the other."""
        self.moved = Durations()
        """From the meeting to the end of the copy, as prefill learns of it."""
        self._open: dict[TransferId, tuple[JoinState, float]] = {}

    @property
    def num_open(self) -> int:
        """Those that have not ended."""
        return len(self._open)

    def on_walked(self, walked: Walked, now: float) -> None:
        """A Rendezvous has moved at `now`, monotonic seconds."""
        before = self._open.pop(walked.transfer_id, None)
        state = walked.state
        if state in (JoinState.SEATED, JoinState.FILLED):
            self._open[walked.transfer_id] = (state, now)
        elif state is JoinState.MATCHED and before is not None:
            registered = before[0] is JoinState.SEATED
            self.first["registered" if registered else "prefilled"] += 1
            self.waits["decode" if registered else "prefill"].add(now - before[1])
            self._open[walked.transfer_id] = (state, now)
        elif state is JoinState.LANDED and before is not None:
            self.moved.add(now - before[1])
