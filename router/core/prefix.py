"""Approximate prefix affinity: a prompt goes where its beginning has been before.

Of each prompt the CRC-32 of its beginnings is taken at lengths that grow by half an octave, so a long prompt costs few
marks more than a short one. For each mark it is remembered who was sent such a prompt last, and there its KV cache
probably lies. Nothing is known for sure: engines evict, and bytes are no tokens. A wrong guess costs a prefill.

Whether the holder is worth its queue is one comparison in tokens: it is chosen while what waits there exceeds what
waits elsewhere by no more than the tokens that need not be computed. Under a hot prefix the queue grows beyond that,
the next request goes elsewhere, and from then on there are two holders.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from msgspec import Raw

from router.contract.ids import InstanceId
from router.core.fleet import Member
from router.core.intake import CHARS_PER_TOKEN, Intake
from router.core.policies import Weigh, power_of_two
from router.core.roster import Roster
from router.core.weights import weigh_tokens

ENDS = tuple(round(256 * 2 ** (half / 2)) for half in range(17))
"""Lengths of the beginnings, bytes: 256 to 65,536. A shorter prompt has no mark and goes anywhere."""

MAX_MARKS = 1 << 16
"""Marks in memory, about 10 MB."""
MAX_HOLDERS = 4


def marks_of(model: str, prompt: Raw | bytes) -> list[int]:
    """The mark of each beginning of the prompt, shortest first. Equal prompts to different models have other marks."""
    view = memoryview(prompt)
    mark, start, marks = crc32(model.encode()), 0, []
    for end in ENDS:
        if end > len(view):
            break
        mark = crc32(view[start:end], mark)
        marks.append(mark)
        start = end
    return marks


class PrefixMemory:
    """Who was sent which beginnings, for the last MAX_MARKS or so of them.

    Two generations instead of a list in order of use: when the young one is full the old one is dropped, and what was
    used since is in the young one.
    """

    __slots__ = ("_max", "_old", "_young")

    def __init__(self, max_marks: int = MAX_MARKS) -> None:
        self._max = max_marks // 2
        self._young: dict[int, tuple[InstanceId, ...]] = {}
        self._old: dict[int, tuple[InstanceId, ...]] = {}

    def __len__(self) -> int:
        """Marks in memory."""
        return len(self._young) + len(self._old)

    def find(self, marks: Sequence[int], members: Roster) -> tuple[int, list[Member]]:
        """The longest beginning that some of `members` hold: its length in bytes and those members; (0, []) if none."""
        by_id = members.by_id
        for number in range(len(marks) - 1, -1, -1):
            holders = self._young.get(marks[number]) or self._old.get(marks[number])
            if holders:
                found = [by_id[name] for name in holders if name in by_id]
                if found:
                    return ENDS[number], found
        return 0, []

    def remember(self, marks: Sequence[int], name: InstanceId) -> None:
        """This instance has been sent a prompt with these beginnings."""
        young, old = self._young, self._old
        for mark in marks:
            holders = young.get(mark)
            if holders is None:
                holders = old.get(mark, ())
            elif holders[0] == name:
                continue
            young[mark] = (name, *[other for other in holders if other != name][: MAX_HOLDERS - 1])
        if len(young) > self._max:
            self._old, self._young = young, {}


class PrefixAffinity:
    """A Policy. Prompts that nobody knows are spread by power of two, weighed in tokens."""

    def __init__(self) -> None:
        self.memory = PrefixMemory()

    def __call__(self, members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
        """Whoever holds the longest beginning, if it is worth the queue there."""
        _, holder, other = self._compare(members, intake, turn)
        chosen = holder or other
        self.remember(intake, chosen)
        return chosen

    def keeper(self, members: Roster, intake: Intake, turn: int) -> tuple[int, Member | None]:
        """Who would be chosen for what it holds, and how many tokens that is; (0, None) for nobody."""
        if not members:
            return 0, None
        tokens, holder, _ = self._compare(members, intake, turn)
        return tokens, holder

    def remember(self, intake: Intake, member: Member) -> None:
        """The prompt has been sent there."""
        self.memory.remember(_marks(intake), member.instance.instance_id)

    def _compare(self, members: Roster, intake: Intake, turn: int) -> tuple[int, Member | None, Member]:
        """Tokens that a holder has, the holder if that is worth its queue, and who is chosen without one."""
        other = power_of_two(members, weigh_tokens, intake, turn)
        num_bytes, holders = self.memory.find(_marks(intake), members)
        if holders:
            tokens, holder = num_bytes // CHARS_PER_TOKEN, min(holders, key=weigh_tokens)
            if weigh_tokens(holder) <= weigh_tokens(other) + tokens:
                return tokens, holder, other
        return 0, None, other


def _marks(intake: Intake) -> Sequence[int]:
    """The prompt's marks, which are worked out once for all who ask."""
    if intake.marks is None:
        intake.marks = marks_of(intake.model, intake.prompt)
    return intake.marks
