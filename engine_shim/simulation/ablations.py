"""Ablations: every safeguard has a switch, and without it a promise breaks that the world watches.

A safeguard is switched off here, by a desk that lacks it or by a clock that never ends; the product has no such
switches. Those that lie in the shells (fences, fates, retries, the reaper) are left out by the actors themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from engine_shim.core import decode_effects, prefill_effects
from engine_shim.core.decode_effects import DecodeEffect
from engine_shim.core.prefill_effects import PrefillEffect
from engine_shim.core.push import PushLimits
from engine_shim.core.rendezvous import PrefillClocks, PrefillDesk
from engine_shim.core.seats import DecodeClocks, SeatDesk
from engine_shim.simulation.story import Invariant
from router.contract.ids import EngineId, Epoch, TransferId, digest_of, request_of
from router.contract.instance import Mode
from router.contract.notices import Cancelled
from router.contract.rendezvous import PrefillDone
from router.contract.tags import Tag
from router.contract.wire import NO_WAITS, Waits


@dataclass(frozen=True, slots=True)
class Safeguard:
    """One safeguard, and the promise that breaks without it."""

    name: str
    breaks: Invariant
    says: str


_I = Invariant

SAFEGUARDS: dict[str, Safeguard] = {
    safeguard.name: safeguard
    for safeguard in (
        Safeguard("quarantine", _I.SEATS_SAFE, "decode keeps given-up seats until nobody can write them"),
        Safeguard("stopped_answer", _I.NOTHING_HELD, "prefill answers Cancelled with Stopped"),
        Safeguard("resend_registration", _I.KEEPS_SERVING, "decode says Registered again until something comes"),
        Safeguard("lease_on_filled_kv", _I.NOTHING_HELD, "prefill frees finished KV that nobody registers for"),
        Safeguard(
            "fence_by_epoch", _I.SEATS_SAFE, "what is meant for another start of an instance does not reach this"
        ),
        Safeguard("late_refusal", _I.RIGHT_KV, "a tag of an older attempt or start does not count"),
        Safeguard("refuse_the_dead", _I.NOTHING_HELD, "a late notice of a dead peer is refused"),
        Safeguard("settle_after_death", _I.SEATS_SAFE, "what a dead peer had sent gets the time to land"),
        Safeguard("settle_after_stopped", _I.SEATS_SAFE, "what a failed WRITE had sent gets the time to land"),
        Safeguard("death_needs_proof", _I.SEATS_SAFE, "a peer that cannot be reached is not taken for dead"),
        Safeguard("tombstones", _I.ROW_EXISTS, "prefill remembers a closed Rendezvous, so what is late starts nothing"),
        Safeguard("retry_needs_fresh_attempt", _I.WRITE_ONCE, "each retry has a transfer id of its own"),
        Safeguard("hedge_needs_fresh_attempt", _I.WRITE_ONCE, "a hedge has a transfer id of its own"),
        Safeguard("hedge_loser_is_silenced", _I.WHOLE_STREAM, "of two attempts at once, the slower one is ended"),
        Safeguard("deferred_commit", _I.WHOLE_STREAM, "no byte reaches the client from an attempt that may be retried"),
        Safeguard(
            "overtaken_choice", _I.KEEPS_SERVING, "decode is chosen at the latest when prefill answers, due or not"
        ),
        Safeguard("reaper", _I.NOTHING_HELD, "tickets of a dead router are ended by another"),
        Safeguard("kv_deadline", _I.BOUNDED_WAIT, "decode waits for KV only until a deadline"),
        Safeguard("registration_deadline", _I.BOUNDED_WAIT, "decode waits for seats only until a deadline"),
        Safeguard("drain_before_free_kv", _I.KV_SAFE, "prefill keeps its blocks until a posted WRITE has ended"),
        Safeguard("count_landings", _I.RIGHT_KV, "decode waits for the tags of all WRITEs"),
        Safeguard(
            "chunks_follow_prefill", _I.RIGHT_KV, "of a prompt that is being computed, only what is there is pushed"
        ),
        Safeguard("layers_follow_prefill", _I.RIGHT_KV, "of the last chunk, only layers that are there are pushed"),
        Safeguard(
            "pin_chunks", _I.KV_SAFE, "blocks of a prompt that is being computed are pinned before any is pushed"
        ),
        Safeguard("cache_after_kv_ready", _I.RIGHT_KV, "seats enter the prefix cache only when all their KV is there"),
        Safeguard(
            "recall_has_own_id", _I.WRITE_ONCE, "what comes back for an attempt has an id beside the attempt's own"
        ),
        Safeguard("drain_before_stopped", _I.SEATS_SAFE, "prefill says Stopped when none of its WRITEs is under way"),
    )
}


def new_prefill_desk(clocks: PrefillClocks, limits: PushLimits, off: frozenset[str]) -> PrefillDesk:
    """Prefill's desk, less what is switched off."""
    if "lease_on_filled_kv" in off:
        clocks = replace(clocks, lease_for_s=inf)
    if "tombstones" in off:
        clocks = replace(clocks, tombstone_for_s=0.0)
    for name, desk in _PREFILL_DESKS.items():
        if name in off:
            return desk(clocks, limits)
    return PrefillDesk(clocks, limits)


def new_seat_desk(engine_id: EngineId, clocks: DecodeClocks, off: frozenset[str]) -> SeatDesk:
    """Decode's desk, less what is switched off."""
    if "settle_after_stopped" in off:
        clocks = replace(clocks, settle_for_s=0.0)
    for name, desk in _SEAT_DESKS.items():
        if name in off:
            return desk(engine_id, clocks)
    return SeatDesk(engine_id, clocks)


class _NeverStopped(PrefillDesk):
    """Cancelled is not answered."""

    def on_cancelled(self, notice: Cancelled, now: float) -> list[PrefillEffect]:
        effects = super().on_cancelled(notice, now)
        return [effect for effect in effects if not isinstance(effect, prefill_effects.FreeSeats)]


class _HastyPrefill(PrefillDesk):
    """KV is freed when it is given up, posted WRITE or not."""

    def on_abandoned(self, transfer_id: TransferId, reason: str, now: float) -> list[PrefillEffect]:
        effects = super().on_abandoned(transfer_id, reason, now)
        if any(isinstance(effect, prefill_effects.StopWriter) for effect in effects):
            effects.append(prefill_effects.FreeKV(transfer_id))
        return effects


class _RunsAhead(PrefillDesk):
    """With its first chunk, a prompt is taken for computed as far as it matters to a push."""

    def on_prefilling(self, part: PrefillDone, now: float) -> list[PrefillEffect]:
        everything = replace(part, num_tokens=len(part.blocks) * self._limits.block_tokens)
        return super().on_prefilling(everything, now)


class _LayersRunAhead(PrefillDesk):
    """With the first layer of the last chunk, all but the last are taken for computed."""

    def on_layers(self, whole: PrefillDone, num_layers: int, now: float) -> list[PrefillEffect]:
        return super().on_layers(whole, self._limits.num_layers, now)


class _SaysStoppedEarly(PrefillDesk):
    """Decode hears at once that an abandoned push has stopped, whatever is under way."""

    def on_abandoned(self, transfer_id: TransferId, reason: str, now: float) -> list[PrefillEffect]:
        effects = super().on_abandoned(transfer_id, reason, now)
        registration = self._tickets[transfer_id].registration
        if registration is not None and any(isinstance(effect, prefill_effects.StopWriter) for effect in effects):
            decode = registration.decode_engine_id
            effects.append(prefill_effects.FreeSeats(transfer_id, decode, reason, begun=False))
        return effects


class _HastySeats(SeatDesk):
    """Seats are freed when they are given up."""

    def on_left(self, transfer_id: TransferId, now: float) -> list[DecodeEffect]:
        return _freed(super().on_left(transfer_id, now))

    def on_tick(self, now: float) -> list[DecodeEffect]:
        return _freed(super().on_tick(now))


def _freed(effects: list[DecodeEffect]) -> list[DecodeEffect]:
    cancelled = [effect for effect in effects if isinstance(effect, decode_effects.SendCancelled)]
    return [*effects, *(decode_effects.FreeSeats(effect.transfer_id) for effect in cancelled)]


class _SaysOnce(SeatDesk):
    """Registered is not said again."""

    def on_tick(self, now: float) -> list[DecodeEffect]:
        return [effect for effect in super().on_tick(now) if not isinstance(effect, decode_effects.SendRegistration)]


class _WaitsForever(SeatDesk):
    """KV may take as long as it likes."""

    def open(
        self, transfer_id: TransferId, mode: Mode, prefill: tuple[EngineId, Epoch], now: float, asked: Waits = NO_WAITS
    ) -> bool:
        opened = super().open(transfer_id, mode, prefill, now, asked)
        self._tickets[transfer_id].waits = replace(asked, kv_s=inf)
        return opened


class _QueuesForever(SeatDesk):
    """So may seats."""

    def open(
        self, transfer_id: TransferId, mode: Mode, prefill: tuple[EngineId, Epoch], now: float, asked: Waits = NO_WAITS
    ) -> bool:
        opened = super().open(transfer_id, mode, prefill, now, asked)
        self._tickets[transfer_id].deadline_at = inf
        return opened


class _CountsLate(SeatDesk):
    """Tags of older attempts count for the newest one."""

    def __init__(self, engine_id: EngineId, clocks: DecodeClocks) -> None:
        super().__init__(engine_id, clocks)
        self._newest: dict[bytes, tuple[bytes, Epoch]] = {}

    def open(
        self, transfer_id: TransferId, mode: Mode, prefill: tuple[EngineId, Epoch], now: float, asked: Waits = NO_WAITS
    ) -> bool:
        request_id, attempt = request_of(transfer_id)
        for older in range(1, attempt):
            digest = digest_of(TransferId(f"{request_id}.{older}"))
            self._newest[digest] = (digest_of(transfer_id), prefill[1])
        return super().open(transfer_id, mode, prefill, now, asked)

    def on_tag(self, tag: Tag, now: float) -> list[DecodeEffect]:
        digest, epoch = self._newest.get(tag.digest, (tag.digest, tag.writer_epoch))
        return super().on_tag(replace(tag, digest=digest, writer_epoch=epoch), now)


class _CountsOne(SeatDesk):
    """One tag is enough."""

    def on_tag(self, tag: Tag, now: float) -> list[DecodeEffect]:
        return super().on_tag(replace(tag, seq=0, total=1), now)


_PREFILL_DESKS: dict[str, type[PrefillDesk]] = {
    "stopped_answer": _NeverStopped,
    "drain_before_free_kv": _HastyPrefill,
    "chunks_follow_prefill": _RunsAhead,
    "layers_follow_prefill": _LayersRunAhead,
    "drain_before_stopped": _SaysStoppedEarly,
}
_SEAT_DESKS: dict[str, type[SeatDesk]] = {
    "quarantine": _HastySeats,
    "resend_registration": _SaysOnce,
    "kv_deadline": _WaitsForever,
    "registration_deadline": _QueuesForever,
    "late_refusal": _CountsLate,
    "count_landings": _CountsOne,
}
