"""`tandem story`: what routers and engines put down about one request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import datetime

import msgspec

from router.cli.flags import new_parser
from router.cli.running import find_running
from router.contract.errors import BadSettings
from router.contract.ids import RequestId, TransferId, request_of
from router.contract.ledger import StoryLine
from router.store.connection import connect
from router.store.ledger import Ledger

_STORE_VARIABLE = "TANDEM_STORE"
_NAMESPACE_VARIABLE = "TANDEM_NAMESPACE"


def main(argv: Sequence[str]) -> int:
    """Print the Story of a request, or of the request that an attempt belongs to; return 1 when there is none.

    Raises:
        BadSettings: no store is given and none can be found.
        StoreDown: the store does not answer.
    """
    parser = new_parser("story", "Print what happened to one request, all its attempts included.")
    parser.add_argument("request_id", help="the X-Request-Id of the answer, such as req-0123...")
    parser.add_argument(
        "--store", metavar="URL", help=f"without it, {_STORE_VARIABLE}, or the 'tandem up' of this folder"
    )
    namespace = os.environ.get(_NAMESPACE_VARIABLE, "tandem")
    about = f"prefix of all keys in the store; without it {_NAMESPACE_VARIABLE}, or tandem"
    parser.add_argument("--namespace", default=namespace, help=about)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    request_id, _ = request_of(TransferId(options.request_id))
    lines = asyncio.run(_read(_store_url(options.store), options.namespace, request_id))
    if options.json:
        print(msgspec.json.format(msgspec.json.encode({"request_id": request_id, "story": lines})).decode())
    elif lines:
        print(f"{request_id}\n{as_text(lines)}")
    else:
        print(f"{request_id}: the store knows nothing of it; a Story is kept for an hour after its end.")
    return 0 if lines else 1


def as_text(lines: Sequence[StoryLine]) -> str:
    """Return one line of text for each of `lines`: local time, seconds since the first, attempt, writer, what."""
    writer_chars = max(len(line.writer) for line in lines)
    stage_chars = max(len(line.stage) for line in lines)
    return "\n".join(
        f"  {_clock(line.at_s)}  {line.at_s - lines[0].at_s:+8.3f} s  {line.attempt}  "
        f"{line.writer:<{writer_chars}}  {line.stage:<{stage_chars}}  {_words(line)}".rstrip()
        for line in lines
    )


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().strftime("%H:%M:%S.%f")[:-3]


def _words(line: StoryLine) -> str:
    moved = "" if line.before is None else f"{line.before} -> {line.after}"
    ordered = f"[{', '.join(line.effects)}]" if line.effects else ""
    return " ".join(word for word in (moved, ordered, line.note) if word)


def _store_url(given: str | None) -> str:
    url = given or os.environ.get(_STORE_VARIABLE)
    if url:
        return url
    running = find_running()
    if running is None:
        raise BadSettings("No store is known: give --store redis://HOST:PORT, or run this where 'tandem up' runs.")
    return running.store


async def _read(url: str, namespace: str, request_id: RequestId) -> tuple[StoryLine, ...]:
    redis = connect(url)
    try:
        return await Ledger(redis, namespace, "story").story(request_id)
    finally:
        await redis.aclose()
