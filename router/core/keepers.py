"""Keepers: decode instances that probably still hold KV of a prompt's beginning, from earlier turns of a conversation.

Decode's prefix cache holds what it has decoded: the prompt of the turn before and its answer. What each decode was sent
is remembered as in `prefix`; how much it still holds it says itself when prefill's shim asks for it, so a wrong guess
costs one question.
"""

from __future__ import annotations

from router.contract.instance import EngineKind
from router.core.fleet import Member
from router.core.intake import Intake
from router.core.prefix import PrefixMemory, find_marks
from router.core.roster import Roster
from router.core.weights import weigh_sequences


class Keepers:
    """What one router knows of them."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory = PrefixMemory()

    def find(self, intake: Intake, prefill: Member, decodes: Roster) -> Member | None:
        """Of `decodes`, all of which can exchange KV with `prefill`, the idlest with the longest beginning; or None."""
        if prefill.instance.engine is not EngineKind.TANDEM:
            return None
        _, holders = self._memory.find(find_marks(intake), decodes)
        return min(holders, key=weigh_sequences) if holders else None

    def remember(self, intake: Intake, decode: Member) -> None:
        """The prompt goes there."""
        self._memory.remember(find_marks(intake), decode.instance.instance_id)
