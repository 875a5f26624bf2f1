"""Prober: asks every instance of the fleet, again and again, whether it takes requests.

A lease says that a process lives, a heartbeat what it has to do; a probe says that it can be reached from here and
takes requests. New instances are asked at once. Nobody waits for a probe.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic

from router.contract.ids import Epoch, InstanceId
from router.contract.instance import Instance
from router.core.pulse import Beat, Pulse, PulseRules
from router.driver.router import Router
from router.legs.probe import Probe

TICK_S = 0.25
READY = b"/readyz"

_Start = tuple[InstanceId, Epoch]


class Prober:
    """Probes the instances of one Router while `run` runs."""

    def __init__(self, router: Router, rules: PulseRules) -> None:
        self._router = router
        self._rules = rules
        self._pulses: dict[_Start, Pulse] = {}
        self._due_at: dict[_Start, float] = {}

    async def run(self) -> None:
        """Probe, for ever."""
        while True:
            self.look()
            await asyncio.sleep(TICK_S)

    def look(self) -> None:
        """Whoever is due is asked; whoever left the fleet is forgotten."""
        now = monotonic()
        instances = {_start_of(member.instance): member.instance for member in self._router.fleet.members}
        self._pulses = {start: self._pulses.get(start) or Pulse(self._rules) for start in instances}
        self._due_at = {start: self._due_at.get(start, now) for start in instances}
        for start, instance in instances.items():
            if self._due_at[start] <= now:
                # The next one is due a period after this one has ended, however it ends.
                self._due_at[start] = now + self._rules.timeout_s + self._rules.period_s
                Probe(self._router.pool(instance.url), partial(self._on_end, start)).ask(READY, self._rules.timeout_s)

    def _on_end(self, start: _Start, status: int) -> None:
        pulse = self._pulses.get(start)
        if pulse is None:
            return
        now = monotonic()
        self._due_at[start] = now + self._rules.period_s
        pulse.beat(Beat.WELL if 200 <= status < 300 else Beat.REFUSED if status else Beat.SILENT)
        self._router.health.probed(start[0], pulse.says_so if pulse.out else None, now)


def _start_of(instance: Instance) -> _Start:
    return instance.instance_id, instance.epoch
