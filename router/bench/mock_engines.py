"""`tandem bench mock`: a prefill and a decode engine that compute nothing, answer as told, and fail as told.

They speak the contract of Tandem's shims on real sockets, so a router can be tried in front of them: point it at the
two URLs that are printed, or at the same store. Who is first at the rendezvous is a matter of the delays: with
`--prefill-delay-s 0.5` decode's answer begins before prefill has answered, with `--decode-delay-s 0.5` after it.

Faults, of either engine, each once the request has been read:

  refuse        answer --status            close    close without a byte of an answer
  hang          never answer               cut      close in the middle, after --fault-after events
  stall         go silent, likewise        no_end   end the stream likewise, without [DONE]
  garbage       answer what is no HTTP     empty    answer 200 with nothing
  no_hand_over  prefill hands nothing over

`--fault-times 1` makes an engine well again after one. Both end when standard input closes, or by Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import sys
from collections.abc import Mapping, Sequence

import uvloop

from router.bench.mock_behaviour import Behaviour, Fault
from router.bench.mock_engine import MockEngine
from router.cli.flags import port_number
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


async def serve(store: str, namespace: str, behaviours: Mapping[Role, Behaviour], ports: Mapping[Role, int]) -> None:
    """The engines answer, are in the store if there is one, and their URLs are on standard output."""
    engines = [MockEngine(role, role.value, behaviour=one, records=False) for role, one in behaviours.items()]
    urls = {engine.role.value: await engine.start(ports.get(engine.role, 0)) for engine in engines}
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


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until standard input closes."""
    given = _parser().parse_args(argv)
    behaviours = {role: _behaviour(given, role.value) for role in (Role.PREFILL, Role.DECODE)}
    ports = {Role.PREFILL: given.prefill_port, Role.DECODE: given.decode_port}
    uvloop.run(serve(given.store, given.namespace, behaviours, ports))
    return 0


def _behaviour(given: argparse.Namespace, role: str) -> Behaviour:
    return Behaviour(
        delay_s=getattr(given, f"{role}_delay_s"),
        gap_s=given.gap_s,
        num_events=given.events,
        event=EVENT,
        answer=ANSWER,
        fault=Fault(getattr(given, f"{role}_fault")),
        fault_after=given.fault_after,
        times=given.fault_times,
        status=given.status,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem bench mock", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = functools.partial(parser.add_argument, metavar="X")
    add("--store", default="", help="URL of the store to register in (default: none)")
    add("--namespace", default="tandem", help="prefix of all keys in the store (default: %(default)s)")
    add("--events", type=int, default=128, help="events of a stream (default: %(default)s)")
    add("--gap-s", type=float, default=0.02, help="seconds between two events of a stream (default: %(default)s)")
    for role in ("prefill", "decode"):
        add(f"--{role}-port", type=port_number, default=0, help="0: a free one (default: %(default)s)")
        add(f"--{role}-delay-s", type=float, default=0.0, help="before its answer begins (default: %(default)s)")
        add(f"--{role}-fault", choices=list(Fault), default=Fault.NONE.value, help="see above (default: %(default)s)")
    add("--fault-after", type=int, default=0, help="events before a cut, stall or no_end (default: %(default)s)")
    add("--fault-times", type=int, default=-1, help="faults before it is well again; -1: always (default: -1)")
    add("--status", type=int, default=500, help="of a refusal (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
