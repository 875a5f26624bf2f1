"""Background: what runs beside the requests of one process, of which nothing may die unnoticed.

A router whose fleet is watched no more, or whose tickets nobody writes, still answers and is no router. So the first
death ends the process, in the order of SIGTERM; whoever started it starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence

from router.contract.errors import DeploymentError, Impossible, TandemError

LOG = logging.getLogger("tandem.router")

CANCEL_AGAIN_S = 0.5


class Background:
    """Tasks of one event loop."""

    def __init__(self) -> None:
        self.failure: TandemError | None = None
        """Why the process must end."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called with the first death."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, name: str, work: Coroutine[None, None, None]) -> None:
        """`work` runs; it may end by itself, but not by an error."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._live(name, work)))

    async def _live(self, name: str, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001 - the boundary of all tasks, logged by `fail`
            self.fail(name, error)

    def fail(self, name: str, error: Exception) -> None:
        """`name` has died of `error`: the process ends."""
        LOG.critical("this router ends, since its %s has failed", name, exc_info=error)
        if self.failure is None:
            text = f"The {name} of the router has failed ({type(error).__name__}); the lines above say why."
            self.failure = error if isinstance(error, DeploymentError) else Impossible(text)
            self.on_failure()

    async def end(self) -> None:
        """Nothing runs any more."""
        await end_all(self._tasks)


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """All have ended. The store's client sends under `asyncio.wait_for`, which until Python 3.12 forgets a cancellation
    that meets the end of what it waits for: so it is said until it is heard.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
