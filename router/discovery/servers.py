"""Servers: a source of the fleet made of listings, each of which names the servers that are to be asked.

Every server is looked at by a task of its own, so one that hangs holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from router.contract.errors import BadSettings
from router.contract.instance import Instance
from router.discovery.entry import Entry
from router.discovery.server import FoundSighting, MakePool, Server

LOG = logging.getLogger("tandem.router")

FIRST_S = 2.5
"""Seconds that the first snapshot waits for servers that do not answer."""


class Listing(Protocol):
    """Names servers."""

    @property
    def bad(self) -> bool:
        """True while the list cannot be read and what it last said is used."""

    def entries(self) -> Sequence[Entry]:
        """Those that may be part of the fleet now."""

    async def follow(self) -> None:
        """The list is kept fresh, until cancelled; returns when there is nothing to follow."""


class Listed:
    """Servers that were given once and for all."""

    bad = False

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._entries = tuple(entries)

    def entries(self) -> Sequence[Entry]:
        """All of them."""
        return self._entries

    async def follow(self) -> None:
        """They do not change."""


class Servers:
    """Looks at every server of its listings, from the first snapshot until `aclose`."""

    def __init__(self, listings: Sequence[Listing], make_pool: MakePool) -> None:
        self._listings = listings
        self._make_pool = make_pool
        self._running: dict[Entry, tuple[Server, asyncio.Task[None]]] = {}
        """By what is asked of a server; marks beside it may change while it runs."""
        self._refused: dict[Entry, str] = {}
        """Those that cannot be called, and why."""
        self._following: list[asyncio.Task[None]] = []
        self._waited = False

    @property
    def num_bad(self) -> int:
        """Listings that cannot be read now."""
        return sum(listing.bad for listing in self._listings)

    @property
    def num_refused(self) -> int:
        """Servers that are listed and may not be called."""
        return len(self._refused)

    async def snapshot(self) -> tuple[FoundSighting, ...]:
        """Every instance that counts now. Only the first call waits, at most FIRST_S seconds, for first answers."""
        if not self._following:
            loop = asyncio.get_running_loop()
            self._following = [loop.create_task(listing.follow()) for listing in self._listings]
        self._follow_listings()
        if not self._waited and self._running:
            self._waited = True
            looks = [asyncio.ensure_future(server.looked.wait()) for server, _ in self._running.values()]
            _, late = await asyncio.wait(looks, timeout=FIRST_S)
            for look in late:
                look.cancel()
        return self.seen()

    def seen(self) -> tuple[FoundSighting, ...]:
        """What is known now."""
        now = monotonic()
        return tuple(sighting for server, _ in self._running.values() for sighting in server.sightings(now))

    def relearn(self, instance: Instance, answer: bytes) -> bool:
        """True when `answer`, to a prefill, shows that `instance` is another start now; `seen` tells of it."""
        owners = [server for server, _ in self._running.values() if server.entry.url == instance.url]
        return any([server.relearn(instance, answer) for server in owners])

    def _follow_listings(self) -> None:
        wanted: dict[str, Entry] = {}
        for listing in self._listings:
            for entry in listing.entries():
                wanted.setdefault(entry.url, entry)
        by_question = {entry.unmarked: entry for entry in wanted.values()}
        for question in [question for question in self._running if question not in by_question]:
            self._running.pop(question)[1].cancel()
        for question, entry in by_question.items():
            if question in self._running:
                self._running[question][0].entry = entry
            else:
                self._start(question, entry)
        self._refused = {question: why for question, why in self._refused.items() if question in by_question}

    def _start(self, question: Entry, entry: Entry) -> None:
        try:
            server = Server(entry, self._make_pool)
        except BadSettings as error:
            if question not in self._refused:
                LOG.error("engine %r is left out: %s", entry.url, error.message)  # noqa: TRY400 - that says it all
            self._refused[question] = error.message
            return
        self._running[question] = server, asyncio.get_running_loop().create_task(server.run())

    async def aclose(self) -> None:
        """Nobody is looked at any more."""
        tasks = [*self._following, *(task for _, task in self._running.values())]
        self._running = {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
