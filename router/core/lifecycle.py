"""Lifecycle: client x prefill leg x decode leg.

Three small machines move on their own facts (OWN), then joint rows couple them until nothing changes any more (JOINT,
h11's idea). Both are data; the closure of all states that can be reached is computed once, at import, so that a step of
a live request is one tuple index.

    client   WAITING    nothing has been sent to it             prefill   IDLE SENT DONE FAILED CANCELLED LEFT
             STREAMING  the answer's head has been sent         decode    IDLE SENT STREAMING DONE FAILED CANCELLED
             SERVED     it has the whole answer                 STREAMING a body byte of a good answer has arrived
             FAILED     it has an error, or a broken stream
             GONE       it has left

First failure wins: the row that takes the client out of WAITING or STREAMING fires once, and what the other leg says
afterwards has nobody left to hear it. A retry is possible only while the client is WAITING: PREFILL_LOST and
DECODE_LOST are failures for which the driver has found the means of another attempt (a retryable error, attempts and
time left).

In push mode decode leaves with prefill, or (PLACED_LATE) when its time has come: DECODE_DUE, or prefill's answer if
that is sooner. A request that ends before has no decode leg.

Prefill failing after decode streams changes nothing: decode's first byte proves that its KV cache is complete, and
cutting a right answer would help nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from router.contract.instance import Mode


class Client(Enum):
    """Where the client stands."""

    WAITING = "waiting"
    STREAMING = "streaming"
    SERVED = "served"
    FAILED = "failed"
    GONE = "gone"

    @property
    def over(self) -> bool:
        """True when nothing more is sent to it."""
        return self in (Client.SERVED, Client.FAILED, Client.GONE)


class LegState(Enum):
    """Where a leg stands."""

    IDLE = "idle"
    SENT = "sent"
    STREAMING = "streaming"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LEFT = "left"
    """Still running, but nobody listens any more."""

    @property
    def live(self) -> bool:
        """True when its instance may still be working on it."""
        return self in (LegState.SENT, LegState.STREAMING)


class Edge(IntEnum):
    """A fact that moves a request."""

    PLACED = 0
    REFUSED = 1
    """A retry has found nobody."""
    PREFILL_DONE = 2
    PREFILL_FAILED = 3
    PREFILL_LOST = 4
    DECODE_STREAMING = 5
    DECODE_DONE = 6
    DECODE_WHOLE = 7
    """A good answer has arrived in one, before anything of it was sent on."""
    DECODE_FAILED = 8
    DECODE_LOST = 9
    CLIENT_GONE = 10
    TIMED_OUT = 11
    """The request's total deadline has passed, or the router is going away."""
    PLACED_LATE = 12
    """Prefill is chosen; decode will be when prefill is nearly done."""
    DECODE_DUE = 13
    """Prefill should be done soon: decode's turn."""


class Effect(IntEnum):
    """What the driver must do after a step, in the order given."""

    SEND_PREFILL = 0
    SEND_DECODE = 1
    COMMIT = 2
    """Send the answer's head; decode's bytes go to the client from here on."""
    SERVE = 3
    """The answer is complete; end it."""
    DELIVER = 4
    """Send the answer as a whole."""
    ANSWER = 5
    """Send the failure as an HTTP answer."""
    BREAK = 6
    """Send the failure as an event of the stream, and end the body without a good end."""
    CANCEL_PREFILL = 7
    CANCEL_DECODE = 8
    LEAVE_PREFILL = 9
    """Nobody needs prefill's answer any more; let it finish on its own."""
    RETRY = 10
    """Choose again, excluding the instance that failed, and place a fresh attempt."""
    CLOSE = 11
    """The request has its Outcome; forget it."""


@dataclass(frozen=True)
class Stand:
    """Where a request stands; the key of the tables."""

    mode: Mode
    client: Client = Client.WAITING
    prefill: LegState = LegState.IDLE
    decode: LegState = LegState.IDLE
    lost: bool = False
    """A leg has failed in a way that a fresh attempt may cure."""
    closed: bool = False

    def __str__(self) -> str:
        marks = " lost" * self.lost + " closed" * self.closed
        return f"{self.mode}: client {self.client.value}, P {self.prefill.value}, D {self.decode.value}{marks}"


_C, _L, _X, _F = Client, LegState, Edge, Effect
_Change = tuple[Stand, tuple[Effect, ...]]


def _own(stand: Stand, edge: Edge) -> _Change | None:
    """The move of the one machine that this edge belongs to, or None when it has no such row."""
    client, prefill, decode = stand.client, stand.prefill, stand.decode
    waiting, open_ = client is _C.WAITING, not client.over
    unsent = prefill is _L.IDLE and decode is _L.IDLE
    rows: dict[Edge, tuple[bool, dict[str, object], tuple[Effect, ...]]] = {
        _X.PLACED: (waiting and unsent, _FIRST_LEGS[stand.mode][0], _FIRST_LEGS[stand.mode][1]),
        _X.REFUSED: (waiting and unsent, {"client": _C.FAILED}, (_F.ANSWER,)),
        _X.PREFILL_DONE: (prefill is _L.SENT, {"prefill": _L.DONE}, ()),
        _X.PREFILL_FAILED: (prefill is _L.SENT, {"prefill": _L.FAILED}, ()),
        _X.PREFILL_LOST: (prefill is _L.SENT and waiting, {"prefill": _L.FAILED, "lost": True}, ()),
        _X.DECODE_STREAMING: (decode is _L.SENT, {"decode": _L.STREAMING}, ()),
        _X.DECODE_DONE: (decode is _L.STREAMING, {"decode": _L.DONE}, ()),
        _X.DECODE_WHOLE: (decode is _L.SENT and waiting, {"decode": _L.DONE}, ()),
        _X.DECODE_FAILED: (decode.live, {"decode": _L.FAILED}, ()),
        _X.DECODE_LOST: (decode.live and waiting, {"decode": _L.FAILED, "lost": True}, ()),
        _X.CLIENT_GONE: (open_, {"client": _C.GONE}, ()),
        _X.TIMED_OUT: (open_, {"client": _C.FAILED}, (_F.ANSWER if waiting else _F.BREAK,)),
        _X.PLACED_LATE: (
            waiting and unsent and stand.mode is Mode.PUSH,
            {"prefill": _L.SENT},
            (_F.SEND_PREFILL,),
        ),
        _X.DECODE_DUE: (
            waiting and stand.mode is Mode.PUSH and prefill is _L.SENT and decode is _L.IDLE,
            {"decode": _L.SENT},
            (_F.SEND_DECODE,),
        ),
    }
    legal, changes, effects = rows[edge]
    # Any: replace() takes field names that the row spells; each row is exercised when the closure is built.
    return (replace(stand, **changes), effects) if legal and open_ else None  # type: ignore[arg-type]


_FIRST_LEGS: dict[Mode, tuple[dict[str, object], tuple[Effect, ...]]] = {
    Mode.PUSH: ({"prefill": _L.SENT, "decode": _L.SENT}, (_F.SEND_PREFILL, _F.SEND_DECODE)),
    Mode.PULL: ({"prefill": _L.SENT}, (_F.SEND_PREFILL,)),
    Mode.LOCAL: ({"decode": _L.SENT}, (_F.SEND_DECODE,)),
}


def _joint(stand: Stand) -> _Change | None:
    """The first joint row that applies, or None at the fixed point."""
    client, prefill, decode = stand.client, stand.prefill, stand.decode
    waiting, broken = client is _C.WAITING, _L.FAILED in (prefill, decode)
    over, failed = client.over, client in (_C.FAILED, _C.GONE)
    rows: tuple[tuple[bool, dict[str, object], tuple[Effect, ...]], ...] = (
        # Pull: decode leaves once prefill has said where its KV cache is. Push: it should have left before.
        (
            stand.mode is not Mode.LOCAL and waiting and prefill is _L.DONE and decode is _L.IDLE,
            {"decode": _L.SENT},
            (_F.SEND_DECODE,),
        ),
        (waiting and decode is _L.STREAMING, {"client": _C.STREAMING}, (_F.COMMIT,)),
        (client is _C.STREAMING and decode is _L.DONE, {"client": _C.SERVED}, (_F.SERVE,)),
        (waiting and decode is _L.DONE, {"client": _C.SERVED}, (_F.DELIVER,)),
        (client is _C.STREAMING and decode is _L.FAILED, {"client": _C.FAILED}, (_F.BREAK,)),
        (waiting and broken and not stand.lost, {"client": _C.FAILED}, (_F.ANSWER,)),
        # The other leg of a lost or failed attempt is stopped; decode first, since it costs more to keep waiting.
        ((failed or stand.lost) and decode.live, {"decode": _L.CANCELLED}, (_F.CANCEL_DECODE,)),
        ((failed or stand.lost) and prefill is _L.SENT, {"prefill": _L.CANCELLED}, (_F.CANCEL_PREFILL,)),
        (client is _C.SERVED and prefill is _L.SENT, {"prefill": _L.LEFT}, (_F.LEAVE_PREFILL,)),
        (waiting and stand.lost, {"prefill": _L.IDLE, "decode": _L.IDLE, "lost": False}, (_F.RETRY,)),
        (over and not stand.closed, {"closed": True}, (_F.CLOSE,)),
    )
    for applies, changes, effects in rows:
        if applies:
            # Any: see _own.
            return replace(stand, **changes), effects  # type: ignore[arg-type]
    return None


def step(stand: Stand, edge: Edge) -> _Change | None:
    """The stand after this edge at the fixed point and all effects on the way, or None when there is no such row."""
    moved = _own(stand, edge)
    if moved is None:
        return None
    stand, effects = moved
    while (joined := _joint(stand)) is not None:
        stand, more = joined
        effects += more
    return stand, effects


class Node:
    """One reachable Stand. `steps[edge]` is the Step it takes, or None where the table has no row."""

    __slots__ = ("stand", "steps")

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        self.steps: tuple[Step | None, ...] = ()


Step = tuple[Node, tuple[Effect, ...]]


def _closure() -> dict[Stand, Node]:
    nodes = {stand: Node(stand) for stand in map(Stand, Mode)}
    unseen = list(nodes)
    while unseen:
        for _, moved in _rows(unseen.pop()):
            if moved is not None and moved[0] not in nodes:
                nodes[moved[0]] = Node(moved[0])
                unseen.append(moved[0])
    for stand, node in nodes.items():
        node.steps = tuple((nodes[moved[0]], moved[1]) if moved else None for _, moved in _rows(stand))
    return nodes


def _rows(stand: Stand) -> Iterator[tuple[Edge, _Change | None]]:
    return ((edge, step(stand, edge)) for edge in Edge)


NODES = _closure()
"""Every reachable Stand. Retries change the mode only between attempts: start again from `START[mode]`."""

START: dict[Mode, Node] = {mode: NODES[Stand(mode)] for mode in Mode}
IDLE = START[Mode.PUSH]
"""Before a request is placed it has no mode, and every mode begins alike."""
