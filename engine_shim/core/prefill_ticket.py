"""PrefillTicket: one Rendezvous as prefill sees it (see `rendezvous` for the rules)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine_shim.core.prefill_effects import Grant, Write
from engine_shim.core.push import Push, PushLimits
from router.contract.ids import TransferId
from router.contract.instance import Mode
from router.contract.rendezvous import Arrival, JoinState, PrefillDone, Registration


@dataclass(slots=True)
class PrefillTicket:
    """One Rendezvous as prefill sees it."""

    transfer_id: TransferId
    state: JoinState
    since: float
    """When `state` was entered, monotonic seconds."""
    registration: Registration | None = None
    done: PrefillDone | None = None
    """The KV that is there; it grows until it is `complete`."""
    layered: PrefillDone | None = None
    """All of the KV, while only the first `num_layers` layers of it are there."""
    num_layers: int = 0
    complete: bool = False
    """Prefill is done."""
    completed_at: float = 0.0
    has_leg: bool = False
    """The prefill leg is here; it ends as Prefilled or Abandoned."""
    renewed_at: float = 0.0
    """When decode last said that it is queued."""
    granted_at: float | None = None
    """Pull mode: when decode was last told to READ; None: never, so it does not."""
    push: Push | None = None
    """Push mode, once matched: its WRITEs."""
    reason: str = ""
    """Why it became VOID or DRAINING: a code of the error tree, or `cancelled`."""

    @property
    def begun(self) -> bool:
        """Push mode: a WRITE has been ordered."""
        return self.push is not None and self.push.num_posted > 0

    @property
    def may_be_read(self) -> bool:
        """Pull mode, and prefill is done."""
        return self.complete and self.registration is not None and self.registration.mode is Mode.PULL

    @property
    def misses_leg(self) -> bool:
        """Decode waits, and no prefill leg has come."""
        return self.state is JoinState.SEATED and not self.has_leg

    @property
    def wanted_at(self) -> float:
        """When finished KV that waits for decode was last known to be wanted."""
        return max(self.since, self.completed_at, self.renewed_at)

    def note(self, arrival: Arrival) -> str:
        """What the ledger should know of this arrival."""
        if arrival is not Arrival.PREFILLED or self.complete or self.done is None:
            return self.reason
        there = f"{self.done.num_tokens} tokens" if self.done.num_tokens else f"{self.num_layers} layers"
        return self.reason or f"first {there}"

    def fits(self, done: PrefillDone, *, complete: bool) -> bool:
        """True when this is the KV that is known, or more of it; or less, told late of what is complete."""
        known = self.done
        if known is None:
            return True
        if self.complete and complete:
            return done == known
        return done.blocks == known.blocks and (self.complete or done.num_tokens >= known.num_tokens)

    def next_write(self, limits: PushLimits) -> Write | None:
        """The next WRITE of the push, which is under way from here on; None while there is none."""
        if self.push is None or self.registration is None or self.done is None:
            return None
        whole, num_layers = self.layered, self.num_layers
        if whole is None or whole.num_tokens < self.registration.num_tokens:
            # Decode wants more than prefill will have: that fails when prefill is done.
            num_layers = 0
        chunk = self.push.take(self.done.num_tokens, limits, complete=self.complete, num_layers=num_layers)
        if chunk is None:
            return None
        there = self.done if self.complete or chunk.layers is None or whole is None else whole
        return Write(self.registration, there, chunk)

    def grant(self, now: float) -> Iterator[Grant]:
        """Decode is told to READ, if it may."""
        if self.may_be_read and self.registration is not None and self.done is not None:
            self.granted_at = now
            yield Grant(self.registration, self.done)
