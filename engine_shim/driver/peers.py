"""Peers: who has introduced himself, so that KV cache and notices can pass.

One handshake serves both directions: the caller posts its PeerCard and is answered with the other's. It is made once
per EngineId, in parallel with all others, before the first request where the fleet is known.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from dataclasses import dataclass

import httpx
import msgspec

from engine_shim.core.transfer_plan import check_layouts
from engine_shim.fabric.port import PeerName
from engine_shim.fabric.writer import DropPeer, WriterThread
from router.contract.errors import HandshakeFailed, LayoutMismatch, PeerGone
from router.contract.ids import EngineId, Epoch
from router.contract.kv import KVLayout, Region

PROTOCOL_VERSION = 1
PEER_PATH = "/kv/peer"


@dataclass(frozen=True, slots=True)
class PeerCard:
    """How a shim introduces itself to another."""

    protocol_version: int
    engine_id: EngineId
    epoch: Epoch
    compat_hash: str
    layout: KVLayout
    region: Region
    agent_metadata: bytes


def read_card(raw: bytes) -> PeerCard:
    """The card in `raw`. Raises HandshakeFailed when these bytes are none."""
    try:
        return msgspec.json.decode(raw, type=PeerCard)
    except (msgspec.DecodeError, ValueError) as error:
        raise HandshakeFailed("The peer's introduction cannot be read; are both shims of the same version?") from error


class Peers:
    """The known peers of one shim."""

    def __init__(self, card: PeerCard, writer: WriterThread, handshake_for_s: float = 5.0) -> None:
        self.card = card
        self._writer = writer
        self._client = httpx.AsyncClient(timeout=handshake_for_s, trust_env=False)
        self._known: dict[EngineId, PeerCard] = {}
        self._calling: dict[EngineId, Task[PeerCard]] = {}

    def find(self, engine_id: EngineId) -> PeerCard:
        """The card of a known peer. Raises PeerGone."""
        card = self._known.get(engine_id)
        if card is None:
            raise PeerGone(f"{engine_id} has not introduced itself, or has gone away.")
        return card

    async def ensure(self, engine_id: EngineId, host: str, port: int) -> PeerCard:
        """The peer is known on both sides.

        Raises:
            HandshakeFailed: nobody answers there, or another engine than the wanted one does.
            LayoutMismatch: the two caches do not fit.
        """
        known = self._known.get(engine_id)
        if known is not None:
            return known
        call = self._calling.get(engine_id)
        if call is None:
            call = asyncio.create_task(self._call(engine_id, host, port))
            self._calling[engine_id] = call
            call.add_done_callback(lambda _: self._calling.pop(engine_id, None))
        return await asyncio.shield(call)

    async def welcome(self, card: PeerCard) -> PeerCard:
        """The caller of a handshake is known here; returns our own card for the answer."""
        await self._admit(card)
        return self.card

    def drop(self, engine_id: EngineId) -> bool:
        """The peer is forgotten; False when it was not known."""
        if self._known.pop(engine_id, None) is None:
            return False
        self._writer.tell(DropPeer(PeerName(engine_id)))
        return True

    def known(self) -> tuple[EngineId, ...]:
        """Everyone who has introduced himself."""
        return tuple(self._known)

    async def aclose(self) -> None:
        """No handshake is under way any more."""
        for call in list(self._calling.values()):
            call.cancel()
        await self._client.aclose()

    async def _call(self, engine_id: EngineId, host: str, port: int) -> PeerCard:
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            reply = await self._client.post(f"http://{address}{PEER_PATH}", content=msgspec.json.encode(self.card))
        except httpx.HTTPError as error:
            raise HandshakeFailed(
                f"The side channel of {engine_id} at {address} does not answer ({type(error).__name__})."
            ) from error
        if reply.status_code != httpx.codes.OK:
            raise HandshakeFailed(f"{engine_id} at {address} refused the handshake (status {reply.status_code}).")
        card = read_card(reply.content)
        if card.engine_id != engine_id:
            raise HandshakeFailed(f"At {address} answers {card.engine_id}, not {engine_id}; it has been restarted.")
        await self._admit(card)
        return card

    async def _admit(self, card: PeerCard) -> None:
        if card.protocol_version != PROTOCOL_VERSION:
            raise HandshakeFailed(
                f"{card.engine_id} speaks version {card.protocol_version} of the shims' protocol, "
                f"this one {PROTOCOL_VERSION}; run the same release on both."
            )
        check_layouts(card.layout, self.card.layout)
        if card.compat_hash != self.card.compat_hash:
            raise LayoutMismatch(f"{card.engine_id} serves another model or other weights than {self.card.engine_id}.")
        if card.engine_id in self._known or card.engine_id == self.card.engine_id:
            return
        name = await self._writer.add_peer(card.agent_metadata)
        if EngineId(name) != card.engine_id:
            self._writer.tell(DropPeer(name))
            raise HandshakeFailed(f"The agent of {card.engine_id} calls itself {name}.")
        self._known[card.engine_id] = card
