"""Rival: a second attempt beside a first one whose prefill is late; whichever has a good byte first is the answer.

Both legs are doubled, not prefill's alone: in push mode decode's leg names the prefill whose WRITE it awaits, so a
second prefill needs another decode leg, under a transfer id of its own. Until one has won, nothing is sent to the
client, so a hedge is a retry that does not wait for the failure. The loser is cancelled and taken back like any attempt
that failed, and what arrives late from it is refused by its id.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import Blame, LegError
from router.core.lifecycle import START, Edge, Effect
from router.core.placement import Placement
from router.driver.attempt import Attempt
from router.driver.reply import Reply
from router.legs.answer import Mark, Verdict
from router.legs.connection import Headers
from router.legs.leg import Leg

if TYPE_CHECKING:
    from router.driver.attempts import Attempts


class Rival:
    """The second attempt of a request. It owns its legs and walks a Lifecycle of its own until it wins or ends."""

    def __init__(self, exchange: Attempts, placement: Placement, number: int) -> None:
        now = monotonic()
        self._exchange = exchange
        self.intake, self.deadlines = exchange.intake, exchange.deadlines
        self.placement = placement
        self.number = number
        self.reply = Reply(exchange.client)
        self.node = START[placement.mode]
        self.sent_at = now
        self.prefilled_at = 0.0
        self.handed_over = b""
        self.attempt = Attempt(exchange.router, self, placement, f"{exchange.request_id}.{number}", now)
        exchange.router.clerk.put((exchange.request_id, number, placement, exchange.total_at - now))
        self._step(Edge.PLACED)

    def _step(self, edge: Edge) -> None:
        step = self.node.steps[edge]
        assert step is not None  # it has no client that could have left
        self.node, effects = step
        left_s = self._exchange.total_at - monotonic()
        for effect in effects:
            if effect is Effect.SEND_PREFILL:
                self.attempt.send_prefill(left_s)
            elif effect is Effect.SEND_DECODE:
                self.attempt.send_decode(left_s, self.handed_over)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Prefill has finished, or refused."""
        handed_over = self.attempt.read_prefill(status, headers, body)
        if isinstance(handed_over, Verdict):
            self._fail(handed_over)
            return
        self.prefilled_at, self.handed_over = monotonic(), handed_over
        self._step(Edge.PREFILL_DONE)

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """Decode's answer begins: with its first good byte this attempt has won."""
        at = monotonic()
        moved = self.reply.feed(leg, body, ended, at)
        if not isinstance(moved, tuple):
            self._fail(moved)
        elif moved:
            self._exchange.win(self, moved, at)

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """A leg has ended without a whole answer."""
        self._fail(Verdict(error, None, error.retryable, leg.side, Mark.INSTANCE))

    def prefilled_for_s(self) -> float:
        """Seconds since prefill has answered well; 0.0 when it has not."""
        return monotonic() - self.prefilled_at if self.prefilled_at else 0.0

    def _fail(self, verdict: Verdict) -> None:
        """The first attempt goes on alone, whatever this failure means."""
        if verdict.mark is not Mark.NONE:
            self.attempt.blame(verdict)
        self._exchange.drop_rival("failed")

    def end(self) -> None:
        """Nothing of it runs any more."""
        give_up(self.attempt)


def give_up(attempt: Attempt) -> None:
    """Both legs are cancelled, and engines that hold something of the attempt are told."""
    attempt.cancel(Blame.DECODE)
    attempt.cancel(Blame.PREFILL)
    attempt.close(fetched=False)
