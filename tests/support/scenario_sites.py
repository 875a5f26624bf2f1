"""What scenarios run on: a prefill engine, a decode engine and two routers, of the reference engine or of vLLM."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from tests.support.chaos_load import MODEL, Case, cases
from tests.support.chaos_process import Victim
from tests.support.chaos_site import ROUTER_FLAGS, ChaosSite
from tests.support.up import TINY_TEMPLATE
from tests.support.vllm_site import VllmSite

ENGINE = os.environ.get("TANDEM_TEST_ENGINE", "reference")
"""reference, or vllm: real vLLM servers, without a line of ours inside."""
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

    async def wait_quiet(self, within_s: float) -> dict[str, float]:
        """What is still held after so long, at best nothing."""

    async def requests_of(self, victim: Victim) -> float:
        """Requests that this engine has, in any state; -1 while it does not answer."""

    async def prompt_tokens_of(self, victim: Victim) -> float:
        """Prompt tokens that it has taken in, in all."""


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
        self.wait_well = self._chaos.wait_well

    @property
    def routers(self) -> list[Victim]:
        return self._chaos.routers

    async def enter(self, stack: AsyncExitStack) -> ReferenceSite:
        """It runs until `stack` is closed."""
        await stack.enter_async_context(self._chaos)
        return self

    async def wait_quiet(self, within_s: float) -> dict[str, float]:
        return (await self._chaos.wait_quiet(within_s))[0]

    async def requests_of(self, victim: Victim) -> float:
        metrics = await self._chaos.metrics(victim)
        return metrics["parked_seqs"] + metrics["running_seqs"] + metrics["waiting_seqs"] if metrics else -1.0

    async def prompt_tokens_of(self, victim: Victim) -> float:
        return (await self._chaos.metrics(victim)).get("prompt_tokens_total", -1.0)


async def open_site(stack: AsyncExitStack, folder: Path, mode: str) -> Site:
    """The site of ENGINE, until `stack` is closed."""
    if ENGINE == "vllm":
        return await stack.enter_async_context(VllmSite(folder, mode))
    return await ReferenceSite(folder).enter(stack)
