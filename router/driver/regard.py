"""Regard: what the ends of an attempt's legs say of its instances, to the router's health and to further attempts."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import Blame
from router.contract.ids import InstanceId
from router.core.health import keys_of, pair_of
from router.core.record import Earlier
from router.driver.ports import Sender
from router.legs.answer import Mark, Verdict

if TYPE_CHECKING:
    from router.core.placement import Placement
    from router.driver.router import Router

_PREFILL, _ROUTER = Blame.PREFILL, Blame.ROUTER


class Regard:
    """An attempt as far as it speaks well or badly of its instances."""

    placement: Placement
    _router: Router
    _exchange: Sender
    _transfer_id: bytes
    _sent_at: float
    _tokens: int

    @property
    def _number(self) -> int:
        return int(self._transfer_id.rpartition(b".")[2])

    def blame(self, verdict: Verdict) -> None:
        """The failure is held against whoever is at fault; a client that allows less than others proves nothing."""
        health, now = self._router.health, monotonic()
        ours, others, intake = self._exchange.deadlines, self._router.deadlines, self._exchange.intake
        if intake.deadlines is not None and ours.hurries(verdict.error.code, others, self._tokens, intake.max_tokens):
            return
        if verdict.mark is Mark.BUSY:
            health.rest(self.instance_of(verdict.blamed), verdict.rest_s, now)
        elif verdict.mark is Mark.PAIR and None not in (self.placement.prefill, self.placement.decode):
            health.fail(pair_of(self.placement), self._sent_at, now)
        elif verdict.mark is Mark.INSTANCE:
            health.fail(self.instance_of(verdict.blamed), self._sent_at, now)

    def praise_prefill(self) -> None:
        """Prefill has done what it was asked for."""
        self._router.health.succeed((self.instance_of(_PREFILL),), self._sent_at, monotonic())

    def praise(self, *, ended: bool) -> None:
        """Decode's good answer has begun or, with `ended`, is complete; so the hand-over was good as well."""
        health, keys = self._router.health, keys_of(self.placement)
        if ended:
            health.succeed(keys, self._sent_at, monotonic())
        else:
            health.begin_answer(keys, self._sent_at, monotonic())

    def remembered(self, sent_s: float, ended_s: float, code: str) -> Earlier:
        """What outlives an attempt that another one follows; times as in Record."""
        prefill, decode = (
            member.instance.instance_id if member is not None else ""
            for member in (self.placement.prefill, self.placement.decode)
        )
        return Earlier(self._number, prefill, decode, sent_s, ended_s, code)

    def avoided(self, blamed: Blame) -> frozenset[InstanceId]:
        """Whom another attempt should not meet again: who plays the blamed role, or nobody."""
        return frozenset() if blamed is _ROUTER else frozenset((self.instance_of(blamed),))

    def instance_of(self, side: Blame) -> InstanceId:
        """Who plays this role; in local mode, or before decode is chosen, the one there is."""
        prefill, decode = self.placement.prefill, self.placement.decode
        member = (prefill or decode) if side is _PREFILL else (decode or prefill)
        assert member is not None
        return member.instance.instance_id
