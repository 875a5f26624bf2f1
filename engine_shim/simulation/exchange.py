"""Exchange: one client request in a router, walked by the real Lifecycle.

It mirrors `router.driver.exchange`: facts are Edges, the Effects of each step are run in order, and the rules of retry
and of blame are the same. Only the legs are simulated connections.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from engine_shim.simulation.attempt import Attempt
from engine_shim.simulation.attempts import Attempts
from engine_shim.simulation.messages import Ask, Failure, PrefillAnswer, Token
from engine_shim.simulation.network import Connection
from engine_shim.simulation.story import Invariant
from router.contract.errors import Blame, OutOfTime, TandemError, TransferError
from router.contract.ledger import Closed, Outcome
from router.core.lifecycle import Client, Edge, Effect
from router.core.timing import Moments, next_deadline

if TYPE_CHECKING:
    from engine_shim.simulation.replica import Replica

SWEEP_S = 0.1
_FAILED = {Blame.PREFILL: Edge.PREFILL_FAILED, Blame.DECODE: Edge.DECODE_FAILED}
_LOST = {Blame.PREFILL: Edge.PREFILL_LOST, Blame.DECODE: Edge.DECODE_LOST}


class Exchange(Attempts):
    """Answers one client, over the connection that its Ask came by."""

    def __init__(self, replica: Replica, client: Connection, ask: Ask) -> None:
        super().__init__(replica, ask)
        self.client = client
        self._due_at = self._total_at

    def open(self) -> None:
        """Place the request and send its legs, or refuse it."""
        self._place()
        self.on_due()

    # Facts.

    def on_prefill_answer(self, attempt: Attempt, answer: PrefillAnswer) -> None:
        """Prefill has finished, and its KV is pinned for decode."""
        self._prefilled_at = self.replica.scene.now
        self._hedge_at = inf
        gone = attempt.take_prefill(answer)
        if gone is not None:
            self._fail(Blame.PREFILL, gone, Blame.PREFILL)
            self._be_due()
            return
        self._step(Edge.PREFILL_DONE)
        self._be_due()

    def on_token(self, token: Token) -> None:
        """Decode's answer goes on."""
        self._last_byte_at = self.replica.scene.now
        streamed = self.ask.prompt.streamed
        if self._node.stand.client is Client.STREAMING:
            self.client.send(self.replica, token)
            if token.is_last:
                self._step(Edge.DECODE_DONE)
            return
        self._held.append(token)
        if streamed:
            if "deferred_commit" in self.replica.scene.off:
                self._write_held()
                if not token.is_last:
                    return
            self._step(Edge.DECODE_STREAMING)
            if token.is_last:
                self._step(Edge.DECODE_DONE)
        elif token.is_last:
            self._step(Edge.DECODE_WHOLE)
        self._be_due()

    def on_leg_failed(self, side: Blame, failure: TandemError) -> None:
        """A leg has ended without a whole answer."""
        self._fail(side, failure, Blame.PREFILL if isinstance(failure, TransferError) else side)
        self._be_due()

    def on_client_gone(self) -> None:
        """The client has left."""
        if not self._node.stand.closed:
            self._step(Edge.CLIENT_GONE)

    def on_due(self) -> None:
        """A deadline may have passed."""
        now = self.replica.scene.now
        if self._node.stand.closed:
            return
        if now >= self._total_at:
            self._error = OutOfTime("The request's total deadline has passed.")
            self._step(Edge.TIMED_OUT)
            return
        if now >= self._hedge_at:
            self._hedge()
        moments = Moments(self._sent_at, self._prefilled_at, self._last_byte_at, self.ask.prompt.streamed)
        at, error = next_deadline(self._node.stand, moments, self.intake.prompt_tokens, self.replica.deadlines)
        if now < at:
            self._due_at = min(at, self._total_at, self._hedge_at)
            self.replica.scene.timeline.timer(self._due_at - now + SWEEP_S, self.replica, self.on_due_at, self._due_at)
        elif error is not None and self._attempt is not None:
            self._attempt.cancel(error.side)
            self._fail(error.side, error, error.side)
            self.on_due()

    def on_due_at(self, due_at: float) -> None:
        """The timer of one deadline; a later one may have taken its place."""
        if due_at == self._due_at:
            self.on_due()

    # The machine.

    def _step(self, edge: Edge) -> None:
        scene = self.replica.scene
        step = self._node.steps[edge]
        if step is None:
            scene.violate(Invariant.ROW_EXISTS, self.ask.request, f"no row for {edge.name} in ({self._node.stand})")
            return
        scene.counts[f"LIFE ({self._node.stand}) {edge.name}"] += 1
        self._node, effects = step
        for effect in effects:
            _RUN[effect](self)

    def _fail(self, side: Blame, error: TandemError, blamed: Blame | None) -> None:
        attempt = self._attempt
        self.replica.tell(f"{side} leg failed: {error.code}", self.ask.request)
        if self._node.stand.client is Client.WAITING:
            self._error = error
            left = self._attempts < self.replica.max_attempts and self.replica.scene.now < self._total_at
            left = left or self._rival is not None
            # An engine's 4xx is about the request itself.
            retryable = (error.retryable or blamed is None) and not 400 <= error.http_status < 500
            if retryable and left and attempt is not None:
                self._excluded |= frozenset() if blamed is None else {attempt.instance_of(blamed)}
                self._step(_LOST[side])
                return
        elif side is Blame.DECODE:
            self._error = error
        self._step(_FAILED[side])

    def _be_due(self) -> None:
        """A phase has changed: look at the clock again."""
        if not self._node.stand.closed:
            self.on_due()

    def _write_held(self) -> None:
        held, self._held = self._held, []
        for token in held:
            self.client.send(self.replica, token)

    # Effects.

    def _send_prefill(self) -> None:
        assert self._attempt is not None
        self._attempt.send_prefill(self._total_at - self.replica.scene.now)

    def _send_decode(self) -> None:
        assert self._attempt is not None
        if self._attempt.placement.decode is None and not self._choose_decode():
            return
        self._attempt.send_decode(self._total_at - self.replica.scene.now)

    def _commit(self) -> None:
        self.drop_rival()
        self.replica.scene.on_moment("committed", self.replica.name)
        self._write_held()

    def _serve(self) -> None:
        """The last token ends the answer."""

    def _answer(self) -> None:
        assert self._error is not None
        self.client.send(self.replica, Failure(self._error))

    def _cancel_prefill(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel(Blame.PREFILL)

    def _cancel_decode(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel(Blame.DECODE)

    def _leave_prefill(self) -> None:
        if self._attempt is not None:
            self._attempt.leave_prefill()

    def _close(self) -> None:
        self.drop_rival()
        client = self._node.stand.client
        outcome = {Client.GONE: Outcome.ABANDONED, Client.SERVED: Outcome.SERVED}.get(client, Outcome.FAILED)
        if self._attempt is not None:
            self._attempt.close(fetched=self._last_byte_at > 0.0)
            self.replica.journal.post(Closed(self._attempt.transfer_id, outcome))
            self._attempt = None
        self.replica.close(self)


_METHODS: dict[Effect, Callable[[Exchange], None]] = {
    Effect.DELIVER: Exchange._commit,
    Effect.BREAK: Exchange._answer,
}
_RUN: tuple[Callable[[Exchange], None], ...] = tuple(
    _METHODS[effect] if effect in _METHODS else getattr(Exchange, f"_{effect.name.lower()}") for effect in Effect
)
"""The method of each Effect, by its number."""
