"""Attempt: one placement of a request and its two simulated legs; mirrors `router.driver.attempt`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from engine_shim.simulation.messages import Ask, CancelCall, Failure, LegCall, PrefillAnswer, Token
from engine_shim.simulation.network import Connection, Ending
from router.contract.errors import Blame, LegBroken, LegError, LegUnreachable, PeerGone, TandemError
from router.contract.ids import InstanceId, TransferId
from router.contract.instance import Instance
from router.contract.wire import DecodeHandoff, Keeper, PrefillHandoff
from router.core.burden import Burden
from router.core.intake import Intake
from router.core.placement import Placement

if TYPE_CHECKING:
    from engine_shim.simulation.replica import Replica


class Sender(Protocol):
    """Whose attempt it is."""

    replica: Replica
    ask: Ask
    intake: Intake

    def on_prefill_answer(self, attempt: Attempt, answer: PrefillAnswer) -> None:
        """Prefill has finished."""

    def on_token(self, token: Token) -> None:
        """Decode's answer goes on."""

    def on_leg_failed(self, side: Blame, failure: TandemError) -> None:
        """A leg has ended without a whole answer."""


class Attempt:
    """The legs of one (request, attempt)."""

    def __init__(self, exchange: Sender, placement: Placement, transfer_id: TransferId) -> None:
        self.placement = placement
        self.transfer_id = transfer_id
        self._exchange = exchange
        self._tokens = exchange.intake.prompt_tokens
        self._legs: dict[Blame, Connection] = {}
        self._decode_runs = False
        """Decode's leg was sent, and its answer has not come to an end."""
        self._burdens: dict[Blame, Burden] = {}
        for side, member in ((Blame.PREFILL, placement.prefill), (Blame.DECODE, placement.decode)):
            if member is not None:
                self._take(side, member.burden)

    def __str__(self) -> str:
        both = (self.placement.prefill, self.placement.decode)
        names = [member.instance.instance_id for member in both if member is not None]
        return f"{self.placement.mode} on {' and '.join(names)}"

    def take_decode(self, placement: Placement) -> None:
        """This is the placement from here on: its decode has been chosen, and is weighed down."""
        assert placement.decode is not None
        self.placement = placement
        self._take(Blame.DECODE, placement.decode.burden)

    def send_prefill(self, left_s: float) -> None:
        """The prefill leg is on its way."""
        assert self.placement.prefill is not None
        kv = None if self.placement.keeper is None else self.placement.keeper.instance.kv
        keeper = None if kv is None else Keeper(kv.engine_id, kv.side_channel_host, kv.side_channel_port)
        handoff = PrefillHandoff(self.transfer_id, keeper)
        self._send(Blame.PREFILL, self.placement.prefill.instance, LegCall(handoff, self._exchange.ask.prompt, left_s))

    def send_decode(self, left_s: float) -> None:
        """The decode leg is on its way."""
        prefill, decode = self.placement.prefill, self.placement.decode
        assert prefill is not None and prefill.instance.kv is not None and decode is not None
        kv = prefill.instance.kv
        handoff = DecodeHandoff(
            self.transfer_id,
            self.placement.mode,
            kv.engine_id,
            kv.side_channel_host,
            kv.side_channel_port,
            self._exchange.ask.waits,
        )
        call = LegCall(handoff, self._exchange.ask.prompt, left_s)
        self._decode_runs = True
        self._send(Blame.DECODE, decode.instance, call)

    def cancel(self, side: Blame) -> None:
        """This side sees its connection close."""
        leg = self._legs.pop(side, None)
        if leg is not None:
            leg.close(self._exchange.replica)
        self._release(side)

    def leave_prefill(self) -> None:
        """Prefill finishes on its own; nobody hears of it."""
        self._legs.pop(Blame.PREFILL, None)

    def hand_to(self, exchange: Sender) -> None:
        """The legs report to this one from here on."""
        self._exchange = exchange

    def take_prefill(self, answer: PrefillAnswer) -> PeerGone | None:
        """Prefill has answered; the error when that is another start than the one that decode was told of."""
        self._release(Blame.PREFILL)
        prefill = self.placement.prefill
        chosen = None if prefill is None else prefill.instance.kv
        if chosen is not None and answer.engine_id != chosen.engine_id:
            return PeerGone("The prefill instance has been restarted since it was chosen; try again.")
        return None

    def close(self, *, fetched: bool) -> None:
        """Nothing of this attempt is on its way any more.

        Unless decode has `fetched` the KV, prefill is told that nobody will; decode is told when its answer has not
        come to its end, since a connection that was closed here may be half-open there.
        """
        if not fetched and self.placement.prefill is not None:
            self._take_back(self.placement.prefill.instance)
        if self._decode_runs and self.placement.decode is not None:
            self._take_back(self.placement.decode.instance)
        for side in list(self._burdens):
            self._release(side)

    def instance_of(self, side: Blame) -> InstanceId:
        """Who plays this role; before decode is chosen, prefill."""
        prefill, decode = self.placement.prefill, self.placement.decode
        member = (prefill or decode) if side is Blame.PREFILL else (decode or prefill)
        assert member is not None
        return member.instance.instance_id

    def on_ended(self, side: Blame, error: LegError) -> None:
        """A leg has ended without a whole answer."""
        if side is Blame.DECODE:
            self._decode_runs = False
        if self._legs.pop(side, None) is not None:
            self._exchange.on_leg_failed(side, error)

    def on_answer(self, side: Blame, message: object) -> None:
        """A leg's answer goes on."""
        if side not in self._legs:
            return
        match message:
            case Failure(error):
                del self._legs[side]
                self._decode_runs = self._decode_runs and side is not Blame.DECODE
                self._exchange.on_leg_failed(side, error)
            case PrefillAnswer():
                del self._legs[side]
                self._exchange.on_prefill_answer(self, message)
            case Token():
                if message.is_last:
                    del self._legs[side]
                    self._decode_runs = False
                self._exchange.on_token(message)
            case _:
                raise TypeError(f"no leg is answered with {message!r}")

    def _send(self, side: Blame, instance: Instance, call: LegCall) -> None:
        replica = self._exchange.replica
        host = replica.scene.network.host(instance.instance_id)
        self._legs[side] = replica.scene.network.call(replica, host, call, _Leg(self, side))

    def _take_back(self, instance: Instance) -> None:
        self._exchange.replica.take_back(instance, CancelCall(self.transfer_id, "taken_back"))

    def _take(self, side: Blame, burden: Burden) -> None:
        self._burdens[side] = burden
        burden.take(self._tokens)

    def _release(self, side: Blame) -> None:
        burden = self._burdens.pop(side, None)
        if burden is not None:
            burden.give(self._tokens)


class _Leg:
    def __init__(self, attempt: Attempt, side: Blame) -> None:
        self._attempt = attempt
        self._side = side

    def on_message(self, connection: Connection, message: object) -> None:
        self._attempt.on_answer(self._side, message)

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        if ending is Ending.BROKEN:
            error: LegError = LegBroken(f"The {self._side} instance failed in the middle.", side=self._side)
        else:
            error = LegUnreachable(f"The {self._side} instance cannot be reached.", side=self._side)
        self._attempt.on_ended(self._side, error)
