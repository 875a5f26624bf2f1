"""Breaker: whether an instance (or a pair of them) is trusted with requests.

    CLOSED     trusted; `failures` in a row open it, and so does a `share` of failures among the ends of `window_s`
    OPEN       not trusted for a while: open_s, doubled each time it opens again, up to open_max_s
    HALF_OPEN  the while is over: one request, the canary, goes there; its fate closes or opens the breaker

Only what the instance itself did wrong is told here: no 4xx, no client that left. Such an end of a canary's request
proves nothing, so the canary is released and the next request is one. What a leg tells that had left before the last
change says something about the past and is not listened to.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """How far an instance is trusted."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens and for how long, seconds."""

    failures: int = 3
    """So many in a row open it; 0: no row does."""
    open_s: float = 2.0
    open_max_s: float = 30.0
    share: float = 0.0
    """So does this share of failures among at least LEAST_ENDS ends within `window_s` seconds; 0: no share does."""
    window_s: float = 10.0


LEAST_ENDS = 20
"""A share of fewer ends says little."""
MAX_ENDS = 1024


class Breaker:
    """The breaker of one instance or pair. Times are monotonic seconds."""

    __slots__ = ("_changed_at", "_ends", "canary", "failures", "opened_at", "rules", "state", "trips")

    def __init__(self, rules: BreakerRules) -> None:
        self.rules = rules
        self.state = BreakerState.CLOSED
        self.failures = 0
        """In a row."""
        self.trips = 0
        """How often it has opened since it was last closed."""
        self.opened_at = 0.0
        self.canary: object = None
        """Who tries a half-open instance, or None."""
        self._changed_at = 0.0
        self._ends: dict[float, tuple[float, bool]] = {}
        """Of the window, by when they left (a leg may be told of twice): when they ended, and whether badly."""

    @property
    def shut(self) -> bool:
        """No further request should go there."""
        return self.state is BreakerState.OPEN or self.canary is not None

    @property
    def pristine(self) -> bool:
        """Nothing is held against the instance; the breaker may be forgotten."""
        return self.state is BreakerState.CLOSED and self.failures == 0 and not self._ends

    @property
    def half_opens_at(self) -> float:
        """When an open breaker lets a canary through."""
        rules = self.rules
        return self.opened_at + min(rules.open_s * 2.0 ** min(self.trips - 1, 16), rules.open_max_s)

    def fail(self, sent_at: float, now: float) -> bool:
        """A leg that left at `sent_at` failed by the instance's fault; True when this has opened the breaker."""
        if sent_at < self._changed_at:
            return False
        self.failures += 1
        self._note(sent_at, now, failed=True)
        if self.state is BreakerState.CLOSED and not (0 < self.rules.failures <= self.failures or self._too_many):
            return False
        if self.state is BreakerState.OPEN:  # tried because nobody was left: let another one be tried before it
            self.opened_at = now
            return False
        self.trips += 1
        self.opened_at = self._changed_at = now
        self.state, self.canary = BreakerState.OPEN, None
        self._ends.clear()
        return True

    @property
    def _too_many(self) -> bool:
        num_failed = sum(failed for _, failed in self._ends.values())
        return len(self._ends) >= LEAST_ENDS and num_failed >= self.rules.share * len(self._ends)

    def _note(self, sent_at: float, now: float, *, failed: bool) -> None:
        """One more end in the window."""
        if not self.rules.share or self.state is not BreakerState.CLOSED:
            return
        self._ends[sent_at] = (now, failed)
        if len(self._ends) > MAX_ENDS:
            del self._ends[next(iter(self._ends))]
        self._forget(now)

    def _forget(self, now: float) -> None:
        """What the window does not hold any more is forgotten; without a failure in it there is nothing to know."""
        oldest_at = now - self.rules.window_s
        ends = {sent_at: end for sent_at, end in self._ends.items() if end[0] > oldest_at}
        self._ends = ends if any(failed for _, failed in ends.values()) else {}

    def begin_answer(self, sent_at: float, now: float) -> None:
        """A good answer has begun: an instance that was not trusted works again. It may still break off."""
        if self.state is not BreakerState.CLOSED and sent_at >= self._changed_at:
            self.state, self.canary = BreakerState.CLOSED, None
            self.failures = self.trips = 0
            self._changed_at = now

    def succeed(self, sent_at: float, now: float) -> None:
        """A leg that left at `sent_at` has ended well."""
        if sent_at >= self._changed_at:
            self.begin_answer(sent_at, now)
            self.failures = 0
            self._note(sent_at, now, failed=False)

    def tick(self, now: float) -> None:
        """Half-open once the while is over; what was long ago counts no more."""
        if self._ends:
            self._forget(now)
        if self.state is BreakerState.OPEN and now >= self.half_opens_at:
            self.state = BreakerState.HALF_OPEN
            self._changed_at = now
