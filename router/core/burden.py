"""Burden: what this replica has on its way to each instance.

It counts from the choice of an instance until its leg has ended, whichever way, so it is fresher than any heartbeat
and cannot leak: whoever takes a Load up holds the one receipt that puts it down.
"""

from __future__ import annotations

from router.contract.ids import InstanceId
from router.contract.instance import Load
from router.core.in_flight import InFlight
from router.core.pace import Pace


class Burden(InFlight):
    """Legs that are on their way to one instance, and how fast it has answered earlier ones."""

    __slots__ = ("_heard", "_tokens_then", "pace")

    def __init__(self) -> None:
        super().__init__()
        self.pace = Pace()
        self._heard: Load | None = None
        self._tokens_then = 0

    def hear(self, load: Load) -> None:
        """The instance has said how busy it is; saying the same again is no news."""
        if load != self._heard:
            self._heard, self._tokens_then = load, self.tokens

    @property
    def since_heard(self) -> int:
        """Prompt tokens by which its legs have grown since it last said something new."""
        return max(0, self.tokens - self._tokens_then)


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
