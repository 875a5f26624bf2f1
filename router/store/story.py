"""Reading a Story back: the lines as `lua/post.lua` has packed them, in the order in which they happened.

A line is dated by Redis's clock less its age when it was sent, so what it spent on the way makes it look younger, by a
millisecond or so. Lines of one writer lie in the list in their true order, and that order is kept.
"""

from __future__ import annotations

import msgspec

from router.contract.ids import Attempt
from router.contract.ledger import StoryLine
from router.contract.rendezvous import JoinEffect, JoinState

_Packed = tuple[int, float, int, str, str, str, str, str, str]
"""(at_us, posted_s, attempt, writer, word, note, before, after, effects); posted_s is of the writer's own clock."""

_DECODER = msgspec.msgpack.Decoder(_Packed)


def read_story(raw: list[bytes]) -> tuple[StoryLine, ...]:
    """The Story, ordered by time; a line that a writer had to send twice is told once.

    Args:
        raw: the packed lines, in order of writing.
    """
    seen: set[tuple[object, ...]] = set()
    latest_us: dict[str, int] = {}
    lines = []
    for packed in map(_DECODER.decode, raw):
        if packed[1:6] in seen:
            continue
        seen.add(packed[1:6])
        writer = packed[3]
        latest_us[writer] = max(packed[0], latest_us.get(writer, 0))
        lines.append(_line(latest_us[writer], packed))
    return tuple(sorted(lines, key=_at_s))


def _at_s(line: StoryLine) -> float:
    return line.at_s


def _line(at_us: int, packed: _Packed) -> StoryLine:
    _, _, attempt, writer, stage, note, before, after, effects = packed
    return StoryLine(
        at_us / 1e6,
        Attempt(attempt),
        writer,
        stage,
        note,
        JoinState(before) if before else None,
        JoinState(after) if after else None,
        tuple(JoinEffect(effect) for effect in effects.split(",") if effect),
    )
