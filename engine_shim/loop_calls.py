"""From a thread back to the event loop, without caring whether the loop still runs."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from typing import TypeVar

from router.contract.errors import TandemError

T = TypeVar("T")


def call_on_loop(loop: AbstractEventLoop, call: Callable[[], None]) -> None:
    """`call` runs on the loop soon; when the loop has closed, nobody is left to hear it and nothing happens."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return


def settle_on_loop(loop: AbstractEventLoop, future: Future[T], result: T | TandemError) -> None:
    """The future is settled on its loop, unless its waiter has gone."""

    def settle() -> None:
        if future.done():
            return
        if isinstance(result, TandemError):
            future.set_exception(result)
        else:
            future.set_result(result)

    call_on_loop(loop, settle)
