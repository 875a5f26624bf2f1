"""A prefill and a decode vLLM, stock or with our shim, spoken to leg by leg as a router would, without one.

Nothing here depends on what is said, only on whether an answer comes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from router.cli.local_fleet import free_port
from router.contract import wire
from router.contract.ids import EngineId, TransferId
from router.contract.instance import KVIdentity, Mode
from tests.support.vllm_processes import VllmVictim, vllm_argv
from tests.support.vllm_shims import shim_argv

HOST = "127.0.0.1"
PATH = "/v1/completions"
SHIM_FLAGS = "--kv-wait-for-s 12 --lease-for-s 6 --seat-wait-for-s 14 --drain-for-s 200"
STOCK_EXTRA = {"num_threads": 1, "kv_lease_duration": 6, "push_registration_timeout": 10}
"""As short as the shim's, where there is such a thing."""
ACROSS = {"UCX_TLS": "tcp"}
"""As between two hosts: a WRITE needs its target's process, which shared memory does not."""
START_S = 900.0
PATIENCE_S = 30.0
"""More than twice what the shim gives a KV cache that does not come."""
TOTAL_BLOCKS = 63.0
numbers = itertools.count(1)


@dataclass
class VllmPair:
    """Both run and serve."""

    prefill: VllmVictim
    decode: VllmVictim
    stock: bool
    client: httpx.AsyncClient
    identity: dict[str, object] = field(default_factory=dict)
    """What a decode leg is told of prefill."""

    def fresh_id(self) -> str:
        return f"hole-{next(numbers)}-{time.time_ns()}-x.1"

    async def prefill_leg(
        self, transfer_id: str, prompt: list[int], request_id: str = "", **more: object
    ) -> httpx.Response:
        body = self._body(prompt, 1) | {"kv_transfer_params": wire.prefill_params(TransferId(transfer_id))} | more
        return await self._post(self.prefill, request_id or transfer_id, body)

    async def decode_leg(
        self, transfer_id: str, prompt: list[int], for_s: float = 30.0, request_id: str = "", **changes: object
    ) -> httpx.Response:
        """Raises httpx.ReadTimeout after `for_s`: the router's patience. A change to None leaves a field out."""
        params = self.identity | {"remote_request_id": transfer_id, "transfer_id": transfer_id} | changes
        params = {name: value for name, value in params.items() if value is not None}
        body = self._body(prompt, 4) | {"kv_transfer_params": params}
        return await self._post(self.decode, request_id or transfer_id, body, for_s)

    async def plain(self, victim: VllmVictim, prompt: list[int]) -> httpx.Response:
        return await self._post(victim, self.fresh_id(), self._body(prompt, 4))

    async def serves(self) -> None:
        """A usual push comes through; a busy machine may take too long for the short waits once or twice."""
        seen: list[str] = []
        for _ in range(3):
            transfer_id, prompt = self.fresh_id(), self.prompt()
            legs = await asyncio.gather(self.prefill_leg(transfer_id, prompt), self.decode_leg(transfer_id, prompt))
            if [leg.status_code for leg in legs] == [200, 200]:
                return
            seen += [leg.text[:300] for leg in legs]
        raise AssertionError("\n".join(seen))

    def prompt(self, num_tokens: int = 300) -> list[int]:
        """A prompt of its own, so that no prefix cache has it."""
        seed = next(numbers)
        return [10 + (seed * 7919 + place * 31) % 900 for place in range(num_tokens)]

    async def blocks_held(self, victim: VllmVictim) -> int:
        """Blocks of the cache that are in use."""
        return round(await self.metric(victim, "vllm:kv_cache_usage_perc") * TOTAL_BLOCKS)

    async def parked(self, victim: VllmVictim) -> None:
        """It has a request that waits for its KV cache, and prefill has had time to hear of it."""
        async with asyncio.timeout(60):
            while not await self.metric(victim, "vllm:num_requests_waiting"):
                await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)

    async def metric(self, victim: VllmVictim, name: str) -> float:
        """Of one series, or the first of several."""
        async with asyncio.timeout(60):
            while True:  # a shim whose vLLM is slow to answer tells its own only
                text = (await self.client.get(f"{victim.url}/metrics")).text
                lines = [line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] == name]
                if lines:
                    return float(lines[0].rpartition(" ")[2])
                await asyncio.sleep(0.2)

    async def released(self, victim: VllmVictim, within_s: float) -> bool:
        """All blocks have come back."""
        ends_at = time.monotonic() + within_s
        while await self.blocks_held(victim):
            if time.monotonic() > ends_at:
                return False
            await asyncio.sleep(0.2)
        return True

    async def meet(self) -> None:
        """Decode is told who prefill is, from now on."""
        if not self.stock:
            told = (await self.client.get(f"{self.prefill.url}/kv/instance")).json()["instance"]["kv"]
            kv = KVIdentity(
                EngineId(told["engine_id"]),
                told["side_channel_host"],
                told["side_channel_port"],
                None,
                "",
                (Mode.PUSH,),
            )
            self.identity = wire.push_params(TransferId("t"), kv)
            return
        answer = (await self.prefill_leg(self.fresh_id(), self.prompt())).json()["kv_transfer_params"]
        kept = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "pp_size")
        self.identity = {"do_remote_prefill": True, "do_remote_decode": False} | {name: answer[name] for name in kept}

    async def wait_well(self, victim: VllmVictim) -> None:
        ends_at = time.monotonic() + START_S
        while True:
            try:
                if (await self.client.get(f"{victim.url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert victim.runs, f"{victim.name} has ended:\n{victim.tail(40)}"
            assert time.monotonic() < ends_at, f"{victim.name} does not serve:\n{victim.tail(40)}"
            await asyncio.sleep(0.5)

    def _body(self, prompt: list[int], max_tokens: int) -> dict[str, object]:
        return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}

    async def _post(
        self, victim: VllmVictim, request_id: str, body: dict[str, object], for_s: float = 60.0
    ) -> httpx.Response:
        headers = {"x-request-id": request_id}
        return await self.client.post(victim.url + PATH, json=body, headers=headers, timeout=for_s)


@contextmanager
def frozen(*processes: psutil.Process) -> Iterator[None]:
    """These stand still, each of which may have children that run on."""
    for one in processes:
        one.suspend()
    try:
        yield
    finally:
        for one in processes:
            one.resume()


@asynccontextmanager
async def open_pair(folder: Path, *, stock: bool) -> AsyncIterator[VllmPair]:
    """Started together; gone when the block ends."""
    victims = []
    for role in ("prefill", "decode"):
        port = free_port(HOST)
        argv = _stock_argv(port, role) if stock else shim_argv(port, role, SHIM_FLAGS)
        victim = VllmVictim(role, role, f"http://{HOST}:{port}", argv, folder / f"{role}.log")
        victim.side_port, victim.env = free_port(HOST), ACROSS
        victims.append(victim)
    async with httpx.AsyncClient(timeout=30.0, trust_env=False) as client:
        pair = VllmPair(victims[0], victims[1], stock, client)
        try:
            for victim in victims:
                victim.start()
            for victim in victims:
                await pair.wait_well(victim)
            await pair.meet()
            yield pair
        finally:
            for victim in victims:
                victim.stop()


def _stock_argv(port: int, role: str) -> tuple[str, ...]:
    argv = list(vllm_argv(port, role, "push"))
    at = argv.index("--kv-transfer-config") + 1
    argv[at] = json.dumps(json.loads(argv[at]) | {"kv_connector_extra_config": STOCK_EXTRA})
    return tuple(argv)


async def hangs(pair: VllmPair, transfer_id: str, prompt: list[int]) -> bool:
    try:
        await pair.decode_leg(transfer_id, prompt, PATIENCE_S)
    except httpx.ReadTimeout:
        return True
    return False


@asynccontextmanager
async def calls_of_mute_peers(pair: VllmPair, num_peers: int = 3) -> AsyncIterator[list[int]]:
    """All the time decode has legs whose prefills take calls and never say anything; the statuses that came of them."""
    statuses: list[int] = []

    async def call_again_and_again(port: int) -> None:
        while True:
            peer = {"remote_engine_id": f"mute-{port}", "remote_port": port}
            answer = await pair.decode_leg(pair.fresh_id(), pair.prompt(), 120.0, **peer)
            statuses.append(answer.status_code)

    with ExitStack() as stack:
        doors = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(num_peers)]
        calling = [asyncio.create_task(call_again_and_again(door.getsockname()[1])) for door in doors]
        await asyncio.sleep(0.5)
        try:
            yield statuses
        finally:
            for one in calling:
                one.cancel()
            await asyncio.wait(calling)


def family_of(victim: VllmVictim) -> list[psutil.Process]:
    """It and all of its processes."""
    first = psutil.Process(victim.pid)
    return [first, *first.children(recursive=True)]


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


async def ended(victim: VllmVictim) -> None:
    async with asyncio.timeout(240):
        while victim.runs:
            await asyncio.sleep(0.2)


def lives(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def all_gone(family: list[psutil.Process], within_s: float = 30.0) -> bool:
    """Zombies hold nothing; whether somebody collects them is not our business."""
    ends_at = time.monotonic() + within_s
    while any(map(lives, family)):
        if time.monotonic() > ends_at:
            return False
        await asyncio.sleep(0.2)
    return True
