"""Health: whom this router does not send requests to, though the fleet lists them.

    breakers   an instance that fails its legs, or a pair whose hand-overs fail     (what requests have met)
    rests      an instance that has said it is busy, until its Retry-After is over
    probes     an instance that does not answer GET /health, or answers no          (what the prober has met)

All three take instances out of the choice by exclusion. When that leaves nobody, the one that is out for the longest is
tried all the same, since a refusal is certain to help nobody; only an instance that itself says it is not ready is
never tried. With nothing amiss `alert` is False, and nobody asks for anything here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from router.contract.errors import FleetError, NoDecode, NoPrefill
from router.contract.ids import Epoch, InstanceId
from router.core.breaker import Breaker, BreakerRules, BreakerState
from router.core.fleet import Member
from router.core.placement import Placement, Refusal

Pair = tuple[InstanceId, InstanceId]
"""Prefill and decode."""
Choose = Callable[[frozenset[InstanceId]], Placement | Refusal]
"""Chooses outside of these instances."""

MAX_REST_S = 5.0
"""However long an instance asks to be left alone, it is asked again after so many seconds."""


class Health:
    """What one router holds against the instances of its fleet. Times are monotonic seconds."""

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self._breakers: dict[InstanceId | Pair, Breaker] = {}
        self._rests: dict[InstanceId, float] = {}
        self._out: dict[InstanceId, tuple[bool, float]] = {}
        """Out by probes: it says so itself, since when."""
        self._epochs: Mapping[InstanceId, Epoch] = {}
        self.alert = False
        """Anything is held against anybody: ends of legs should be told."""
        self.shut: frozenset[InstanceId] = frozenset()
        """Those to leave out."""
        self.apart: frozenset[Pair] = frozenset()
        """Pairs to leave out."""
        self.trips: Counter[str] = Counter()
        """Breakers that opened: instances and pairs."""

    def follow(self, rules: BreakerRules) -> None:
        """These rules hold from here on, also for what is out by now."""
        self._rules = rules
        for breaker in self._breakers.values():
            breaker.rules = rules

    # What is told.

    def fail(self, key: InstanceId | Pair, sent_at: float, now: float) -> None:
        """A leg (or a pair's hand-over) that left at `sent_at` has failed by their fault."""
        if not self._rules.failures and not self._rules.share:
            return
        breaker = self._breakers.get(key)
        if breaker is None:
            breaker = self._breakers[key] = Breaker(self._rules)
        if breaker.fail(sent_at, now):
            self.trips["pair" if isinstance(key, tuple) else "instance"] += 1
        self._judge()

    def rest(self, instance_id: InstanceId, for_s: float, now: float) -> None:
        """The instance has asked to be left alone for so many seconds."""
        self._rests[instance_id] = now + min(for_s, MAX_REST_S)
        self._judge()

    def begin_answer(self, keys: Iterable[InstanceId | Pair], sent_at: float, now: float) -> None:
        """A good answer has begun, to which all of these have contributed."""
        for key in keys:
            if key in self._breakers:
                self._breakers[key].begin_answer(sent_at, now)
        self._judge()

    def succeed(self, keys: Iterable[InstanceId | Pair], sent_at: float, now: float) -> None:
        """A good answer has ended."""
        for key in keys:
            if key in self._breakers:
                self._breakers[key].succeed(sent_at, now)
        self._judge()

    def probed(self, instance_id: InstanceId, out: bool | None, now: float) -> None:
        """Probes find the instance well (None), out because it says so itself (True), or out since silent (False)."""
        if out is None:
            if self._out.pop(instance_id, None) is None:
                return
        else:
            since = self._out.get(instance_id, (out, now))[1]
            self._out[instance_id] = (out, since)
        self._judge()

    def see(self, epochs: Mapping[InstanceId, Epoch]) -> None:
        """The fleet is now of these; whoever left or started anew has a clean slate."""
        before, self._epochs = self._epochs, epochs
        if self.alert:
            for instance_id in [one for one in before if epochs.get(one) != before[one]]:
                self._forget(instance_id)
            self._judge()

    def _forget(self, instance_id: InstanceId) -> None:
        self._rests.pop(instance_id, None)
        self._out.pop(instance_id, None)
        for key in [key for key in self._breakers if key == instance_id or (type(key) is tuple and instance_id in key)]:
            del self._breakers[key]

    def take_canary(self, keys: Iterable[InstanceId | Pair], attempt: object) -> None:
        """`attempt` goes there; where that is half-open, it is the canary."""
        for key in keys:
            breaker = self._breakers.get(key)
            if breaker is not None and breaker.state is BreakerState.HALF_OPEN and breaker.canary is None:
                breaker.canary = attempt
        self._judge()

    def release(self, attempt: object) -> None:
        """`attempt` is over; if it was a canary that has proved nothing, another may be one."""
        for breaker in self._breakers.values():
            if breaker.canary is attempt:
                breaker.canary = None
        self._judge()

    def tick(self, now: float) -> None:
        """Breakers that have been open for long enough are half-open, rests that are over are forgotten."""
        for breaker in self._breakers.values():
            breaker.tick(now)
        self._rests = {one: until for one, until in self._rests.items() if until > now}
        self._judge()

    def _judge(self) -> None:
        self._breakers = {key: breaker for key, breaker in self._breakers.items() if not breaker.pristine}
        shut = {key for key, breaker in self._breakers.items() if breaker.shut}
        self.apart = frozenset(key for key in shut if isinstance(key, tuple))
        self.shut = frozenset({*(key for key in shut if not isinstance(key, tuple)), *self._rests, *self._out})
        self.alert = bool(self._breakers or self._rests or self._out)

    # What is asked.

    def place(self, choose: Choose, members: Sequence[Member], excluded: frozenset[InstanceId]) -> Placement | Refusal:
        """The choice among those that are well; if there are none, with whoever is out for the longest."""
        out = self.shut
        waiting = self._last_resorts(members)
        while isinstance(chosen := choose(excluded | out), Refusal):
            back = next((one for one in waiting if one.instance.instance_id in out and _cures(one, chosen)), None)
            if back is None:
                return chosen
            out -= {back.instance.instance_id}
        return self._around_pairs(choose, chosen, excluded | out)

    def _around_pairs(self, choose: Choose, chosen: Placement, out: frozenset[InstanceId]) -> Placement:
        """Another pair when this one is apart: another decode first, then another prefill, else this one."""
        if chosen.prefill is None or chosen.decode is None or pair_of(chosen) not in self.apart:
            return chosen
        prefill = chosen.prefill.instance.instance_id
        for more in (frozenset(decode for one, decode in self.apart if one == prefill), frozenset({prefill})):
            other = choose(out | more)
            if isinstance(other, Placement) and self.apart.isdisjoint(keys_of(other)):
                return other
        return chosen

    def _last_resorts(self, members: Sequence[Member]) -> list[Member]:
        """Those that are shut but may be tried, the one that is out for the longest first."""
        since: dict[InstanceId, float] = {}
        for member in members:
            instance_id = member.instance.instance_id
            says_so, out_since = self._out.get(instance_id, (False, 0.0))
            if instance_id in self.shut and not says_so:
                breaker = self._breakers.get(instance_id)
                since[instance_id] = max(out_since, breaker.opened_at if breaker is not None else 0.0)
        waiting = [member for member in members if member.instance.instance_id in since]
        return sorted(waiting, key=lambda member: since[member.instance.instance_id])

    def state_of(self, instance_id: InstanceId) -> str:
        """`closed`, `half_open`, `open`, `busy`, `not_ready` or `silent`."""
        if instance_id in self._out:
            return "not_ready" if self._out[instance_id][0] else "silent"
        breaker = self._breakers.get(instance_id)
        if breaker is not None and breaker.state is not BreakerState.CLOSED:
            return breaker.state
        return "busy" if instance_id in self._rests else "closed"


STATES = ("closed", "half_open", "open", "busy", "not_ready", "silent")
"""All that `state_of` says."""


def keys_of(placement: Placement) -> tuple[InstanceId | Pair, ...]:
    """All that a request on this placement tells something about."""
    prefill, decode = placement.prefill, placement.decode
    if prefill is None or decode is None:
        return tuple(member.instance.instance_id for member in (prefill, decode) if member is not None)
    return (prefill.instance.instance_id, decode.instance.instance_id, pair_of(placement))


def pair_of(placement: Placement) -> Pair:
    """Prefill and decode of a placement that has both."""
    assert placement.prefill is not None and placement.decode is not None
    return (placement.prefill.instance.instance_id, placement.decode.instance.instance_id)


def _cures(member: Member, refusal: Refusal) -> bool:
    """True when this member has the role for which the refusal found nobody."""
    error, role = refusal.error, member.instance.role
    if isinstance(error, NoPrefill):
        return role.prefills
    return role.decodes if isinstance(error, NoDecode) else isinstance(error, FleetError)
