"""RemoteWriter: the writer thread of vLLM's worker, as the shim's own process sees it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from asyncio import Future
from collections.abc import Callable
from typing import assert_never

import numpy as np

from engine_shim.engine.vllm import messages
from engine_shim.engine.vllm.link import VllmLink
from engine_shim.engine.vllm.messages import FromWorker, ToWorker, error_of
from engine_shim.fabric import writer
from engine_shim.fabric.port import CopyKey, PeerName
from engine_shim.fabric.writer import Command, FabricEvent
from router.contract.errors import EngineDown, HandshakeFailed, Impossible, MissingDependency, TransferFailed


class RemoteWriter:
    """A `fabric.writer.Writer`. A copy whose worker has gone is told as ended: its process, and its reach, are gone."""

    def __init__(self, link: VllmLink, name: str, backend: str) -> None:
        self._link = link
        self._name, self._backend = name, backend
        self.on_event: Callable[[FabricEvent], None] = lambda _: None
        """Set before any peer has been added; nothing happens before."""
        self._numbers = itertools.count(1)
        self._adding: dict[int, Future[PeerName]] = {}
        self._opened: Future[bytes] = asyncio.get_running_loop().create_future()
        self._closed = threading.Event()
        link.on_worker = self._on_message
        link.on_down.append(self._on_down)

    async def start(self) -> bytes:
        """See Writer."""
        self._link.tell_worker(messages.OpenAgent(self._name, self._backend))
        return await self._opened

    def tell(self, command: Command) -> None:
        """See Writer."""
        self._link.tell_worker(_message_of(command))

    async def add_peer(self, metadata: bytes) -> PeerName:
        """See Writer."""
        number = next(self._numbers)
        self._adding[number] = asyncio.get_running_loop().create_future()
        self._link.tell_worker(messages.AddPeer(number, metadata))
        try:
            return await self._adding[number]
        finally:
            del self._adding[number]

    def stop(self, wait_for_s: float = 5.0) -> None:
        """See Writer. Called on another thread than the loop's."""
        self._link.tell_worker_soon(messages.CloseAgent())
        self._closed.wait(wait_for_s)

    def _on_down(self, down: EngineDown) -> None:
        self._closed.set()
        waiting: list[Future[bytes] | Future[PeerName]] = [self._opened, *self._adding.values()]
        for one in waiting:
            if not one.done():
                one.set_exception(down)
                one.exception()  # it may be that nobody asks

    def _on_message(self, message: FromWorker) -> None:
        match message:
            case messages.AgentOpened(metadata, ""):
                self._opened.set_result(metadata)
            case messages.AgentOpened(_, error):
                self._opened.set_exception(MissingDependency(error))
            case messages.PeerAdded(number, name, error):
                self._on_added(number, name, error)
            case messages.AgentClosed():
                self._closed.set()
            case messages.NoticeCame(peer, notice):
                self.on_event(writer.NoticeCame(PeerName(peer), notice))
            case messages.CopyEnded(key, code, text):
                self.on_event(writer.CopyEnded(CopyKey(key), error_of(code, text)))
            case messages.PeerLost(peer):
                self.on_event(writer.PeerLost(PeerName(peer)))
            case messages.FabricBroken(text):
                self.on_event(writer.FabricBroken(EngineDown(text)))
            case messages.WorkerHello() | messages.Unfit():
                raise Impossible("The link keeps these to itself.")
            case _:
                assert_never(message)

    def _on_added(self, number: int, name: str, error: str) -> None:
        waiting = self._adding.get(number)
        if waiting is None or waiting.done():
            return
        if error:
            waiting.set_exception(HandshakeFailed(error))
        else:
            waiting.set_result(PeerName(name))


def _message_of(command: Command) -> ToWorker:
    match command:
        case writer.DropPeer(peer):
            return messages.DropPeer(peer)
        case writer.SendNotice(peer, notice):
            return messages.SendNotice(peer, notice)
        case writer.Post(order):
            if order.local is not None:
                raise TransferFailed("vLLM's worker copies from and to its cache only.")
            spans = np.ascontiguousarray(order.plan.rows, dtype=np.int64).tobytes()
            return messages.Post(order.key, order.op, order.peer, spans, order.remote, order.tag)
        case writer.Expect(count):
            return messages.Expect(count)
        case writer.AddPeer() | writer.Stop():
            raise Impossible("These have calls of their own.")
        case _:
            assert_never(command)
