"""One request in a router whose legs are kept instead of dialled: how they end is in the test's hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from router.contract.ids import transfer_id_of
from router.contract.ledger import Closed, Opened
from router.core.admission import Admission
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.intake import Endpoint, Intake
from router.core.placement import Desk, Rules
from router.core.record import Record
from router.driver.conduct import Conduct
from router.driver.router import Router
from router.legs.decode import DecodeLeg
from router.legs.leg import Leg
from router.legs.pool import LegPool
from router.legs.prefill import PrefillLeg
from tests.support.books import KeptBooks, KeptLedger
from tests.support.clients import KeptClient
from tests.support.instances import Seen

SSE = [(b"content-type", b"text/event-stream")]
JSON = [(b"content-type", b"application/json")]
LegT = TypeVar("LegT", bound=Leg)
EVENT, DONE = b"data: 1\n\n", b"data: [DONE]\n\n"


class Line:
    """A connection that has answered; `done` is what its leg did with it."""

    def __init__(self, status: int = 200, headers: list[tuple[bytes, bytes]] = JSON) -> None:
        self.status, self.headers = status, headers
        self.done: list[str] = []

    def abort(self) -> None:
        self.done.append("abort")

    def pause(self) -> None:
        self.done.append("pause")

    def resume(self) -> None:
        self.done.append("resume")


def keep_legs(monkeypatch: pytest.MonkeyPatch) -> list[Leg]:
    """Where each leg that wants a connection is put instead, for the rest of the test."""
    legs: list[Leg] = []
    monkeypatch.setattr(LegPool, "want", lambda self, leg: legs.append(leg))
    return legs


def host_of(leg: Leg) -> str:
    """The instance that it goes to: tests' instances listen on hosts of their names."""
    return leg._pool._at.host


def params_of(instance_id: str) -> bytes:
    """What prefill's first start hands over, for push and for pull."""
    return (
        b'{"remote_engine_id":"%b@1","remote_request_id":"r","remote_host":"h","remote_port":1,"tp_size":1,'
        b'"remote_block_ids":[[0]]}' % instance_id.encode()
    )


class Scene:
    """The request, with all that it touches; attempts' legs are in `legs`, in the order in which they were sent."""

    def __init__(
        self, legs: list[Leg], seen: Sequence[Seen], conduct: Conduct, rules: Rules, intake: Intake | None = None
    ) -> None:
        self.legs = legs
        self.router = Router(Desk(rules), Burdens(), Admission(9, 0), conduct)
        self.books, self.ledger, self.client = KeptBooks(), KeptLedger(), KeptClient()
        self.router.attach(self.ledger, self.books)
        self.now_there(*seen)
        intake = intake or Intake(Endpoint.CHAT, b'{"model":"m"}', "m", True, "")
        self.exchange = self.router.open(self.client, intake, self.router.mint(), 50.0)

    def now_there(self, *seen: Seen) -> None:
        """The fleet is these."""
        self.router.take_fleet(fold(seen, self.router.burdens))

    def of(self, kind: type[LegT]) -> list[LegT]:
        """The legs of this kind."""
        return [leg for leg in self.legs if isinstance(leg, kind)]

    def prefilled(self, number: int = -1, *, status: int = 200, body: bytes | None = None) -> None:
        """A prefill leg has its whole answer: a hand-over, unless `body` says otherwise."""
        leg = self.of(PrefillLeg)[number]
        handed = b'{"kv_transfer_params":%b}' % params_of(host_of(leg))
        leg.on_answer(Line(status), handed if body is None else body, True)

    def decoded(
        self, body: bytes, number: int = -1, *, ended: bool, status: int = 200, headers: list[tuple[bytes, bytes]] = SSE
    ) -> None:
        """A decode leg has so much more of its answer."""
        leg = self.of(DecodeLeg)[number]
        leg.connection = leg.connection or Line(status, headers)
        leg.on_answer(leg.connection, body, ended)

    def transfers(self) -> tuple[list[str], list[str]]:
        """Transfer ids as the ledger was told of them: opened, and closed."""
        self.router.clerk.work_off()
        tickets = [entry.ticket for entry in self.ledger.entries if isinstance(entry, Opened)]
        opened = [transfer_id_of(ticket.request_id, ticket.attempt) for ticket in tickets]
        return opened, [entry.transfer_id for entry in self.ledger.entries if isinstance(entry, Closed)]

    def finish(self) -> Record:
        """The record, once nothing of the request is left."""
        opened, closed = self.transfers()
        (record,) = self.books.records
        assert not self.router.live and self.router.admission.requests == 0 and self.exchange.rival is None
        assert all(m.burden.requests == 0 and m.burden.tokens == 0 for m in self.router.fleet.members)
        assert sorted(set(opened)) == sorted(closed), "each is closed, and once"
        return record
