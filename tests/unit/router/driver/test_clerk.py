import asyncio
from types import SimpleNamespace

import pytest

from router.contract.ids import RequestId
from router.contract.instance import Mode
from router.contract.ledger import Closed, Opened, Outcome
from router.core.intake import Endpoint, Intake
from router.core.lifecycle import Edge
from router.core.placement import Placement
from router.core.record import Record
from router.driver.clerk import SLICE, Clerk
from router.driver.reply import Reply
from tests.support.books import KeptBooks, KeptLedger
from tests.support.clients import KeptClient
from tests.support.instances import decode, fleet, prefill

MEMBERS = {member.instance.instance_id: member for member in fleet(prefill(epoch=3), decode(epoch=4)).members}
PUSHED = Placement(Mode.PUSH, MEMBERS["p0"], MEMBERS["d0"], "configured")
LOCAL = Placement(Mode.LOCAL, None, MEMBERS["d0"], "n")
ID = RequestId("req-1")
TIMING = (b"server-timing", b"seats;dur=20.5, kv;dur=110")
ROLE = b'{"choices":[{"delta":{"role":"assistant","content":""}}]}'
TOKEN = b'{"choices":[{"delta":{"content":"x"}}]}'
USAGE = b'{"usage":{"prompt_tokens":5,"completion_tokens":7}}\n\n'


class Done:
    """A finished exchange."""

    request_id = ID
    intake = Intake(Endpoint.CHAT, b"{}", "m", True, "", client_id="mine")
    placement = PUSHED
    attempts = 2
    arrived_at, last_byte_at = 100.0, 100.5
    placed_s, sent_s, prefilled_s, first_byte_s, ended_s = 0.1, 0.2, 0.3, 0.4, 0.6
    door_s, queued_s, chosen_s = 0.01, 0.0, 0.0
    status, outcome, code = 200, Outcome.SERVED, ""
    earlier = ()

    def __init__(self, *events: bytes):
        """The events come from 100.4 on, one every 10 ms."""
        self.reply = Reply(KeptClient())
        leg = SimpleNamespace(status=200, headers=[(b"content-type", b"text/event-stream"), TIMING])
        for number, event in enumerate(events or (ROLE, TOKEN, TOKEN, USAGE + b"data: [DONE]\n\n")):
            moved = self.reply.feed(leg, b"data: " + event + b"\n\n", False, 100.4 + number / 100)
            if moved == (Edge.DECODE_STREAMING,):
                self.reply.commit()
        self.reply.feed(leg, b"", True, 100.5)


@pytest.fixture
async def desk():
    ledger, books = KeptLedger(), KeptBooks()
    return Clerk(ledger, books, "router-1"), ledger, books


async def test_a_ticket_says_who_where_and_until_when(desk):
    clerk, ledger, _ = desk
    clerk.put((ID, 1, PUSHED, 9.5))
    clerk.put((ID, 2, LOCAL, 8.5))
    clerk.work_off()
    first, second = (entry.ticket for entry in ledger.entries)
    assert all(isinstance(entry, Opened) for entry in ledger.entries)
    assert (first.request_id, first.attempt, first.mode) == (ID, 1, Mode.PUSH)
    assert (first.prefill, first.prefill_epoch, first.decode, first.decode_epoch) == ("p0", 3, "d0", 4)
    assert (first.deadline_for_s, first.owner) == (9.5, "router-1")
    assert (second.prefill, second.prefill_epoch, second.decode) == (None, 4, "d0")


async def test_an_attempt_that_another_follows_is_closed_and_counted(desk):
    clerk, ledger, books = desk
    clerk.put((ID, 1, "leg_broken"))
    clerk.work_off()
    assert ledger.entries == [Closed("req-1.1", Outcome.FAILED, "leg_broken")]
    assert books.retries == ["leg_broken"]


async def test_a_finished_exchange_becomes_a_record(desk):
    clerk, ledger, books = desk
    done = Done()
    clerk.put(done)
    clerk.work_off()
    (closed,) = ledger.entries
    assert (closed.transfer_id, closed.outcome) == ("req-1.2", Outcome.SERVED)
    assert closed.note == ("", "push", "configured", 0.2, 0.3, 0.4, 0.6)
    (record,) = books.records
    assert (record.request_id, record.client_id, record.model, record.stream) == (ID, "mine", "m", True)
    assert (record.mode, record.reason, record.prefill, record.decode) == ("push", "configured", "p0", "d0")
    assert (record.sent_s, record.first_byte_s, record.last_byte_s, record.ended_s) == (0.2, 0.4, 0.5, 0.6)
    assert (record.num_events, record.prompt_tokens, record.completion_tokens, record.status) == (3, 5, 7, 200)
    assert (record.door_s, record.queued_s, record.seats_s, record.kv_s) == (0.01, 0.0, 0.0205, 0.11)
    assert record.content_s == pytest.approx(0.41), "the role is no content"
    assert (record.request_bytes, record.answer_bytes) == (2, done.reply.num_bytes)
    assert books.passed is done.reply.passed


async def test_an_answer_that_tells_of_an_error_has_failed(desk):
    clerk, ledger, books = desk
    done = Done(TOKEN, b'{"error":{}}')
    clerk.put(done)
    clerk.work_off()
    assert (books.records[0].outcome, books.records[0].code) == (Outcome.FAILED, "engine_error")
    assert ledger.entries[0].outcome is Outcome.FAILED
    assert ledger.entries[0].note[:3] == ("engine_error", "push", "configured")


async def test_what_was_never_placed_is_no_attempt(desk):
    clerk, ledger, books = desk
    done = Done()
    done.placement, done.attempts, done.first_byte_s, done.outcome = None, 0, 0.0, Outcome.REFUSED
    done.reply = Reply(KeptClient())
    clerk.put(done)
    clerk.put(Record(1.0, "req-2", "", "m", "/", False))
    clerk.work_off()
    assert not ledger.entries
    assert (books.records[0].mode, books.records[0].last_byte_s) == ("", 0.0)
    assert books.records[1].request_id == "req-2"


async def test_without_a_ledger_only_the_books_are_kept():
    books = KeptBooks()
    clerk = Clerk(None, books, "r")
    clerk.put((ID, 1, PUSHED, 1.0))
    clerk.put((ID, 1, "x"))
    clerk.put(Done())
    clerk.work_off()
    assert len(books.records) == 1 and books.retries == ["x"]


async def test_the_pile_is_worked_off_a_slice_in_each_turn_of_the_loop(desk):
    clerk, ledger, _ = desk
    for number in range(3 * SLICE + 1):
        clerk.put((ID, number, "a"))
    seen = []
    while len(ledger.entries) < 3 * SLICE + 1:
        await asyncio.sleep(0)
        if ledger.entries and (not seen or seen[-1] != len(ledger.entries)):
            seen.append(len(ledger.entries))
    assert seen == [SLICE, 2 * SLICE, 3 * SLICE, 3 * SLICE + 1], "others had a turn in between"
    assert [entry.transfer_id for entry in ledger.entries] == [f"{ID}.{n}" for n in range(3 * SLICE + 1)], "in order"
    clerk.put((ID, 99, "a"))
    while len(ledger.entries) < 3 * SLICE + 2:
        await asyncio.sleep(0)


async def test_of_a_high_pile_more_is_worked_off_at_once(desk):
    clerk, ledger, _ = desk
    for number in range(80 * SLICE):
        clerk.put((ID, number, "a"))
    while not ledger.entries:
        await asyncio.sleep(0)
    assert len(ledger.entries) == 10 * SLICE
    clerk.work_off()
    assert len(ledger.entries) == 80 * SLICE
    await asyncio.sleep(0)
    assert len(ledger.entries) == 80 * SLICE


async def test_an_answer_that_ends_with_the_finish_reason_error_has_failed(desk):
    """A21: with 200 and without usage; it is passed on and counts as failed."""
    clerk, _, books = desk
    clerk.put(Done(TOKEN, b'{"choices":[{"delta":{},"finish_reason":"error"}]}'))
    clerk.work_off()
    assert (books.records[0].outcome, books.records[0].code) == (Outcome.FAILED, "engine_error")


async def test_a_whole_answer_to_who_asked_for_a_stream_is_none(desk):
    clerk, _, books = desk
    done = Done()
    done.reply = Reply(KeptClient())
    leg = SimpleNamespace(status=200, headers=[(b"content-type", b"application/json")])
    assert done.reply.feed(leg, b"{}", True, 100.5) == (Edge.DECODE_WHOLE,)
    clerk.put(done)
    clerk.work_off()
    (record,) = books.records
    assert (record.stream, record.content_s, record.num_events, record.answer_bytes) == (False, 0.0, 0, 2)
    assert books.passed is None


async def test_whoever_learns_is_told_of_placed_requests():
    told = []
    clerk = Clerk(None, KeptBooks(), "router-1", lambda *facts: told.append(facts))
    clerk.put(Done())
    refused = Done()
    refused.placement = None
    clerk.put(refused)
    clerk.work_off()
    ((placement, tokens, record),) = told
    assert (placement, tokens, record.status, record.sent_s) == (PUSHED, Done.intake.prompt_tokens, 200, 0.2)


async def test_a_ticket_whose_decode_is_open_is_opened_again_with_its_name(desk):
    clerk, ledger, _ = desk
    clerk.put((ID, 1, Placement(Mode.PUSH, MEMBERS["p0"], None, "configured"), 9.5))
    clerk.put((ID, 1, PUSHED, 8.5))
    clerk.work_off()
    first, second = (entry.ticket for entry in ledger.entries)
    assert (first.prefill, first.decode, first.decode_epoch) == ("p0", None, 0)
    assert (second.decode, second.decode_epoch, second.attempt) == ("d0", 4, 1)
