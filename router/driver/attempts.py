"""Attempts: which of its attempts a request follows."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import Blame, LegError
from router.contract.ids import InstanceId, RequestId
from router.contract.instance import EngineKind, Mode
from router.contract.wire import NO_WAITS
from router.core.intake import Intake
from router.core.lifecycle import START, Client, Edge, Node
from router.core.placement import Placement, Refusal
from router.core.timing import Deadlines
from router.driver.attempt import Attempt
from router.driver.choosing import complete
from router.driver.facts import HEDGE_LOST, Facts
from router.driver.ports import ClientPort
from router.driver.reply import Reply
from router.driver.rival import Rival, give_up
from router.legs.answer import Verdict
from router.legs.connection import Headers
from router.legs.leg import Leg

if TYPE_CHECKING:
    from router.driver.router import Router

# Members of an Enum are looked up by a Python call; a module's names are not.
_WAITING = Client.WAITING
_VLLM = EngineKind.VLLM
_PLACED, _REFUSED, _ROUTER, _PREFILL, _LOCAL = Edge.PLACED, Edge.REFUSED, Blame.ROUTER, Blame.PREFILL, Mode.LOCAL
_PLACED_LATE, _DECODE_DUE, _DECODE = Edge.PLACED_LATE, Edge.DECODE_DUE, Blame.DECODE


class Attempts(Facts):
    """An exchange as far as its attempts go: the first, those after a failure, and a rival beside one that is late."""

    rival: Rival | None = None
    hedge_at = 0.0
    """Monotonic seconds at which the prefill under way is late; 0.0: never."""
    _number = 0
    """Of the newest attempt."""
    _attempt: Attempt | None = None
    _excluded: frozenset[InstanceId] = frozenset()
    _verdict: Verdict | None = None
    _node: Node
    _handed_over = b""
    router: Router
    client: ClientPort
    intake: Intake
    deadlines: Deadlines
    request_id: RequestId
    reply: Reply
    total_at: float
    arrived_at: float
    due_at: float

    # What an Exchange does.

    def _step(self, edge: Edge) -> None:
        raise NotImplementedError

    def _fail(self, side: Blame, verdict: Verdict) -> None:
        raise NotImplementedError

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """See LegOwner, as the two below."""
        raise NotImplementedError

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """Decode's answer goes on."""
        raise NotImplementedError

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """A leg has ended without a whole answer."""
        raise NotImplementedError

    # Attempts.

    def prefilled_for_s(self) -> float:
        """Seconds since prefill has answered well; 0.0 when it has not."""
        return monotonic() - self.arrived_at - self.prefilled_s if self.prefilled_s else 0.0

    def _place(self) -> None:
        router = self.router
        chosen = router.place(self.intake, self._excluded)
        if isinstance(chosen, Refusal):
            if self._verdict is None:
                self._verdict = Verdict(router.why_refused(chosen), None, False, _ROUTER)
            self._step(_REFUSED)
            return
        self.placement = chosen
        if self.deadlines.waits is not NO_WAITS and chosen.prefill is not None:
            told = chosen.prefill.instance.engine is not _VLLM  # decode speaks the same contract
            self.deadlines = (self.intake.deadlines or router.deadlines).beside(told=told)
        self._number += 1
        self.attempts = self._number
        now = monotonic()
        self.sent_s = now - self.arrived_at
        self._be_due(now + (router.shortest_s if self.intake.deadlines is None else self.deadlines.shortest_s))
        router.clerk.put((self.request_id, self.attempts, chosen, self.total_at - now))
        self._attempt = Attempt(router, self, chosen, f"{self.request_id}.{self.attempts}", now)
        self._node = START[chosen.mode]
        if chosen.decode is None:
            self._attempt.defer_decode(self._on_decode_due)
        if router.hedging is not None and chosen.prefill is not None:
            self.hedge_at = now + router.hedging.late_after_s(self.intake.prompt_tokens)
            self._be_due(self.hedge_at)
        self._step(_PLACED if chosen.decode is not None else _PLACED_LATE)

    def _on_decode_due(self) -> None:
        self._step(_DECODE_DUE)

    def _choose_decode(self) -> bool:
        """True: decode has been chosen, late. False: nobody can take the prompt's KV, and the attempt has failed.

        Another attempt may fare better, on a prefill that others can take from.
        """
        attempt, placement = self._attempt, self.placement
        assert attempt is not None and placement is not None
        chosen = complete(self.router, self.intake, placement, self._excluded)
        late = self.router.desk.rules.late
        if late is not None:
            late.choices["nobody" if isinstance(chosen, Refusal) else "overtaken" if self.prefilled_s else "ahead"] += 1
        if isinstance(chosen, Refusal):
            self._fail(_DECODE, Verdict(self.router.why_refused(chosen), None, True, _ROUTER))
            return False
        now = monotonic()
        self.chosen_s = now - self.arrived_at
        self.placement = chosen
        attempt.take_decode(chosen)
        self.router.clerk.put((self.request_id, self.attempts, chosen, self.total_at - now))
        return True

    def _may_retry(self) -> bool:
        """True: attempts and time are left, and the retry is paid for."""
        router = self.router
        return self.attempts < router.conduct.attempts and monotonic() < self.total_at and router.may_retry()

    def _retry(self) -> None:
        assert self._attempt is not None and self._verdict is not None
        code, ended = self._verdict.error.code, self.attempts
        self.earlier += (self._attempt.remembered(self.sent_s, monotonic() - self.arrived_at, code),)
        self._attempt.close(fetched=False)
        self._attempt = None
        self.reply = Reply(self.client)
        self.prefilled_s = self.chosen_s = 0.0
        self._handed_over = b""
        if self.rival is not None:
            self.adopt(self.rival)
        else:
            self._place()
        if self.attempts != ended:
            self.router.clerk.put((self.request_id, ended, code))
        else:  # nobody was there to try it on, and the request has ended with this attempt
            self.router.retries.give_back()

    def hedge(self) -> None:
        """A second attempt runs beside the first, if another prefill is there and the budget allows it.

        Not once decode has begun to answer: what its prefix cache holds needs no prefill.
        """
        self.hedge_at = 0.0
        router, first = self.router, self._attempt
        if self._node.stand.client is not _WAITING:
            return
        if router.hedging is None or first is None or self.rival is not None or not router.may_hedge():
            return
        excluded = first.avoided(_PREFILL)
        chosen = router.place(self.intake, excluded)
        if isinstance(chosen, Placement) and chosen.decode is None:
            chosen = complete(router, self.intake, chosen, excluded)
        if isinstance(chosen, Refusal) or chosen.mode is _LOCAL:
            router.hedges["nobody"] += 1
            return
        router.hedges["sent"] += 1
        self._number += 1
        self.rival = Rival(self, chosen, self._number)

    def win(self, rival: Rival, edges: tuple[Edge, ...], at: float) -> None:
        """The rival has a good byte first: the first attempt is over."""
        self.router.hedges["won"] += 1
        loser = self._attempt
        if loser is not None:
            self.earlier += (loser.remembered(self.sent_s, monotonic() - self.arrived_at, HEDGE_LOST),)
            self.router.clerk.put((self.request_id, self.attempts, HEDGE_LOST))
            give_up(loser)
        self.adopt(rival)
        self.last_byte_at = at
        for edge in edges:
            self._step(edge)

    def adopt(self, rival: Rival) -> None:
        """The rival's attempt is the one of the request; the one before it has ended."""
        self.rival = None
        self.placement, self.attempts = rival.placement, rival.number
        self.sent_s, self.chosen_s = rival.sent_at - self.arrived_at, 0.0
        self.prefilled_s = rival.prefilled_at - self.arrived_at if rival.prefilled_at else 0.0
        self.reply, self._node, self._handed_over = rival.reply, rival.node, rival.handed_over
        self._attempt = rival.attempt
        rival.attempt.hand_to(self)
        self.due_at = 0.0  # its deadlines are others: the next sweep sees to it

    def drop_rival(self, why: str) -> None:
        """The rival, if there is one, is over and was not needed."""
        rival, self.rival = self.rival, None
        if rival is not None:
            self.router.hedges[why] += 1
            rival.end()
            self.router.clerk.put((self.request_id, rival.number, HEDGE_LOST))

    def _be_due(self, at: float) -> None:
        if at < self.due_at:  # noqa: PLR1730 - min() is a call, and this runs several times per request
            self.due_at = at
