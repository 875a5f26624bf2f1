"""Pulse: what a row of probes makes of one instance.

An instance is out after `failures` probes in a row have failed, and in again after `successes` good ones. One that has
never answered well is out at the first failure and in at the first success: it is only starting.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Beat(Enum):
    """How one probe ended."""

    WELL = "well"
    REFUSED = "refused"
    """The instance has answered, and says that it is not ready."""
    SILENT = "silent"
    """No connection, or no answer in time."""


@dataclass(frozen=True, slots=True)
class PulseRules:
    """How instances are probed. Times are seconds."""

    period_s: float = 5.0
    """Between two probes of an instance; 0: nobody is probed."""
    timeout_s: float = 5.0
    failures: int = 3
    successes: int = 2


class Pulse:
    """The probes of one start of one instance."""

    __slots__ = ("_failures", "_known", "_rules", "_successes", "out", "says_so")

    def __init__(self, rules: PulseRules) -> None:
        self._rules = rules
        self._failures = self._successes = 0
        self._known = False
        """It has answered well before."""
        self.out = False
        self.says_so = False
        """The last failed probe was answered."""

    def beat(self, beat: Beat) -> None:
        """One more probe has ended."""
        if beat is Beat.WELL:
            self._failures = 0
            self._successes += 1
            if not self._known or self._successes >= self._rules.successes:
                self.out = False
            self._known = True
            return
        self._successes = 0
        self._failures += 1
        self.says_so = beat is Beat.REFUSED
        if not self._known or self._failures >= self._rules.failures:
            self.out = True
