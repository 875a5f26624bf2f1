"""State diagrams of the shim's desks, found by walking them: every event in every state that can be reached."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

from engine_shim.core.fates import Address, Call, FateClocks, FateDesk
from engine_shim.core.seats import DecodeClocks, SeatDesk
from router.contract.diagram import Edge, state_diagram
from router.contract.errors import TransferFailed
from router.contract.ids import EngineId, Epoch, TransferId, digest_of
from router.contract.instance import Mode
from router.contract.notices import LANDED, Acknowledged, Granted, Stopped
from router.contract.rendezvous import PrefillDone
from router.contract.tags import Tag

T, P, D = TransferId("r.1"), EngineId("p@1"), EngineId("d@1")
NOW = 10.0
CLOCKS = DecodeClocks(kv_wait_for_s=30.0, resend_after_s=1e9, renew_every_s=1e9)

SeatEvent = Callable[[SeatDesk], object]
SEAT_EVENTS: dict[str, SeatEvent] = {
    "seated": lambda desk: desk.on_seated(T, (1,), (0, 9), NOW),
    "seated, all cached": lambda desk: desk.on_seated(T, (1,), (9, 9), NOW),
    "Acknowledged": lambda desk: desk.on_acknowledged(Acknowledged(T, P, D)),
    "all Tags": lambda desk: desk.on_tag(Tag(digest_of(T), Epoch(1), 0, 1, 0, 1), NOW),
    "Granted": lambda desk: desk.on_granted(Granted(PrefillDone(T, (1,), 9), P, D)),
    "READ ended": lambda desk: desk.on_read_ended(T, None),
    "READ failed": lambda desk: desk.on_read_ended(T, TransferFailed("x")),
    "Stopped": lambda desk: desk.on_stopped(Stopped(T, P, D, "x", False), NOW),
    "Stopped, begun": lambda desk: desk.on_stopped(Stopped(T, P, D, "x", True), NOW),
    "Stopped, landed": lambda desk: desk.on_stopped(Stopped(T, P, D, LANDED, True), NOW),
    "left": lambda desk: desk.on_left(T, NOW),
    "deadline": lambda desk: desk.on_tick(NOW + 31.0),
    "peer dead": lambda desk: desk.on_peer_dead(P, NOW),
    "access ended": lambda desk: desk.on_access_ended(P),
    "settled": lambda desk: [desk.on_tick(NOW + quarter / 4) for quarter in range(8)],
}


def seats_diagram() -> str:
    """A decode leg's seats, in push and pull mode; events that change nothing are left out."""
    edges: dict[Edge, None] = {}
    for mode in (Mode.PUSH, Mode.PULL):
        desk = SeatDesk(D, CLOCKS)
        desk.open(T, mode, (P, Epoch(1)), 0.0)
        unseen, seen = [desk], set()
        while unseen:
            desk = unseen.pop(0)
            for name, event in SEAT_EVENTS.items():
                if mode is Mode.PULL and name == "all Tags":
                    continue
                after = deepcopy(desk)
                event(after)
                key = _key(after)
                if key != _key(desk):
                    edges.setdefault((desk.state_of(T), after.state_of(T), name))
                if key not in seen and after.num_open:
                    seen.add(key)
                    unseen.append(after)
    return state_diagram("QUEUED", _joined(edges), ["CLOSED"])


def _key(desk: SeatDesk) -> tuple[object, ...]:
    ticket = desk._tickets.get(T)
    return ("CLOSED",) if ticket is None else (ticket.state, ticket.landed, ticket.reading)


FateEvent = Callable[[FateDesk], object]
FATE_EVENTS: dict[str, FateEvent] = {
    "message failed": lambda desk: desk.on_lost(P, NOW),
    "call answered": lambda desk: desk.on_called(P, Call.ANSWERED),
    "call refused": lambda desk: desk.on_called(P, Call.REFUSED),
    "another answers": lambda desk: desk.on_called(P, Call.ANOTHER),
    "call silent": lambda desk: desk.on_called(P, Call.SILENT),
    "Left": lambda desk: desk.on_death(P, "left"),
    "fenced": lambda desk: desk.on_death(P, "fenced"),
    "settled": lambda desk: [desk.on_tick(NOW + quarter / 4) for quarter in range(8)],
}


def fates_diagram() -> str:
    """What becomes of a peer."""
    desk = FateDesk(FateClocks(call_every_s=1e9))
    desk.on_met(P, Address("h", 1))
    unseen, seen = [desk], {desk.fate_of(P)}
    edges: dict[Edge, None] = {}
    while unseen:
        desk = unseen.pop(0)
        before = desk.fate_of(P)
        for name, event in FATE_EVENTS.items():
            after = deepcopy(desk)
            event(after)
            fate = after.fate_of(P)
            assert before is not None
            assert fate is not None
            if fate is not before:
                edges.setdefault((before.name, fate.name, name))
            if fate not in seen:
                seen.add(fate)
                unseen.append(after)
    return state_diagram("MET", _joined(edges), ["GONE"])


def _joined(edges: dict[Edge, None]) -> list[Edge]:
    """One edge for all events between the same two states."""
    labels: dict[tuple[str, str], list[str]] = {}
    for before, after, label in edges:
        if before != after:
            labels.setdefault((before, after), []).append(label)
    return [(before, after, " / ".join(names)) for (before, after), names in labels.items()]
