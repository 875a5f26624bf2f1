"""Watching: the last requests, one request with its Story, and the page that draws both and the fleet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
from fastapi import FastAPI, Response

from router.contract.errors import RouteUnknown, StoreError
from router.contract.ids import RequestId, TransferId, request_of
from router.contract.ledger import StoryLine
from router.observe.recent import Records

ReadStory = Callable[[RequestId], Awaitable[Sequence[StoryLine]]]

MAX_SHOWN = 500
_JSON = "application/json"
_PAGE = {
    "": ("index.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "timeline.js": ("timeline.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
_PAGE_HEADERS = {
    # Nothing but our own files may be loaded, and nothing that a name or id holds may ever run.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page reads."""

    records: Records
    story: ReadStory | None
    """Reads a request's Story from the store; None without a store."""


def add_watching(app: FastAPI, shown: Shown) -> None:
    """The application serves `/admin/requests` and `/ui`."""

    @app.get("/admin/requests")
    async def requests(limit: int = 100, failed: bool = False) -> Response:
        """The last finished requests, the newest first; with `failed` those that were not served."""
        records = await shown.records.newest(max(1, min(limit, MAX_SHOWN)), failed_only=failed)
        return Response(msgspec.json.encode({"requests": records}), media_type=_JSON)

    @app.get("/admin/requests/{request_id:path}")
    async def request(request_id: str) -> Response:
        """One request, by the X-Request-Id of its answer: its record, if it ended here of late, and its Story."""
        record = await shown.records.find(request_id)
        ours, _ = request_of(TransferId(record.request_id if record is not None else request_id))
        story, degraded = await _read_story(shown.story, ours)
        if record is None and not story and not degraded:
            raise RouteUnknown("No such request ended here of late, and the store has no Story of it.")
        told = {"record": record, "story": story, "degraded": degraded}
        return Response(msgspec.json.encode(told), media_type=_JSON)

    @app.get("/ui", include_in_schema=False)
    @app.get("/ui/{name}", include_in_schema=False)
    async def page(name: str = "") -> Response:
        """The page and what it is made of."""
        if name not in _PAGE:
            raise RouteUnknown("The page is /ui; there is nothing else below it.")
        file, kind = _PAGE[name]
        return Response(_read_file(file), media_type=f"{kind}; charset=utf-8", headers=_PAGE_HEADERS)


async def _read_story(read: ReadStory | None, request_id: RequestId) -> tuple[Sequence[StoryLine], bool]:
    """The Story, and whether there may be one that the store does not tell at the moment."""
    if read is None:
        return (), False
    try:
        return await read(request_id), False
    except StoreError:
        return (), True


@cache
def _read_file(name: str) -> bytes:
    return files("router.ui").joinpath(name).read_bytes()
