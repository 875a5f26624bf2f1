import pytest

from router.api.door import Door, DoorLimits, sane_id
from router.api.hints import Hints
from router.core.admission import Admission, Limits
from router.core.budgets import Budget, Scope
from router.core.burden import Burdens
from router.core.intake import Endpoint
from router.core.placement import Desk, Rules
from router.driver.conduct import Conduct
from router.driver.router import Router
from tests.support.books import KeptBooks
from tests.support.clients import KeptClient

BODY = b'{"model":"m"}'


@pytest.fixture
async def door():
    router = Router(Desk(Rules()), Burdens(), Admission(5, 0), Conduct())
    router.attach(None, books := KeptBooks())
    made = Door(router, DoorLimits())
    made.books = books
    return made


def knock(door, headers=None, body=BODY):
    client = KeptClient()
    exchange = door.enter(client, Endpoint.CHAT, headers or {}, body)
    door.router.clerk.work_off()
    return client, exchange, door.books.records[-1] if door.books.records else None


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({}, b"{", 400, "bad_request"),
        ({b"content-encoding": b"gzip"}, BODY, 415, "unsupported_media_type"),
        ({b"x-request-deadline-ms": b"0"}, BODY, 400, "bad_request"),
        ({b"x-request-timeout-ms": b"-5"}, BODY, 400, "bad_request"),
        ({b"x-request-timeout-ms": b"9" * 13}, BODY, 400, "bad_request"),
    ],
)
async def test_a_bad_request_is_answered_counted_and_goes_no_further(door, headers, body, status, code):
    client, exchange, record = knock(door, headers, body)
    assert exchange is None
    assert (client.refused.http_status, client.refused.code) == (status, code)
    assert (record.status, record.code, record.outcome, record.attempts) == (status, code, "refused", 0)
    assert door.router.admission.requests == 0


async def test_a_full_router_refuses_with_the_model_known(door):
    door.router.set_budget(Scope.TOTAL, "", Budget(0))
    client, _, record = knock(door)
    assert client.refused.code == record.code == "overloaded" and (record.model, record.outcome) == ("m", "failed")


async def test_a_request_is_named_by_its_client_or_by_us(door):
    client, _, record = knock(door, {b"x-request-id": b"mine"})
    assert client.request_id == "mine" and record.client_id == "mine" and record.request_id.startswith("req-")
    client, _, record = knock(door)
    assert client.request_id == record.request_id and record.client_id == ""


@pytest.mark.parametrize(
    ("headers", "total_s"),
    [
        ({}, 600),
        ({b"x-request-deadline-ms": b"1500"}, 1.5),
        ({b"x-request-timeout-ms": b"2500", b"x-request-deadline-ms": b"9000"}, 2.5),
        ({b"x-request-timeout-ms": b"999999999"}, 600),
    ],
)
async def test_a_deadline_can_only_be_shortened(door, monkeypatch, headers, total_s):
    opened = []
    monkeypatch.setattr(
        door.router, "open", lambda c, i, r, total: opened.append(total) or door.router.admission.admit(0)
    )
    door.router.admission.draining = True
    knock(door, headers)
    assert opened == [total_s]


async def test_trace_context_goes_along_as_it_came(door, monkeypatch):
    intakes = []
    monkeypatch.setattr(door.router, "open", lambda c, i, r, t: intakes.append(i) or door.router.admission.admit(0))
    door.router.admission.draining = True
    knock(door, {b"traceparent": b"a", b"tracestate": b"b", b"baggage": b"c", b"cookie": b"d"})
    knock(door, {b"tracestate": b"b"})
    assert [i.trace for i in intakes] == [b"traceparent: a\r\ntracestate: b\r\nbaggage: c\r\n", b""]


async def test_a_bug_costs_its_request_only(door, monkeypatch, caplog):
    def broken(*_):
        raise KeyError("bug")

    monkeypatch.setattr(door.router, "open", broken)
    client, exchange, record = knock(door)
    assert exchange is None and client.refused.code == "internal_error" and record.status == 500
    assert "failed by a bug" in caplog.text


@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"a-1", "a-1"), (b"", ""), (b"x" * 129, ""), (b"a\x01", ""), (b"caf\xc3\xa9", ""), (b"a b", "a b")],
)
def test_only_sane_ids_are_kept(given, kept):
    assert sane_id(given) == kept


async def test_hints_are_listened_to_when_there_are_any(door):
    door.hints = Hints(mode_header=b"x-mode", aliases={"nick": "other"})
    client, _, record = knock(door, {b"x-mode": b"sideways"})
    assert (client.refused.http_status, record.code) == (400, "bad_request")
    _, _, record = knock(door, {}, b'{"model":"nick"}')
    assert record.model == "other"


@pytest.mark.parametrize(("ahead", "named", "counted"), [(0, b"-999999", 0), (5, b"-999999", -5), (0, b"7", 7)])
async def test_clients_step_ahead_no_further_than_they_may(door, ahead, named, counted):
    door.priority_from, door.priority_ahead = "header", ahead
    door.router.admission = Admission(0, 0, Limits(waiting_requests=1))
    _, exchange, _ = knock(door, {b"x-priority": named})
    assert exchange.intake.priority == counted
    exchange.on_client_gone()
