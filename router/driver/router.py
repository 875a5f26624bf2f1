"""Router: what all requests of this process share, and the way in for each of them."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from router.contract.errors import Blame, Draining, Impossible, Overloaded, PeerGone, StoreDown, TandemError
from router.contract.ids import InstanceId, RequestId
from router.contract.instance import Instance
from router.core.admission import WAIT, Admission
from router.core.budgets import Budget, Scope
from router.core.burden import Burdens
from router.core.explain import Explanations
from router.core.fleet import EMPTY, Fleet
from router.core.health import Health
from router.core.hedging import Hedging
from router.core.intake import Intake
from router.core.placement import Desk, Placement, Refusal, Rules
from router.core.retries import RetryBudget
from router.driver.choosing import choose_with_care
from router.driver.clerk import Clerk
from router.driver.conduct import Conduct
from router.driver.exchange import Exchange
from router.driver.lease_guard import LeaseGuard
from router.driver.leftover import Leftover
from router.driver.mend import Mend
from router.driver.ports import Books, ClientPort, LedgerPort
from router.driver.sweep import Due, Sweep
from router.legs.pool import LegPool
from router.legs.take_back import result_of

LOG = logging.getLogger("tandem.router")
LAST_WORDS_S = 1.0
_POLL_S = 0.005
_IDS_AT_ONCE = 256


def _learns_nothing(instance: Instance, answer: bytes) -> bool:
    """Shims tell of their restarts themselves."""
    return False


class Router:
    """Belongs to one event loop."""

    explanations: Explanations | None = None
    """Why the last choices were made; None where nobody has asked for it."""

    def __init__(self, desk: Desk, burdens: Burdens, admission: Admission[Exchange], conduct: Conduct) -> None:
        self.desk = desk
        self.burdens = burdens
        self.admission = admission
        self.conduct = conduct
        self.deadlines = conduct.deadlines
        self.shortest_s = conduct.deadlines.shortest_s
        self.fleet: Fleet = EMPTY
        self.live: set[Exchange] = set()
        self.leftovers: set[Leftover] = set()
        """Prefill legs that outlive their requests."""
        self.idle: set[Due] = set()
        """Client connections that wait for a request."""
        self.mends: set[Mend] = set()
        """Prompts that are computed once more, so that decode gets its blocks back."""
        self.mended: Counter[str] = Counter()
        """What came of those."""
        self.lease_guards: set[LeaseGuard] = set()
        """Of attempts whose plain prefill might free the KV cache before decode comes for it."""
        self.sweep = Sweep((self.live, self.leftovers, self.idle, self.mends, self.lease_guards))
        self.blind = False
        """The fleet's sources do not answer, and it is what they last said."""
        self.leaving = False
        """This process goes away soon: others should take what comes."""
        self.health = Health(conduct.breaker)
        self.retries = RetryBudget(conduct.retry_share, conduct.retry_floor_per_s, monotonic())
        self.hedging = Hedging(conduct.hedge, monotonic()) if conduct.hedge.share else None
        self.hedges: Counter[str] = Counter()
        """Second attempts beside late first ones, by what became of them."""
        self.retries_denied = 0
        """Requests that failed because the retry budget was used up."""
        self.take_backs: Counter[str] = Counter()
        """Engines that were called because an attempt of ours ended early, by what came of it."""
        self.clerk: Clerk
        self.relearn: Callable[[Instance, bytes], bool] = _learns_nothing
        """True when the fleet has learned from this answer of prefill's that the instance is another start now."""
        self._pools: dict[str, LegPool] = {}
        self._letting_in = False
        self._turn = self._accrued_turn = 0
        self._ids: list[str] = []

    def attach(self, ledger: LedgerPort | None, books: Books) -> None:
        """Attempts are put down in `ledger`, finished requests in `books`; called once, before the first request."""
        self.clerk = Clerk(ledger, books, self.conduct.owner, self.desk.learn if self.desk.learns else None)

    def open(self, client: ClientPort, intake: Intake, request_id: RequestId, total_s: float) -> Exchange | TandemError:
        """An Exchange that answers `client`, now or later; or the error that the client is to be answered with."""
        if self.explanations is not None:
            intake.request_id = request_id
        pool = self.fleet.pools.get(intake.model)
        if pool is not None:
            intake.owner = pool.owner
        elif intake.model and self.fleet.pools:
            chosen = self.place(intake, frozenset())
            if isinstance(chosen, Refusal):  # a name that nobody has takes neither an account nor a turn in the line
                return self.why_refused(chosen)
        entrance = self.admission.admit(intake)
        if isinstance(entrance, TandemError):
            return entrance
        exchange = Exchange(self, client, intake, request_id, min(total_s, self.deadlines.total_s))
        self.live.add(exchange)
        if entrance is WAIT:
            self._let_wait(exchange)
        else:
            self._carry_out(exchange)
        return exchange

    def _carry_out(self, exchange: Exchange) -> None:
        """The request is on its way, or has been answered; a bug costs this request only, and leaves nothing of it."""
        try:
            exchange.open()
        except Exception as error:  # nobody above knows what this request holds by now
            LOG.exception("request %s failed by a bug", exchange.request_id)
            if exchange in self.live:
                exchange.expire(Impossible(f"The router failed ({type(error).__name__}); its log says why."))

    def _let_wait(self, exchange: Exchange) -> None:
        exchange.wait()
        lost = self.admission.wait(exchange)
        if lost is not None:
            lost.expire(Overloaded("Requests of a better priority have taken all places in the line; try again."))

    def _let_in(self) -> None:
        """Whoever waits and fits is carried out; those that end at once make room for more, in the same loop."""
        if self._letting_in:
            return
        self._letting_in = True
        try:
            while (exchange := self.admission.next()) is not None:
                self._carry_out(exchange)
        finally:
            self._letting_in = False

    def set_budget(self, scope: Scope, name: str, budget: Budget) -> None:
        """The budget of everybody, of a model or of a caller holds from here on (see Admission.set_budget)."""
        waiting = scope is Scope.CALLER  # a model counts only what has come in
        in_flight = [one.intake for one in self.live if waiting or not one.waits]
        self.admission.set_budget(scope, name, budget, in_flight)
        self._let_in()

    def place_by(self, rules: Rules) -> None:
        """Requests are placed by these rules from here on."""
        if rules.crossover_tokens == self.desk.rules.crossover_tokens:
            self.desk.rules = rules  # and what has been learned of the crossover stays
        else:
            self.desk = Desk(rules, self.desk.responses)
        self.clerk.learn = self.desk.learn if self.desk.learns else None

    def place(self, intake: Intake, excluded: frozenset[InstanceId]) -> Placement | Refusal:
        """The instances for one attempt of this request, by the fleet as it is known here."""
        self._turn += 1
        if not self.health.alert and self.explanations is None:
            return self.desk.choose(self.fleet, intake, self._turn, excluded)
        choose = functools.partial(self.desk.choose, self.fleet, intake, self._turn)
        return choose_with_care(self, choose, intake, excluded)

    def why_refused(self, refusal: Refusal) -> TandemError:
        """The refusal's own error, unless nobody is known because the fleet's sources do not answer."""
        if self.blind and not self.fleet.pools:
            return StoreDown("No engine is known, since the store does not answer; try again when it does.")
        return refusal.error

    def may_retry(self) -> bool:
        """True: one more attempt is within the budget, and paid for."""
        self._accrue()
        allowed = self.retries.take()
        self._accrued_turn += allowed  # the attempt that follows is no further request
        self.retries_denied += not allowed
        return allowed

    def may_hedge(self) -> bool:
        """True: a hedge is within its budget, and paid for."""
        self._accrue()
        allowed = self.hedging is not None and self.hedging.budget.take()
        self._accrued_turn += allowed
        if not allowed:
            self.hedges["denied"] += 1
        return allowed

    def _accrue(self) -> None:
        turn, self._accrued_turn, now = self._accrued_turn, self._turn, monotonic()
        self.retries.accrue(self._turn - turn, now)
        if self.hedging is not None:
            self.hedging.budget.accrue(self._turn - turn, now)

    def close(self, exchange: Exchange) -> None:
        """The exchange has its Outcome; it is counted and forgotten."""
        self.live.discard(exchange)
        if exchange.waits:
            self.admission.leave(exchange)
        else:
            self.admission.release(exchange.intake)
        self.clerk.put(exchange)
        if self.admission.waiting:
            self._let_in()

    def blame(self, error: TandemError, prefill: Instance, answer: bytes) -> Blame:
        """Who is to be avoided when prefill's `answer` was good and its hand-over was not.

        Nobody (Blame.ROUTER) when the fleet did not know of the engine's restart and has learned of it from the answer.
        """
        learned = isinstance(error, PeerGone) and self.relearn(prefill, answer)
        return Blame.ROUTER if learned else Blame.PREFILL

    def count_take_back(self, status: int) -> None:
        """A call that takes an attempt back has ended with this HTTP status, or with 0 for none."""
        self.take_backs[result_of(status)] += 1

    def reopen(self) -> None:
        """The tickets of all running requests will be in the ledger, which has lost them."""
        now = monotonic()
        for exchange in self.live:
            left_s = max(exchange.total_at - now, 0.0)
            if exchange.placement is not None:
                self.clerk.put((exchange.request_id, exchange.attempts, exchange.placement, left_s))
            if exchange.rival is not None:
                self.clerk.put((exchange.request_id, exchange.rival.number, exchange.rival.placement, left_s))

    def mint(self) -> RequestId:
        """A request id that nobody else has."""
        if not self._ids:
            raw = os.urandom(16 * _IDS_AT_ONCE).hex()
            self._ids = ["req-" + raw[i : i + 32] for i in range(0, len(raw), 32)]
        return RequestId(self._ids.pop())

    def pool(self, url: str) -> LegPool:
        """The connections to the instance at this address."""
        pool = self._pools.get(url)
        if pool is None:
            pool = self._pools[url] = self.make_pool(url)
        return pool

    def make_pool(self, url: str) -> LegPool:
        """New connections to this address, as keys, TLS and the rules for hosts have it."""
        return LegPool(url, self.conduct.pool, self.conduct.access)

    def pools(self) -> dict[str, LegPool]:
        """All pools by URL."""
        return dict(self._pools)

    def take_fleet(self, fleet: Fleet) -> None:
        """Requests are placed on this fleet from here on; what belonged to vanished instances is forgotten."""
        self.fleet = fleet
        members = fleet.members
        self._accrue()
        self.health.see({member.instance.instance_id: member.instance.epoch for member in members})
        self.burdens.keep_only(frozenset(member.instance.instance_id for member in members))
        urls = {member.instance.url for member in members}
        for url in [url for url, pool in self._pools.items() if url not in urls and not pool.num_busy]:
            self._pools.pop(url).close()
        for pool in self._pools.values():
            pool.close_idle()

    def drain(self) -> None:
        """New requests are refused; running ones go on."""
        self.leaving = True
        self.admission.draining = True

    def abort(self) -> None:
        """Running requests end with an error, and prefills that were left are left no longer."""
        for exchange in tuple(self.live):
            exchange.expire(Draining("This router is shutting down; send the request again to reach another replica."))
        for leftover in tuple(self.leftovers):
            leftover.on_due(leftover.due_at)
        for mend in tuple(self.mends):
            mend.stop()
        self.clerk.work_off()

    async def aclose(self) -> None:
        """No connection is left; engines that were to be told of what `abort` has ended have heard it, if they can."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                while any(pool.num_busy for pool in self._pools.values()):
                    await asyncio.sleep(_POLL_S)
        for pool in self._pools.values():
            pool.close()
