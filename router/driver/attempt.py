"""Attempt: one placement of a request, its two legs, and what they weigh until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import Blame, PeerGone
from router.contract.instance import EngineKind, Mode
from router.core.burden import Burden
from router.core.health import keys_of
from router.core.intake import Endpoint
from router.core.trace import decode_span, prefill_span
from router.driver.lease_guard import LeaseGuard, guard_lease
from router.driver.leftover import Leftover
from router.driver.mend import Mend, pushes_to_vllm, strands_seats
from router.driver.ports import Sender
from router.driver.regard import Regard
from router.legs.answer import Mark, Verdict, judge
from router.legs.connection import Connection, Headers
from router.legs.decode import DecodeLeg, decode_body
from router.legs.hand_over import read_hand_over
from router.legs.params import leg_request, prefill_params_json, push_params_json, with_keeper, with_waits
from router.legs.prefill import PrefillLeg, prefill_body
from router.legs.take_back import TakeBack, take_back_request

if TYPE_CHECKING:
    from router.core.fleet import Member
    from router.core.placement import Placement
    from router.driver.router import Router

_PATHS = {endpoint: endpoint.encode("ascii") for endpoint in Endpoint}
_PUSH, _PREFILL, _ROUTER = Mode.PUSH, Blame.PREFILL, Blame.ROUTER
MARGIN_S = 1.0
"""By so much the deadline that prefill is told of lies behind ours, which is the one that counts."""
_VLLM = EngineKind.VLLM
WRITE_S = 10.0  # so long after prefill's answer its WRITE has arrived, or does not come


class Attempt(Regard):
    """The legs of one (request, attempt). Each instance is weighed down from here until its leg has ended."""

    _prefill: PrefillLeg | None = None
    _decode: DecodeLeg | None = None
    _prefill_burden: Burden | None = None
    _decode_burden: Burden | None = None
    _decode_timer: asyncio.TimerHandle | None = None
    _broke_down = False
    """Prefill has answered that it cannot."""
    _lease_guard: LeaseGuard | None = None
    withheld: Verdict | None = None
    """How decode has failed, until prefill has said whether it is who decode was told it is."""

    def __init__(
        self, router: Router, exchange: Sender, placement: Placement, transfer_id: str, sent_at: float
    ) -> None:
        """`sent_at` is now, monotonic seconds."""
        self.placement = placement
        self._sent_at = sent_at
        self._router = router
        self._exchange = exchange
        self._transfer_id = transfer_id.encode("ascii")
        self._tokens = tokens = exchange.intake.prompt_tokens
        if placement.decode is not None:
            self._decode_burden = placement.decode.burden
            self._decode_burden.take(tokens)
        if placement.prefill is not None:
            self._prefill_burden = placement.prefill.burden
            self._prefill_burden.take(tokens)
        if router.health.alert:
            router.health.take_canary(keys_of(placement), self)

    def defer_decode(self, on_due: Callable[[], None]) -> None:
        """Decode is not chosen yet: `on_due` is called when it is time, unless `take_decode` or the end comes first."""
        self._decode_timer = asyncio.get_running_loop().call_later(self.placement.decode_after_s, on_due)

    def take_decode(self, placement: Placement) -> None:
        """This is the placement from here on: its decode has been chosen, and is weighed down."""
        assert placement.decode is not None
        self.placement = placement
        self._decode_burden = placement.decode.burden
        self._decode_burden.take(self._tokens)
        self._stop_timer()
        if self._router.health.alert:
            self._router.health.take_canary(keys_of(placement), self)

    def _stop_timer(self) -> None:
        if self._decode_timer is not None:
            self._decode_timer.cancel()
            self._decode_timer = None

    def send_prefill(self, left_s: float) -> None:
        """The prefill leg is on its way; `left_s` seconds of the request's deadline are left.

        Prefill is told of its own deadline: if we cannot cancel it, it gives up soon after us all the same.
        """
        prefill, intake = self.placement.prefill, self._exchange.intake
        left_s = min(left_s, self._exchange.deadlines.prefill_for(self._tokens) + MARGIN_S)
        assert prefill is not None  # the machine sends no prefill leg in local mode
        pool, transfer_id = self._router.pool(prefill.instance.url), self._transfer_id
        params, keeper = prefill_params_json(transfer_id), self.placement.keeper
        if keeper is not None and keeper.instance.kv is not None:
            params = with_keeper(params, keeper.instance.kv)
        body = prefill_body(intake.body, params, intake.fields)
        self._prefill = leg = PrefillLeg(self._exchange, pool)
        leg.connect_s = self._exchange.deadlines.connect_s
        leg.send(
            leg_request(
                pool, _PATHS[intake.endpoint], transfer_id, left_s, prefill.lines + self._trace(decode=False), body
            )
        )

    def send_decode(self, left_s: float, handed_over: bytes) -> None:
        """The decode leg is on its way. `handed_over` is prefill's kv_transfer_params in pull mode, else empty."""
        placement, intake, transfer_id = self.placement, self._exchange.intake, self._transfer_id
        body, deadlines = intake.body, self._exchange.deadlines
        assert placement.decode is not None
        if placement.mode is _PUSH:
            assert placement.prefill is not None and placement.prefill.instance.kv is not None
            handed_over = push_params_json(transfer_id, placement.prefill.instance.kv)
        if handed_over:
            body = decode_body(body, with_waits(handed_over, deadlines.waits))
        pool, lines = self._router.pool(placement.decode.instance.url), placement.decode.lines
        self._decode = leg = DecodeLeg(self._exchange, pool)
        leg.connect_s = deadlines.connect_s
        leg.send(
            leg_request(pool, _PATHS[intake.endpoint], transfer_id, left_s, lines + self._trace(decode=True), body)
        )
        if self._prefill is not None and self._prefill.ended:
            self._guard_lease()

    def _trace(self, *, decode: bool) -> bytes:
        """The header lines that place a leg in its trace."""
        intake = self._exchange.intake
        if intake.traced is None:
            return intake.trace
        return intake.traced.lines(decode_span(self._number) if decode else prefill_span(self._number))

    @property
    def decode_connection(self) -> Connection | None:
        """Over which decode's answer goes on."""
        return self._decode.connection if self._decode is not None else None

    def pause_decode(self) -> None:
        """Decode is held back."""
        if self._decode is not None:
            self._decode.pause()

    def resume_decode(self) -> None:
        """Decode may go on."""
        if self._decode is not None:
            self._decode.resume()

    def cancel(self, side: Blame) -> None:
        """This side sees its connection close, but for a prefill engine that must be left to finish."""
        if side is not _PREFILL:
            if self._decode is not None:
                self._decode.cancel()
            self._release_decode()
        elif (strands := strands_seats(self.placement, self._decode)) or not self._router.conduct.cancels_prefill:
            self.leave_prefill(strands=strands)
        else:
            if self._prefill is not None:
                self._prefill.cancel()
            self.release_prefill()

    def _mend(self) -> None:
        """What `strands_seats` is about has happened by itself: prefill has failed, or its WRITE has not come."""
        prefill = self._prefill
        if prefill is None or prefill.cancelled or prefill.owner is not self._exchange:
            return
        if not strands_seats(self.placement, self._decode):
            return
        if self._broke_down or not prefill.ended or self._exchange.prefilled_for_s() > WRITE_S:
            self._begin_mend()

    def _begin_mend(self) -> None:
        assert self._prefill is not None  # there are seats that it has not written
        Mend(self._prefill, self.placement, self._router.mends, self._router.mended)

    def withholds(self, verdict: Verdict) -> bool:
        """True when decode's failure is to wait for prefill's answer, which may show that prefill is to blame.

        A plain vLLM decode that is told of a prefill start that is over answers 500, or that in a stream, and no more.
        """
        prefill = self._prefill
        if prefill is None or prefill.ended or not pushes_to_vllm(self.placement):
            return False
        if self._decode is None or self._decode.status not in (200, 500):
            return False
        self.withheld = verdict
        return True

    def leave_prefill(self, *, strands: bool = False) -> None:
        """Prefill finishes on its own and weighs until then; nobody hears of it.

        With `strands` it has as long as a request may take, and is asked once more if it fails.
        """
        if self._prefill is not None and self._prefill_burden is not None:
            deadlines = self._exchange.deadlines
            until = monotonic() + (deadlines.total_s if strands else deadlines.prefill_for(self._tokens))
            on_failed = self._begin_mend if strands else None
            leftover = Leftover(self._prefill, self._prefill_burden, self._tokens, until, on_failed)
            leftover.watch(self._router.leftovers)
            self._prefill_burden = None

    def read_prefill(self, status: int, headers: Headers, body: bytes) -> bytes | Verdict:
        """Prefill has answered: what it hands over to decode, or why it hands nothing over."""
        self.release_prefill()
        prefill = self.placement.prefill
        assert prefill is not None  # there is no other prefill leg to answer
        if not 200 <= status < 300:
            self._broke_down = status >= 500
            return judge(_PREFILL, status, headers, body)
        handed_over = read_hand_over(body, prefill.instance, self.placement.mode)
        if isinstance(handed_over, bytes):
            self._guard_lease()
            return handed_over
        blamed = self._router.blame(handed_over, prefill.instance, body)
        mark = Mark.NONE if isinstance(handed_over, PeerGone) else Mark.INSTANCE
        return Verdict(handed_over, None, handed_over.retryable, blamed, mark)

    def _guard_lease(self) -> None:
        """Prefill has answered and decode's leg is on its way: a plain prefill's lease is running."""
        prefill = self.placement.prefill
        if prefill is None or prefill.instance.engine is not _VLLM or not pushes_to_vllm(self.placement):
            return
        if self._prefill is not None and self._decode is not None:
            self._lease_guard = guard_lease(self._router, prefill.instance, (self._prefill, self._decode))

    def hand_to(self, exchange: Sender) -> None:
        """The legs report to this one from here on."""
        self._exchange = exchange
        for leg in (self._prefill, self._decode):
            if leg is not None:
                leg.owner = exchange

    def release_prefill(self) -> None:
        """Prefill's leg has ended."""
        if self._prefill_burden is not None:
            self._prefill_burden.give(self._tokens)
            self._prefill_burden = None

    def _release_decode(self) -> None:
        if self._decode_burden is not None:
            self._decode_burden.give(self._tokens)
            self._decode_burden = None

    def _take_back(self, member: Member) -> None:
        """An engine that still holds something of this attempt, and can be told that it is over, is told."""
        kv = member.instance.kv
        if kv is not None and kv.takes_back:
            pool = self._router.pool(member.instance.url)
            request = take_back_request(pool, self._transfer_id, b"taken_back", self._router.conduct.seal)
            TakeBack(pool, self._router.count_take_back).send(request)

    def close(self, *, fetched: bool) -> None:
        """Nothing of this attempt is on its way any more, but for a prefill that was left.

        Unless decode has `fetched` the KV cache, prefill is told that nobody will; decode is told when its answer has
        not come to its end, since a connection that was closed here may be half-open there.
        """
        placement, decode = self.placement, self._decode
        self._stop_timer()
        if self._lease_guard is not None:
            self._lease_guard.stop()
        if not fetched and placement.prefill is not None:
            self._take_back(placement.prefill)
            self._mend()
        if decode is not None and not decode.ended and placement.decode is not None:
            self._take_back(placement.decode)
        self._release_decode()
        self.release_prefill()
        if self._router.health.alert:
            self._router.health.release(self)
