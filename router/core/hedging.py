"""Hedging: when a prefill is so late that a second one should be asked, and whether that is paid for.

Late is `after_s`, or, where that is 0, what 95 of 100 prefills of such a size have not exceeded of late. Sizes are
told apart by powers of two of the prompt's tokens. A hedge costs a whole second attempt, so its budget is a small share
of all requests and has no floor: a fleet that is slow as a whole must not be asked twice for everything.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

from router.core.retries import RetryBudget

REMEMBERED = 128
"""Prefills of each size."""
LEAST_KNOWN = 20
"""Without so many nothing is late."""
_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class HedgeRules:
    """When to ask a second prefill."""

    share: float = 0.0
    """At most so many hedges per request, on average; 0: none."""
    after_s: float = 0.0
    """Seconds without prefill's answer; 0: as learned."""


class _Size:
    """Prefills of about one size."""

    __slots__ = ("late_s", "recent", "unread")

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=REMEMBERED)
        self.unread = 0
        self.late_s = inf


class Hedging:
    """What one router has learned about its prefills, and the budget of its hedges."""

    def __init__(self, rules: HedgeRules, now: float) -> None:
        self._rules = rules
        self._sizes: dict[int, _Size] = {}
        self.budget = RetryBudget(rules.share, 0.0, now)

    def late_after_s(self, tokens: int) -> float:
        """Seconds after which a prefill of `tokens` tokens is late; inf when that is not known."""
        if self._rules.after_s:
            return self._rules.after_s
        size = self._sizes.get(tokens.bit_length())
        return inf if size is None else size.late_s

    def learn(self, tokens: int, prefill_s: float) -> None:
        """A prefill of `tokens` tokens took so long."""
        size = self._sizes.get(tokens.bit_length())
        if size is None:
            size = self._sizes[tokens.bit_length()] = _Size()
        size.recent.append(prefill_s)
        size.unread += 1
        if len(size.recent) >= LEAST_KNOWN and size.unread >= LEAST_KNOWN // 2:
            size.unread = 0
            size.late_s = sorted(size.recent)[int(_QUANTILE * len(size.recent))]
