"""Governor: what may change while a router runs, by an operator's order or by settings that are read again.

Settings are read again when their file changes and on SIGHUP. Those of CHANGEABLE are in force from the next request
on; what runs goes on under the old ones. A change of any other is refused with a sentence, and waits for a restart.
Settings that cannot be used change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from time import monotonic

from router.build_router import budgets_of, build_conduct
from router.contract.errors import DeploymentError
from router.contract.ids import InstanceId
from router.contract.instance import Mode
from router.core.retries import RetryBudget
from router.driver.orders import OrderPlace, Orders
from router.driver.router import Router
from router.driver.watch import FleetWatch
from router.limits import BUDGETS
from router.placing import build_explanations, build_rules
from router.settings import Settings
from router.watched import WatchedFiles

LOG = logging.getLogger("tandem.router")

LOOK_S = 1.0

RULES = frozenset({"mode", "local_below_chars", "crossover_tokens", "prefill_policy", "decode_policy"})
RETRIES = frozenset({"retry_share", "retry_floor_per_s"})
CONDUCT = frozenset(
    {
        "prefill_s",
        "prefill_token_s",
        "registration_s",
        "kv_wait_s",
        "first_token_s",
        "next_token_s",
        "stalled_s",
        "total_s",
        "queue_s",
        "attempts",
        "prefill_cancel",
        "vllm_lease_s",
    }
)
LOG_LINES = frozenset({"access_log"})
EXPLAINS = frozenset({"explain_placements"})
CHANGEABLE = RULES | RETRIES | CONDUCT | frozenset(BUDGETS) | LOG_LINES | EXPLAINS


@dataclass(frozen=True, slots=True)
class Again:
    """How settings are read again."""

    read: Callable[[], Settings]
    files: WatchedFiles


class Governor:
    """Of one router; belongs to its event loop."""

    def __init__(self, router: Router, watch: FleetWatch, settings: Settings, place: OrderPlace | None) -> None:
        """`settings` are in force; orders are shared at `place`, or hold for this process."""
        self.settings = settings
        self.orders = Orders(place, self._obey)
        self.refused: tuple[str, ...] = ()
        """Settings that are other than those in force, and wait for a restart."""
        self.bad = False
        """The settings as they would be read now cannot be used."""
        self.again: Again | None = None
        """None: the settings are those of the start."""
        self.set_log: Callable[[bool], None] = lambda wanted: None
        shared = BUDGETS if settings.store and settings.shared_budgets else ()  # each replica has its share of them
        self._changeable = CHANGEABLE.difference(shared)
        self._router = router
        self._watch = watch
        self._rules = router.desk.rules

    def change(self, wanted: Settings) -> None:
        """Of what differs from the settings in force, what can change has changed, and the rest is named in the log."""
        differ = {one.name for one in fields(Settings) if getattr(wanted, one.name) != getattr(self.settings, one.name)}
        changing = differ & self._changeable
        self.refused = tuple(sorted(differ - changing))
        self.settings = replace(self.settings, **{name: getattr(wanted, name) for name in changing})
        if changing & RULES:
            self._rules = build_rules(self.settings)
            self._place()
        if changing & (CONDUCT | RETRIES):
            self._conduct(retries=bool(changing & RETRIES))
        if not changing.isdisjoint(BUDGETS):
            for scope, budget in budgets_of(self.settings):
                self._router.set_budget(scope, "", budget)
        if changing & LOG_LINES:
            self.set_log(self.settings.access_log)
        if changing & EXPLAINS:
            self._router.explanations = build_explanations(self.settings)
        if changing:
            LOG.info("settings have changed: %s", ", ".join(sorted(changing)))
        for name in self.refused:
            LOG.error("%s cannot change while the router runs; restart it for that.", name)

    def _obey(self, drained: frozenset[InstanceId], mode: str) -> None:
        self._watch.drain(drained)
        self._place()

    def _place(self) -> None:
        ordered = self.orders.mode
        rules = self._rules
        if ordered:
            rules = replace(rules, mode=None if ordered == "auto" else Mode(ordered))
        self._router.place_by(rules)

    def _conduct(self, *, retries: bool) -> None:
        router, fresh = self._router, build_conduct(self.settings, self._router.conduct.access)
        router.conduct = replace(fresh, owner=router.conduct.owner)
        router.deadlines, router.shortest_s = fresh.deadlines, fresh.deadlines.shortest_s
        if retries:
            router.retries = RetryBudget(fresh.retry_share, fresh.retry_floor_per_s, monotonic())

    def reread(self) -> None:
        """What the settings would be now is in force, as far as it can be."""
        if self.again is None:
            return
        try:
            wanted = self.again.read()
        except DeploymentError as error:
            self.bad = True
            LOG.error("the settings stay as they were: %s", error.message)  # noqa: TRY400 - the sentence says it all
        except Exception:  # the boundary of whoever asks: no file ends a router
            self.bad = True
            LOG.exception("the settings stay as they were, by a bug in reading them")
        else:
            self.bad = False
            self.change(wanted)

    async def run(self) -> None:
        """Orders of others and changed settings are followed, until cancelled."""
        await asyncio.gather(self.orders.run(), self._follow_settings())

    async def _follow_settings(self) -> None:
        if self.again is None:
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.reread)
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                if self.again.files.changed():
                    self.reread()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
