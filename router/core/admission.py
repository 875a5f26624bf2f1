"""Admission: may one more request come in?

Two budgets of this replica, requests and estimated prompt tokens in flight; a request that would exceed one is refused
at once, before anything is chosen or sent. A single request that is larger than the whole token budget is admitted
when it is alone, since refusing it for ever would help nobody.
"""

from __future__ import annotations

from router.contract.errors import Draining, Overloaded


class Admission:
    """The budgets and what is taken of them."""

    __slots__ = ("_max_requests", "_max_tokens", "draining", "requests", "tokens")

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        """`max_tokens` 0 means that only requests are counted."""
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.requests = 0
        self.tokens = 0
        self.draining = False

    def admit(self, tokens: int) -> Overloaded | Draining | None:
        """None: the request is in, and `release(tokens)` must follow once. Otherwise the refusal."""
        if self.draining:
            return Draining("This router is shutting down; send the request again to reach another replica.")
        if self.requests >= self._max_requests:
            return Overloaded(f"{self.requests} requests are in flight, which is the limit; try again shortly.")
        if self._max_tokens and self.requests and self.tokens + tokens > self._max_tokens:
            return Overloaded(
                f"Prompts of about {self.tokens} tokens are in flight, which is the limit; try again shortly."
            )
        self.requests += 1
        self.tokens += tokens
        return None

    def release(self, tokens: int) -> None:
        """A request that was admitted with `tokens` is over."""
        self.requests -= 1
        self.tokens -= tokens
