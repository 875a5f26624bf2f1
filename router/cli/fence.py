"""`tandem fence`: an operator says that an engine is dead which cannot prove it, because its node is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import httpx
import msgspec

from router.cli.admin import ask_fleet
from router.cli.flags import http_url, new_parser
from router.cli.running import find_running
from router.contract.errors import DeploymentError
from router.contract.seal import FENCE, KEY_VARIABLE, SEAL_HEADER, Seal

_DEFAULT_URL = "http://127.0.0.1:8000"
_ANSWER_FOR_S = 5.0
_WARNING = """
Only for a process that has ended for sure: engines then use the KV blocks again that it might still write, and one that
runs on and writes makes answers wrong. An engine that merely cannot be reached comes back by itself.
Exit status: 0 when every engine could be told and one of them had waited for it, 1 otherwise.
"""


class _Fenced(msgspec.Struct):
    fenced: list[str]


def main(argv: Sequence[str]) -> int:
    """Tell every engine that the router knows, and print what each makes of it.

    Raises:
        DeploymentError: the router does not answer.
        Unauthorized: it wants the key of its /admin.
    """
    parser = new_parser("fence", "Declare an engine dead whose node is lost, so that others stop waiting for it.")
    parser.epilog = _WARNING
    parser.add_argument(
        "engine", metavar="INSTANCE_ID[@EPOCH]", help="the lost engine; without an epoch, its lost starts"
    )
    without = f"without it that of the 'tandem up' of this folder, or {_DEFAULT_URL}"
    parser.add_argument("--url", type=http_url, help=f"a router; {without}")
    options = parser.parse_args(argv)
    running = find_running()
    url = options.url or (running.url if running else _DEFAULT_URL)
    key = os.environ.get(KEY_VARIABLE) or (running.deployment_key if running else "")
    told = asyncio.run(_tell(url.rstrip("/"), options.engine, Seal(key)))
    for name, sentence, _ in told:
        print(f"{name:<20} {sentence}")
    return 0 if any(fenced for _, _, fenced in told) and all(fenced is not None for _, _, fenced in told) else 1


_Told = tuple[str, str, int | None]
"""Instance, what it made of it, and how many starts it had waited for; None: it could not be told."""


async def _tell(url: str, engine: str, seal: Seal) -> list[_Told]:
    async with httpx.AsyncClient(timeout=_ANSWER_FOR_S, trust_env=False) as client:
        try:
            known = await ask_fleet(client, url)
        except (httpx.TransportError, ValueError, KeyError, TypeError) as error:
            raise DeploymentError(f"No router answers at {url} ({type(error).__name__}); correct --url.") from error
        others = sorted((name, where) for (name, _), where in known.items() if name != engine.partition("@")[0])
        return list(await asyncio.gather(*(_tell_one(client, one, engine, seal) for one in others)))


async def _tell_one(client: httpx.AsyncClient, whom: tuple[str, str], engine: str, seal: Seal) -> _Told:
    name, url = whom
    raw = msgspec.json.encode({"engine_id": engine})
    try:
        reply = await client.post(f"{url}/kv/fence", content=raw, headers={SEAL_HEADER: seal.header(FENCE, raw)})
    except httpx.TransportError as error:
        return name, f"does not answer ({type(error).__name__}); tell it again later", None
    if reply.status_code == httpx.codes.UNAUTHORIZED:
        return name, f"wants another key; set {KEY_VARIABLE} to the deployment's", None
    if reply.status_code != httpx.codes.OK:
        return name, f"keeps no KV cache for others (status {reply.status_code})", 0
    fenced = msgspec.json.decode(reply.content, type=_Fenced).fenced
    return name, f"waits no longer for {', '.join(fenced)}" if fenced else "has not waited for it", len(fenced)
