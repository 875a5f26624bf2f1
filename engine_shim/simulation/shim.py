"""Shim: one engine's process, with the real desks of both sides and a toy engine.

It mirrors `engine_shim.driver`: the same facts reach the same machines in the same order, without threads and sockets.
"""

from __future__ import annotations

from engine_shim.core.fates import Fate
from engine_shim.engine.port import Purpose
from engine_shim.simulation.acquaintances import Acquaintances
from engine_shim.simulation.copies import Copies
from engine_shim.simulation.decode_side import DecodeSide
from engine_shim.simulation.engine import ToyEngine
from engine_shim.simulation.engine_events import EngineEvent, Prefilled, Prefilling, Seated, TokenOut
from engine_shim.simulation.journal import Journal
from engine_shim.simulation.messages import (
    CancelCall,
    Envelope,
    Failure,
    Hello,
    LegCall,
    PrefillAnswer,
    TakenBack,
    Token,
    Wanted,
)
from engine_shim.simulation.network import Connection, Ending, Host, Server
from engine_shim.simulation.prefill_side import PrefillSide, tell_peer
from engine_shim.simulation.recall import Recall
from engine_shim.simulation.running import Running
from engine_shim.simulation.scene import Scene
from engine_shim.simulation.story import request_in
from router.contract.errors import DeadlinePassed, Draining, PeerGone, RegistrationTimeout, StaleAttempt, TandemError
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Instance, KVIdentity, Load
from router.contract.notices import Acknowledged, Granted, Left, Stopped
from router.contract.rendezvous import PrefillDone
from router.contract.wire import DecodeHandoff, PrefillHandoff


class Shim(Server):
    """One start of one instance."""

    def __init__(self, scene: Scene, copies: Copies, instance: Instance, kv: KVIdentity) -> None:
        super().__init__(instance.instance_id)
        self.scene = scene
        self.copies = copies
        self.instance = instance
        self.engine_id = kv.engine_id
        self.ready = True
        self.recomputes = scene.recomputes
        self.engine = ToyEngine(scene, self, scene.num_blocks, self.on_engine_event)
        self.acquaintances = Acquaintances(self)
        self.journal = Journal(scene, self)
        self.prefill = PrefillSide(self)
        self.decode = DecodeSide(self)
        self.recall = Recall(self)
        self.running: dict[TransferId, Running] = {}
        self._taken_back: set[TransferId] = set()
        """Attempts whose legs must not start any more."""

    @property
    def num_held(self) -> int:
        """Whatever is not finished here: sequences, pins, Rendezvous."""
        tickets = self.prefill.desk.num_open + self.decode.desk.num_open
        legs = len(self.running) + self.recall.num_held
        return legs + self.engine.num_sequences + self.engine.pool.num_taken + tickets

    def describe_held(self) -> str:
        """The same in words."""
        tickets = self.prefill.desk.num_open + self.decode.desk.num_open
        held = f"{len(self.running) + self.recall.num_held} legs, {self.engine.num_sequences} sequences"
        memory = f"{self.engine.num_pins} pins, {self.engine.pool.num_taken} blocks"
        return f"{self.engine_id} holds {held}, {memory}, {tickets} Rendezvous"

    def tell(self, what: str, transfer_id: TransferId | None = None) -> None:
        """A line for the Story."""
        self.scene.tell(self.engine_id, what, "" if transfer_id is None else request_in(transfer_id))

    def start(self) -> None:
        """It ticks and sends heartbeats."""
        self._tick()
        self._beat()

    # What comes in.

    def on_call(self, connection: Connection, message: object) -> None:
        """A leg, a take-back, or a peer's introduction."""
        connection.server = self
        match message:
            case LegCall() if not self.ready:
                connection.send(self, Failure(Draining("This instance is shutting down; retry on another.")))
            case LegCall(PrefillHandoff(keeper=None)):
                self.begin_prefill(connection, message)
            case LegCall(PrefillHandoff()):
                self.recall.fetch(connection, message)
            case LegCall():
                self._take_decode(connection, message)
            case Wanted():
                self.recall.give(connection, message)
            case CancelCall(transfer_id, reason):
                self.cancel(transfer_id, reason)
                connection.send(self, TakenBack())
            case Hello(engine_id):
                dead = Failure(PeerGone("You have been declared dead here."))
                connection.send(self, Hello(self.engine_id) if self.acquaintances.welcome(engine_id) else dead)
            case _:
                raise TypeError(f"no shim is called with {message!r}")

    def on_message(self, connection: Connection, message: object) -> None:
        """A caller says nothing more after its call."""

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """Whoever has called has left: its sequence, if it still runs, is not wanted."""
        self.recall.on_caller_lost(connection)
        for transfer_id, running in self.running.items():
            if running.ear is connection:
                del self.running[transfer_id]
                self._end_early(transfer_id, running, "cancelled")
                return

    def on_notice(self, notice: object) -> None:
        """A peer has something to say; what is meant for another start is refused."""
        assert isinstance(notice, Envelope)
        if notice.to != self.engine_id:
            self.scene.counts["refused: notice for another start"] += 1
            if "fence_by_epoch" not in self.scene.off:
                return
        fate = self.acquaintances.fate_of(notice.sender)
        if fate is None:
            self.scene.counts["refused: notice of a stranger"] += 1
            return
        if fate in (Fate.DEAD, Fate.GONE) and "refuse_the_dead" not in self.scene.off:
            self.scene.counts["refused: notice of a dead peer"] += 1
            return
        match notice.notice:
            case Left(engine_id):
                self.acquaintances.on_death(engine_id, "left")
            case Acknowledged() | Granted() | Stopped() as to_decode:
                self.decode.on_notice(to_decode)
            case to_prefill:
                self.prefill.on_notice(to_prefill)

    def on_unreachable(self, host: Host) -> None:
        """The transport towards that host has an error."""
        for engine_id in self.acquaintances.known_at(host.name):
            self.acquaintances.on_lost(engine_id)

    def on_engine_event(self, event: EngineEvent) -> None:
        """What a step of the engine has brought."""
        match event:
            case TokenOut(transfer_id, index, is_last):
                running = self.running.get(transfer_id)
                self.scene.on_moment("token", self.name)
                self.recall.end(transfer_id, "overtaken")
                if running is not None:
                    running.ear.send(self, Token(transfer_id, index, is_last))
                    if is_last:
                        del self.running[transfer_id]
            case Prefilling(transfer_id, blocks, num_tokens, num_layers):
                self.scene.on_moment("chunk", self.name)
                self.prefill.on_prefilling(PrefillDone(transfer_id, blocks, num_tokens), num_layers)
            case Prefilled(transfer_id, blocks, num_tokens):
                self._on_prefilled(PrefillDone(transfer_id, blocks, num_tokens))
            case Seated(transfer_id, seats, wanted):
                self.decode.on_seated(transfer_id, seats, wanted)

    def on_peer_dead(self, engine_id: EngineId) -> None:
        """There is proof that the peer's process is gone."""
        self.prefill.on_peer_dead(engine_id)
        self.decode.on_peer_dead(engine_id)

    def on_access_ended(self, engine_id: EngineId) -> None:
        """Nothing of it can land here any more."""
        self.decode.on_access_ended(engine_id)

    # What ends sequences.

    def drain(self) -> None:
        """It takes no new work."""
        self.ready = False

    def leave(self) -> None:
        """It goes away for good: what runs fails, and peers hear of it when none of its copies runs."""
        self.recall.leave()
        for transfer_id in list(self.running):
            self.fail(transfer_id, Draining("This instance is shutting down; retry on another."))
        if not self.copies.any_of(self):
            self.tell("says Left")
            for engine_id in self.acquaintances.known():
                tell_peer(self, engine_id, Left(self.engine_id))

    def cancel(self, transfer_id: TransferId, reason: str) -> None:
        """The router takes an attempt back."""
        self.tell(f"taken back ({reason})", transfer_id)
        self._taken_back.add(transfer_id)
        self.fail(transfer_id, StaleAttempt("The router has taken this attempt back."))
        if self.instance.role.prefills:
            self.prefill.on_abandoned(transfer_id, reason)
        else:
            self.decode.on_left(transfer_id)

    def fail(self, transfer_id: TransferId, error: TandemError) -> None:
        """The sequence ends with this error; one that has ended already stays as it is."""
        running = self.running.pop(transfer_id, None)
        if running is not None:
            running.ear.send(self, Failure(error))
            self._end_early(transfer_id, running, error.code)

    def on_kv_failure(self, transfer_id: TransferId, error: TandemError) -> None:
        """The KV of this sequence does not come: it fails, or by policy computes its prompt here."""
        if self.recomputes and not isinstance(error, RegistrationTimeout):
            self.scene.counts["recomputed"] += 1
            self.engine.recompute(transfer_id)
        elif not self.recall.end(transfer_id, "failed"):
            self.fail(transfer_id, error)

    def _end_early(self, transfer_id: TransferId, running: Running, reason: str) -> None:
        self.engine.abort(transfer_id)
        if isinstance(running.call.handoff, DecodeHandoff):
            self.decode.on_left(transfer_id)
        else:
            self.prefill.on_leg_ended(transfer_id, reason)

    def _on_deadline(self, transfer_id: TransferId, running: Running) -> None:
        if self.running.get(transfer_id) is running:
            self.fail(transfer_id, DeadlinePassed("The request was not finished in time."))

    # Legs.

    def begin_prefill(self, connection: Connection, call: LegCall) -> None:
        """The leg runs, or is refused."""
        transfer_id = call.handoff.transfer_id
        refused = transfer_id in self._taken_back or transfer_id in self.running
        if refused or not self.prefill.desk.on_leg(transfer_id, self.scene.now):
            connection.send(self, Failure(StaleAttempt("Decode has given this attempt up already.")))
            return
        self.run(Running(call, connection), Purpose.HOLD)

    def _take_decode(self, connection: Connection, call: LegCall) -> None:
        assert isinstance(call.handoff, DecodeHandoff)
        handoff = call.handoff

        def on_met(error: TandemError | None) -> None:
            if not connection.is_open_for(self):
                return
            failure = error or self.decode.open(handoff)
            if failure is None and handoff.transfer_id in self._taken_back:
                self.decode.on_left(handoff.transfer_id)
                failure = StaleAttempt("The router has taken this attempt back.")
            if failure is not None:
                connection.send(self, Failure(failure))
                return
            self.run(Running(call, connection), Purpose.RECEIVE)

        self.acquaintances.ensure(handoff.prefill_engine_id, on_met)

    def run(self, running: Running, purpose: Purpose, *, ahead: bool = False) -> None:
        """The sequence is queued."""
        call, transfer_id = running.call, running.call.handoff.transfer_id
        self.tell(f"{'prefill' if purpose is Purpose.HOLD else 'decode'} leg", transfer_id)
        self.scene.on_moment("leg", self.name)
        self.running[transfer_id] = running
        self.scene.timeline.timer(call.left_s, self, self._on_deadline, transfer_id, running)
        self.engine.add(transfer_id, purpose, call.prompt, ahead=ahead)

    def _on_prefilled(self, done: PrefillDone) -> None:
        running = self.running.pop(done.transfer_id, None)
        if running is not None:
            running.ear.send(self, PrefillAnswer(self.engine_id, done))
        self.scene.on_moment("prefilled", self.name)
        # A leg that was taken back meanwhile is VOID: the table then answers with FreeKV.
        self.prefill.on_prefilled(done)

    # Time.

    def _tick(self) -> None:
        scene = self.scene
        self.prefill.on_tick()
        self.decode.on_tick()
        self.acquaintances.on_tick()
        self.journal.flush()
        scene.timeline.timer(scene.pace.tick_s, self, self._tick)

    def _beat(self) -> None:
        scene = self.scene
        load = Load(self.engine.num_sequences)
        self.journal.ask(lambda store: store.beat(self.instance, load), self._on_fleet)
        scene.timeline.timer(scene.pace.beat_s, self, self._beat)

    def _on_fleet(self, answer: object) -> None:
        if not isinstance(answer, dict):
            self.ready = False
            return
        ours, partners = self.instance.role, {}
        for instance_id, instance in answer.items():
            other = instance.role
            if (ours.prefills and other.decodes) or (ours.decodes and other.prefills):
                partners[instance_id] = instance.kv.engine_id
        self.acquaintances.on_fleet(partners)
