"""TakenBack: attempts that the router no longer wants, remembered while their legs may still be on their way."""

from __future__ import annotations

from collections import OrderedDict

from router.contract.errors import StaleAttempt
from router.contract.ids import TransferId

KEEP_FOR_S = 120.0
MAX_KEPT = 100_000


class TakenBack:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self._until: OrderedDict[TransferId, float] = OrderedDict()

    def add(self, transfer_id: TransferId, now: float) -> None:
        """Legs of this attempt must not start any more."""
        self._until[transfer_id] = now + KEEP_FOR_S
        self._until.move_to_end(transfer_id)
        while self._until and (len(self._until) > MAX_KEPT or next(iter(self._until.values())) < now):
            self._until.popitem(last=False)

    def check(self, transfer_id: TransferId, now: float) -> None:
        """Raises StaleAttempt when this attempt has been taken back."""
        if self._until.get(transfer_id, now) > now:
            raise StaleAttempt("The router has taken this attempt back.")
