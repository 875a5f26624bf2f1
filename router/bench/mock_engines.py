"""`python -m router.bench.mock_engines`: a prefill and a decode mock in one process, until standard input closes."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

import uvloop

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from router.store.connection import connect
from router.store.fleet import FleetStore

LEASE_S = 3600.0
"""A benchmark is over before; mocks send no heartbeats that would cost somebody time."""

EVENT = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}'
)
ANSWER = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"m","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"' + b"word " * 60 + b'"},"logprobs":null,'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":200,"completion_tokens":60,"total_tokens":260}}'
)


async def serve(store: str, namespace: str, behaviour: Behaviour) -> None:
    """Both engines answer, are in the store if there is one, and their URLs are on standard output."""
    engines = [MockEngine(role, role.value, behaviour=behaviour, records=False) for role in (Role.PREFILL, Role.DECODE)]
    urls = {engine.role.value: await engine.start() for engine in engines}
    if store:
        redis = connect(store)
        fleet = FleetStore(redis, namespace)
        for engine in engines:
            await fleet.register(engine.instance, LEASE_S)
        await redis.aclose()
    sys.stdout.write(json.dumps({"ready": True, **urls}) + "\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for engine in engines:
        await engine.stop()


def main() -> int:
    """Serve until standard input closes."""
    parser = argparse.ArgumentParser(prog="python -m router.bench.mock_engines", description=__doc__)
    parser.add_argument("--store", default="", help="URL of the store to register in")
    parser.add_argument("--namespace", default="tandem", help="prefix of all keys in the store")
    parser.add_argument("--events", type=int, default=128, help="events of a stream")
    parser.add_argument("--gap-s", type=float, default=0.02, help="seconds between two events of a stream")
    given = parser.parse_args()
    behaviour = Behaviour(num_events=given.events, gap_s=given.gap_s, event=EVENT, answer=ANSWER)
    uvloop.run(serve(given.store, given.namespace, behaviour))
    return 0


if __name__ == "__main__":
    sys.exit(main())
