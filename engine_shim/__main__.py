"""`tandem shim`: one engine behind HTTP, in the fleet, until SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import uvicorn
import uvloop
from fastapi import FastAPI

from engine_shim.build_kitchen import Kitchen
from engine_shim.settings import ShimSettings, read_settings
from router.contract.errors import DeploymentError, TandemError
from router.process.descriptors import make_room
from router.process.listeners import listen

# The engine and the writer share the interpreter with the event loop: a short switch interval keeps a token or a notice
# from waiting behind a burst of Python in another thread.
SWITCH_INTERVAL_S = 0.0005


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit status is 2 when the operator must change the set-up."""
    try:
        settings = read_settings(sys.argv[1:] if argv is None else argv)
        logging.basicConfig(level=settings.log_level.upper(), format="%(levelname).1s %(name)s %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        make_room()
        # The address is taken before the weights are loaded, so that a taken port is told at once.
        listener = listen(settings.host, settings.port)
        opening = _vllm(settings, listener) if settings.engine == "vllm" else _reference(settings, listener)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, opening, listener))
    except TandemError as error:
        print(error.message, file=sys.stderr)  # noqa: T201 - the sentence for the operator
        return 2 if isinstance(error, DeploymentError) else 1
    return 0


class _Server(uvicorn.Server):
    """A server that leaves the signals to us: the fleet must hear of the end before the listener closes."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Opened(Protocol):
    """A shim that runs, with its HTTP face."""

    @property
    def kitchen(self) -> Kitchen:
        """All of it but the face."""

    @property
    def app(self) -> FastAPI:
        """The face."""

    async def aclose(self, drain_for_s: float) -> None:
        """Out of the fleet, drained, and gone."""


def _reference(settings: ShimSettings, listener: socket.socket) -> Coroutine[None, None, Opened]:
    """The reference engine, with its weights in memory already. Raises ModelUnusable."""
    # Imported for the engine that is wanted: beside vLLM, only what vLLM brings is there.
    from engine_shim.build import load_engine, open_reference  # noqa: PLC0415

    return open_reference(settings, load_engine(settings), listener)


def _vllm(settings: ShimSettings, listener: socket.socket) -> Coroutine[None, None, Opened]:
    from engine_shim.build_vllm import open_vllm_kitchen  # noqa: PLC0415 - as above

    return open_vllm_kitchen(settings, listener)


async def serve(settings: ShimSettings, opening: Coroutine[None, None, Opened], listener: socket.socket) -> None:
    """The shim serves until it is told to stop, then drains. Raises EngineDown when its engine ends before."""
    stop = asyncio.Event()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(wanted, stop.set)
    stopping = asyncio.create_task(stop.wait())
    opened = await _unless(stopping, opening)
    if opened is None:
        return
    config = uvicorn.Config(opened.app, http="httptools", log_level="warning", access_log=False, lifespan="off")
    config.timeout_keep_alive = settings.keep_alive_s
    server = _Server(config)
    kitchen = opened.kitchen
    # Who answers /readyz is in the fleet already: another instance may go because this one is ready.
    # A leg that comes before the server runs waits in the listener's backlog.
    if kitchen.membership is not None:
        await kitchen.membership.join()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    instance = kitchen.driver.instance
    ready = {"ready": True, "url": instance.url, "instance_id": instance.instance_id, "pid": os.getpid()}
    print(json.dumps(ready), flush=True)  # noqa: T201 - the line that a supervisor waits for
    ended = kitchen.driver.ended
    await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
    down = ended.result() if ended.done() else None
    await opened.aclose(0.0 if down is not None else settings.drain_for_s)
    server.should_exit = True
    await serving
    if down is not None:
        raise down


async def _unless(stopping: asyncio.Task[bool], opening: Coroutine[None, None, Opened]) -> Opened | None:
    """What has been opened, or None when the wish to stop came first; nothing of it is left then."""
    task = asyncio.create_task(opening)
    await asyncio.wait((stopping, task), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
        return None
    return task.result()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # UCX may abort in its destructors when a peer has died before us; everything of ours is closed by here.
    os._exit(status)
