"""StopStrings: find the first stop string in a text that arrives in pieces, and say how much of it must be withheld.

Each stop string walks the text with its Knuth-Morris-Pratt automaton. Its state is the length of the longest suffix of
the text that is a prefix of the stop string, which is at the same time what must not be shown yet. Cost: O(1) per
character and stop string, amortised, however the text is cut into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that ends in the piece just walked."""

    stop: str
    end: int
    """Offset in the piece, one past the stop string's last character."""


class _Walker:
    """One stop string's automaton."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._borders = _borders(stop)

    def step(self, char: str) -> bool:
        """Take one character; True when the stop string ends with it."""
        matched, stop = self.matched, self.stop
        while matched and stop[matched] != char:
            matched = self._borders[matched - 1]
        if stop[matched] == char:
            matched += 1
        complete = matched == len(stop)
        self.matched = self._borders[matched - 1] if complete else matched
        return complete


class StopStrings:
    """Where a text stops."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for these strings, none of them empty."""
        self._walkers = [_Walker(stop) for stop in stops]

    @property
    def withheld_chars(self) -> int:
        """Length of the text's longest suffix that may still become a stop string."""
        return max((walker.matched for walker in self._walkers), default=0)

    def walk(self, piece: str, *, may_stop: bool) -> StopMatch | None:
        """Take the next piece of text; the match that ends first in it, or None.

        Of stop strings that end together the one listed first counts. Without `may_stop` matches are passed over.
        """
        if not self._walkers:
            return None
        for offset, char in enumerate(piece):
            ended = [walker for walker in self._walkers if walker.step(char)]
            if ended and may_stop:
                return StopMatch(ended[0].stop, offset + 1)
        return None


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[length] != stop[index]:
            length = borders[length - 1]
        if stop[length] == stop[index]:
            length += 1
        borders[index] = length
    return borders
