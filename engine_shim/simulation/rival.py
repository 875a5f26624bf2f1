"""Rival: a second attempt beside a first one whose prefill is late; mirrors `router.driver.rival`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from engine_shim.simulation.attempt import Attempt
from engine_shim.simulation.messages import PrefillAnswer, Token
from router.contract.errors import Blame, TandemError
from router.contract.ids import TransferId
from router.core.lifecycle import START, Edge, Effect
from router.core.placement import Placement

if TYPE_CHECKING:
    from engine_shim.simulation.attempts import Attempts


class Rival:
    """The second attempt of a request. It walks a Lifecycle of its own until it wins or ends."""

    def __init__(
        self, exchange: Attempts, placement: Placement, transfer_id: TransferId, on_made: Callable[[Attempt], None]
    ) -> None:
        self._exchange = exchange
        self.replica, self.ask, self.intake = exchange.replica, exchange.ask, exchange.intake
        self._total_at = self.replica.scene.now + exchange.left_s
        self.node = START[placement.mode]
        self.sent_at = self.replica.scene.now
        self.prefilled_at = 0.0
        self.held: list[Token] = []
        """What decode has sent so far; to the client it goes once this attempt has won."""
        self.attempt = Attempt(self, placement, transfer_id)
        on_made(self.attempt)
        self._step(Edge.PLACED)

    def _step(self, edge: Edge) -> None:
        step = self.node.steps[edge]
        assert step is not None  # it has no client that could have left
        self.node, effects = step
        left_s = self._total_at - self.replica.scene.now
        for effect in effects:
            if effect is Effect.SEND_PREFILL:
                self.attempt.send_prefill(left_s)
            elif effect is Effect.SEND_DECODE:
                self.attempt.send_decode(left_s)

    def on_prefill_answer(self, attempt: Attempt, answer: PrefillAnswer) -> None:
        """Prefill has finished, and its KV is pinned for decode."""
        if attempt.take_prefill(answer) is not None:
            self._exchange.drop_rival()
            return
        self.prefilled_at = self.replica.scene.now
        self._step(Edge.PREFILL_DONE)

    def on_token(self, token: Token) -> None:
        """Decode's answer begins, or is whole: with its first good byte this attempt has won."""
        self.held.append(token)
        if self.ask.prompt.streamed or token.is_last:
            self._exchange.win(self)

    def on_leg_failed(self, side: Blame, failure: TandemError) -> None:
        """The first attempt goes on alone, whatever this failure means."""
        self._exchange.drop_rival()


def give_up(attempt: Attempt) -> None:
    """Both legs are cancelled, and engines that hold something of the attempt are told."""
    attempt.cancel(Blame.DECODE)
    attempt.cancel(Blame.PREFILL)
    attempt.close(fetched=False)
