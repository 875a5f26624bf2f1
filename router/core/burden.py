"""Burden: what this replica has on its way to each instance.

It counts from the choice of an instance until its leg has ended, whichever way, so it is fresher than any heartbeat
and cannot leak: whoever takes a Load up holds the one receipt that puts it down.
"""

from __future__ import annotations

from router.contract.ids import InstanceId


class Burden:
    """Legs that are on their way to one instance."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        """Estimated prompt tokens of those legs."""

    def take(self, tokens: int) -> None:
        """One more leg of `tokens` prompt tokens is on its way."""
        self.requests += 1
        self.tokens += tokens

    def give(self, tokens: int) -> None:
        """A leg that was taken with `tokens` has ended."""
        self.requests -= 1
        self.tokens -= tokens


class Burdens:
    """The Burden of every instance that was ever chosen."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[InstanceId, Burden] = {}

    def of(self, instance_id: InstanceId) -> Burden:
        """The Burden of one instance; a new one is empty."""
        burden = self._of.get(instance_id)
        if burden is None:
            burden = self._of[instance_id] = Burden()
        return burden

    def keep_only(self, instance_ids: frozenset[InstanceId]) -> None:
        """Burdens of instances that are gone and idle are forgotten."""
        self._of = {key: burden for key, burden in self._of.items() if burden.requests or key in instance_ids}
