"""PrefillTicket: one Rendezvous as prefill sees it (see `rendezvous` for the rules)."""

from __future__ import annotations

from dataclasses import dataclass

from engine_shim.core.push import Push
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
    def wanted_at(self) -> float:
        """When finished KV that waits for decode was last known to be wanted."""
        return max(self.since, self.completed_at, self.renewed_at)

    def note(self, arrival: Arrival) -> str:
        """What the ledger should know of this arrival."""
        if arrival is not Arrival.PREFILLED or self.complete or self.done is None:
            return self.reason
        return self.reason or f"first {self.done.num_tokens} tokens"

    def fits(self, done: PrefillDone) -> bool:
        """True when this is the KV that is known, or more of it."""
        known = self.done
        if known is None:
            return True
        if self.complete:
            return done == known
        return done.blocks == known.blocks and done.num_tokens >= known.num_tokens
