"""The load of a chaos run: greedy requests whose right answer is known, and a judgement on what came back."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from router.bench.connection import Client, Exchange, Target
from router.contract.errors import LegBroken, LegTimeout, LegUnreachable
from tests.support.chaos_process import Victim
from tests.support.tiny_models import ask, generate, prompt_of, tiny_engine

MODEL = "tiny"
DEADLINE_S = 15.0
"""What each request asks for."""
GRACE_S = 3.0
"""A request without an end so long after its deadline hangs."""


class Verdict(StrEnum):
    """What became of a request."""

    SERVED = "served"
    REFUSED = "refused"
    """An error status with OpenAI's envelope."""
    BROKEN_OFF = "broken off"
    """Right tokens, then an error event and no [DONE]."""
    CUT = "cut"
    """Right tokens or none, then a closed connection, where nothing more could be said: the router was killed, or an
    answer that is not streamed broke in its middle."""
    UNREACHABLE = "unreachable"
    """The router was down."""
    LEFT = "left"
    """Our client went away on purpose."""
    BLAMED = "BLAMED"
    """A 4xx, though there was nothing wrong with the request."""
    WRONG = "WRONG"
    HUNG = "HUNG"


BAD = (Verdict.BLAMED, Verdict.WRONG, Verdict.HUNG)


@dataclass(frozen=True)
class Case:
    """A prompt and its greedy answer by one monolithic engine."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def cases(num_cases: int = 24, seed: int = 5) -> list[Case]:
    """Prompts of 1 to 440 tokens with answers of 4 to 40; invariant numerics make the answers exact."""
    rng = random.Random(seed)
    engine = tiny_engine()
    lengths = [1, 2, 16, 17] + [rng.randint(20, 440) for _ in range(num_cases - 4)]
    made = []
    for number, length in enumerate(lengths):
        prompt = prompt_of(length, seed=seed * 1000 + number)
        (answer,) = generate(engine, ask(str(number), prompt, max_tokens=rng.randint(4, 40)))
        made.append(Case(prompt, tuple(answer)))
    return made


@dataclass
class Result:
    """One request that is over."""

    request_id: str
    router: str
    case: Case
    stream: bool
    sent_at: float
    """Monotonic seconds."""
    ended_at: float = 0.0
    verdict: Verdict = Verdict.SERVED
    why: str = ""
    """Error code, or what is wrong."""


@dataclass
class Reading:
    """What came back, piece by piece."""

    stream: bool
    raw: bytearray = field(default_factory=bytearray)

    def events(self) -> Iterator[str]:
        """Payloads of whole events."""
        for block in self.raw.decode(errors="replace").split("\n\n")[:-1]:
            if said := [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]:
                yield "".join(said)

    def tokens(self) -> tuple[list[int], str, bool]:
        """Token ids so far, the code of an error event or empty, and whether [DONE] came."""
        tokens: list[int] = []
        error, done = "", False
        for payload in self.events():
            if payload == "[DONE]":
                done = True
                continue
            said = json.loads(payload)
            if "error" in said:
                error = str(said["error"]["code"])
                continue
            tokens += [token for choice in said["choices"] for token in choice["token_ids"]]
        return tokens, error, done


def judge(result: Result, reading: Reading, status: int, ended: str) -> tuple[Verdict, str]:
    """The verdict on an answer. `ended` is `whole`, or `cut` for a connection that closed before."""
    expected = list(result.case.answer)
    if status == 200 and result.stream:
        return _judge_stream(reading, expected)
    if ended == "cut":
        return Verdict.CUT, f"status {status}, {len(reading.raw)} bytes"
    try:
        said = json.loads(reading.raw)
        if status == 200:
            tokens = said["choices"][0]["token_ids"]
            return (Verdict.SERVED, "") if tokens == expected else (Verdict.WRONG, f"tokens {tokens}, not {expected}")
        error = said["error"]
        return (Verdict.REFUSED, str(error["code"])) if status >= 500 else (Verdict.BLAMED, str(error))
    except (ValueError, KeyError, IndexError) as error:
        return Verdict.WRONG, f"status {status} with {bytes(reading.raw[:200])!r} ({error!r})"


def _judge_stream(reading: Reading, expected: list[int]) -> tuple[Verdict, str]:
    try:
        tokens, error, done = reading.tokens()
    except (ValueError, KeyError) as strange:
        return Verdict.WRONG, f"a stream with {bytes(reading.raw[-200:])!r} ({strange!r})"
    if tokens != expected[: len(tokens)]:
        return Verdict.WRONG, f"tokens {tokens} are not the beginning of {expected}"
    if done and (error or tokens != expected):
        return Verdict.WRONG, f"[DONE] after {len(tokens)} of {len(expected)} tokens, error {error!r}"
    if done:
        return Verdict.SERVED, ""
    return (Verdict.BROKEN_OFF, error) if error else (Verdict.CUT, f"after {len(tokens)} tokens")


class ChaosLoad:
    """A closed loop of seeded requests through all routers."""

    def __init__(self, routers: list[Victim], made: list[Case], seed: int) -> None:
        self._routers = routers
        self._cases = made
        self._rng = random.Random(seed)
        self._clients = {router.name: Client(Target.parse(router.url)) for router in routers}
        self._numbers = iter(range(1_000_000))
        self.results: list[Result] = []

    @property
    def num_done(self) -> int:
        """Requests that reached a router."""
        return sum(result.verdict is not Verdict.UNREACHABLE for result in self.results)

    async def run(self, num_requests: int, num_clients: int, per_s: float) -> None:
        """`num_requests` requests have ended, at most `num_clients` at a time and `per_s` a second."""
        budget = iter(range(num_requests))
        began_at = time.monotonic()

        async def client() -> None:
            for number in budget:
                await asyncio.sleep(began_at + number / per_s - time.monotonic())
                while (await self.send()).verdict is Verdict.UNREACHABLE:
                    await asyncio.sleep(0.2)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(num_clients):
                tasks.create_task(client())

    async def send(self, router: Victim | None = None, *, leaving: float = 0.05) -> Result:
        """One request has ended and is judged."""
        rng = self._rng
        router = router or rng.choice(self._routers)
        leaves_after_s = rng.choice((0.0, 0.01, 0.05, 0.2)) if rng.random() < leaving else None
        result = Result(
            f"chaos-{next(self._numbers)}", router.name, rng.choice(self._cases), rng.random() < 0.6, time.monotonic()
        )
        reading = Reading(result.stream)
        exchange = Exchange(_request(router, result), reading.raw.extend)
        patience_s = DEADLINE_S + GRACE_S if leaves_after_s is None else leaves_after_s
        ended = "whole"
        try:
            await self._clients[router.name].perform(exchange, patience_s)
        except LegUnreachable:
            result.verdict = Verdict.UNREACHABLE
        except LegBroken:
            ended = "cut"
        except LegTimeout:
            result.verdict, result.why = Verdict.HUNG, f"status {exchange.status}, {bytes(reading.raw[-80:])!r}"
            if leaves_after_s is not None:
                result.verdict, result.why = Verdict.LEFT, ""
        result.ended_at = time.monotonic()
        if result.verdict is Verdict.SERVED:
            result.verdict, result.why = judge(result, reading, exchange.status, ended)
            self._doubt_cut(result, router)
        self.results.append(result)
        return result

    def _doubt_cut(self, result: Result, router: Victim) -> None:
        """A stream may be cut without an error event only by the death of its router."""
        killed = any(result.sent_at <= at <= result.ended_at + 5 for at in router.starts) or not router.runs
        # One that is told to end closes its idle connections, also one on which a request has just left.
        killed = killed or (not router.is_well and result.why.startswith("status 0"))
        if result.verdict is Verdict.CUT and result.stream and not killed:
            result.verdict, result.why = Verdict.WRONG, f"a stream was cut without an error event, {result.why}"

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


def _request(router: Victim, result: Result) -> bytes:
    wanted = {
        "model": MODEL,
        "prompt": list(result.case.prompt),
        "max_tokens": len(result.case.answer),
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": result.stream,
    }
    body = json.dumps(wanted).encode()
    host = router.url.removeprefix("http://")
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nX-Request-Id: {result.request_id}\r\n"
        f"X-Request-Timeout-Ms: {int(DEADLINE_S * 1000)}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
