"""Late: when decode is to be chosen for a request whose prefill is under way.

Decode's seats are held from its Registration until the answer's end. A Registration that comes long before prefill is
done keeps blocks from others for nothing, so decode may be chosen late:

    prefill's leg leaves                                     its expected end
    |------------------------------------|-- lead_s ---------|
                                         decode is chosen, its leg leaves, it registers

What is expected is a guess from the pace of the instance (see pace). A decode that comes too late costs the request
time, one that comes early only costs some of the gain, so of the expected time no more is waited for than 95 of 100
prefills have needed of late.
"""

from __future__ import annotations

from collections import Counter, deque

REMEMBERED = 64
"""Prefills of which it is known how they compared with what was expected."""
LEAST_KNOWN = 8
"""Before so many, half of what is expected is believed."""
_UNKNOWN = 0.5
_QUANTILE = 0.05


class LateChoice:
    """What one router knows of how well prefill's end can be told beforehand."""

    __slots__ = ("_lead_s", "_ratios", "_share", "choices")

    def __init__(self, lead_s: float) -> None:
        """Decode needs `lead_s` seconds from its choice until its seats are registered."""
        self._lead_s = lead_s
        self._ratios: deque[float] = deque(maxlen=REMEMBERED)
        self._share = _UNKNOWN
        self.choices: Counter[str] = Counter()
        """Of decode: `ahead` of prefill's answer, `overtaken` by it, or `nobody` was there."""

    def after_s(self, expected_s: float) -> float:
        """Seconds after the start of a prefill that is expected to take so long; not above 0: at once."""
        return expected_s * self._share - self._lead_s

    def learn(self, expected_s: float, took_s: float) -> None:
        """A prefill that was expected to take `expected_s` took `took_s`."""
        if expected_s <= 0.0:
            return
        self._ratios.append(took_s / expected_s)
        if len(self._ratios) >= LEAST_KNOWN:
            self._share = min(1.0, sorted(self._ratios)[int(_QUANTILE * len(self._ratios))])
