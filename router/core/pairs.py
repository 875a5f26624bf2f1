"""Pairs: which prefill instances may be chosen together with which decode instances.

Where instances say in which zone they are, a prefill instance's own zone comes first: `decodes_of` names only decode
instances of that zone, if it has any, and those of all zones lie `beyond`. The same holds the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from router.contract.ids import InstanceId
from router.contract.instance import Mode
from router.core.pairing import feeds
from router.core.roster import Roster

if TYPE_CHECKING:
    from router.core.fleet import Member


@dataclass(frozen=True)
class Pairing:
    """Who can hand KV cache to whom. Not slotted, because what is worked out of it stays with it."""

    prefills: Roster
    decodes_of: Mapping[InstanceId, Roster]
    """Prefill instance -> the decode instances that it can feed; never empty, never itself."""

    @cached_property
    def decodes(self) -> Roster:
        """Every decode instance that somebody can feed."""
        return _union([fed.everyone for fed in self.decodes_of.values()])

    @cached_property
    def prefills_of(self) -> Mapping[InstanceId, Roster]:
        """Decode instance -> the prefill instances that can feed it; never empty."""
        feeders: dict[InstanceId, list[Member]] = {name: [] for name in self.decodes.ids}
        for prefill in self.prefills:
            for name in self.decodes_of[prefill.instance.instance_id].everyone.ids:
                feeders[name].append(prefill)
        return {
            member.instance.instance_id: near(member, feeders[member.instance.instance_id]) for member in self.decodes
        }

    def holds(self, prefill: Member, decode: Member) -> bool:
        """True for a pair of this pairing."""
        fed = self.decodes_of.get(prefill.instance.instance_id)
        return fed is not None and decode.instance.instance_id in fed.everyone.by_id

    def prefills_outside(self, excluded: frozenset[InstanceId]) -> Roster:
        """Prefill instances that are not excluded and can feed a decode instance that is not."""
        return Roster(
            member
            for member in self.prefills.without(excluded)
            if not excluded.issuperset(self.decodes_of[member.instance.instance_id].everyone.ids)
        )

    def decodes_outside(self, excluded: frozenset[InstanceId]) -> Roster:
        """Decode instances that are not excluded and can be fed by a prefill instance that is not."""
        return Roster(
            member
            for member in self.decodes.without(excluded)
            if not excluded.issuperset(self.prefills_of[member.instance.instance_id].everyone.ids)
        )


def pair_up(prefills: Sequence[Member], decodes: Sequence[Member], mode: Mode) -> Pairing:
    """All pairs of these that can hand over in this mode."""
    decodes_of: dict[InstanceId, Roster] = {}
    for member in prefills:
        fed = [other for other in decodes if other is not member and feeds(member.instance, other.instance, mode)]
        if fed:
            decodes_of[member.instance.instance_id] = near(member, fed)
    return Pairing(Roster(member for member in prefills if member.instance.instance_id in decodes_of), decodes_of)


def join(pairings: Sequence[Pairing]) -> Pairing | None:
    """All pairs of all pairings; None for none."""
    if len(pairings) < 2:
        return pairings[0] if pairings else None
    prefills = _union([pairing.prefills for pairing in pairings])
    decodes_of = {}
    for member in prefills:
        name = member.instance.instance_id
        fed = [pairing.decodes_of[name] for pairing in pairings if name in pairing.decodes_of]
        same = all(roster.everyone == fed[0].everyone for roster in fed)
        decodes_of[name] = fed[0] if same else near(member, _union([roster.everyone for roster in fed]))
    return Pairing(prefills, decodes_of)


def near(member: Member, others: Sequence[Member]) -> Roster:
    """Those of `others` in the member's own zone, with all of them beyond; all of them where zones tell nothing."""
    zone = member.instance.zone
    close = [other for other in others if other.instance.zone == zone]
    if not zone or not close or len(close) == len(others):
        return Roster(others)
    roster = Roster(close)
    roster.beyond = Roster(others)
    return roster


def _union(rosters: list[Roster]) -> Roster:
    if all(roster == rosters[0] for roster in rosters):
        return rosters[0]
    by_id = {name: member for roster in rosters for name, member in roster.by_id.items()}
    return Roster(member for _, member in sorted(by_id.items()))
