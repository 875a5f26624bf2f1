"""The worker half of the connector: the NIXL agent on vLLM's own memory, and the way back of blocks to its scheduler.

The shim's process is the only one that gives orders. When it is gone, this process ends itself: nothing may go on
writing into peers that a dead shim cannot answer for. Until then it keeps the shim's listening socket open, so that
the port refuses calls, which peers take for proof of death, only when this memory's writer is gone as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from asyncio import AbstractEventLoop, StreamReader, StreamWriter
from collections import deque
from collections.abc import Callable

import numpy as np

from engine_shim.core.transfer_plan import SpanTable, TransferPlan
from engine_shim.engine.vllm import messages
from engine_shim.engine.vllm.line import Line
from engine_shim.engine.vllm.messages import FromWorker, GiveBack, Release, ToWorker, WorkerHello, frame, read_frame
from engine_shim.fabric import writer as fabric_writer
from engine_shim.fabric.port import CopyKey, CopyOrder, Fabric, PeerName
from engine_shim.fabric.writer import FabricEvent, WriterThread
from router.contract.errors import TandemError

log = logging.getLogger("tandem.vllm")

SWITCH_INTERVAL_S = 0.0005
"""The writer shares the interpreter with the model runner: a notice must not wait behind 5 ms of its Python."""

MakeFabric = Callable[[str, str], Fabric]
"""From the agent's name and NIXL's backend."""


class WorkerHalf:
    """Obeys the shim on threads of its own; `take` is called by vLLM once a step."""

    def __init__(self, line: Line, hello: WorkerHello, make_fabric: MakeFabric) -> None:
        """The shim has been greeted; its listening socket stays open as long as this process lives."""
        self._line = line
        self._make_fabric = make_fabric
        self._given: deque[GiveBack] = deque()
        self._writer: WriterThread | None = None
        self._out: StreamWriter | None = None
        line.tell(hello)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        threading.Thread(target=lambda: asyncio.run(self._run()), name="tandem-link", daemon=True).start()

    def take(self) -> dict[Release, set[str]]:
        """Requests whose blocks have gone back to vLLM since the last call."""
        given: dict[Release, set[str]] = {release: set() for release in Release}
        while self._given:
            one = self._given.popleft()
            given[one.release].add(one.request_id)
        return given

    async def _run(self) -> None:
        reader, self._out = await asyncio.open_unix_connection(sock=self._line.connection)
        try:
            await self._obey_all(reader)
        finally:
            log.error("The shim is gone; this worker ends, so that nothing of it is written any more.")
            os.kill(os.getpid(), signal.SIGKILL)

    async def _obey_all(self, reader: StreamReader) -> None:
        loop = asyncio.get_running_loop()
        while (message := await read_frame(reader, messages.TO_WORKER)) is not None:
            await self._obey(message, loop)

    async def _obey(self, message: ToWorker, loop: AbstractEventLoop) -> None:
        match message:
            case GiveBack():
                self._given.append(message)
            case messages.OpenAgent(name, backend):
                self._writer = WriterThread(lambda: self._make_fabric(name, backend), loop, self._on_event)
                await self._open(self._writer)
            case messages.AddPeer(number, metadata):
                await self._add_peer(number, metadata)
            case messages.CloseAgent():
                if self._writer is not None:
                    await asyncio.to_thread(self._writer.stop)
                self._tell(messages.AgentClosed())
            case _:
                if self._writer is not None:
                    self._writer.tell(_command_of(message))

    async def _open(self, writer: WriterThread) -> None:
        try:
            self._tell(messages.AgentOpened(await writer.start(), ""))
        except TandemError as error:
            self._tell(messages.AgentOpened(b"", error.message))

    async def _add_peer(self, number: int, metadata: bytes) -> None:
        if self._writer is None:
            self._tell(messages.PeerAdded(number, "", "The agent has not been opened."))
            return
        try:
            self._tell(messages.PeerAdded(number, await self._writer.add_peer(metadata), ""))
        except TandemError as error:
            self._tell(messages.PeerAdded(number, "", error.message))

    def _on_event(self, event: FabricEvent) -> None:
        match event:
            case fabric_writer.NoticeCame(peer, notice):
                self._tell(messages.NoticeCame(peer, notice))
            case fabric_writer.CopyEnded(key, error):
                code, text = ("", "") if error is None else (error.code, error.message)
                self._tell(messages.CopyEnded(key, code, text))
            case fabric_writer.PeerLost(peer):
                self._tell(messages.PeerLost(peer))
            case fabric_writer.FabricBroken(error):
                self._tell(messages.FabricBroken(error.message))

    def _tell(self, message: FromWorker) -> None:
        if self._out is not None:
            self._out.write(frame(message))


def _command_of(
    message: messages.DropPeer | messages.SendNotice | messages.Post | messages.Expect,
) -> fabric_writer.Command:
    match message:
        case messages.DropPeer(peer):
            return fabric_writer.DropPeer(PeerName(peer))
        case messages.SendNotice(peer, notice):
            return fabric_writer.SendNotice(PeerName(peer), notice)
        case messages.Post(key, op, peer, spans, remote, tag):
            plan = TransferPlan(SpanTable(np.frombuffer(spans, dtype=np.int64).reshape(-1, 3)))
            return fabric_writer.Post(CopyOrder(CopyKey(key), op, PeerName(peer), plan, remote, tag))
        case messages.Expect(count):
            return fabric_writer.Expect(count)
