"""A Story in the store: what its writers pack, and its lines read back in the order in which they happened.

A line is dated by Redis's clock less its age when it was sent, so what it spent on the way makes it look younger, by a
millisecond or so. Lines of one writer are numbered in their true order, and that order is kept.
"""

from __future__ import annotations

import msgspec

from router.contract.ids import Attempt
from router.contract.ledger import Course, StoryLine
from router.contract.rendezvous import JoinEffect, JoinState, Ticket

LINE_FIELD = b"#"
"""A request's hash keeps its lines in fields that begin so."""

PackedTicket = tuple[str, str, int, str, int, float, str]
"""(mode, prefill or "", its epoch, decode or "", its epoch, deadline_for_s, owner)"""

_PackedNote = tuple[str | int | float, ...]
_Packed = tuple[int, int, float, int, str, str, str | _PackedNote, str, str, str]
"""(number, at_us, posted_s of the writer's own clock, attempt, writer, word, note, before, after, effects)"""

_DECODER = msgspec.msgpack.Decoder(_Packed)


def pack_ticket(ticket: Ticket) -> PackedTicket:
    """The ticket as the note of its `opened` line; put into words by who reads it, since writers have no time."""
    return (
        str(ticket.mode),
        ticket.prefill or "",
        ticket.prefill_epoch,
        ticket.decode or "",
        ticket.decode_epoch,
        ticket.deadline_for_s,
        ticket.owner,
    )


def read_story(fields: dict[bytes, bytes]) -> tuple[StoryLine, ...]:
    """The Story, ordered by time; a line that a writer had to send twice is told once.

    Args:
        fields: all of a request's hash.
    """
    packed_lines = sorted(_DECODER.decode(raw) for field, raw in fields.items() if field.startswith(LINE_FIELD))
    seen: set[tuple[object, ...]] = set()
    latest_us: dict[str, int] = {}
    lines = []
    for packed in packed_lines:
        _, at_us, _, _, writer, *_ = packed
        if packed[2:7] in seen:
            continue
        seen.add(packed[2:7])
        latest_us[writer] = max(at_us, latest_us.get(writer, 0))
        lines.append(_line(latest_us[writer], packed))
    return tuple(sorted(lines, key=_at_s))


def _at_s(line: StoryLine) -> float:
    return line.at_s


def _line(at_us: int, packed: _Packed) -> StoryLine:
    _, _, posted_s, attempt, writer, stage, note, before, after, effects = packed
    return StoryLine(
        at_us / 1e6,
        Attempt(attempt),
        writer,
        stage,
        note if isinstance(note, str) else _placement(note) if stage == "opened" else _course(note),
        JoinState(before) if before else None,
        JoinState(after) if after else None,
        tuple(JoinEffect(effect) for effect in effects.split(",") if effect),
        posted_s,
    )


def _placement(note: _PackedNote) -> str:
    packed = msgspec.convert(note, PackedTicket)
    mode, prefill, prefill_epoch, decode, decode_epoch, deadline_for_s, owner = packed
    source = f"{prefill}@{prefill_epoch} -> " if prefill else ""
    target = f"{decode}@{decode_epoch}" if decode else "decode to be chosen"
    return f"{mode} {source}{target}, {deadline_for_s:g} s, by {owner}"


def _course(note: _PackedNote) -> str:
    code, mode, reason, sent_s, prefilled_s, first_byte_s, ended_s = msgspec.convert(note, Course)
    phases = f"sent {_ms(sent_s)}, prefill {_ms(prefilled_s)}, first byte {_ms(first_byte_s)}, end {_ms(ended_s)}"
    why = f"{mode} ({reason}); {phases}"
    return f"{code}; {why}" if code else why


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds else "never"
