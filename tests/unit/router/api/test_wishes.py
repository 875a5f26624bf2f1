from dataclasses import replace

import pytest
from msgspec import Raw

from router.api.wishes import priority_of, shortened, total_s
from router.contract.errors import BadRequest
from router.contract.wire import Waits
from router.core.intake import Endpoint, Intake
from router.core.timing import Deadlines

INTAKE = Intake(Endpoint.CHAT, b" " * 116, "m", False, "", fields={"max_tokens": Raw(b"40")})
CONFIGURED = Deadlines(prefill_s=10, prefill_token_s=0.1, first_token_s=20, next_token_s=5, total_s=100, queue_s=60)


def test_phases_become_shorter_never_longer():
    headers = {b"x-queue-timeout-ms": b"500", b"x-prefill-timeout-ms": b"2000", b"x-next-token-timeout-ms": b"9000"}
    ours = shortened(headers, CONFIGURED, INTAKE)
    assert (ours.queue_s, ours.prefill_for(30), ours.first_token_s, ours.next_token_s) == (0.5, 2.0, 20, 5)
    assert (ours.total_s, ours.stalled_s) == (100, CONFIGURED.stalled_s)
    longer = shortened({b"x-prefill-timeout-ms": b"99000", b"x-first-token-timeout-ms": b"30"}, CONFIGURED, INTAKE)
    assert (longer.prefill_for(30), longer.first_token_s) == (CONFIGURED.prefill_for(30), 0.03)


def test_an_answers_time_is_the_requests_own_and_becomes_shorter():
    ours = shortened({b"x-answer-timeout-ms": b"99000"}, CONFIGURED, INTAKE)
    assert ours.answer_for(40) == CONFIGURED.answer_for(40) == 64.0
    assert not ours.hurries("answer_timeout", CONFIGURED, 30, 40)
    assert shortened({b"x-answer-timeout-ms": b"250"}, CONFIGURED, INTAKE).answer_for(40) == 0.25


def test_decodes_waits_and_connects_become_shorter_never_longer():
    asked = {b"x-registration-timeout-ms": b"250", b"x-kv-wait-timeout-ms": b"9000", b"x-connect-timeout-ms": b"40"}
    ours = shortened(asked, CONFIGURED, INTAKE)
    assert (ours.waits, ours.connect_s) == (Waits(0.25, 9.0), 0.04)
    assert shortened(asked, replace(CONFIGURED, waits=Waits(0.1, 5.0)), INTAKE).waits == Waits(0.1, 5.0)


def test_the_shortest_total_counts():
    assert total_s({}, 7.0) == 7.0
    assert total_s({b"x-request-timeout-ms": b"2500", b"x-request-deadline-ms": b"3000"}, 7.0) == 2.5
    assert total_s({b"x-request-timeout-ms": b"8000"}, 7.0) == 7.0


@pytest.mark.parametrize("value", [b"", b"0", b"-1", b"1.5", b"soon", b"1" * 13])
def test_what_is_no_time_is_refused_by_its_name(value):
    with pytest.raises(BadRequest, match="x-prefill-timeout-ms"):
        shortened({b"x-prefill-timeout-ms": value}, CONFIGURED, INTAKE)
    with pytest.raises(BadRequest, match="x-request-timeout-ms"):
        total_s({b"x-request-timeout-ms": value}, 1.0)


@pytest.mark.parametrize(
    ("source", "headers", "body", "priority"),
    [
        ("header", {}, b'{"priority":5}', 0),
        ("header", {b"x-priority": b"-3"}, b"{}", -3),
        ("body", {b"x-priority": b"-3"}, b'{"model":"m","priority":5}', 5),
        ("body", {}, b"{}", 0),
        ("body", {}, b'{"priority":"high"}', 0),
        ("body", {}, b'{"priority":1.5}', 0),
    ],
)
def test_priority_comes_from_where_it_is_listened_to(source, headers, body, priority):
    assert priority_of(source, headers, body) == priority


def test_a_priority_that_is_no_number_is_refused():
    with pytest.raises(BadRequest, match="x-priority"):
        priority_of("header", {b"x-priority": b"high"}, b"{}")
