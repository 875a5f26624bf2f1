"""The processes of a chaos run: a store, two routers, two prefill and two decode engines of a tiny real checkpoint.

Everything listens on loopback. Each engine is reached through a SilentProxy at 127.0.0.2, and the store through one,
so that connections can be cut without a closed socket; KV cache moves directly.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from router.cli.local_fleet import free_port
from router.store.codec import decode_instance
from router.store.embedded import EmbeddedStore
from tests.support.chaos_load import MODEL
from tests.support.chaos_process import StoreVictim, Victim
from tests.support.chaos_proxy import SilentProxy
from tests.support.sentinels import WatchedPair, watched_pair
from tests.support.tiny_models import write_tiny_llama
from tests.support.victim_site import VictimSite

HOST, PROXIED = "127.0.0.1", "127.0.0.2"
LEASE_S = 2.0
"""Without a heartbeat for so long an engine is out of the fleet."""
ENGINE_FLAGS = (
    f"--engine reference --numerics invariant --threads 1 --model-name {MODEL} --kv-bytes 600000 --max-num-seqs 6 "
    f"--max-batch-tokens 64 --lease-for-s 4 --seat-wait-for-s 6 --kv-wait-for-s 8 --request-for-s 30 "
    f"--fleet-lease-for-s {LEASE_S} --heartbeat-every-s 0.4 --drain-for-s 3 --log-level warning"
)
ROLE_FLAGS = {
    "prefill-0": "--role prefill --block-tokens 16",
    "prefill-1": "--role prefill --block-tokens 16 --no-prefix-cache --kv-order layer_first",
    # A prefix cache on decode would soon hold every prompt, and nothing would move.
    "decode-0": "--role decode --block-tokens 16 --no-prefix-cache",
    "decode-1": "--role decode --block-tokens 8 --no-prefix-cache",
}
ROUTER_FLAGS = (
    "--connect-s 1 --prefill-s 7 --first-token-s 8 --next-token-s 6 --total-s 20 --max-requests 40 --grace-s 2"
)
LATE_FLAGS = "--decode-lead-s 0.001 --return-path true"
"""Of every other router, unless flags are given: decode is chosen when prefill is nearly done, and may be gone then."""
HELD = ("held_blocks", "quarantined_blocks", "live_transfers", "open_tickets", "running_seqs")


class ChaosSite(VictimSite):
    """Starts everything; all of it is gone when the block ends."""

    def __init__(
        self,
        folder: Path,
        engines: Mapping[str, str] | None = None,
        num_routers: int = 2,
        more_flags: str = "",
        *,
        watched: bool = False,
        router_flags: str = ROUTER_FLAGS,
    ) -> None:
        """`engines`: flags by name, which begins with a role; `more_flags` go to all engines; `watched`: the store is a
        primary and a replica behind a sentinel, reached without a proxy."""
        super().__init__(folder)
        self._router_flags = router_flags
        self._engines = ROLE_FLAGS if engines is None else engines
        self._num_routers = num_routers
        self._more_flags = more_flags
        self.restarts = 0
        """Starts that found no store and were made again."""
        self._watched = watched
        self.pair: WatchedPair | None = None
        self._stack = AsyncExitStack()
        self._store = EmbeddedStore()
        self.store = StoreVictim(self._store)

    async def _set_up(self) -> None:
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        checkpoint = self.folder / MODEL
        checkpoint.mkdir(exist_ok=True)
        write_tiny_llama(checkpoint)
        if self._watched:
            self.pair = await self._stack.enter_async_context(watched_pair())
        self._store.start()
        self.store_proxy = SilentProxy(HOST, free_port(HOST), self._store.url)
        await self.store_proxy.listen()
        self._stack.push_async_callback(self.store_proxy.aclose)
        for name, flags in self._engines.items():
            self._add_engine(name, flags, checkpoint)
        for number in range(self._num_routers):
            self._add_router(
                f"router-{number}", LATE_FLAGS if number % 2 and self._router_flags == ROUTER_FLAGS else ""
            )

    async def _stop(self) -> None:
        await super()._stop()
        self.store.thaw()
        self._store.stop()
        await self._stack.aclose()

    @property
    def engines(self) -> list[Victim]:
        return [victim for victim in self.victims.values() if victim.role != "router"]

    def _add_engine(self, name: str, own_flags: str, checkpoint: Path) -> None:
        port = free_port(HOST)
        url = f"http://{HOST}:{port}"
        flags = f"{ENGINE_FLAGS} {self._more_flags} {own_flags} --host {HOST} --port {port} --advertise-host {PROXIED} "
        flags += f"--instance-id {name} --store {self.store_url} --model {checkpoint}"
        argv = (sys.executable, "-m", "engine_shim", *flags.split())
        self._add(name, url, argv, SilentProxy(PROXIED, port, url))

    def _add_router(self, name: str, more_flags: str) -> None:
        port = free_port(HOST)
        flags = f"{self._router_flags} {more_flags} --host {HOST} --port {port} --store {self.store_url}"
        self._add(name, f"http://{HOST}:{port}", (sys.executable, "-m", "router", *flags.split()), None)

    def _add(self, name: str, url: str, argv: tuple[str, ...], proxy: SilentProxy | None) -> None:
        log_path = self.folder / "logs" / f"{name}.log"
        log_path.write_bytes(b"")
        self.victims[name] = Victim(name, name.partition("-")[0], url, argv, log_path, proxy)

    @property
    def store_url(self) -> str:
        """Through its proxy, or by its sentinels."""
        if self.pair is not None:
            return self.pair.url
        return f"redis://{HOST}:{self.store_proxy.port}"

    def _on_early_end(self, victim: Victim) -> None:
        """As a supervisor would: one that found no store when it started is started again; any other end is a crash."""
        if "The store does not answer" not in victim.tail(1):
            super()._on_early_end(victim)
        self.restarts += 1
        victim.start()

    async def _well(self, victim: Victim) -> bool:
        if not victim.runs or await self._get(victim, "/readyz") is None:
            return False
        if victim.proxy is None:
            return True
        await victim.proxy.listen()
        epoch = await self._epoch_of(victim)
        return all([await self._lists(router, victim.name, epoch) for router in self.routers if router.is_well])

    async def _epoch_of(self, victim: Victim) -> int:
        answer = await self._get(victim, "/kv/instance")
        said = decode_instance(answer.content) if answer is not None else None
        return -1 if said is None else said.epoch

    async def _lists(self, router: Victim, name: str, epoch: int) -> bool:
        answer = await self._get(router, "/admin/fleet")
        instances = answer.json()["instances"] if answer is not None else []
        return any(one["instance_id"] == name and one["epoch"] == epoch for one in instances)

    async def held(self) -> dict[str, float]:
        """What is not zero of all that must be zero when nobody asks for anything."""
        facts: dict[str, float] = {}
        for victim in self.victims.values():
            wanted = ("requests_in_flight", "open_tickets") if victim.role == "router" else HELD
            metrics = await self.metrics(victim)
            facts |= {f"{victim.name} {what}": metrics.get(what, -1.0) for what in wanted}
        return {what: value for what, value in facts.items() if value}
