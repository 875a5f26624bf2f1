"""VictimSite: processes that are started together, waited for and read, and are gone when the block ends."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.support.chaos_process import Victim


class VictimSite(ABC):
    """Its subclasses say which processes, and when one of them is well."""

    start_s = 300.0
    """No start takes longer."""
    answer_s = 2.0
    """A process that has not answered by then does not answer."""
    look_every_s = 0.1
    metric_prefixes: tuple[str, ...] = ("tandem_", "shim_")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.victims: dict[str, Victim] = {}

    async def __aenter__(self) -> Self:
        self._client = httpx.AsyncClient(timeout=self.answer_s, trust_env=False)
        try:
            await self._set_up()
            for victim in self.victims.values():
                victim.start()
            await asyncio.gather(*(self.wait_well(victim) for victim in self.victims.values()))
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @abstractmethod
    async def _set_up(self) -> None:
        """All victims are known; none has been started."""

    @abstractmethod
    async def _well(self, victim: Victim) -> bool:
        """It serves and, as an engine, routers that serve know this start of it."""

    @abstractmethod
    async def held(self) -> dict[str, float]:
        """What is not zero of all that must be zero when nobody asks for anything."""

    def _on_early_end(self, victim: Victim) -> None:
        """It has ended while it was waited for."""
        raise AssertionError(f"{victim.name} has ended by itself:\n{victim.tail()}")

    async def _stop(self) -> None:
        for victim in reversed(self.victims.values()):
            victim.stop()
            if victim.proxy is not None:
                await victim.proxy.aclose()
        await self._client.aclose()

    def of_role(self, role: str) -> list[Victim]:
        return [victim for victim in self.victims.values() if victim.role == role]

    @property
    def routers(self) -> list[Victim]:
        return self.of_role("router")

    async def wait_well(self, victim: Victim, within_s: float = 0.0) -> float:
        """It serves and, as an engine, routers know this start of it; returns the seconds that it took."""
        began_at = time.monotonic()
        within_s = within_s or self.start_s
        while not await self._well(victim):
            if not victim.runs:
                self._on_early_end(victim)
            if time.monotonic() > began_at + within_s:
                raise AssertionError(f"{victim.name} is not well after {within_s} s:\n{victim.tail()}")
            await asyncio.sleep(self.look_every_s)
        victim.is_well = True
        return time.monotonic() - began_at

    async def _get(self, victim: Victim, path: str) -> httpx.Response | None:
        """Its answer, if it is one with status 200."""
        try:
            answer = await self._client.get(victim.url + path)
        except httpx.TransportError:
            return None
        return answer if answer.status_code == httpx.codes.OK else None

    async def metrics(self, victim: Victim) -> dict[str, float]:
        """Its metrics summed over their labels, without their prefix; empty when it does not answer."""
        said = await self._get(victim, "/metrics")
        sums: dict[str, float] = {}
        for line in said.text.splitlines() if said is not None else ():
            if not line.startswith("#"):
                name = line.partition("{")[0].partition(" ")[0]
                for prefix in self.metric_prefixes:
                    name = name.removeprefix(prefix)
                sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
        return sums

    async def wait_quiet(self, within_s: float = 30.0) -> tuple[dict[str, float], float]:
        """What is still held after `within_s`, at best nothing, and the seconds until nothing was."""
        began_at = time.monotonic()
        while (facts := await self.held()) and time.monotonic() < began_at + within_s:
            await asyncio.sleep(2 * self.look_every_s)
        return facts, time.monotonic() - began_at
