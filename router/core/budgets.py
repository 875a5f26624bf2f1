"""Budgets: how many requests and estimated prompt tokens may be in flight, of everybody, of a model, of a caller."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from router.core.in_flight import InFlight


class Scope(StrEnum):
    """Whose budget it is."""

    TOTAL = "total"
    MODEL = "model"
    CALLER = "caller"


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be in flight at once; 0 requests let nothing in."""

    requests: float = inf
    tokens: float = inf
    alone: bool = True
    """A request that is larger than all tokens fits when it is alone, since refusing it for ever would help nobody.

    False for a share of a budget while others hold the rest.
    """


UNLIMITED = Budget()


class Account(InFlight):
    """A budget, and what is taken of it."""

    __slots__ = ("budget",)

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self.budget = budget

    def fits(self, tokens: int) -> bool:
        """True when one more request of so many tokens is within the budget."""
        budget = self.budget
        alone = budget.alone and not self.requests
        return self.requests < budget.requests and (alone or self.tokens + tokens <= budget.tokens)

    def take_within(self, tokens: int) -> bool:
        """True: the request fits, and is taken."""
        if not self.fits(tokens):
            return False
        self.take(tokens)
        return True


MAX_IDLE = 1024
"""Accounts beyond so many are looked through for idle ones, which are forgotten."""


class Accounts:
    """The accounts of one Scope by name."""

    __slots__ = ("_default", "_of", "_own", "counting")

    def __init__(self, default: Budget) -> None:
        self._default = default
        self._own: dict[str, Budget] = {}
        self._of: dict[str, Account] = {}
        self.counting = default != UNLIMITED
        """False while nobody here has a limit, so that nothing need be counted."""

    def of(self, name: str) -> Account:
        """The account of this name; the same one as long as something is taken of it."""
        account = self._of.get(name)
        if account is None:
            if len(self._of) >= MAX_IDLE:
                self._of = {one: account for one, account in self._of.items() if account.requests}
            account = self._of[name] = Account(self._own.get(name, self._default))
        return account

    def set_budget(self, name: str, budget: Budget) -> None:
        """The budget of one name, or with an empty name that of all that have none of their own."""
        self.counting = True
        if name:
            self._own[name] = budget
        else:
            self._default = budget
        for one, account in self._of.items():
            account.budget = self._own.get(one, self._default)
