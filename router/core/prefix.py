"""Approximate prefix affinity: a prompt goes where its beginning has been before.

Of each prompt the CRC-32 of its beginnings is taken at lengths that grow by half an octave, so a long prompt costs few
marks more than a short one. For each mark it is remembered who was sent such a prompt last, and there its KV cache
probably lies. Nothing is known for sure: engines evict, and bytes are no tokens. A wrong guess costs a prefill.

Whether the holder is worth its queue is one comparison in tokens: it is chosen while what waits there exceeds what
waits elsewhere by no more than the tokens that need not be computed. Under a hot prefix the queue grows beyond that,
the next request goes elsewhere, and from then on there are two holders.

A router remembers only what it has sent itself. Where it knows nothing, it takes for the holder of a prompt's first
GUESS_BYTES whoever owns them on a ring; so replicas and worker processes, and a router that takes over from another,
send the same prompts to the same instances without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from msgspec import Raw

from router.contract.ids import InstanceId
from router.core.fleet import Member
from router.core.intake import BYTES_PER_TOKEN, Intake
from router.core.policies import Weigh, power_of_two
from router.core.ring import Rings, place_of
from router.core.roster import Roster
from router.core.weights import weigh_tokens

ENDS = tuple(round(512 * 2 ** (half / 2)) for half in range(15))
"""Lengths of the beginnings, bytes: 512 to 65,536. A shorter prompt has no mark and goes anywhere."""
GUESS_BYTES = 2048
"""One of ENDS, longer than many system prompts, so that not all conversations have the same guess."""
_GUESS_NUMBER = ENDS.index(GUESS_BYTES)

MAX_MARKS = 1 << 16
"""Marks in memory, about 10 MB."""
MAX_HOLDERS = 4


def marks_of(model: str, prompt: Raw | bytes) -> list[int]:
    """The mark of each beginning of the prompt, shortest first. Equal prompts to different models have other marks."""
    view = memoryview(prompt)
    mark, start, size, marks = crc32(model.encode()), 0, len(view), []
    for end in ENDS:
        if end > size:
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
        self._rings = Rings()

    def __call__(self, members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
        """Whoever holds the longest beginning, if it is worth the queue there."""
        marks = find_marks(intake)
        other = power_of_two(members, weigh_tokens, intake, turn)
        if not marks:
            return other
        num_bytes, holder = self._holder(members, marks)
        if holder is None:
            number = min(len(marks) - 1, _GUESS_NUMBER)
            num_bytes, holder = ENDS[number], members[self._rings.of(members).owner(place_of(marks[number]))]
        chosen = holder if _is_worth(num_bytes, holder, other) else other
        self.memory.remember(marks, chosen.instance.instance_id)
        return chosen

    def keeper(self, members: Roster, intake: Intake, turn: int) -> tuple[int, Member | None]:
        """Who would be chosen for what it holds, and how many tokens that is; (0, None) for nobody."""
        num_bytes, holder = self._holder(members, find_marks(intake))
        if holder is None or not _is_worth(num_bytes, holder, power_of_two(members, weigh_tokens, intake, turn)):
            return 0, None
        return num_bytes // BYTES_PER_TOKEN, holder

    def remember(self, intake: Intake, member: Member) -> None:
        """The prompt has been sent there."""
        self.memory.remember(find_marks(intake), member.instance.instance_id)

    def _holder(self, members: Roster, marks: Sequence[int]) -> tuple[int, Member | None]:
        """The lightest of those that hold the longest beginning, and its length in bytes."""
        num_bytes, holders = self.memory.find(marks, members)
        return num_bytes, min(holders, key=weigh_tokens) if holders else None


def _is_worth(num_bytes: int, holder: Member, other: Member) -> bool:
    return weigh_tokens(holder) <= weigh_tokens(other) + num_bytes // BYTES_PER_TOKEN


def find_marks(intake: Intake) -> Sequence[int]:
    """The prompt's marks, which are worked out once for all who ask."""
    if intake.marks is None:
        intake.marks = marks_of(intake.model, intake.prompt)
    return intake.marks
