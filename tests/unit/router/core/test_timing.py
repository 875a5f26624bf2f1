from dataclasses import replace
from math import inf

import pytest

from router.contract.errors import Blame
from router.contract.instance import Mode
from router.contract.wire import Waits
from router.core.lifecycle import Client, LegState, Stand
from router.core.timing import Deadlines, Moments, next_deadline

DEADLINES = Deadlines(10, 0.1, 20, 5, stalled_s=7, total_s=100, answer_s=12, answer_token_s=0.5)
SENT, DONE, IDLE, STREAMING = LegState.SENT, LegState.DONE, LegState.IDLE, LegState.STREAMING
STREAMED = Moments(sent_at=1000, prefilled_at=1004, last_byte_at=1009, streamed=True)
PLAIN = Moments(sent_at=1000, prefilled_at=1004, last_byte_at=1009, streamed=False, max_tokens=6)


@pytest.mark.parametrize(
    ("stand", "moments", "at", "side", "code"),
    [
        (Stand(Mode.PUSH, Client.WAITING, SENT, SENT), STREAMED, 1013, Blame.PREFILL, "prefill_timeout"),
        (Stand(Mode.PULL, Client.WAITING, SENT, IDLE), PLAIN, 1013, Blame.PREFILL, "prefill_timeout"),
        (Stand(Mode.PUSH, Client.WAITING, DONE, SENT), STREAMED, 1024, Blame.DECODE, "first_token_timeout"),
        (Stand(Mode.LOCAL, Client.WAITING, IDLE, SENT), STREAMED, 1033, Blame.DECODE, "first_token_timeout"),
        (Stand(Mode.PUSH, Client.WAITING, DONE, SENT), PLAIN, 1019, Blame.DECODE, "answer_timeout"),
        (Stand(Mode.LOCAL, Client.WAITING, IDLE, SENT), PLAIN, 1028, Blame.DECODE, "answer_timeout"),
        (Stand(Mode.PUSH, Client.STREAMING, DONE, STREAMING), STREAMED, 1014, Blame.DECODE, "next_token_timeout"),
    ],
)
def test_each_phase_runs_out_in_its_own_time(stand, moments, at, side, code):
    deadline, error = next_deadline(stand, moments, 30, DEADLINES)
    assert deadline == at
    assert (error.side, error.code, error.http_status) == (side, code, 504)


@pytest.mark.parametrize(
    ("stand", "moments"),
    [
        (Stand(Mode.PUSH), STREAMED),
        (Stand(Mode.PUSH, Client.SERVED, DONE, DONE, closed=True), STREAMED),
    ],
)
def test_without_a_phase_only_the_total_counts(stand, moments):
    assert next_deadline(stand, moments, 30, DEADLINES) == (inf, None)


@pytest.mark.parametrize(
    ("code", "allowed_s"),
    [
        ("connect_timeout", inf),
        ("prefill_timeout", 13),
        ("registration_timeout", 3),
        ("kv_wait_timeout", 4),
        ("first_token_timeout", 20),
        ("next_token_timeout", 5),
        ("answer_timeout", 15),
        ("leg_broken", inf),
    ],
)
def test_how_long_a_phase_may_take_by_the_code_of_its_timeout(code, allowed_s):
    assert replace(DEADLINES, waits=Waits(3, 4)).allowed_s(code, 30, 6) == allowed_s


@pytest.mark.parametrize(
    ("waits", "told", "first_token_s"),
    [((3, 4), False, 7), ((3, 4), True, 20), ((30, 4), False, 20), ((3, inf), False, 20)],
)
def test_waits_that_decode_cannot_be_told_of_bound_its_first_token(waits, told, first_token_s):
    beside = replace(DEADLINES, waits=Waits(*waits)).beside(told=told)
    assert beside == replace(DEADLINES, waits=Waits(*waits), first_token_s=first_token_s)


def test_whoever_allows_less_for_a_phase_is_in_a_hurry():
    hasty = replace(DEADLINES, prefill_s=1, next_token_s=9)
    assert hasty.hurries("prefill_timeout", DEADLINES, 30, 6)
    assert not hasty.hurries("next_token_timeout", DEADLINES, 30, 6)
    assert not DEADLINES.hurries("prefill_timeout", DEADLINES, 30, 6)


def test_the_shortest_phase_of_a_fresh_attempt():
    assert DEADLINES.shortest_s == 10
    assert Deadlines(prefill_s=50, first_token_s=3).shortest_s == 3
    assert Deadlines(total_s=1).shortest_s == 1
    assert Deadlines(answer_s=2).shortest_s == 2
