"""What scenarios run on: a prefill engine, a decode engine and two routers, of the reference engine or of vLLM."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from tests.support.chaos_load import MODEL, Case, cases
from tests.support.chaos_process import Victim
from tests.support.chaos_site import ROUTER_FLAGS, ChaosSite
from tests.support.up import TINY_TEMPLATE
from tests.support.vllm_processes import SMALL
from tests.support.vllm_site import VllmSite

CHOSEN = tuple(os.environ.get("TANDEM_TEST_ENGINE", "reference").split(","))
"""Of reference; vllm: real vLLM servers, without a line of ours inside; and vllm-shim: with our shim in front."""
ENGINES = {"prefill-0": "--role prefill", "decode-0": "--role decode --block-tokens 8"}
NO_LEASE = "--lease-for-s 300 --seat-wait-for-s 300 --kv-wait-for-s 300 --request-for-s 300 --fleet-lease-for-s 60"


class Site(Protocol):
    """Runs already. Its model is called `tiny`; x-tandem-mode names a request's mode."""

    engine: str
    cases: list[Case]
    """Prompts and their greedy answers by one engine alone."""
    victims: dict[str, Victim]
    patience_s: float
    """No request takes longer, whatever becomes of the engines."""
    settles_s: float
    """What is not held by then is never released."""

    @property
    def routers(self) -> list[Victim]:
        """Two of them."""

    async def wait_well(self, victim: Victim, within_s: float = ...) -> float:
        """It serves, and routers know this start of it."""

    async def wait_quiet(self, within_s: float = ...) -> tuple[dict[str, float], float]:
        """What is still held after so long, at best nothing, and the seconds until nothing was."""

    async def requests_of(self, victim: Victim) -> float:
        """Requests that this engine has, in any state; -1 while it does not answer."""

    async def prompt_tokens_of(self, victim: Victim) -> float:
        """Prompt tokens that it has taken in, in all."""

    async def metrics(self, victim: Victim) -> dict[str, float]:
        """Its metrics, summed over their labels, without their prefix; empty when it does not answer."""


class ReferenceSite:
    """Our own engine with a tiny checkpoint, in invariant numerics; nothing is released by a lease."""

    engine = "reference"
    patience_s = 30.0
    settles_s = 10.0

    def __init__(self, folder: Path) -> None:
        checkpoint = folder / MODEL
        checkpoint.mkdir()
        (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": TINY_TEMPLATE}))
        flags = f"{ROUTER_FLAGS} --mode-header x-tandem-mode --access-log false"
        self._chaos = ChaosSite(folder, ENGINES, 2, NO_LEASE, router_flags=flags)
        self.cases = cases(12)
        self.victims = self._chaos.victims
        self.wait_well, self.wait_quiet = self._chaos.wait_well, self._chaos.wait_quiet
        self.metrics = self._chaos.metrics

    @property
    def routers(self) -> list[Victim]:
        return self._chaos.routers

    async def enter(self, stack: AsyncExitStack) -> ReferenceSite:
        """It runs until `stack` is closed."""
        await stack.enter_async_context(self._chaos)
        return self

    async def requests_of(self, victim: Victim) -> float:
        metrics = await self.metrics(victim)
        return metrics["parked_seqs"] + metrics["running_seqs"] + metrics["waiting_seqs"] if metrics else -1.0

    async def prompt_tokens_of(self, victim: Victim) -> float:
        return (await self.metrics(victim)).get("prompt_tokens_total", -1.0)


class OpenSite:
    """The one site that is open: whoever asks for another closes it. Of stock vLLM each mode has its own servers."""

    def __init__(self, make_folder: Callable[[str], Path], model: Path = SMALL, num_cases: int = 12) -> None:
        """`model` and `num_cases` are vLLM's."""
        self._make_folder = make_folder
        self._model, self._num_cases = model, num_cases
        self._stack = AsyncExitStack()
        self._open: dict[str, Site] = {}

    async def of(self, engine: str, mode: str) -> Site:
        """It serves requests of this mode."""
        key = f"{engine}-{mode}" if engine == "vllm" else engine
        if key not in self._open:
            await self.aclose()
            folder = self._make_folder(key)
            self._open[key] = await self._enter(engine, mode, folder)
        return self._open[key]

    async def _enter(self, engine: str, mode: str, folder: Path) -> Site:
        if engine == "reference":
            return await ReferenceSite(folder).enter(self._stack)
        site = VllmSite(folder, mode, model=self._model, shims=engine == "vllm-shim", num_cases=self._num_cases)
        return await self._stack.enter_async_context(site)

    async def aclose(self) -> None:
        """None is open."""
        self._open.clear()
        await self._stack.aclose()
