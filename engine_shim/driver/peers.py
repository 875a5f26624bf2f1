"""Peers: who has introduced himself, so that KV cache and notices can pass, and what has become of each.

A handshake is made once per EngineId, in parallel with all others, before the first request where the fleet is known.
FateDesk decides who is to be called again and who is dead; this carries it out.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic

from engine_shim.core.fates import AccessEnded, Address, CallPeer, Fate, FateDesk, FateEffect, PeerDied
from engine_shim.core.layout_match import check_layouts
from engine_shim.driver.handshake import PROTOCOL_VERSION, Answer, Caller, PeerCard
from engine_shim.fabric.port import PeerName
from engine_shim.fabric.writer import DropPeer, Writer
from router.contract.errors import HandshakeFailed, LayoutMismatch, PeerGone, TransferError
from router.contract.ids import EngineId

log = logging.getLogger("tandem.shim")


@dataclass(slots=True)
class PeerNews:
    """Who wants to hear what has become of a peer; set by the Driver."""

    on_died: Callable[[EngineId], None] = lambda _: None
    """Nobody need wait for it."""
    on_access_ended: Callable[[EngineId], None] = lambda _: None
    """Nothing of it can land here any more."""


class Peers:
    """The known peers of one shim."""

    def __init__(self, card: PeerCard, writer: Writer, caller: Caller, fates: FateDesk) -> None:
        self.card = card
        self.news = PeerNews()
        self.counts: Counter[str] = Counter()
        """Handshakes that failed, peers lost, peers died."""
        self._writer = writer
        self._caller = caller
        self._fates = fates
        self._known: dict[EngineId, PeerCard] = {}
        self._calling: dict[EngineId, Task[PeerCard]] = {}

    def find(self, engine_id: EngineId) -> PeerCard:
        """The card of a peer that can be reached. Raises PeerGone."""
        card = self._known.get(engine_id)
        if card is None:
            raise PeerGone(f"{engine_id} has not introduced itself, or cannot be reached.")
        return card

    async def ensure(self, engine_id: EngineId, address: Address) -> PeerCard:
        """The peer is known on both sides.

        Raises:
            HandshakeFailed: nobody answers there, or another engine than the wanted one does.
            LayoutMismatch: the two caches do not fit.
            PeerGone: that engine's process has ended.
        """
        known = self._known.get(engine_id)
        if known is not None:
            return known
        if self.is_buried(engine_id):
            raise PeerGone(f"{engine_id} has ended; retry on its successor.")
        return await asyncio.shield(self._call(engine_id, address))

    async def welcome(self, card: PeerCard) -> None:
        """The caller of a handshake is known here. Raises as `ensure`."""
        await self._admit(card)

    def known(self) -> tuple[EngineId, ...]:
        """Everyone who can be reached."""
        return tuple(self._known)

    def fate_of(self, engine_id: EngineId) -> Fate | None:
        """What has become of this peer; None when nobody has met it."""
        return self._fates.fate_of(engine_id)

    def is_buried(self, engine_id: EngineId) -> bool:
        """Its process has ended; what it says comes too late."""
        return self._fates.fate_of(engine_id) in (Fate.DEAD, Fate.GONE)

    def may_speak(self, engine_id: EngineId) -> bool:
        """A handshake has been made with it, and it is not known to have ended."""
        return self._fates.fate_of(engine_id) in (Fate.MET, Fate.LOST)

    def with_fate(self, fate: Fate) -> list[EngineId]:
        """Peers of this fate."""
        return self._fates.with_fate(fate)

    # What others have seen of a peer.

    def on_lost(self, engine_id: EngineId) -> None:
        """A message to it failed: it is called again until it answers or there is proof of its death."""
        if self._drop(engine_id):
            self.counts["peer_lost"] += 1
        self._run(self._fates.on_lost(engine_id, monotonic()))

    def on_doubted(self, engine_id: EngineId) -> None:
        """The fleet does not list it (any more)."""
        self._run(self._fates.on_doubted(engine_id, monotonic()))

    def on_death(self, engine_id: EngineId, reason: str) -> None:
        """It says that it leaves for good, or an operator says that it is dead."""
        self._run(self._fates.on_death(engine_id, reason))

    def fence(self, name: str) -> list[EngineId]:
        """An operator says that an engine is dead: this start of it, or every lost start of this instance.

        Returns those that were declared dead by it.
        """
        exact = EngineId(name)
        named = [exact] if self.may_speak(exact) else []
        fenced = named or [lost for lost in self.with_fate(Fate.LOST) if lost.rpartition("@")[0] == name]
        for engine_id in fenced:
            self.on_death(engine_id, "fenced")
        return fenced

    def on_tick(self) -> None:
        """Time has passed."""
        self._run(self._fates.on_tick(monotonic()))

    async def aclose(self) -> None:
        """No handshake is under way any more."""
        for call in list(self._calling.values()):
            call.cancel()
        await self._caller.aclose()

    def _run(self, effects: Iterable[FateEffect]) -> None:
        for effect in effects:
            match effect:
                case CallPeer(engine_id, address):
                    self._call(engine_id, address)
                case PeerDied(engine_id, reason):
                    log.info("%s is dead (%s).", engine_id, reason)
                    self.counts["peer_died"] += 1
                    self._drop(engine_id)
                    self.news.on_died(engine_id)
                case AccessEnded(engine_id):
                    self.news.on_access_ended(engine_id)

    def _drop(self, engine_id: EngineId) -> bool:
        """The fabric knows it no more; False when it did not."""
        if self._known.pop(engine_id, None) is None:
            return False
        self._writer.tell(DropPeer(PeerName(engine_id)))
        return True

    def _call(self, engine_id: EngineId, address: Address) -> Task[PeerCard]:
        """The one call to this peer that is under way."""
        call = self._calling.get(engine_id)
        if call is None:
            call = asyncio.create_task(self._introduce(engine_id, address))
            self._calling[engine_id] = call
            call.add_done_callback(lambda done: self._on_call_over(engine_id, done))
        return call

    def _on_call_over(self, engine_id: EngineId, call: Task[PeerCard]) -> None:
        del self._calling[engine_id]
        if not call.cancelled() and call.exception() is not None:
            self.counts["handshake_failed"] += 1

    async def _introduce(self, engine_id: EngineId, address: Address) -> PeerCard:
        answer: Answer = await self._caller.call(self.card, engine_id, address)
        try:
            if answer.card is not None:
                await self._admit(answer.card)
                return answer.card
        except TransferError as error:
            log.warning("%s", error.message)
            raise
        finally:
            self._run(self._fates.on_called(engine_id, answer.call))
        raise answer.error or HandshakeFailed(f"{engine_id} does not answer.")

    async def _admit(self, card: PeerCard) -> None:
        if card.protocol_version != PROTOCOL_VERSION:
            raise HandshakeFailed(
                f"{card.engine_id} speaks version {card.protocol_version} of the shims' protocol, "
                f"this one {PROTOCOL_VERSION}; run the same release on both."
            )
        check_layouts(card.layout, self.card.layout)
        if card.compat_hash != self.card.compat_hash:
            raise LayoutMismatch(f"{card.engine_id} serves another model or other weights than {self.card.engine_id}.")
        if card.engine_id == self.card.engine_id:
            return
        if self.is_buried(card.engine_id):
            raise PeerGone(f"{card.engine_id} has been declared dead here; start it anew.")
        if card.engine_id not in self._known:
            name = await self._writer.add_peer(card.agent_metadata)
            if EngineId(name) != card.engine_id:
                self._writer.tell(DropPeer(name))
                raise HandshakeFailed(f"The agent of {card.engine_id} calls itself {name}.")
            self._known[card.engine_id] = card
        if not self._fates.on_met(card.engine_id, card.address):
            self._drop(card.engine_id)
            raise PeerGone(f"{card.engine_id} died during its handshake.")
