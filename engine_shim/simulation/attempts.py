"""Attempts: which of its attempts a simulated request follows; mirrors `router.driver.attempts`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from engine_shim.simulation.attempt import Attempt
from engine_shim.simulation.messages import Ask, PrefillAnswer, Token
from engine_shim.simulation.rival import Rival, give_up
from router.contract.errors import Blame, TandemError
from router.contract.ids import Attempt as AttemptNumber
from router.contract.ids import Epoch, InstanceId, RequestId, TransferId, request_of, transfer_id_of
from router.contract.ledger import Closed, Opened, Outcome
from router.contract.rendezvous import Ticket
from router.core.intake import Endpoint, Intake
from router.core.lifecycle import START, Client, Edge, Node
from router.core.placement import Placement, Refusal
from router.core.prefix import ENDS

if TYPE_CHECKING:
    from engine_shim.simulation.replica import Replica

HEDGE_LOST = "hedge_lost"
_NO_EPOCH = Epoch(0)


class Attempts:
    """An exchange as far as its attempts go: the first, those after a failure, and a rival beside one that is late."""

    def __init__(self, replica: Replica, ask: Ask) -> None:
        self.replica = replica
        self.ask = ask
        # Of a conversation the router knows the beginning again; it is as long as a mark needs.
        talk = ask.prompt.conversation.encode() * ENDS[0]
        self.intake = Intake(Endpoint.CHAT, b"x" * 64, "model", ask.prompt.streamed, "", prompt=talk)
        self._held: list[Token] = []
        self._rival: Rival | None = None
        self._attempt: Attempt | None = None
        self._attempts = 0
        """Made so far, rivals included."""
        self._excluded: frozenset[InstanceId] = frozenset()
        self._error: TandemError | None = None
        self._node: Node = START[replica.mode]
        self._sent_at = self._prefilled_at = self._last_byte_at = 0.0
        self._hedge_at = inf
        self._total_at = replica.scene.now + ask.total_s

    @property
    def left_s(self) -> float:
        """Seconds until the request's total deadline."""
        return self._total_at - self.replica.scene.now

    # What an Exchange does.

    def _step(self, edge: Edge) -> None:
        raise NotImplementedError

    def _fail(self, side: Blame, error: TandemError, blamed: Blame | None) -> None:
        raise NotImplementedError

    def on_prefill_answer(self, attempt: Attempt, answer: PrefillAnswer) -> None:
        """See Sender, as the two below."""
        raise NotImplementedError

    def on_token(self, token: Token) -> None:
        """Decode's answer goes on."""
        raise NotImplementedError

    def on_leg_failed(self, side: Blame, failure: TandemError) -> None:
        """A leg has ended without a whole answer."""
        raise NotImplementedError

    # Attempts.

    def _place(self) -> None:
        replica = self.replica
        chosen = replica.place(self.intake, self._excluded)
        if isinstance(chosen, Refusal):
            self._error = self._error or chosen.error
            self._step(Edge.REFUSED)
            return
        transfer_id = self._next_id("retry_needs_fresh_attempt")
        self._sent_at = replica.scene.now
        self._hedge_at = self._sent_at + replica.hedge_after_s
        self._attempt = Attempt(self, chosen, transfer_id)
        self._open(self._attempt)
        replica.scene.on_moment("placed", replica.name)
        self._node = START[chosen.mode]
        if chosen.decode is not None:
            self._step(Edge.PLACED)
            return
        replica.scene.timeline.timer(chosen.decode_after_s, replica, self._on_decode_due, self._attempt)
        self._step(Edge.PLACED_LATE)

    def _on_decode_due(self, attempt: Attempt) -> None:
        """Prefill should be done soon, unless decode has been chosen or all is over by now."""
        if self._attempt is attempt and attempt.placement.decode is None and not self._prefilled_at:
            self._step(Edge.DECODE_DUE)

    def _choose_decode(self) -> bool:
        """True: decode has been chosen, late. False: nobody can take the prompt's KV, and the attempt has failed."""
        attempt = self._attempt
        assert attempt is not None
        if self._prefilled_at and "overtaken_choice" in self.replica.scene.off:
            return False
        chosen = self.replica.complete(self.intake, attempt.placement, self._excluded)
        if isinstance(chosen, Refusal):
            self.replica.scene.counts["late: nobody"] += 1
            self._fail(Blame.DECODE, chosen.error, None)
            return False
        self.replica.scene.counts["late: overtaken" if self._prefilled_at else "late: ahead"] += 1
        attempt.take_decode(chosen)
        self._open(attempt)
        self.replica.scene.on_moment("decode chosen", self.replica.name)
        return True

    def _next_id(self, safeguard: str) -> TransferId:
        """The transfer id of one more attempt; without the safeguard, that of the first."""
        self._attempts += 1
        number = 1 if safeguard in self.replica.scene.off else self._attempts
        return transfer_id_of(RequestId(self.ask.request), AttemptNumber(number))

    def _open(self, attempt: Attempt) -> None:
        self.replica.journal.post(Opened(self._ticket(attempt)))
        self.replica.tell(f"places attempt {self._attempts} ({attempt})", self.ask.request)

    def reopen(self) -> None:
        """The ledger has lost the tickets of what runs; they are opened again."""
        running = [self._attempt, None if self._rival is None else self._rival.attempt]
        for attempt in running:
            if attempt is not None:
                self.replica.journal.post(Opened(self._ticket(attempt)))

    def _ticket(self, attempt: Attempt) -> Ticket:
        prefill, decode = attempt.placement.prefill, attempt.placement.decode
        request_id, number = request_of(attempt.transfer_id)
        return Ticket(
            request_id,
            number,
            attempt.placement.mode,
            None if prefill is None else prefill.instance.instance_id,
            _NO_EPOCH if prefill is None else prefill.instance.epoch,
            None if decode is None else decode.instance.instance_id,
            _NO_EPOCH if decode is None else decode.instance.epoch,
            self.left_s,
            self.replica.owner,
        )

    def _retry(self) -> None:
        assert self._attempt is not None and self._error is not None
        self._attempt.close(fetched=False)
        self.replica.journal.post(Closed(self._attempt.transfer_id, Outcome.FAILED, self._error.code))
        self.replica.scene.counts["retries"] += 1
        self._attempt, self._prefilled_at = None, 0.0
        self._held = []
        if self._rival is not None:
            self._adopt(self._rival)
        else:
            self._place()

    # A rival.

    def _hedge(self) -> None:
        """A second attempt runs beside the first, where another prefill is there."""
        self._hedge_at = inf
        replica, first = self.replica, self._attempt
        if first is None or self._rival is not None or self._node.stand.client is not Client.WAITING:
            return
        excluded = frozenset((first.instance_of(Blame.PREFILL),))
        chosen = replica.place(self.intake, excluded)
        if isinstance(chosen, Placement) and chosen.decode is None:
            chosen = replica.complete(self.intake, chosen, excluded)
        if isinstance(chosen, Placement):
            replica.scene.counts["hedges"] += 1
            self._rival = Rival(self, chosen, self._next_id("hedge_needs_fresh_attempt"), self._open)

    def win(self, rival: Rival) -> None:
        """The rival has a good token first: the first attempt is over."""
        self.replica.scene.counts["hedges won"] += 1
        loser = self._attempt
        if loser is not None:
            self.replica.tell(f"hedge won by attempt {self._attempts}", self.ask.request)
            self.replica.journal.post(Closed(loser.transfer_id, Outcome.FAILED, HEDGE_LOST))
            if "hedge_loser_is_silenced" not in self.replica.scene.off:
                give_up(loser)
        held, rival.held = rival.held, []
        self._adopt(rival)
        for token in held:
            if not self._node.stand.closed:  # a deadline may pass in the middle of them
                self.on_token(token)

    def _adopt(self, rival: Rival) -> None:
        """The rival's attempt is the one of the request; the one before it has ended."""
        self._rival = None
        self._attempt, self._node = rival.attempt, rival.node
        self._sent_at, self._prefilled_at = rival.sent_at, rival.prefilled_at
        self._held = rival.held
        rival.attempt.hand_to(self)

    def drop_rival(self) -> None:
        """The rival, if there is one, is over and was not needed."""
        rival, self._rival = self._rival, None
        if rival is not None:
            give_up(rival.attempt)
            self.replica.journal.post(Closed(rival.attempt.transfer_id, Outcome.FAILED, HEDGE_LOST))
