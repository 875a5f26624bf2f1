"""Prober: asks every instance of the fleet, again and again, whether it takes requests.

A lease says that a process lives, a heartbeat what it has to do; a probe says that it can be reached from here and
takes requests. New instances are asked at once. Nobody waits for a probe. Each has a connection of its own: over one of
the legs' it would not see that new ones are refused, and would make a connection pass as used that is new to the legs.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from router.contract.errors import Blame, LegError
from router.contract.ids import Epoch, InstanceId
from router.contract.instance import EngineKind, Instance
from router.core.pulse import Beat, Pulse, PulseRules
from router.driver.router import Router
from router.legs.call import call, get_request
from router.legs.pool import LegPool

LOG = logging.getLogger("tandem.router")

TICK_S = 0.25
_PATHS = {EngineKind.TANDEM: b"/readyz", EngineKind.VLLM: b"/health"}

_Start = tuple[InstanceId, Epoch]


class Prober:
    """Probes the instances of one Router while `run` runs."""

    def __init__(self, router: Router, rules: PulseRules) -> None:
        self._router = router
        self._rules = rules
        self._pulses: dict[_Start, Pulse] = {}
        self._due_at: dict[_Start, float] = {}
        self._pools: dict[_Start, LegPool] = {}

    async def run(self) -> None:
        """Probe, for ever."""
        async with asyncio.TaskGroup() as probes:
            while True:
                for instance in self.due(monotonic()):
                    probes.create_task(self._probe_safely(instance))
                await asyncio.sleep(TICK_S)

    async def _probe_safely(self, instance: Instance) -> None:
        try:
            await self.probe(instance)
        except Exception:  # the boundary of this task: a bug costs this probe only
            LOG.exception("instance %r cannot be probed, by a bug", instance.instance_id)

    def due(self, now: float) -> list[Instance]:
        """Those whose turn has come; whoever left the fleet is forgotten."""
        instances = {_start_of(member.instance): member.instance for member in self._router.fleet.members}
        self._pulses = {start: self._pulses.get(start) or Pulse(self._rules) for start in instances}
        self._due_at = {start: self._due_at.get(start, now) for start in instances}
        self._pools = {start: pool for start, pool in self._pools.items() if start in instances}
        due = [start for start, at in self._due_at.items() if at <= now]
        for start in due:
            # The next one comes a period after this one has ended.
            self._due_at[start] = now + self._rules.timeout_s + self._rules.period_s
        return [instances[start] for start in due]

    async def probe(self, instance: Instance) -> None:
        """The instance has been asked once, and the answer counts."""
        start = _start_of(instance)
        if start not in self._pulses:
            return  # it has left, or started anew, meanwhile
        pool = self._pools.get(start)
        if pool is None:
            pool = self._pools[start] = self._router.make_pool(instance.url)
        side = Blame.DECODE if instance.role.decodes else Blame.PREFILL
        try:
            reply = await call(pool, get_request(pool, _PATHS[instance.engine]), side, self._rules.timeout_s)
        except LegError:
            beat = Beat.SILENT
        else:
            beat = Beat.WELL if 200 <= reply.status < 300 else Beat.REFUSED
        finally:
            pool.close()
        now, pulse = monotonic(), self._pulses.get(start)
        if pulse is not None:  # else it has left since
            self._due_at[start] = now + self._rules.period_s
            pulse.beat(beat)
            self._router.health.probed(instance.instance_id, pulse.says_so if pulse.out else None, now)


def _start_of(instance: Instance) -> _Start:
    return instance.instance_id, instance.epoch
