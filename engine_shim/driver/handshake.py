"""Handshake: two shims introduce themselves, each sealed with the deployment key.

One HTTP call serves both directions: the caller posts its PeerCard under a fresh nonce and is answered with the other's
card, sealed over the same nonce, so that an old answer cannot be played back.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import httpx
import msgspec

from engine_shim.core.fates import Address, Call
from router.contract.errors import HandshakeFailed, Unauthorized
from router.contract.ids import EngineId, Epoch, InstanceId, engine_id_of
from router.contract.kv import KVLayout, Region
from router.contract.seal import NONCE_HEADER, PEER, PEER_ANSWER, SEAL_HEADER, Seal

PROTOCOL_VERSION = 2
PEER_PATH = "/kv/peer"
KNOCK_FOR_S = 1.0


@dataclass(frozen=True, slots=True)
class PeerCard:
    """How a shim introduces itself to another."""

    protocol_version: int
    engine_id: EngineId
    epoch: Epoch
    address: Address
    """Of its side channel."""
    compat_hash: str
    layout: KVLayout
    region: Region
    agent_metadata: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call has brought: a card exactly when the wanted engine has answered, else `error`."""

    call: Call
    card: PeerCard | None = None
    error: HandshakeFailed | None = None


def read_card(raw: bytes) -> PeerCard:
    """The card in `raw`. Raises HandshakeFailed when these bytes are none."""
    try:
        card = msgspec.json.decode(raw, type=PeerCard)
    except (msgspec.DecodeError, ValueError) as error:
        raise HandshakeFailed("The peer's introduction cannot be read; are both shims of the same version?") from error
    if engine_id_of(InstanceId(card.engine_id.rpartition("@")[0]), card.epoch) != card.engine_id:
        raise HandshakeFailed(f"The peer calls itself {card.engine_id!r} in epoch {card.epoch}; these do not fit.")
    return card


def check_question(seal: Seal, nonce: str, body: bytes, header: str) -> None:
    """The caller of a handshake holds the deployment key. Raises Unauthorized."""
    if not nonce or not seal.header_holds(PEER, nonce.encode() + body, header):
        raise Unauthorized("This handshake is not sealed with our deployment key; set the same key on all shims.")


def seal_answer(seal: Seal, nonce: str, body: bytes) -> str:
    """SEAL_HEADER of a handshake's answer."""
    return seal.header(PEER_ANSWER, nonce.encode() + body)


class Caller:
    """Makes handshakes, at most `at_once` at a time, each within `for_s` seconds."""

    def __init__(self, seal: Seal, for_s: float = 5.0, at_once: int = 32) -> None:
        self._seal = seal
        self._client = httpx.AsyncClient(timeout=for_s, trust_env=False, limits=httpx.Limits(max_connections=at_once))
        self._gate = asyncio.Semaphore(at_once)

    async def aclose(self) -> None:
        """No connection is open any more."""
        await self._client.aclose()

    async def call(self, ours: PeerCard, engine_id: EngineId, address: Address) -> Answer:
        """Introduce ourselves to whoever answers at this address; never raises but when cancelled."""
        body, nonce = msgspec.json.encode(ours), os.urandom(16).hex()
        host = f"[{address.host}]" if ":" in address.host else address.host
        headers = {NONCE_HEADER: nonce, SEAL_HEADER: self._seal.header(PEER, nonce.encode() + body)}
        where = f"{engine_id} at {host}:{address.port}"
        async with self._gate:
            try:
                reply = await self._client.post(
                    f"http://{host}:{address.port}{PEER_PATH}", content=body, headers=headers
                )
            except httpx.ConnectError:
                if await _is_refused(address):
                    return Answer(Call.REFUSED, error=HandshakeFailed(f"Nobody listens for {where}; it has ended."))
                return Answer(Call.SILENT, error=HandshakeFailed(f"No connection to {where}."))
            except httpx.HTTPError as error:
                failed = HandshakeFailed(f"The side channel of {where} does not answer ({type(error).__name__}).")
                return Answer(Call.SILENT, error=failed)
        return self._judge(reply, nonce, engine_id, where)

    def _judge(self, reply: httpx.Response, nonce: str, engine_id: EngineId, where: str) -> Answer:
        if reply.status_code != httpx.codes.OK:
            failed = HandshakeFailed(f"{where} refused the handshake (status {reply.status_code}).")
            return Answer(Call.SILENT, error=failed)
        sealed = reply.headers.get(SEAL_HEADER, "")
        if not self._seal.header_holds(PEER_ANSWER, nonce.encode() + reply.content, sealed):
            failed = HandshakeFailed(f"The answer of {where} is not sealed with our deployment key.")
            return Answer(Call.SILENT, error=failed)
        try:
            card = read_card(reply.content)
        except HandshakeFailed as error:
            return Answer(Call.SILENT, error=error)
        if card.engine_id != engine_id:
            failed = HandshakeFailed(f"Where {where} was answers {card.engine_id}; it has been started anew.")
            return Answer(Call.ANOTHER, error=failed)
        return Answer(Call.ANSWERED, card)


async def _is_refused(address: Address) -> bool:
    """True when the host is there and no process listens on the port. httpx does not tell this from other failures."""
    try:
        async with asyncio.timeout(KNOCK_FOR_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
