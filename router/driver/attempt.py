"""Attempt: one placement of a request, its two legs, and what they weigh until they end."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import Blame, LegError
from router.contract.ids import InstanceId, transfer_id_of
from router.contract.instance import Instance, Mode
from router.contract.ledger import Closed, Opened, Outcome
from router.contract.rendezvous import Ticket
from router.core.burden import Burden
from router.legs.connection import Headers
from router.legs.decode import DecodeLeg, decode_body
from router.legs.leg import Leg
from router.legs.params import leg_request, prefill_params_json, push_params_json
from router.legs.prefill import PrefillLeg, prefill_body

if TYPE_CHECKING:
    from router.core.intake import Intake
    from router.core.placement import Placement
    from router.driver.exchange import Exchange
    from router.driver.router import Router


class Attempt:
    """The legs of one (request, attempt). Each instance is weighed down from here until its leg has ended."""

    __slots__ = (
        "_decode_burden",
        "_intake",
        "_prefill_burden",
        "_router",
        "_tokens",
        "decode",
        "placement",
        "prefill",
        "transfer_id",
    )

    def __init__(self, router: Router, intake: Intake, placement: Placement, ticket: Ticket) -> None:
        self._router = router
        self._intake = intake
        self._tokens = intake.prompt_tokens
        self.placement = placement
        self.transfer_id = transfer_id_of(ticket.request_id, ticket.attempt)
        self.prefill: PrefillLeg | None = None
        self.decode: DecodeLeg | None = None
        self._decode_burden: Burden | None = router.burdens.of(placement.decode.instance_id)
        self._decode_burden.take(self._tokens)
        self._prefill_burden: Burden | None = None
        if placement.prefill is not None:
            self._prefill_burden = router.burdens.of(placement.prefill.instance_id)
            self._prefill_burden.take(self._tokens)
        router.ledger.post(Opened(ticket))

    def send_prefill(self, owner: Exchange, left_s: float) -> None:
        """The prefill leg is on its way; `left_s` seconds of the request's deadline are left."""
        prefill = self.placement.prefill
        assert prefill is not None  # the machine sends no prefill leg in local mode
        body = prefill_body(self._intake.body, prefill_params_json(self.transfer_id))
        self.prefill = PrefillLeg(owner, self._router.pool(prefill))
        self.prefill.send(self._request(prefill, body, left_s))

    def send_decode(self, owner: Exchange, left_s: float, handed_over: bytes) -> None:
        """The decode leg is on its way. `handed_over` is prefill's kv_transfer_params in pull mode, else empty."""
        placement, body = self.placement, self._intake.body
        if placement.mode is Mode.PUSH:
            assert placement.prefill is not None and placement.prefill.kv is not None
            body = decode_body(body, push_params_json(self.transfer_id, placement.prefill.kv))
        elif placement.mode is Mode.PULL:
            body = decode_body(body, handed_over)
        self.decode = DecodeLeg(owner, self._router.pool(placement.decode))
        self.decode.send(self._request(placement.decode, body, left_s))

    def _request(self, instance: Instance, body: bytes, left_s: float) -> bytes:
        pool = self._router.pool(instance)
        intake = self._intake
        return leg_request(pool, intake.endpoint, self.transfer_id, max(1, int(left_s * 1000)), intake.trace, body)

    def cancel_decode(self) -> None:
        """Decode sees its connection close."""
        if self.decode is not None:
            self.decode.cancel()
        self.release_decode()

    def cancel_prefill(self) -> None:
        """Prefill sees its connection close, unless its engine must be left to finish."""
        if not self._router.cancels_prefill:
            self.leave_prefill()
            return
        if self.prefill is not None:
            self.prefill.cancel()
        self.release_prefill()

    def leave_prefill(self) -> None:
        """Prefill finishes on its own and weighs until then; nobody hears of it."""
        if self.prefill is not None and self._prefill_burden is not None:
            due_at = monotonic() + self._router.deadlines.prefill_for(self._tokens)
            leftover = Leftover(self._prefill_burden, self._tokens, due_at)
            leftover.watch(self.prefill, self._router)
            self._prefill_burden = None

    def release_prefill(self) -> None:
        """Prefill's leg has ended."""
        if self._prefill_burden is not None:
            self._prefill_burden.give(self._tokens)
            self._prefill_burden = None

    def release_decode(self) -> None:
        """Decode's leg has ended."""
        if self._decode_burden is not None:
            self._decode_burden.give(self._tokens)
            self._decode_burden = None

    def close(self, outcome: Outcome, note: str) -> None:
        """Nothing of this attempt is on its way any more, but for a prefill that was left."""
        self.release_decode()
        self.release_prefill()
        self._router.ledger.post(Closed(self.transfer_id, outcome, note))

    def instance_of(self, side: Blame) -> InstanceId:
        """Who plays this role; decode in local mode, where it plays both."""
        prefill = self.placement.prefill
        return (
            prefill.instance_id if side is Blame.PREFILL and prefill is not None else self.placement.decode.instance_id
        )


class Leftover:
    """The owner of a prefill leg that nobody waits for: it puts the burden down and closes what takes too long."""

    __slots__ = ("_burden", "_leg", "_router", "_tokens", "due_at")

    def __init__(self, burden: Burden, tokens: int, due_at: float) -> None:
        self._burden = burden
        self._tokens = tokens
        self.due_at = due_at
        self._leg: Leg | None = None
        self._router: Router | None = None

    def watch(self, leg: Leg, router: Router) -> None:
        """The leg reports here from now on."""
        self._leg, self._router = leg, router
        leg.owner = self
        router.sweep.live.add(self)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """It has finished."""
        self._end()

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """A prefill leg has none."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """It has failed, which harms nobody."""
        self._end()

    def on_due(self, now: float) -> None:
        """It takes too long."""
        if self._leg is not None:
            self._leg.cancel()
        self._end()

    def _end(self) -> None:
        if self._router is not None:
            self._router.sweep.live.discard(self)
            self._burden.give(self._tokens)
            self._router = None
