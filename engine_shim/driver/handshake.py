"""Handshake: two shims introduce themselves, each sealed with the deployment key; one handshake serves both directions.

    caller -> callee   Question: whom I want, the address that I dial, a nonce
    callee -> caller   Introduction: who is here, the nonce and, if I am the one and this is my address, my card
    caller -> callee   my card

A card is the key to an engine's memory, so nobody shows his own before the other has shown that he holds the deployment
key. The address is part of the question, so that a stranger who has been dialled cannot pass it on to a real shim; the
nonce keeps an old answer from being played back.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

import httpx
import msgspec

from engine_shim.core.fates import Address, Call
from router.contract.errors import HandshakeFailed
from router.contract.ids import EngineId, Epoch, InstanceId, engine_id_of
from router.contract.kv import KVLayout, Region
from router.contract.seal import HELLO, HELLO_ANSWER, PEER, SEAL_HEADER, Seal

PROTOCOL_VERSION = 3
HELLO_PATH, PEER_PATH = "/kv/hello", "/kv/peer"
HANDSHAKE_FOR_S = 5.0
HANDSHAKES_AT_ONCE = 32
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
class Question:
    """Who wants to know."""

    engine_id: EngineId
    """Of the wanted engine."""
    address: Address
    """As it was dialled."""
    nonce: str


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who is there."""

    engine_id: EngineId
    nonce: str
    card: PeerCard | None
    """None unless it is the wanted engine, at the address that it gives as its own."""


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
    return _checked(card)


def _checked(card: PeerCard) -> PeerCard:
    if engine_id_of(InstanceId(card.engine_id.rpartition("@")[0]), card.epoch) != card.engine_id:
        raise HandshakeFailed(f"The peer calls itself {card.engine_id!r} in epoch {card.epoch}; these do not fit.")
    return card


def introduce(card: PeerCard, question: Question) -> Introduction:
    """The answer of the engine whose card this is."""
    fits = question.engine_id == card.engine_id and question.address == card.address
    return Introduction(card.engine_id, question.nonce, card if fits else None)


class Caller:
    """Makes handshakes, at most HANDSHAKES_AT_ONCE at a time, each within HANDSHAKE_FOR_S seconds."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        # One clock for all of a handshake: httpx's own begin anew with every byte of an answer.
        limits = httpx.Limits(max_connections=HANDSHAKES_AT_ONCE)
        self._client = httpx.AsyncClient(timeout=None, trust_env=False, limits=limits)
        self._gate = asyncio.Semaphore(HANDSHAKES_AT_ONCE)

    async def aclose(self) -> None:
        """No connection is open any more."""
        await self._client.aclose()

    async def call(self, ours: PeerCard, engine_id: EngineId, address: Address) -> Answer:
        """Find out who is at this address and, if it is the wanted engine, introduce ourselves; never raises but when
        cancelled."""
        async with self._gate:
            try:
                async with asyncio.timeout(HANDSHAKE_FOR_S):
                    return await self._introduce_us(ours, Question(engine_id, address, os.urandom(16).hex()))
            except TimeoutError:
                return _silent(f"{engine_id} at {address} made no handshake within {HANDSHAKE_FOR_S:g} s.")
            except httpx.ConnectError:
                if await _is_refused(address):
                    failed = HandshakeFailed(f"Nobody listens at {address}; {engine_id} has ended.")
                    return Answer(Call.REFUSED, error=failed)
                return _silent(f"No connection to {engine_id} at {address}.")
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = type(error).__name__
                return _silent(f"The side channel of {engine_id} at {address} does not answer ({why}).")

    async def _introduce_us(self, ours: PeerCard, question: Question) -> Answer:
        reply = await self._post(question.address, HELLO_PATH, HELLO, question)
        answer = self._judge(reply, question)
        if answer.card is not None:
            reply = await self._post(question.address, PEER_PATH, PEER, ours)
            if reply.status_code != httpx.codes.OK:
                return _silent(f"{question.engine_id} refused our card ({reply.status_code}: {reply.text[:200]}).")
        return answer

    async def _post(self, address: Address, path: str, purpose: bytes, message: Question | PeerCard) -> httpx.Response:
        body = msgspec.json.encode(message)
        headers = {SEAL_HEADER: self._seal.header(purpose, body)}
        return await self._client.post(f"http://{address}{path}", content=body, headers=headers)

    def _judge(self, reply: httpx.Response, question: Question) -> Answer:
        where = f"{question.engine_id} at {question.address}"
        try:
            found = self._read(reply, question, where)
        except HandshakeFailed as error:
            return Answer(Call.SILENT, error=error)
        if found.engine_id != question.engine_id:
            failed = HandshakeFailed(f"Where {where} was answers {found.engine_id}; it has been started anew.")
            return Answer(Call.ANOTHER, error=failed)
        if found.card is None:
            return _silent(f"{where} gives another address as its own; check its advertise_host.")
        return Answer(Call.ANSWERED, found.card)

    def _read(self, reply: httpx.Response, question: Question, where: str) -> Introduction:
        """The answer to our question by a holder of our key. Raises HandshakeFailed."""
        if reply.status_code != httpx.codes.OK:
            raise HandshakeFailed(f"{where} refused the handshake (status {reply.status_code}).")
        if not self._seal.header_holds(HELLO_ANSWER, reply.content, reply.headers.get(SEAL_HEADER, "")):
            raise HandshakeFailed(f"The answer of {where} is not sealed with our deployment key.")
        try:
            found = msgspec.json.decode(reply.content, type=Introduction)
        except (msgspec.DecodeError, ValueError) as error:
            raise HandshakeFailed(f"The answer of {where} cannot be read; is it of the same version?") from error
        if found.nonce != question.nonce:
            raise HandshakeFailed(f"The answer of {where} is not one to our question.")
        if found.card is not None:
            _checked(found.card)
        return found


def _silent(message: str) -> Answer:
    return Answer(Call.SILENT, error=HandshakeFailed(message))


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
