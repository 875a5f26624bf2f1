"""VllmLink: the shim's end of both lines into vLLM's processes."""

from __future__ import annotations

import asyncio
import socket
from asyncio import Future, StreamWriter, Task
from collections.abc import Callable, Coroutine
from typing import Any

from engine_shim.engine.vllm import messages
from engine_shim.engine.vllm.messages import (
    FromScheduler,
    FromWorker,
    SchedulerHello,
    ToShim,
    ToWorker,
    Unfit,
    WorkerHello,
    frame,
    read_frame,
)
from engine_shim.loop_calls import call_on_loop
from router.contract.errors import EngineDown, ModelUnusable, TandemError


class VllmLink:
    """Belongs to the shim's event loop. `on_scheduler` and `on_worker` hear all but the greetings."""

    def __init__(self, path: str, listener: socket.socket) -> None:
        """Nobody is connected yet.

        Args:
            path: of the Unix socket to listen on, in a directory that nobody else may enter.
            listener: the shim's HTTP socket, which the worker keeps open as long as it lives.
        """
        self._listener = listener
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(path)
        self._door.listen(4)
        self._door.setblocking(False)
        self._loop = loop = asyncio.get_running_loop()
        self.scheduler: Future[SchedulerHello] = loop.create_future()
        self.worker: Future[WorkerHello] = loop.create_future()
        self.on_scheduler: Callable[[FromScheduler], None] = lambda _: None
        self.on_worker: Callable[[FromWorker], None] = lambda _: None
        self.on_down: list[Callable[[EngineDown], None]] = []
        self._to_worker: StreamWriter | None = None
        self._outs: list[StreamWriter] = []
        self._tasks: set[Task[None]] = set()
        self._keep(self._answer())

    def cut(self) -> Future[EngineDown]:
        """Done once a half that was there has gone."""
        down: Future[EngineDown] = self._loop.create_future()
        self.on_down.append(lambda error: None if down.done() else down.set_result(error))
        return down

    def tell_worker(self, message: ToWorker) -> None:
        """It is on its way; nothing happens when the worker is not there (any more)."""
        if self._to_worker is not None:
            self._to_worker.write(frame(message))

    def tell_worker_soon(self, message: ToWorker) -> None:
        """As `tell_worker`, from any thread."""
        call_on_loop(self._loop, lambda: self.tell_worker(message))

    def fail(self, error: TandemError) -> None:
        """Whoever waits for a half that has not come hears why."""
        for hello in (self.scheduler, self.worker):
            if not hello.done():
                hello.set_exception(error)
                hello.exception()  # it may be that nobody asks

    def close(self) -> None:
        """Both lines are cut, which ends the worker."""
        for task in list(self._tasks):
            task.cancel()
        for out in self._outs:
            out.close()
        self._door.close()

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._door)
            socket.send_fds(connection, [b"!"], [self._listener.fileno()])
            self._keep(self._hear(connection))

    async def _hear(self, connection: socket.socket) -> None:
        reader, out = await asyncio.open_unix_connection(sock=connection)
        self._outs.append(out)
        while (message := await read_frame(reader, messages.TO_SHIM)) is not None:
            self._on_message(message, out)
        if out is self._to_worker or self.scheduler.done():
            self._to_worker = None
            down = EngineDown("vLLM has ended; this instance must be restarted.")
            for told in self.on_down:
                told(down)

    def _on_message(self, message: ToShim, out: StreamWriter) -> None:
        match message:
            case SchedulerHello():
                if not self.scheduler.done():
                    self.scheduler.set_result(message)
            case WorkerHello():
                self._to_worker = out
                if not self.worker.done():
                    self.worker.set_result(message)
            case Unfit(reason):
                self.fail(ModelUnusable(reason))
            case messages.SeatsTaken() | messages.BlocksHeld() | messages.SchedulerLoad():
                self.on_scheduler(message)
            case _:
                self.on_worker(message)

    # Any: the coroutine's own types do not matter.
    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
