"""`tandem shim`: one engine behind HTTP, in the fleet, until SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
import uvloop

from engine_shim.build import load_engine, open_kitchen
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.serve.app import build_app
from engine_shim.serve.side_channel import side_channel
from engine_shim.settings import ShimSettings, read_settings
from router.contract.errors import AddressTaken, DeploymentError, TandemError
from router.contract.seal import Seal

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
        # The address is taken before the weights are loaded, so that a taken port is told at once.
        listener = listen(settings.host, settings.port)
        engine = load_engine(settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, engine, listener))
    except TandemError as error:
        print(error.message, file=sys.stderr)  # noqa: T201 - the sentence for the operator
        return 2 if isinstance(error, DeploymentError) else 1
    return 0


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises AddressTaken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise AddressTaken(
            f"Cannot listen on {host}:{port} ({error.strerror}); stop what listens there or choose another --port."
        ) from error
    return listener


class _Server(uvicorn.Server):
    """A server that leaves the signals to us: the fleet must hear of the end before the listener closes."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: ShimSettings, engine: ReferenceEngine, listener: socket.socket) -> None:
    """The shim serves until it is told to stop, then drains."""
    port = listener.getsockname()[1]
    kitchen = await open_kitchen(settings, engine, port)
    app = build_app(
        kitchen.driver, side_channel=side_channel(kitchen.driver, Seal(settings.deployment_key)), settings=settings
    )
    config = uvicorn.Config(app, http="httptools", log_level="warning", access_log=False, lifespan="off")
    config.timeout_keep_alive = settings.keep_alive_s
    server = _Server(config)
    stop = asyncio.Event()
    for wanted in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(wanted, stop.set)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if kitchen.membership is not None:
        await kitchen.membership.join()
    instance = kitchen.driver.instance
    ready = {"ready": True, "url": instance.url, "instance_id": instance.instance_id, "pid": os.getpid()}
    print(json.dumps(ready), flush=True)  # noqa: T201 - the line that a supervisor waits for
    await stop.wait()
    await kitchen.aclose(settings.drain_for_s)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # UCX may abort in its destructors when a peer has died before us; everything of ours is closed by here.
    os._exit(status)
