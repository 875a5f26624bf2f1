"""Lua scripts: their text and how to run them. Lua gets the JOIN table as text that is made from Python's."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, ReadOnlyError

from router.contract.rendezvous import JOIN
from router.store.connection import StoreClient, reconnect, store_errors


class Script:
    """One script, run by digest; a server that has never seen it, or has forgotten it, is taught on the spot."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()

    # Any: a Lua reply is whatever the script returns; each caller knows its own script.
    async def run(self, redis: StoreClient, keys: tuple[str | bytes, ...], *args: str | bytes | int) -> Any:  # noqa: ANN401
        """What the script returns. Raises StoreDown."""
        with store_errors():
            try:
                return await self._run(redis, keys, args)
            except ReadOnlyError:
                # A demoted primary keeps its connections; only a new one finds the server that took over.
                await reconnect(redis)
                raise

    # Any: as in run.
    async def _run(self, redis: StoreClient, keys: tuple[str | bytes, ...], args: tuple[str | bytes | int, ...]) -> Any:  # noqa: ANN401
        try:
            return await redis.evalsha(self.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await redis.eval(self.text, len(keys), *keys, *args)


def read_script(*names: str) -> Script:
    """The script made of these files of `lua/`, one after the other."""
    folder = files("router.store") / "lua"
    return Script("\n".join((folder / f"{name}.lua").read_text() for name in names))


def read_join_script(name: str) -> Script:
    """A script that walks JOIN: the table, the clock, the walk, then the file `name`."""
    return Script(join_table() + read_script("clock", "walk", name).text)


def join_table() -> str:
    """The JOIN table as Lua text: `JOIN["STATE Arrival"] = {next state, effects joined by commas}`."""
    rows = (
        f'["{before} {arrival}"]={{"{after}","{",".join(effects)}"}}'
        for (before, arrival), (after, effects) in JOIN.items()
    )
    return f"local JOIN = {{{','.join(rows)}}}\n"
