"""Roster: the members among whom one choice is made."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from router.contract.ids import InstanceId

if TYPE_CHECKING:
    from router.core.fleet import Member


class Roster(tuple["Member", ...]):
    """Members in the order of their ids. What is worked out of it holds for as long as the fleet's snapshot does."""

    beyond: Roster | None = None
    """Where these are the near ones: all of them, near and far."""

    @property
    def everyone(self) -> Roster:
        """The near ones and the far ones."""
        return self if self.beyond is None else self.beyond

    @cached_property
    def ids(self) -> tuple[InstanceId, ...]:
        """Their ids, in order."""
        return tuple(member.instance.instance_id for member in self)

    @cached_property
    def by_id(self) -> dict[InstanceId, Member]:
        """Each by its id."""
        return {member.instance.instance_id: member for member in self}

    def without(self, excluded: frozenset[InstanceId]) -> Roster:
        """Those who are not excluded; the far ones when nobody near is left."""
        left = Roster(member for member in self if member.instance.instance_id not in excluded)
        return left if left or self.beyond is None else self.beyond.without(excluded)
