"""Exchange: one client request, from its Intake to its Outcome.

Callbacks bring facts (a leg has answered, the client has left, a deadline has passed), each fact is an Edge of the
Lifecycle, and the Effects of its step are run in order. Bytes of a running stream do not touch the machine: they go
from decode's connection through the Reply to the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import Blame, Impossible, LegError, OutOfTime, QueueTimeout, TandemError
from router.contract.ids import RequestId
from router.contract.ledger import Outcome
from router.core.intake import Endpoint, Intake
from router.core.lifecycle import IDLE, Client, Edge, Effect, Node
from router.core.timing import Moments, next_deadline
from router.driver.attempts import Attempts
from router.driver.ending import ending_of
from router.driver.ports import ClientPort
from router.driver.reply import Reply
from router.driver.told import told_headers
from router.legs.answer import Answer, Mark, Verdict
from router.legs.connection import Headers
from router.legs.leg import Leg

if TYPE_CHECKING:
    from router.driver.router import Router

LOG = logging.getLogger("tandem.router")

# Members of an Enum are looked up by a Python call; a module's names are not.
_PLACED, _PREFILL_DONE = Edge.PLACED, Edge.PREFILL_DONE
_PREFILL, _DECODE, _ROUTER = Blame.PREFILL, Blame.DECODE, Blame.ROUTER
_WAITING, _RESPONSES = Client.WAITING, Endpoint.RESPONSES
_SERVED, _NO_MARK, _BAD_INSTANCE = Outcome.SERVED, Mark.NONE, Mark.INSTANCE
_FAILED = {Blame.PREFILL: Edge.PREFILL_FAILED, Blame.DECODE: Edge.DECODE_FAILED}
_LOST = {Blame.PREFILL: Edge.PREFILL_LOST, Blame.DECODE: Edge.DECODE_LOST}


class Exchange(Attempts):
    """Answers one client. Everything happens on the event loop that its Router belongs to."""

    waits = False
    """It has not been admitted yet."""
    _paused_at = 0.0

    def __init__(
        self, router: Router, client: ClientPort, intake: Intake, request_id: RequestId, total_s: float
    ) -> None:
        self.router = router
        self.client = client
        self.intake = intake
        self.deadlines = intake.deadlines or router.deadlines
        self.request_id = request_id
        self.reply = Reply(client)
        self._node: Node = IDLE
        self.arrived_at = intake.arrived_at or monotonic()
        self.door_s = monotonic() - self.arrived_at
        self.due_at = self.total_at = self.arrived_at + total_s

    # Facts.

    def wait(self) -> None:
        """It stands in the line for admission: `open` follows, or its end."""
        self.waits = True
        self._be_due(self.arrived_at + self.deadlines.queue_s)

    def open(self) -> None:
        """Place the request and send its legs, or refuse it."""
        if self.waits:
            self.waits = False
            self.queued_s = monotonic() - self.arrived_at - self.door_s
            self.due_at = self.total_at
        self._place()
        self.placed_s = monotonic() - self.arrived_at

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Prefill has finished and its KV cache is pinned for decode, or it has refused."""
        attempt = self._attempt
        if attempt is None:
            raise Impossible(f"Prefill has answered request {self.request_id}, which has no attempt.")
        now = monotonic()
        self.prefilled_s = now - self.arrived_at
        handed_over = attempt.read_prefill(status, headers, body)
        if not isinstance(handed_over, bytes):
            self._fail(_PREFILL, handed_over)
            return
        self._handed_over = handed_over
        if self.router.hedging is not None:
            self.hedge_at = 0.0
            self.router.hedging.learn(self.intake.prompt_tokens, self.prefilled_s - self.sent_s)
        self._be_due(now + (self.deadlines.first_token_s if self.intake.stream else self.deadlines.answer_s))
        if self.router.health.alert:
            attempt.praise_prefill()
        self._step(_PREFILL_DONE)
        if attempt.withheld is not None:
            self._fail(_DECODE, attempt.withheld)

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """Decode's answer goes on or, with `ended`, is complete."""
        self.last_byte_at = at = monotonic()
        moved = self.reply.feed(leg, body, ended, at)
        if not isinstance(moved, tuple):
            if not ended:
                leg.cancel()
            if self._attempt is None or not self._attempt.withholds(moved):
                self._fail(_DECODE, moved)
            return
        for edge in moved:
            self._step(edge)

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """A leg has ended without a whole answer."""
        self._fail(leg.side, Verdict(error, None, error.retryable, leg.side, _BAD_INSTANCE))

    def on_client_gone(self) -> None:
        """The client has left; nobody is answered any more."""
        self._step(Edge.CLIENT_GONE)

    def on_client_paused(self) -> None:
        """The client does not keep up: hold decode back."""
        self._paused_at = monotonic()
        self._be_due(self._paused_at + self.deadlines.stalled_s)
        if self._attempt is not None:
            self._attempt.pause_decode()

    def on_client_resumed(self) -> None:
        """The client has caught up; decode's time starts anew."""
        self._paused_at = 0.0
        self.last_byte_at = monotonic()
        if self._attempt is not None:
            self._attempt.resume_decode()

    def on_due(self, now: float) -> None:
        """A deadline may have passed; the sweep calls this no earlier than `due_at`."""
        if now >= self.total_at:
            self.expire(OutOfTime("The request's total deadline has passed; ask for less or allow more time."))
            return
        if self.waits:
            self.expire(QueueTimeout("The request has waited for its turn for as long as it may; try again shortly."))
            return
        if self.hedge_at and now >= self.hedge_at:
            self.hedge()
        deadlines, start = self.deadlines, self.arrived_at
        intake, max_tokens = self.intake, 0 if self.intake.stream else self.intake.max_tokens
        moments = Moments(start + self.sent_s, start + self.prefilled_s, self.last_byte_at, intake.stream, max_tokens)
        at, error = next_deadline(self._node.stand, moments, intake.prompt_tokens, deadlines)
        if self._paused_at:
            at, error = self._paused_at + deadlines.stalled_s, None
        if now < at:
            self.due_at = min(at, self.total_at, self.hedge_at or inf)
        elif error is None:
            self.client.abandon()
            self.on_client_gone()
        elif self._attempt is not None:
            self._attempt.cancel(error.side)
            self._fail(error.side, Verdict(error, None, error.retryable, error.side, _BAD_INSTANCE))

    def expire(self, error: TandemError) -> None:
        """The request ends with this error, whatever it is doing."""
        self._verdict = Verdict(error, None, False, _ROUTER)
        self._step(Edge.TIMED_OUT)

    # The machine.

    def _step(self, edge: Edge) -> None:
        step = self._node.steps[edge]
        if step is None:
            self._break_impossible(edge)
            return
        self._node, effects = step
        for effect in effects:
            _RUN[effect](self)

    def _break_impossible(self, edge: Edge) -> None:
        what = f"request {self.request_id}: the Lifecycle has no row for {edge.name} in ({self._node.stand})"
        if self._node.stand.closed:
            raise Impossible(what)
        LOG.error("%s; it ends here", what)
        self.expire(Impossible("The router met a case that it has no rule for; its log says which."))

    def _fail(self, side: Blame, verdict: Verdict) -> None:
        """A leg of this side has failed for good, or another attempt is to cure it."""
        attempt = self._attempt
        if attempt is not None and verdict.mark is not _NO_MARK:
            attempt.blame(verdict)
        if self._node.stand.client is _WAITING:
            self._verdict = verdict
            if attempt is not None and verdict.retryable and (self.rival is not None or self._may_retry()):
                self._excluded |= attempt.avoided(verdict.blamed)
                self._step(_LOST[side])
                return
        elif side is _DECODE:
            self._verdict = verdict
        self._step(_FAILED[side])

    # Effects.

    def _send_prefill(self) -> None:
        assert self._attempt is not None
        self._attempt.send_prefill(self.total_at - self.arrived_at - self.sent_s)

    def _send_decode(self) -> None:
        assert self._attempt is not None
        since_s = self.prefilled_s or self.sent_s
        if self._attempt.placement.decode is None:
            if not self._choose_decode():
                return
            since_s = self.chosen_s
        self._attempt.send_decode(self.total_at - self.arrived_at - since_s, self._handed_over)

    def _commit(self) -> None:
        if self.rival is not None:
            self.drop_rival("lost")
        self.first_byte_s = self.last_byte_at - self.arrived_at
        self._be_due(self.last_byte_at + self.deadlines.next_token_s)
        if self.router.health.alert and self._attempt is not None:
            self._attempt.praise(ended=False)
        if self.intake.explained:
            self._tell(self.reply.engine_headers)
        if self.intake.endpoint is _RESPONSES:
            self._remember_response()
        self.status = self.reply.commit()
        connection = self._attempt.decode_connection if self._attempt is not None else None
        if connection is not None:
            connection.take_chunk = self.reply.chunk_taker(self)

    def _serve(self) -> None:
        self.reply.serve()

    def _deliver(self) -> None:
        if self.rival is not None:
            self.drop_rival("lost")
        self.first_byte_s = self.last_byte_at - self.arrived_at
        if self.intake.explained:
            self._tell(self.reply.engine_headers)
        if self.intake.endpoint is _RESPONSES:
            self._remember_response()
        self.status = self.reply.deliver()

    def _remember_response(self) -> None:
        if self.placement is not None and self.placement.decode is not None:
            learn = self.router.desk.responses.learn
            learn(self.placement.decode.instance, self.reply.opening, streamed=self.reply.sse)

    def _tell(self, engine_headers: Headers | None) -> None:
        self.reply.told = told_headers(self, engine_headers or [], monotonic() - self.arrived_at)

    def _answer(self) -> None:
        verdict = self._verdict
        assert verdict is not None  # every way into a failure sets it
        if verdict.answer is not None:
            self.status, headers = verdict.answer.status, verdict.answer.headers
            if self.intake.explained:
                headers = headers + told_headers(self, headers, monotonic() - self.arrived_at)
            self.client.answer(Answer(self.status, headers, verdict.answer.body))
        else:
            self.status = verdict.error.http_status
            self.client.refuse(verdict.error)

    def _break(self) -> None:
        assert self._verdict is not None
        self.client.break_off(self._verdict.error, stream=self.reply.readable)

    def _cancel_prefill(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel(_PREFILL)

    def _cancel_decode(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel(_DECODE)

    def _leave_prefill(self) -> None:
        if self._attempt is not None:
            self._attempt.leave_prefill()

    def _close(self) -> None:
        if self.rival is not None:
            self.drop_rival("lost")
        self.ended_s = monotonic() - self.arrived_at
        self.outcome, self.code, self.status = ending_of(self._node.stand.client, self.status, self._verdict)
        if self.router.health.alert and self.outcome is _SERVED and self._attempt is not None:
            self._attempt.praise(ended=True)
        if self._attempt is not None:
            self._attempt.close(fetched=self.first_byte_s > 0.0)
            self._attempt = None  # no cycle: both are gone at once
        self.router.close(self)


_RUN: tuple[Callable[[Exchange], None], ...] = tuple(getattr(Exchange, f"_{effect.name.lower()}") for effect in Effect)
"""The method of each Effect, by its number."""
