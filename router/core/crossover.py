"""Crossover: the prompt size below which decode had better compute the prompt itself.

A hand-over costs a round trip and a transfer, a long prompt on decode costs everybody who streams there. Either the
size is configured, or it is learned: per octave of prompt tokens, the times to the first token of local and of
handed-over streams are averaged, and the way that has been quicker is taken. Every EXPLORE-th request takes the other
way, so that the averages stay true. Where the hand-over wins, longer prompts are not tried locally; prompts far above
LONGEST_TOKENS never are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SHORTEST_TOKENS = 64
"""Upper end of the first octave."""
LONGEST_TOKENS = 4096
ENOUGH = 8
"""Streams of either way before an octave is decided."""
EXPLORE = 32
_FIRST_STEPS = 4
_SHARE = 0.1
"""Of the newest time in an average."""


@dataclass(slots=True)
class Way:
    """Times to the first token, seconds, of one way in one octave."""

    num: int = 0
    average_s: float = 0.0

    def add(self, ttft_s: float) -> None:
        """One more stream began after so many seconds."""
        self.num += 1
        self.average_s += (ttft_s - self.average_s) * max(_SHARE, 1 / self.num)


@dataclass(slots=True)
class Octave:
    """What is known of prompts of one size."""

    local: Way = field(default_factory=Way)
    split: Way = field(default_factory=Way)
    asked: int = 0

    @property
    def decided(self) -> bool:
        """Both ways have been tried often enough."""
        return self.local.num >= ENOUGH and self.split.num >= ENOUGH

    @property
    def local_wins(self) -> bool:
        """Decided, and computing the prompt on decode was no slower."""
        return self.decided and self.local.average_s <= self.split.average_s


class Crossover:
    """Says of each prompt whether it is worth a hand-over."""

    __slots__ = ("_fixed_tokens", "_octaves")

    def __init__(self, fixed_tokens: int = 0) -> None:
        """`fixed_tokens` 0 means that the size is learned."""
        self._fixed_tokens = fixed_tokens
        sizes = (LONGEST_TOKENS // SHORTEST_TOKENS).bit_length()
        self._octaves = () if fixed_tokens else tuple(Octave() for _ in range(sizes))

    @property
    def tokens(self) -> int:
        """Prompts below so many tokens are local, as far as is known."""
        if not self._octaves:
            return self._fixed_tokens
        won = [number for number, octave in enumerate(self._octaves) if octave.local_wins]
        return SHORTEST_TOKENS << max(won) if won else 0

    def choose(self, tokens: int, *, streamed: bool) -> tuple[bool, str]:
        """True for local, and the reason. Only a stream shows when its first token came, so only streams explore."""
        if not self._octaves:
            return (True, "short") if tokens < self._fixed_tokens else (False, "long")
        number = _octave_of(tokens)
        if number >= len(self._octaves) or any(one.decided and not one.local_wins for one in self._octaves[:number]):
            return False, "long"
        octave = self._octaves[number]
        local = octave.local_wins
        if streamed:
            octave.asked += 1
            if octave.asked % (EXPLORE if octave.decided else _FIRST_STEPS) == 0:
                return not local, "explored"
        return local, "learned" if octave.decided else "unknown"

    def learn(self, tokens: int, ttft_s: float, *, local: bool) -> None:
        """A stream of `tokens` prompt tokens began `ttft_s` seconds after it was placed."""
        number = _octave_of(tokens)
        if number < len(self._octaves):
            octave = self._octaves[number]
            (octave.local if local else octave.split).add(ttft_s)


def _octave_of(tokens: int) -> int:
    return (tokens // SHORTEST_TOKENS).bit_length()
