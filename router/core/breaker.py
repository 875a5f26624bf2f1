"""Breaker: whether an instance (or a pair of them) is trusted with requests.

    CLOSED     trusted; `failures` in a row open it
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
    """So many in a row open it; 0: it never opens."""
    open_s: float = 2.0
    open_max_s: float = 30.0


class Breaker:
    """The breaker of one instance or pair. Times are monotonic seconds."""

    __slots__ = ("_changed_at", "_rules", "canary", "failures", "opened_at", "state", "trips")

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self.state = BreakerState.CLOSED
        self.failures = 0
        """In a row."""
        self.trips = 0
        """How often it has opened since it was last closed."""
        self.opened_at = 0.0
        self.canary: object = None
        """Who tries a half-open instance, or None."""
        self._changed_at = 0.0

    @property
    def shut(self) -> bool:
        """No further request should go there."""
        return self.state is BreakerState.OPEN or self.canary is not None

    @property
    def pristine(self) -> bool:
        """Nothing is held against the instance; the breaker may be forgotten."""
        return self.state is BreakerState.CLOSED and self.failures == 0

    @property
    def half_opens_at(self) -> float:
        """When an open breaker lets a canary through."""
        rules = self._rules
        return self.opened_at + min(rules.open_s * 2.0 ** min(self.trips - 1, 16), rules.open_max_s)

    def fail(self, sent_at: float, now: float) -> bool:
        """A leg that left at `sent_at` failed by the instance's fault; True when this has opened the breaker."""
        if sent_at < self._changed_at:
            return False
        self.failures += 1
        if self.state is BreakerState.CLOSED and not 0 < self._rules.failures <= self.failures:
            return False
        if self.state is BreakerState.OPEN:  # tried because nobody was left: let another one be tried before it
            self.opened_at = now
            return False
        self.trips += 1
        self.opened_at = self._changed_at = now
        self.state, self.canary = BreakerState.OPEN, None
        return True

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

    def tick(self, now: float) -> None:
        """Half-open once the while is over."""
        if self.state is BreakerState.OPEN and now >= self.half_opens_at:
            self.state = BreakerState.HALF_OPEN
            self._changed_at = now
