"""Two desks and an unkind network: one prefill and one decode engine, seeded.

Every notice is delayed at random, may be repeated, and overtakes others; copies take time; clients leave at random. The
world watches the bytes: it knows when a WRITE or READ touches seats or KV, and fails at once when one is touched after
it was freed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from engine_shim.core import rendezvous as prefill_words
from engine_shim.core import seats as decode_words
from engine_shim.core.rendezvous import PrefillClocks, PrefillDesk
from engine_shim.core.seats import DecodeClocks, SeatDesk
from router.contract.errors import TransferFailed
from router.contract.ids import EngineId, Epoch, TransferId, digest_of
from router.contract.instance import Mode
from router.contract.notices import Acknowledged, Cancelled, Granted, Moved, Queued, Registered, Stopped
from router.contract.rendezvous import PrefillDone
from router.contract.tags import Tag

P, D = EngineId("p@1"), EngineId("d@2")


@dataclass
class Plot:
    """What happens to one request."""

    transfer_id: TransferId
    mode: Mode
    prefill_at: float | None
    """When prefill is done; None: the leg fails."""
    prefill_fails_at: float
    seated_at: float
    leaves_at: float | None
    cached: bool
    copy_for: float
    copy_fails: bool


@dataclass
class World:
    """Runs plots to their end. `tell_stopped=False` and `wait_for_stopped=False` switch safeguards off."""

    seed: int
    loss: float = 0.0
    repeat: float = 0.1
    quarantine: bool = True
    """False: decode frees its seats as soon as it gives up."""
    now: float = 0.0
    log: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.prefill = PrefillDesk(PrefillClocks(lease_for_s=5.0, seat_wait_for_s=8.0, tombstone_for_s=1000.0))
        self.decode = SeatDesk(D, DecodeClocks(kv_wait_for_s=16.0, resend_after_s=1.0, renew_every_s=1.0))
        self.queue: list[tuple[float, int, Any]] = []
        self.order = itertools.count()
        self.plots: dict[TransferId, Plot] = {}
        self.kv_pinned: set[TransferId] = set()
        self.seats_pinned: set[TransferId] = set()
        self.copying: set[TransferId] = set()
        self.ready: dict[TransferId, int] = {}
        self.failed: dict[TransferId, str] = {}
        self.left: set[TransferId] = set()
        self.landed: set[TransferId] = set()

    def at(self, when: float, call: Any) -> None:
        heapq.heappush(self.queue, (when, next(self.order), call))

    def send(self, call: Any) -> None:
        """A notice on its way."""
        if self.rng.random() < self.loss:
            return
        for _ in range(2 if self.rng.random() < self.repeat else 1):
            self.at(self.now + self.rng.choice((0.001, 0.01, 0.3, 2.0)), call)

    def add(self, plot: Plot) -> None:
        self.plots[plot.transfer_id] = plot
        tid = plot.transfer_id
        self.at(0.0, lambda: self.decode.open(tid, plot.mode, (P, Epoch(1)), self.now))
        self.at(min(plot.prefill_at or plot.prefill_fails_at, 0.3), lambda: self.prefill.on_leg(tid, self.now))
        if plot.prefill_at is None:
            self.at(plot.prefill_fails_at, lambda: self.run_p(self.prefill.on_abandoned(tid, "engine_down", self.now)))
        else:
            self.at(plot.prefill_at, lambda: self.prefilled(plot))
        self.at(plot.seated_at, lambda: self.seated(plot))
        if plot.leaves_at is not None:
            self.at(plot.leaves_at, lambda: self.leave(plot))

    def prefilled(self, plot: Plot) -> None:
        self.kv_pinned.add(plot.transfer_id)
        self.run_p(self.prefill.on_prefilled(PrefillDone(plot.transfer_id, (1, 2), 20), self.now))

    def seated(self, plot: Plot) -> None:
        tid = plot.transfer_id
        if tid in self.left or tid in self.failed:
            return
        wanted = (19, 19) if plot.cached else (0, 19)
        if not plot.cached:
            self.seats_pinned.add(tid)
        self.run_d(self.decode.on_seated(tid, (5, 6), wanted, self.now))

    def leave(self, plot: Plot) -> None:
        tid = plot.transfer_id
        if tid in self.ready or tid in self.failed or (plot.cached and self.now >= plot.seated_at):
            return
        self.left.add(tid)
        self.run_d(self.decode.on_left(tid, self.now))

    def run_p(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case prefill_words.Write(registration, done):
                    if registration.mode is Mode.PULL:
                        self.send(lambda done=done: self.run_d(self.decode.on_granted(Granted(done, P, D))))
                    elif registration.first_token == registration.num_tokens:
                        self.run_p(self.prefill.on_writer_done(registration.transfer_id, self.now))
                    else:
                        self.copy(registration.transfer_id, by_decode=False)
                case prefill_words.FreeKV(tid):
                    if tid in self.copying:
                        self.violations.append(f"{tid}: KV freed under a copy")
                    self.kv_pinned.discard(tid)
                case prefill_words.FreeSeats(tid, _, reason, begun):
                    notice = Stopped(tid, P, D, reason, begun)
                    self.send(lambda notice=notice: self.run_d(self.decode.on_stopped(notice, self.now)))
                case prefill_words.Acknowledge(tid, _):
                    ack = Acknowledged(tid, P, D)
                    self.send(lambda ack=ack: self.run_d(self.decode.on_acknowledged(ack)))
                case _:
                    pass

    def run_d(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case decode_words.SendRegistration(registration):
                    self.send(
                        lambda r=registration: self.run_p(
                            self.prefill.on_registered(Registered(r).registration, self.now)
                        )
                    )
                case decode_words.SendQueued(tid, _):
                    self.send(lambda tid=tid: self.run_p(self.prefill.on_queued(Queued(tid, P, D), self.now)))
                case decode_words.SendCancelled(tid, _):
                    if not self.quarantine:
                        self.free_seats(tid)
                    self.send(lambda tid=tid: self.run_p(self.prefill.on_cancelled(Cancelled(tid, P, D), self.now)))
                case decode_words.SendMoved(tid, _, error):
                    self.send(lambda tid=tid, e=error: self.run_p(self.prefill.on_moved(Moved(tid, P, D, e), self.now)))
                case decode_words.Read(registration, _):
                    self.copy(registration.transfer_id, by_decode=True)
                case decode_words.KVReady(tid):
                    if tid not in self.landed:
                        self.violations.append(f"{tid}: ready without the bytes")
                    self.ready[tid] = self.ready.get(tid, 0) + 1
                    self.seats_pinned.discard(tid)
                case decode_words.FreeSeats(tid):
                    self.free_seats(tid)
                case decode_words.Fail(tid, error):
                    self.failed[tid] = error.code

    def free_seats(self, tid: TransferId) -> None:
        if tid in self.copying:
            self.violations.append(f"{tid}: seats freed under a copy")
        self.seats_pinned.discard(tid)

    def copy(self, tid: TransferId, *, by_decode: bool) -> None:
        plot = self.plots[tid]
        if tid in self.landed or tid in self.copying:
            self.violations.append(f"{tid}: copied twice")
        if tid not in self.kv_pinned or tid not in self.seats_pinned:
            self.violations.append(f"{tid}: a copy began on freed blocks")
        self.copying.add(tid)
        self.at(self.now + plot.copy_for, lambda: self.copied(plot, by_decode))

    def copied(self, plot: Plot, by_decode: bool) -> None:
        tid = plot.transfer_id
        if tid not in self.kv_pinned or tid not in self.seats_pinned:
            self.violations.append(f"{tid}: blocks were freed during the copy")
        self.copying.discard(tid)
        error = TransferFailed("broken") if plot.copy_fails else None
        if error is None:
            self.landed.add(tid)
        if by_decode:
            self.run_d(self.decode.on_read_ended(tid, error))
        elif error is None:
            tag = Tag(digest_of(tid), Epoch(1), 0, 1, 0, 1)
            self.send_tag(tag)
            self.run_p(self.prefill.on_writer_done(tid, self.now))
        else:
            self.run_p(self.prefill.on_writer_failed(tid, error.code, self.now))

    def send_tag(self, tag: Tag) -> None:
        """Tags are never lost: they come with the WRITE itself."""
        self.at(self.now + self.rng.choice((0.001, 0.3)), lambda: self.run_d(self.decode.on_tag(tag, self.now)))

    def run(self, until: float = 60.0) -> None:
        for k in range(int(until / 0.25)):
            self.at(k * 0.25, self.tick)
        while self.queue:
            self.now, _, call = heapq.heappop(self.queue)
            call()

    def tick(self) -> None:
        self.run_p(self.prefill.on_tick(self.now))
        self.run_d(self.decode.on_tick(self.now))


def random_plot(rng: random.Random, index: int) -> Plot:
    """One request's fate."""
    return Plot(
        transfer_id=TransferId(f"req-{index}.1"),
        mode=rng.choice((Mode.PUSH, Mode.PULL)),
        prefill_at=None if rng.random() < 0.15 else rng.choice((0.01, 0.5, 3.0, 14.0)),
        prefill_fails_at=rng.choice((0.05, 2.0)),
        seated_at=rng.choice((0.01, 0.4, 2.5, 7.0)),
        leaves_at=None if rng.random() < 0.5 else rng.choice((0.02, 0.5, 0.52, 3.01, 4.0)),
        cached=rng.random() < 0.1,
        copy_for=rng.choice((0.001, 0.2, 4.0)),
        copy_fails=rng.random() < 0.1,
    )
