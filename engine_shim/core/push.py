"""Push: how one transfer's KV goes out while prefill still computes, as WRITEs of growing stretches of tokens.

Prefill computes a long prompt in chunks. Whatever is complete and has not been posted goes with the next WRITE, as soon
as fewer than `most_writes` are under way; so the wire, not the engine, sets how many there are, and what is under way
is bounded. A WRITE ends at the end of a block of prefill, but for the last one, which is posted only when prefill is
done: no KV is ready before it, and a prompt that prefill computes at once is one WRITE.

    computed by prefill   |■■■■■■■■■■■■■■■■■■■■■■|■■■■■■■■■■■■■|          |
    posted                |  seq 0   |   seq 1   |  next_token  ...       | end_token

Only the last WRITE knows how many there are (`total`); those before it say OPEN. Nothing here knows bytes or layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.contract.rendezvous import Registration
from router.contract.tags import OPEN

ALL_TOKENS = 1 << 62


@dataclass(frozen=True, slots=True)
class PushLimits:
    """How a push is cut into WRITEs."""

    block_tokens: int = 1
    """Of prefill's blocks: where a WRITE that is not the last may end."""
    least_tokens: int = 1
    """A WRITE before prefill is done carries at least so many tokens."""
    most_tokens: int = ALL_TOKENS
    """No WRITE carries more, unless a block does."""
    most_writes: int = 2
    """So many WRITEs of one transfer are under way at once."""

    @property
    def longest_tokens(self) -> int:
        """Whole blocks within `most_tokens`, at least one."""
        return max(self.most_tokens // self.block_tokens, 1) * self.block_tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `first_token <= t < end_token`, which one WRITE carries."""

    first_token: int
    end_token: int
    seq: int
    total: int
    """OPEN while more WRITEs follow."""
    early: bool
    """It is posted before prefill is done."""

    def of(self, registration: Registration) -> Registration:
        """What decode wants, less what other WRITEs carry."""
        return replace(registration, first_token=self.first_token, num_tokens=self.end_token)


@dataclass(slots=True)
class Push:
    """The WRITEs of one transfer."""

    next_token: int
    """What decode wants below this has been posted."""
    end_token: int
    num_posted: int = 0
    num_in_flight: int = 0
    error: str = ""
    """Of the first WRITE that failed: nothing more is posted."""

    @property
    def ended(self) -> bool:
        """True when nothing is under way and nothing more will be: everything was posted, or a WRITE has failed."""
        return not self.num_in_flight and (bool(self.error) or self.next_token >= self.end_token)

    def take(self, num_tokens: int, limits: PushLimits, *, complete: bool) -> Chunk | None:
        """The next WRITE, which is under way from here on; None while there is none.

        Args:
            num_tokens: prefill has computed so many tokens of the prompt.
            limits: how to cut.
            complete: those are all tokens of the prompt.
        """
        if self.error or self.num_in_flight >= limits.most_writes or self.next_token >= self.end_token:
            return None
        ready = self.end_token
        if not complete:
            ready = min(num_tokens, self.end_token - 1) // limits.block_tokens * limits.block_tokens
            if ready - self.next_token < limits.least_tokens:
                return None
        first, end = self.next_token, min(ready, self._longest_end(limits))
        seq, is_last = self.num_posted, end == self.end_token
        self.next_token, self.num_posted, self.num_in_flight = end, seq + 1, self.num_in_flight + 1
        return Chunk(first, end, seq, seq + 1 if is_last else OPEN, early=not complete)

    def on_written(self, error: str) -> None:
        """One WRITE has ended, and nothing of it lands any more; `error` is empty when all of it has landed."""
        self.num_in_flight -= 1
        self.error = self.error or error

    def _longest_end(self, limits: PushLimits) -> int:
        """Where the longest WRITE from here would end: at the end of a block, as the next one begins there."""
        return (self.next_token // limits.block_tokens * limits.block_tokens) + limits.longest_tokens
