"""InFlight: how many requests, with how many estimated prompt tokens, are taken of something."""

from __future__ import annotations


class InFlight:
    """What is taken and not yet given back."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        """Estimated prompt tokens of those requests."""

    def take(self, tokens: int) -> None:
        """One more request of `tokens` prompt tokens is taken."""
        self.requests += 1
        self.tokens += tokens

    def give(self, tokens: int) -> None:
        """A request that was taken with `tokens` is over."""
        self.requests -= 1
        self.tokens -= tokens
