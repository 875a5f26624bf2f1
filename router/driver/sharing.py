"""Sharing: budgets that hold for all replicas together, each of which has a share of them for a while.

Nothing waits for the store between a request and its legs: requests are let in by the share held here,
and a question every PERIOD_S moves shares to where they are wanted. While the store does not answer, the held share
goes on. So a total is exceeded only by replicas that cannot ask: by at most the share of one that is cut off alone,
from the end of its lease on, and by one that has never been answered, for it has nothing to go by but the whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from router.contract.errors import StoreDown
from router.contract.shares import UNLIMITED, Answer, Question
from router.core.shares import ask, fair_share, settle, wanted
from router.driver.steady import Steady

LOG = logging.getLogger("tandem.router")

PERIOD_S = 0.25


class ShareStorePort(Protocol):
    """Where shares are written down."""

    async def ask(self, questions: Mapping[str, tuple[Question, Question]], lease_s: float) -> dict[str, Answer]:
        """What this replica holds from here on; a lease of 0 gives all back. Raises StoreDown."""


class _Counted:
    """One thing that is counted of one budget: requests, or tokens."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.share = total
        self._answered = False
        self._others_want: Mapping[str, int] = {}

    def ask(self, used: int, owner: str, turn: int) -> Question:
        """The question; the share is until the answer what it keeps."""
        if self.total == UNLIMITED:
            return Question(UNLIMITED, used, 0, used)
        share = self.share if self._answered else used
        wants = wanted(used, share)
        fair = fair_share(self.total, {**self._others_want, owner: wants}, owner, turn)
        question, allowed = ask(self.total, used, share, wants, fair)
        if self._answered:
            self.share = allowed
        return question

    def settle(self, question: Question, granted: int, others_want: Mapping[str, int]) -> None:
        """The share is what has been granted."""
        self._answered = True
        self._others_want = others_want
        if self.total != UNLIMITED:
            self.share = settle(question, granted)


@dataclass(frozen=True, slots=True)
class Shared:
    """One budget, and how this replica applies its share of it."""

    requests: int
    """In flight at all replicas together; UNLIMITED for none, as for tokens."""
    tokens: int
    used: Callable[[], tuple[int, int]]
    allow: Callable[[int, int], None]
    """From here on so many requests and tokens may be in flight here; UNLIMITED for any number."""


class _Held:
    """What is held here of one budget."""

    def __init__(self, budget: Shared) -> None:
        self.budget = budget
        self.requests = _Counted(budget.requests)
        self.tokens = _Counted(budget.tokens)
        self._allowed: tuple[int, int] | None = None

    def ask(self, owner: str, turn: int) -> tuple[Question, Question]:
        used = self.budget.used()
        asked = self.requests.ask(used[0], owner, turn), self.tokens.ask(used[1], owner, turn)
        self._allow()
        return asked

    def settle(self, asked: tuple[Question, Question], answer: Answer) -> None:
        self.requests.settle(asked[0], answer.granted[0], answer.others_want[0])
        self.tokens.settle(asked[1], answer.granted[1], answer.others_want[1])
        self._allow()

    def _allow(self) -> None:
        shares = self.requests.share, self.tokens.share
        if shares != self._allowed:
            self._allowed = shares
            self.budget.allow(*shares)


class Sharing:
    """This replica's part in all shared budgets."""

    def __init__(
        self, store: ShareStorePort, owner: str, budgets: Callable[[], Mapping[str, Shared]], lease_s: float
    ) -> None:
        """`budgets` is called before each question: by name, those that there are."""
        self._store = store
        self._owner = owner
        self._budgets = budgets
        self._held: dict[str, _Held] = {}
        self._lease_s = lease_s
        self._turn = 0
        self.degraded = False
        """True while the store does not answer and the held shares go on."""

    async def run(self) -> None:
        """Look, for ever."""
        steady = Steady("the sharing of budgets")
        while True:
            await steady.take(self.look())
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """The shares of this replica are what the store has granted just now, or what it held before."""
        self._turn += 1
        budgets = self._budgets()
        self._held = {name: self._held.get(name) or _Held(budget) for name, budget in budgets.items()}
        questions = {name: held.ask(self._owner, self._turn) for name, held in self._held.items()}
        try:
            answers = await self._store.ask(questions, self._lease_s)
        except StoreDown as error:
            if not self.degraded:
                LOG.warning("budgets go on with the shares that are held here: %s", error)
            self.degraded = True
            return
        if self.degraded:
            LOG.warning("budgets are shared again")
        self.degraded = False
        for name, answer in answers.items():
            self._held[name].settle(questions[name], answer)

    def shares(self) -> dict[str, tuple[int, int]]:
        """Requests and tokens that may be in flight here, by name of the budget."""
        return {name: (held.requests.share, held.tokens.share) for name, held in self._held.items()}

    async def resign(self) -> None:
        """Everything is given back, if the store answers; else when the lease ends."""
        nothing = Question(0, 0, 0, 0)
        try:
            await self._store.ask(dict.fromkeys(self._held, (nothing, nothing)), 0.0)
        except StoreDown:
            LOG.info("shares of budgets return to the others when their lease ends")
