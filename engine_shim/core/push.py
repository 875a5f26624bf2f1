"""Push: how one transfer's KV goes out while prefill still computes, as WRITEs of growing stretches of tokens.

Prefill computes a long prompt in chunks. Whatever is complete and has not been posted goes with the next WRITE, as soon
as fewer than `most_writes` are under way; so the wire, not the engine, sets how many there are, and what is under way
is bounded. A WRITE ends at the end of a block of prefill, but for the last one, which is posted only when prefill is
done: no KV is ready before it, and a prompt that prefill computes at once is one WRITE.

    computed by prefill   |■■■■■■■■■■■■■■■■■■■■■■|■■■■■■■■■■■■■|          |
    posted                |  seq 0   |   seq 1   |  next_token  ...       | end_token

While the last chunk is computed, layer after layer, prefill may say how many layers of all that is left are there. Then
the rest goes as layers of all its tokens, the last of them when prefill is done:

                                                 | next_token             | end_token
    layers                                       |■■■■■■■■■■■■■■■■■■■■■■■■| seq 2
                                                 |■■■■■■■■■■■■■■■■■■■■■■■■| seq 3
                                                 |  next_layer  ...       |

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
    """A WRITE before prefill is done carries at least so many tokens, or layers that weigh as much."""
    most_tokens: int = ALL_TOKENS
    """No WRITE carries more, unless a block or a layer does."""
    most_writes: int = 2
    """So many WRITEs of one transfer are under way at once."""
    num_layers: int = 0
    """Of the model, where layers may go by themselves; 0: they may not."""

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
    layers: range | None = None
    """Of these tokens only these layers; None: all."""

    def of(self, registration: Registration) -> Registration:
        """What decode wants, less what other WRITEs carry."""
        return replace(registration, first_token=self.first_token, num_tokens=self.end_token)


@dataclass(slots=True)
class Push:
    """The WRITEs of one transfer."""

    next_token: int
    """What decode wants below this has been posted."""
    end_token: int
    next_layer: int = 0
    """Of what is left, the layers below this have been posted."""
    num_posted: int = 0
    num_in_flight: int = 0
    error: str = ""
    """Of the first WRITE that failed: nothing more is posted."""

    @property
    def ended(self) -> bool:
        """True when nothing is under way and nothing more will be: everything was posted, or a WRITE has failed."""
        return not self.num_in_flight and (bool(self.error) or self.next_token >= self.end_token)

    def take(self, num_tokens: int, limits: PushLimits, *, complete: bool, num_layers: int = 0) -> Chunk | None:
        """The next WRITE, which is under way from here on; None while there is none.

        Args:
            num_tokens: prefill has computed so many tokens of the prompt.
            limits: how to cut.
            complete: those are all tokens of the prompt.
            num_layers: and so many layers of all the others.
        """
        if self.error or self.num_in_flight >= limits.most_writes or self.next_token >= self.end_token:
            return None
        first, early = self.next_token, not complete
        end = self._ready_token(num_tokens, limits, complete)
        layers = None if end > first else self._ready_layers(num_layers, limits, complete)
        if layers is not None:
            end, self.next_layer = self.end_token, layers.stop
        if end == first:
            return None
        is_last = end == self.end_token and (layers is None or layers.stop == limits.num_layers)
        if layers is None or is_last:
            self.next_token = end
        seq = self.num_posted
        self.num_posted, self.num_in_flight = seq + 1, self.num_in_flight + 1
        return Chunk(first, end, seq, seq + 1 if is_last else OPEN, early, layers)

    def on_written(self, error: str) -> None:
        """One WRITE has ended, and nothing of it lands any more; `error` is empty when all of it has landed."""
        self.num_in_flight -= 1
        self.error = self.error or error

    def _ready_token(self, num_tokens: int, limits: PushLimits, complete: bool) -> int:
        """Where a WRITE of all layers may end; `next_token` where there is none."""
        if self.next_layer:
            return self.next_token
        ready = self.end_token
        if not complete:
            ready = min(num_tokens, self.end_token - 1) // limits.block_tokens * limits.block_tokens
            if ready - self.next_token < limits.least_tokens:
                return self.next_token
        # The longest one ends at the end of a block, as the next one begins there.
        longest = (self.next_token // limits.block_tokens * limits.block_tokens) + limits.longest_tokens
        return min(ready, longest)

    def _ready_layers(self, num_layers: int, limits: PushLimits, complete: bool) -> range | None:
        """The layers of what is left that may go."""
        tokens = self.end_token - self.next_token
        ready = limits.num_layers if complete else min(num_layers, limits.num_layers - 1)
        weight = tokens * (ready - self.next_layer)
        if weight <= 0 or (not complete and weight < limits.least_tokens * limits.num_layers):
            return None
        most = max(limits.longest_tokens * limits.num_layers // tokens, 1)
        return range(self.next_layer, min(ready, self.next_layer + most))
