"""Exchange: one client request, from its Intake to its Outcome.

Callbacks bring facts (a leg has answered, the client has left, a deadline has passed), each fact is an Edge of the
Lifecycle, and the Effects of its step are run in order. Bytes of a running stream do not touch the machine: they go
from decode's connection through the Reply to the client.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import Blame, Impossible, LegError, OutOfTime, TandemError
from router.contract.ids import Attempt as AttemptNumber
from router.contract.ids import InstanceId, RequestId
from router.contract.ledger import Outcome
from router.contract.rendezvous import Ticket
from router.core.intake import Intake
from router.core.lifecycle import START, Client, Edge, Effect, Node
from router.core.placement import Placement, Refusal
from router.core.record import Record
from router.core.timing import next_deadline
from router.driver.attempt import Attempt
from router.driver.ports import ClientPort
from router.driver.reply import Reply
from router.legs.answer import Verdict, judge
from router.legs.connection import Headers
from router.legs.leg import Leg
from router.legs.prefill import read_hand_over

if TYPE_CHECKING:
    from router.driver.router import Router

GONE_STATUS = 499
"""What the record says for a client that left before it had an answer; never sent."""

_FAILED = {Blame.PREFILL: Edge.PREFILL_FAILED, Blame.DECODE: Edge.DECODE_FAILED}
_LOST = {Blame.PREFILL: Edge.PREFILL_LOST, Blame.DECODE: Edge.DECODE_LOST}


class Exchange:
    """Answers one client. Everything happens on the event loop that its Router belongs to."""

    __slots__ = (
        "_attempt",
        "_client",
        "_excluded",
        "_handed_over",
        "_node",
        "_paused_at",
        "_reply",
        "_router",
        "_total_at",
        "_verdict",
        "due_at",
        "intake",
        "record",
    )

    def __init__(self, router: Router, client: ClientPort, intake: Intake, record: Record, total_s: float) -> None:
        self._router = router
        self._client = client
        self.intake = intake
        self.record = record
        self._reply = Reply(client)
        self._node: Node = START[router.mode]
        self._attempt: Attempt | None = None
        self._excluded: frozenset[InstanceId] = frozenset()
        self._verdict: Verdict | None = None
        self._handed_over = b""
        self._paused_at = 0.0
        self._total_at = record.arrived_at + total_s
        self.due_at = self._total_at

    # Facts.

    def open(self) -> None:
        """Place the request and send its legs, or refuse it."""
        self._place()

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Prefill has finished and its KV cache is pinned for decode, or it has refused."""
        attempt = self._attempt
        assert attempt is not None and attempt.placement.prefill is not None
        now = self.record.prefilled_at = monotonic()
        attempt.release_prefill()
        if not 200 <= status < 300:
            self._fail(Blame.PREFILL, judge(Blame.PREFILL, status, headers, body))
            return
        handed_over = read_hand_over(body, attempt.placement.prefill, attempt.placement.mode)
        if isinstance(handed_over, TandemError):
            self._fail(Blame.PREFILL, Verdict(handed_over, None, handed_over.retryable, Blame.PREFILL))
            return
        self._handed_over = handed_over
        self.due_at = min(self.due_at, now + self._router.deadlines.first_token_s)
        self._step(Edge.PREFILL_DONE)

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """Decode's answer goes on or, with `ended`, is complete."""
        self.record.last_byte_at = monotonic()
        moved = self._reply.feed(leg.status, leg.headers, body, ended=ended)
        if isinstance(moved, tuple):
            for edge in moved:
                self._step(edge)
        else:
            if not ended:
                leg.cancel()
            self._fail(Blame.DECODE, moved)

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """A leg has ended without a whole answer."""
        self._fail(leg.side, Verdict(error, None, error.retryable, leg.side))

    def on_client_gone(self) -> None:
        """The client has left; nobody is answered any more."""
        self._step(Edge.CLIENT_GONE)

    def on_client_paused(self) -> None:
        """The client does not keep up: hold decode back."""
        self._paused_at = monotonic()
        self.due_at = min(self.due_at, self._paused_at + self._router.deadlines.stalled_s)
        if self._attempt is not None and self._attempt.decode is not None:
            self._attempt.decode.pause()

    def on_client_resumed(self) -> None:
        """The client has caught up; decode's time starts anew."""
        self._paused_at = 0.0
        self.record.last_byte_at = monotonic()
        if self._attempt is not None and self._attempt.decode is not None:
            self._attempt.decode.resume()

    def on_due(self, now: float) -> None:
        """A deadline may have passed; the sweep calls this no earlier than `due_at`."""
        if now >= self._total_at:
            self.expire(OutOfTime("The request's total deadline has passed; ask for less or allow more time."))
            return
        deadlines = self._router.deadlines
        at, error = next_deadline(self._node.stand, self.record, self.intake.prompt_tokens, deadlines)
        if self._paused_at:
            at, error = self._paused_at + deadlines.stalled_s, None
        if now < at:
            self.due_at = min(at, self._total_at)
        elif error is None:
            self._client.abandon()
            self._step(Edge.CLIENT_GONE)
        else:
            self._time_out(error.side)
            self._fail(error.side, Verdict(error, None, error.retryable, error.side))

    def expire(self, error: TandemError) -> None:
        """The request ends with this error, whatever it is doing."""
        self._verdict = Verdict(error, None, False, Blame.ROUTER)
        self._step(Edge.TIMED_OUT)

    # The machine.

    def _step(self, edge: Edge) -> None:
        step = self._node.steps[edge]
        if step is None:
            self._break_impossible(edge)
            return
        self._node = step[0]
        for effect in step[1]:
            _RUN[effect](self)

    def _break_impossible(self, edge: Edge) -> None:
        stand = self._node.stand
        if stand.closed:
            raise Impossible(f"{edge.name} came after the end ({stand}).", request_id=self.record.request_id)
        self.expire(Impossible(f"There is no row for {edge.name} in ({stand}).", request_id=self.record.request_id))

    def _fail(self, side: Blame, verdict: Verdict) -> None:
        """A leg of this side has failed: its failure is final, or another attempt is to cure it."""
        if self._node.stand.client is Client.WAITING:
            self._verdict = verdict
            record = self.record
            if verdict.retryable and record.attempts < self._router.conduct.attempts and monotonic() < self._total_at:
                self._exclude(verdict)
                self._step(_LOST[side])
                return
        elif side is Blame.DECODE:
            self._verdict = verdict
        self._step(_FAILED[side])

    def _exclude(self, verdict: Verdict) -> None:
        assert self._attempt is not None  # only legs of an attempt fail
        self._excluded |= {self._attempt.instance_of(verdict.blamed)}
        self._router.books.count_retry(verdict.error.code)

    def _time_out(self, side: Blame) -> None:
        assert self._attempt is not None
        if side is Blame.PREFILL:
            self._attempt.cancel_prefill()
        else:
            self._attempt.cancel_decode()

    def _place(self) -> None:
        chosen = self._router.place(self.intake, self._excluded)
        if isinstance(chosen, Refusal):
            if self._verdict is None:
                self._verdict = Verdict(chosen.error, None, False, Blame.ROUTER)
            self._step(Edge.REFUSED)
            return
        record, placement = self.record, chosen
        record.attempts += 1
        record.mode, record.reason = placement.mode, placement.reason
        record.decode = placement.decode.instance_id
        record.prefill = placement.prefill.instance_id if placement.prefill is not None else ""
        ticket = self._ticket(placement)
        self._attempt = Attempt(self._router, self.intake, placement, ticket)
        record.prefilled_at = 0.0
        self._node = START[placement.mode]
        record.sent_at = monotonic()
        self.due_at = min(self._total_at, record.sent_at + self._router.shortest_s)
        self._step(Edge.PLACED)
        if record.attempts == 1:
            record.first_sent_at = monotonic()

    def _ticket(self, placement: Placement) -> Ticket:
        prefill, decode = placement.prefill, placement.decode
        return Ticket(
            RequestId(self.record.request_id),
            AttemptNumber(self.record.attempts),
            placement.mode,
            prefill.instance_id if prefill is not None else None,
            prefill.epoch if prefill is not None else decode.epoch,
            decode.instance_id,
            decode.epoch,
            max(0.0, self._total_at - monotonic()),
            self._router.conduct.owner,
        )

    # Effects.

    def _send_prefill(self) -> None:
        assert self._attempt is not None
        self._attempt.send_prefill(self, self._total_at - self.record.sent_at)

    def _send_decode(self) -> None:
        assert self._attempt is not None
        self._attempt.send_decode(self, self._total_at - monotonic(), self._handed_over)

    def _commit(self) -> None:
        record = self.record
        record.first_byte_at = record.last_byte_at
        self.due_at = min(self.due_at, record.last_byte_at + self._router.deadlines.next_token_s)
        record.status = self._reply.commit()

    def _serve(self) -> None:
        self._reply.serve()

    def _answer(self) -> None:
        verdict = self._verdict
        assert verdict is not None  # every way into a failure sets it
        if verdict.answer is not None:
            self.record.status = verdict.answer.status
            self._client.answer(verdict.answer)
        else:
            self.record.status = verdict.error.http_status
            self._client.refuse(verdict.error)

    def _break(self) -> None:
        assert self._verdict is not None
        self._client.break_off(self._verdict.error, stream=self._reply.sse)

    def _cancel_prefill(self) -> None:
        assert self._attempt is not None
        self._attempt.cancel_prefill()

    def _cancel_decode(self) -> None:
        assert self._attempt is not None
        self._attempt.cancel_decode()

    def _leave_prefill(self) -> None:
        assert self._attempt is not None
        self._attempt.leave_prefill()

    def _retry(self) -> None:
        assert self._attempt is not None and self._verdict is not None
        self._attempt.close(Outcome.FAILED, self._verdict.error.code)
        self._attempt = None
        self._reply.restart()
        self._handed_over = b""
        self._place()

    def _close(self) -> None:
        record = self.record
        record.ended_at = monotonic()
        errs = self._reply.account(record)
        client = self._node.stand.client
        if client is Client.GONE:
            record.outcome, record.code = Outcome.ABANDONED, "client_gone"
            record.status = record.status or GONE_STATUS
        elif client is Client.FAILED:
            assert self._verdict is not None
            refused = 400 <= record.status < 500
            record.outcome, record.code = Outcome.REFUSED if refused else Outcome.FAILED, self._verdict.error.code
        elif errs:
            record.outcome, record.code = Outcome.FAILED, "engine_error"
        else:
            record.outcome = Outcome.SERVED
        if self._attempt is not None:
            self._attempt.close(record.outcome, record.code)
        self._router.close(self)


_RUN: tuple[Callable[[Exchange], None], ...] = tuple(getattr(Exchange, f"_{effect.name.lower()}") for effect in Effect)
"""The method of each Effect, by its number."""
