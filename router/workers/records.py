"""The last finished requests of all workers, whichever of them is asked.

Each worker answers the others on a socket in the folder that they share. Nothing is done until somebody looks, and who
does not answer in time, because it is dead, stopped or new, is left out: its requests are gone, or come with the next
look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from router.core.record import Record
from router.observe.recent import OwnRecords, newest_of
from router.workers.figures import Place

LOG = logging.getLogger("tandem.router")
ANSWER_S = 1.0
"""The longest that one worker waits for the others."""
_MAX_QUESTION_BYTES = 4096


class Question(msgspec.Struct, gc=False):
    """What one worker asks another: one request by its id, or else the newest ones."""

    request_id: str = ""
    limit: int = 0
    failed_only: bool = False


_ENCODE = msgspec.msgpack.Encoder().encode
_QUESTION = msgspec.msgpack.Decoder(Question)
_RECORDS = msgspec.msgpack.Decoder(list[Record])


class SharedRecords:
    """See Records."""

    def __init__(self, own: OwnRecords, place: Place) -> None:
        self._own = own
        self._path = _socket_of(place, place.slot)
        self._others = [_socket_of(place, slot) for slot in range(place.size) if slot != place.slot]

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Inside, the other workers get this one's records."""
        self._path.unlink(missing_ok=True)  # of a worker that had this slot before
        server = await asyncio.start_unix_server(self._answer, self._path)
        try:
            yield
        finally:
            server.close()

    async def newest(self, limit: int, *, failed_only: bool = False) -> list[Record]:
        """See Records."""
        asked = await self._ask(Question(limit=limit, failed_only=failed_only))
        return newest_of([*await self._own.newest(limit, failed_only=failed_only), *asked])[:limit]

    async def find(self, request_id: str) -> Record | None:
        """See Records."""
        own = await self._own.find(request_id)
        found = [] if own is None else [own]
        return next(iter(newest_of([*found, *await self._ask(Question(request_id))])), None)

    async def _ask(self, question: Question) -> list[Record]:
        asked = await asyncio.gather(*(_ask(path, question) for path in self._others))
        return [record for records in asked for record in records]

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                question = _QUESTION.decode(await reader.read(_MAX_QUESTION_BYTES))
                writer.write(_ENCODE(await self._told(question)))
                writer.write_eof()
                await writer.drain()
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            LOG.warning("Another worker could not be told of requests: %s", error)
        finally:
            writer.close()

    async def _told(self, question: Question) -> list[Record]:
        if not question.request_id:
            return await self._own.newest(question.limit, failed_only=question.failed_only)
        found = await self._own.find(question.request_id)
        return [] if found is None else [found]


async def _ask(path: Path, question: Question) -> list[Record]:
    """The answer of the worker that listens at `path`; nothing when it does not answer in time."""
    writer = None
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(_ENCODE(question))
            return _RECORDS.decode(await reader.read())
    except (OSError, TimeoutError, msgspec.MsgspecError):
        return []
    finally:
        if writer is not None:
            writer.close()


def _socket_of(place: Place, slot: int) -> Path:
    return place.folder / f"records-{slot}"
