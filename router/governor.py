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
from math import inf
from time import monotonic

from router.build_router import budgets_of, build_conduct
from router.contract.errors import DeploymentError
from router.contract.ids import InstanceId
from router.contract.instance import Mode
from router.core.hedging import Hedging
from router.core.retries import RetryBudget
from router.driver.orders import OrderPlace, Orders
from router.driver.router import Router
from router.driver.watch import FleetWatch
from router.limits import BUDGETS
from router.placing import build_explanations, changed_rules
from router.schemas import effective
from router.settings import MODES, Settings
from router.watched import WatchedFiles

LOG = logging.getLogger("tandem.router")

LOOK_S = 1.0

RULES = frozenset(
    {"mode", "local_below_bytes", "crossover_tokens", "prefill_policy", "decode_policy", "decode_lead_s", "return_path"}
)
RETRIES = frozenset({"retry_share", "retry_floor_per_s"})
CONDUCT = frozenset(
    {
        "prefill_s",
        "prefill_token_s",
        "registration_s",
        "kv_wait_s",
        "first_token_s",
        "next_token_s",
        "answer_s",
        "answer_token_s",
        "stalled_s",
        "total_s",
        "queue_s",
        "attempts",
        "prefill_cancel",
        "vllm_lease_s",
    }
)
LINE = frozenset({"queue_requests", "queue_tokens"})
BREAKER = frozenset(
    {"breaker_failures", "breaker_share", "breaker_window_s", "breaker_open_s", "breaker_open_max_s"},
)
HEDGE = frozenset({"hedge_share", "hedge_after_s"})
HINTS = frozenset({"model_aliases", "session_header", "mode_header", "explain_header"})
LOG_LINES = frozenset({"access_log"})
EXPLAINS = frozenset({"explain_placements"})
CHANGEABLE = RULES | RETRIES | CONDUCT | frozenset(BUDGETS) | LINE | BREAKER | HEDGE | HINTS | LOG_LINES | EXPLAINS


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
        self.error = ""
        """Why the settings as they would be read now cannot be used."""
        self.again: Again | None = None
        """None: the settings are those of the start."""
        self.set_log: Callable[[bool], None] = lambda wanted: None
        self.set_hints: Callable[[Settings], None] = lambda settings: None
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
            self._rules = changed_rules(self._rules, self.settings, frozenset(changing))
            self._place()
        if changing & (CONDUCT | RETRIES | BREAKER | HEDGE):
            self._conduct(changing)
        if not changing.isdisjoint(LINE):
            self._router.admission.set_line(self.settings.queue_requests, self.settings.queue_tokens or inf)
        if not changing.isdisjoint(BUDGETS):
            for scope, budget in budgets_of(self.settings):
                self._router.set_budget(scope, "", budget)
        if changing & HINTS:
            self.set_hints(self.settings)
        if changing & LOG_LINES:
            self.set_log(self.settings.access_log)
        if changing & EXPLAINS:
            self._router.explanations = build_explanations(self.settings)
        if changing:
            LOG.info("settings have changed: %s", ", ".join(sorted(changing)))
        for name in self.refused:
            LOG.error("%s cannot change while the router runs; restart it for that.", name)

    @property
    def bad(self) -> bool:
        """The settings as they would be read now cannot be used."""
        return bool(self.error)

    def shown(self) -> dict[str, object]:
        """What is in force, without secrets; under `reload` what of the last file is not, and why."""
        return {**effective(self.settings), "reload": {"refused": list(self.refused), "error": self.error}}

    def _obey(self, drained: frozenset[InstanceId], mode: str) -> None:
        self._watch.drain(drained)
        self._place()

    def _place(self) -> None:
        ordered = self.orders.mode
        rules = self._rules
        if ordered in MODES:  # else it comes from a place where anybody may write, or from another release
            rules = replace(rules, mode=None if ordered == "auto" else Mode(ordered))
        self._router.place_by(rules)

    def _conduct(self, changing: set[str]) -> None:
        router, fresh = self._router, build_conduct(self.settings, self._router.conduct.access)
        router.conduct = replace(fresh, owner=router.conduct.owner)
        router.deadlines, router.shortest_s = fresh.deadlines, fresh.deadlines.shortest_s
        if changing & RETRIES:
            router.retries = RetryBudget(fresh.retry_share, fresh.retry_floor_per_s, monotonic())
        if changing & BREAKER:
            router.health.follow(fresh.breaker)
        if changing & HEDGE:
            router.hedging = Hedging(fresh.hedge, monotonic()) if fresh.hedge.share else None

    def reread(self) -> None:
        """What the settings would be now is in force, as far as it can be."""
        if self.again is None:
            return
        try:
            wanted = self.again.read()
        except DeploymentError as error:
            self.error = error.message
            LOG.error("the settings stay as they were: %s", error.message)  # noqa: TRY400 - the sentence says it all
        except Exception as error:  # the boundary of whoever asks: no file ends a router
            self.error = f"The settings cannot be read, by a bug ({type(error).__name__}); the log says more."
            LOG.exception("the settings stay as they were, by a bug in reading them")
        else:
            self.error = ""
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
