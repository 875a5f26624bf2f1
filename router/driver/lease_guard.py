"""LeaseGuard: a plain prefill's KV that was freed before decode came to register for it is computed once more.

A stock vLLM prefill keeps a finished prompt's KV for its lease, and in push mode nothing renews that lease while decode
queues. A decode that registers later waits for good: nobody tells it, and an answer that is not streamed shows no sign
of it before the total deadline. The guard watches the count of leases that have ended in prefill's metrics around the
time at which this one must have: where it rises and decode has not answered, the prompt is computed once more under the
same id, which begins a new lease and serves a registration that is there already.

That the lease of another request has ended in the same seconds cannot be told apart. It costs a prefill, no more: KV
that nobody registers for is freed at the end of its lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import LegError
from router.contract.instance import Instance
from router.legs.connection import Headers
from router.legs.decode import DecodeLeg
from router.legs.leg import Leg
from router.legs.prefill import PrefillLeg

if TYPE_CHECKING:
    from router.driver.router import Router

EARLY_S = 2.0
"""Before the lease's end the count is read for the first time; the fleet's view of it may be a second old."""
LATE_S = 15.0
"""After it the guard looks no more: an idle prefill ends leases when its next request wakes it."""
AGAIN_S = 1.0
TRY_S = 60.0
"""How long computing the prompt once more may take."""
RENEWED = "renewed"


class LeaseGuard:
    """Of one attempt; swept among others from prefill's answer until decode's."""

    __slots__ = (
        "_among",
        "_count",
        "_counts",
        "_decode",
        "_ends_at",
        "_expired",
        "_lease_s",
        "_leg",
        "_prefill",
        "due_at",
    )

    def __init__(
        self, legs: tuple[PrefillLeg, DecodeLeg], lease_s: float, now: float, expired: Callable[[], int | None]
    ) -> None:
        """Prefill has answered at `now`. `expired`: its leases that have ended so far, or None when it is gone."""
        self._prefill, self._decode = legs
        self._lease_s = lease_s
        self._expired = expired
        self._count: int | None = None
        self._leg: Leg | None = None
        self._among: set[LeaseGuard] = set()
        self._counts: Counter[str] = Counter()
        self._begin(now)

    def _begin(self, now: float) -> None:
        """A lease has begun."""
        self._leg, self._count = None, None
        self._ends_at = now + self._lease_s
        self.due_at = max(now, self._ends_at - EARLY_S)

    def watch(self, among: set[LeaseGuard], counts: Counter[str]) -> None:
        """This is one of `among` until it stops; what it does is counted."""
        self._among, self._counts = among, counts
        among.add(self)

    @property
    def looked(self) -> bool:
        """The count has been read for this lease."""
        return self._count is not None

    def on_due(self, now: float) -> None:
        """Look, and act where the lease has ended."""
        decode = self._decode
        if decode.status or decode.cancelled or decode.ended or now > self._ends_at + LATE_S or self._leg is not None:
            self.stop()
            return
        count = self._expired()
        if count is None:
            self.stop()
        elif self._count is None or count <= self._count:
            self._count = count if self._count is None else self._count
            self.due_at = now + AGAIN_S
        else:
            self._counts[RENEWED] += 1
            self._ends_at = self.due_at = now + TRY_S
            self._leg = self._prefill.once_more(self)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """The prompt is computed; or prefill has refused, and the deadlines of the request see to the rest."""
        self._leg = None
        if 200 <= status < 300:
            self._begin(monotonic())
        else:
            self.stop()

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """A prefill leg has none."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """Prefill is not there."""
        self._leg = None
        self.stop()

    def stop(self) -> None:
        """Nothing is watched any more."""
        if self._leg is not None:
            self._leg.cancel()
            self._leg = None
        self._among.discard(self)


def guard_lease(router: Router, prefill: Instance, legs: tuple[PrefillLeg, DecodeLeg]) -> LeaseGuard | None:
    """The guard of an attempt whose plain `prefill` has just answered; None where the settings want none."""
    lease_s = router.conduct.vllm_lease_s
    if not lease_s:
        return None

    def expired() -> int | None:
        members = (one for one in router.fleet.members if one.instance.instance_id == prefill.instance_id)
        member = next((one for one in members if one.instance.epoch == prefill.epoch), None)
        return None if member is None else member.load.expired_leases

    guard = LeaseGuard(legs, lease_s, monotonic(), expired)
    guard.watch(router.lease_guards, router.mended)
    return guard
