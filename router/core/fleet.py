"""Fleet: who is there, folded from what the store (or a static list) has seen.

    records of the last sighting ──fold──► Fleet: per model a Pool
        Pool.members     everyone who serves the model, draining or not
        Pool.pairings    per mode: prefill instances, and for each the decode instances that it can feed
        Pool.solos       instances that may run a whole request alone

An instance with role `both` steps in for a role that nobody else has: prefill work goes to dedicated prefill instances
where there are any. When all are `both` there is nothing to disaggregate, and the Pool has no pairing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from router.contract.ids import InstanceId
from router.contract.instance import Instance, Load, Mode, Role
from router.core.burden import Burden, Burdens
from router.core.pairs import Pairing, join, pair_up
from router.core.roster import Roster

_PUSH, _PULL = Mode.PUSH, Mode.PULL
_UNTOLD = Load()


class Sighting(Protocol):
    """One record of a fleet snapshot."""

    @property
    def instance(self) -> Instance:
        """Who was seen."""

    @property
    def load(self) -> Load:
        """How busy it said it was."""

    @property
    def lease_left_s(self) -> float:
        """Seconds for which its registration still held at the moment of the snapshot."""


@dataclass(frozen=True, slots=True)
class Member:
    """One live instance, its last heartbeat, and what this replica has on its way to it."""

    instance: Instance
    load: Load
    burden: Burden
    """The one part that changes; it is the same object in every snapshot, so legs of older ones still count."""
    room_tokens: int | None = None
    """Tokens whose KV cache it had room for at its last heartbeat; None when it has not told."""
    lines: bytes = b""
    """Header lines that every leg to it carries, each ending in CRLF."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Everyone who serves one model."""

    model: str
    owner: str
    """The model that its members call their own, where `model` is an alias or an adapter; else `model` itself."""
    members: tuple[Member, ...]
    pairings: Mapping[Mode, Pairing]
    either: Pairing | None
    """Who can hand over to whom in any of the modes."""
    solos: Roster
    has_prefill: bool
    has_decode: bool
    only_both: bool
    """Of those that take requests nobody is dedicated to one role."""
    max_context_tokens: int
    """The smallest of all members that tell it, since either leg may refuse a longer prompt; 0: nobody does."""

    @property
    def serves(self) -> bool:
        """True when a request for the model can be placed."""
        return bool(self.pairings) or (self.only_both and bool(self.solos))

    def mode_of(self, prefill: Member, decode: Member) -> Mode:
        """How this pair, one of `either`, hands over: push where both can."""
        pushing = self.pairings.get(_PUSH)
        return _PUSH if pushing is not None and pushing.holds(prefill, decode) else _PULL

    def takers(self, prefill: Member, mode: Mode) -> Roster:
        """Decode instances that can take this prefill's KV cache now, though it may have left or drain by now."""
        pairing = self.pairings.get(mode)
        fed = pairing.decodes_of.get(prefill.instance.instance_id) if pairing is not None else None
        if fed is not None:
            return fed
        taking = tuple(member for member in self.members if not member.instance.draining)
        only = pair_up((prefill,), _of_role(taking, Role.DECODE), mode)
        return only.decodes_of.get(prefill.instance.instance_id, Roster())


@dataclass(frozen=True, slots=True)
class Fleet:
    """Immutable snapshot of the live instances."""

    pools: Mapping[str, Pool]

    @property
    def members(self) -> tuple[Member, ...]:
        """Everyone once, ordered by model and id."""
        listed = (
            member for name, pool in sorted(self.pools.items()) for member in pool.members if _is_own(member, name)
        )
        return tuple(listed)

    @property
    def serves(self) -> bool:
        """True when at least one model can be served."""
        return any(pool.serves for pool in self.pools.values())


EMPTY = Fleet({})


def fold(sightings: Iterable[Sighting], burdens: Burdens) -> Fleet:
    """The Fleet that these sightings add up to.

    Lapsed leases are left out; of several starts of one instance the one with the highest epoch counts. Where several
    sources have seen the same start, each is believed in what it alone says (see `_joined`).
    """
    newest: dict[InstanceId, tuple[Instance, Load]] = {}
    for sighting in sightings:
        if sighting.lease_left_s <= 0:
            continue
        instance, load = sighting.instance, sighting.load
        known = newest.get(instance.instance_id)
        if known is not None and known[0].epoch == instance.epoch:
            instance, load = _joined(known[0], instance), load if known[1] == _UNTOLD else known[1]
        if known is None or known[0].epoch <= instance.epoch:
            newest[instance.instance_id] = instance, load
    by_model: dict[str, list[Member]] = {}
    for instance_id, (instance, load) in sorted(newest.items()):
        burden = burdens.of(instance_id)
        burden.hear(load)
        member = Member(instance, load, burden, _room_tokens(instance, load), _lines(instance))
        for name in instance.names:
            by_model.setdefault(name, []).append(member)
    return Fleet({model: _pool(model, tuple(members)) for model, members in by_model.items()})


def _joined(known: Instance, listed: Instance) -> Instance:
    """One start as the store has it, and as an operator's list has it beside that: the list's words come first.

    Either may say that it drains or what it lacks.
    """
    aliases = dict.fromkeys((*listed.aliases, *known.aliases))
    return replace(
        listed,
        draining=listed.draining or known.draining,
        aliases=tuple(name for name in aliases if name != listed.model),
        zone=listed.zone or known.zone,
        labels=listed.labels or known.labels,
        endpoints=listed.endpoints or known.endpoints,
        lacks=tuple(dict.fromkeys((*listed.lacks, *known.lacks))),
    )


def _pool(model: str, members: tuple[Member, ...]) -> Pool:
    taking = tuple(member for member in members if not member.instance.draining)
    prefills, decodes = _of_role(taking, Role.PREFILL), _of_role(taking, Role.DECODE)
    possible = {mode: pair_up(prefills, decodes, mode) for mode in (_PUSH, _PULL)}
    pairings = {mode: pairing for mode, pairing in possible.items() if pairing.prefills}
    owners = {member.instance.model for member in members}
    return Pool(
        model=model,
        owner=model if model in owners else min(owners),
        members=members,
        pairings=pairings,
        either=join(tuple(pairings.values())),
        solos=Roster(member for member in taking if member.instance.role.decodes),
        has_prefill=bool(prefills),
        has_decode=bool(decodes),
        only_both=bool(taking) and all(member.instance.role is Role.BOTH for member in taking),
        max_context_tokens=min((tokens for one in members if (tokens := one.instance.max_context_tokens)), default=0),
    )


def _of_role(members: tuple[Member, ...], role: Role) -> tuple[Member, ...]:
    """Those dedicated to `role`, or those that can do everything when there are none."""
    dedicated = tuple(member for member in members if member.instance.role is role)
    return dedicated or tuple(member for member in members if member.instance.role is Role.BOTH)


def _room_tokens(instance: Instance, load: Load) -> int | None:
    """A Load of zeros is no heartbeat: an idle engine has free blocks."""
    if instance.kv is None or not (load.free_blocks or load.held_blocks or load.running_seqs or load.waiting_seqs):
        return None
    size = instance.kv.tokens_per_block
    return load.free_blocks * size if size else None


def _is_own(member: Member, name: str) -> bool:
    """True for the model's own name, false for an alias."""
    return member.instance.model == name


def _lines(instance: Instance) -> bytes:
    """vLLM's own header names the data-parallel rank; without it the server would choose one."""
    if instance.dp_size == 1 or instance.kv is None:
        return b""
    return b"x-data-parallel-rank: %d\r\n" % instance.kv.dp_rank
