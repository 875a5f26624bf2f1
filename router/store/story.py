"""Reading a Story back: the lines as `lua/post.lua` has packed them, in the order in which they happened."""

from __future__ import annotations

import msgspec

from router.contract.ids import Attempt
from router.contract.ledger import StoryLine
from router.contract.rendezvous import JoinEffect, JoinState

_Packed = tuple[int, float, int, str, str, str, str, str, str]
"""(at_us, posted_s, attempt, writer, word, note, before, after, effects); posted_s is of the writer's own clock."""

_DECODER = msgspec.msgpack.Decoder(_Packed)


def read_story(raw: list[bytes]) -> tuple[StoryLine, ...]:
    """The Story, ordered by time; a line that a writer had to send twice is told once."""
    lines: dict[tuple[object, ...], _Packed] = {}
    for packed in map(_DECODER.decode, raw):
        lines.setdefault(packed[1:6], packed)
    return tuple(map(_line, sorted(lines.values(), key=_at_us)))


def _at_us(packed: _Packed) -> int:
    return packed[0]


def _line(packed: _Packed) -> StoryLine:
    at_us, _, attempt, writer, stage, note, before, after, effects = packed
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
