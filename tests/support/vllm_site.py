"""A router or two before real vLLM servers, with what scenarios ask of a site."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from router.cli.local_fleet import free_port
from tests.support.chaos_load import Case
from tests.support.chaos_process import Victim
from tests.support.tiny_models import prompt_of
from tests.support.victim_site import VictimSite
from tests.support.vllm_processes import LEASE_S, SMALL, VllmVictim, vllm_argv
from tests.support.vllm_shims import shim_argv

HOST = "127.0.0.1"
PATIENT = "--prefill-s 250 --first-token-s 250 --next-token-s 250 --total-s 500 --probe-timeout-s 15 --access-log false"
"""A machine of two cores may be busy with something else."""
CLEAR_GAP = 0.05
"""Between the logarithms of the likeliest two tokens: no order of a float32 sum bridges that."""
START_S = 900.0
BLOCKS = 63.0
"""That are not vLLM's own null block."""


class VllmSite(VictimSite):
    """Starts everything; all of it is gone when the block ends. See Site of `tests/support/scenario_sites.py`."""

    start_s, answer_s, look_every_s = START_S, 30.0, 0.3
    metric_prefixes = ("vllm:", "tandem_")
    patience_s = 520.0
    settles_s = LEASE_S + 20.0

    def __init__(
        self,
        folder: Path,
        mode: str,
        num_routers: int = 2,
        model: Path = SMALL,
        *,
        shims: bool = False,
        num_cases: int = 12,
    ) -> None:
        """With `shims`, each vLLM has ours in front and our connector inside."""
        super().__init__(folder)
        self.engine = "vllm-shim" if shims else "vllm"
        self.mode = mode
        self.cases: list[Case] = []
        self._num_routers = num_routers
        self._model = model
        self._shims = shims
        self._num_cases = num_cases

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            self.cases = await self._make_cases(self._num_cases)
        except BaseException:
            await self._stop()
            raise
        return self

    async def _set_up(self) -> None:
        engines = []
        for role in ("prefill", "decode"):
            port, side_port = free_port(HOST), free_port(HOST)
            argv = vllm_argv(port, role, self.mode, self._model)
            if self._shims:
                argv = shim_argv(port, role, model=self._model)
            engines.append(self._add(VllmVictim, f"{role}-0", port, argv, side_port=side_port))
        flags = f"{PATIENT} --mode {self.mode} --mode-header x-tandem-mode"
        for number in range(self._num_routers):
            port = free_port(HOST)
            argv = (sys.executable, "-m", "router", "--port", str(port), *flags.split())
            argv += ("--prefill", engines[0].url, "--decode", engines[1].url)
            self._add(Victim, f"router-{number}", port, argv)

    def _add(self, made: type[Victim], name: str, port: int, argv: tuple[str, ...], **more: int) -> Victim:
        log_path = self.folder / f"{name}.log"
        log_path.write_bytes(b"")
        victim = made(name, name.partition("-")[0], f"http://{HOST}:{port}", argv, log_path, **more)  # type: ignore[arg-type]
        self.victims[name] = victim
        return victim

    async def _make_cases(self, num_cases: int) -> list[Case]:
        """Prompts of 1 to 300 tokens, with the answers of decode's engine alone, where these are clear."""
        made: list[Case] = []
        number = 0
        while len(made) < num_cases:
            number += 1
            prompt = prompt_of(min(300, number * number * 2 - 1), seed=number)
            asked = {"model": "tiny", "prompt": list(prompt), "max_tokens": 6, "temperature": 0, "ignore_eos": True}
            asked |= {
                "logprobs": 2,
                "return_tokens_as_token_ids": True,
                "return_token_ids": True,
                "cache_salt": "alone",
            }
            reply = await self._client.post(f"{self.victims['decode-0'].url}/v1/completions", json=asked, timeout=300)
            choice = reply.json()["choices"][0]
            tops = [sorted(top.values())[-2:] for top in choice["logprobs"]["top_logprobs"]]
            if all(best - second > CLEAR_GAP for second, best in tops):
                made.append(Case(prompt, tuple(choice["token_ids"])))
        return made

    async def _well(self, victim: Victim) -> bool:
        path = "/readyz" if victim.role == "router" else "/health"
        if (await self._get(victim, path)) is None:
            return False
        if victim.role == "router":
            return True
        started = (await self.metrics(victim)).get("process_start_time_seconds", 0.0)
        return all([await self._lists(router, victim, started) for router in self.routers if router.is_well])

    async def _lists(self, router: Victim, victim: Victim, started_s: float) -> bool:
        said = await self._get(router, "/admin/fleet")
        instances = said.json()["instances"] if said is not None else []
        known = [one for one in instances if one["url"] == victim.url and one["health"] == "closed"]
        if self._shims:
            # A shim's epoch is when it has claimed it, which is after its process has begun.
            return bool(known) and known[0]["epoch"] / 1000 > time.time() - (time.monotonic() - victim.starts[-1]) - 1.0
        return bool(known) and abs(known[0]["epoch"] / 1000 - started_s) < 1.0

    async def requests_of(self, victim: Victim) -> float:
        """Requests that this engine has, in any state; -1 while it does not answer."""
        metrics = await self.metrics(victim)
        return metrics["num_requests_running"] + metrics["num_requests_waiting"] if metrics else -1.0

    async def prompt_tokens_of(self, victim: Victim) -> float:
        """Prompt tokens that it has taken in, in all."""
        return (await self.metrics(victim)).get("prompt_tokens_total", -1.0)

    async def held(self) -> dict[str, float]:
        """What is not zero of all that must be zero when nobody asks for anything."""
        facts: Mapping[str, float] = {}
        for victim in self.victims.values():
            metrics = await self.metrics(victim)
            if victim.role == "router":
                found = {what: metrics.get(what, -1.0) for what in ("requests_in_flight", "open_tickets")}
            else:
                found = {
                    "requests": metrics.get("num_requests_running", -1.0) + metrics.get("num_requests_waiting", -1.0),
                    "blocks": round(metrics.get("kv_cache_usage_perc", -1.0) * BLOCKS),
                }
            facts = {**facts, **{f"{victim.name} {what}": value for what, value in found.items()}}
        return {what: value for what, value in facts.items() if value}
