"""Admission: may one more request come in, has it to wait, or is it refused?

    budget   of         over it
    caller   one key    429 at once: the caller's own doing; what it has waiting counts as well
    model    one pool   the request waits where there is a line with room, else 503
    total    us         the same

Who waits comes in by priority and fairly between callers (see Line); in a full line a better priority takes the place
of the last one. Without a line and without budgets of models and callers, a request costs two comparisons.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Generic, Protocol, TypeVar

from router.contract.errors import Draining, Overloaded, QuotaExceeded, TandemError
from router.core.budgets import UNLIMITED, Account, Accounts, Budget, Scope
from router.core.intake import Intake
from router.core.line import Line


class Applicant(Protocol):
    """Whoever waits for a request to come in."""

    @property
    def intake(self) -> Intake:
        """The request."""


Entry = TypeVar("Entry", bound=Applicant)


class Entrance(Enum):
    """An answer of `admit` that is no refusal."""

    WAIT = "wait"


WAIT = Entrance.WAIT


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets beside the total one, and the room in the line."""

    model: Budget = UNLIMITED
    """Of each model."""
    caller: Budget = UNLIMITED
    """Of each caller that has a name."""
    waiting_requests: int = 0
    """0: there is no line."""
    waiting_tokens: float = inf


class Admission(Generic[Entry]):
    """The budgets of one router, and who waits for them."""

    __slots__ = ("_callers", "_limits", "_lines", "_models", "_total", "draining", "waiting", "waiting_tokens")

    def __init__(self, max_requests: int, max_tokens: int, limits: Limits | None = None) -> None:
        """`max_tokens` 0 means that only requests are counted."""
        self._limits = limits or Limits()
        self._total = Account(Budget(max_requests, max_tokens or inf))
        self._models = Accounts(self._limits.model)
        self._callers = Accounts(self._limits.caller)
        self._lines: dict[str, Line[Entry]] = {}
        self.draining = False
        self.waiting = 0
        self.waiting_tokens = 0

    @property
    def requests(self) -> int:
        """Requests in flight."""
        return self._total.requests

    @property
    def tokens(self) -> int:
        """Their estimated prompt tokens."""
        return self._total.tokens

    def used(self, scope: Scope, name: str) -> tuple[int, int]:
        """Requests and tokens that are taken, as far as they are counted; of a caller the waiting ones as well."""
        account = self._total if scope is Scope.TOTAL else self._accounts(scope).of(name)
        return account.requests, account.tokens

    def set_budget(self, scope: Scope, name: str, budget: Budget, in_flight: Iterable[Intake] = ()) -> None:
        """The budget holds from here on; what is over it runs on.

        Args:
            name: a model or a caller; empty for all that have no budget of their own.
            in_flight: all requests that have come in or wait, to be counted if nobody has counted them so far.
        """
        if scope is Scope.TOTAL:
            self._total.budget = budget
            return
        accounts = self._accounts(scope)
        if not accounts.counting:
            for intake in in_flight:
                accounts.of(intake.owner if scope is Scope.MODEL else intake.caller).take(intake.prompt_tokens)
        accounts.set_budget(name, budget)

    def set_line(self, requests: int, tokens: float) -> None:
        """So many may wait from here on (0 requests: nobody comes to the line); those beyond it wait on.

        `tokens` is the sum of their estimated prompt tokens; inf for any number.
        """
        self._limits = replace(self._limits, waiting_requests=requests, waiting_tokens=tokens)

    def _accounts(self, scope: Scope) -> Accounts:
        return self._models if scope is Scope.MODEL else self._callers

    def admit(self, intake: Intake) -> TandemError | Entrance | None:
        """None: the request is in, and `release` must follow once. WAIT: `wait` must follow. Else the refusal."""
        if self.draining:
            return Draining("This router is shutting down; send the request again to reach another replica.")
        tokens = intake.prompt_tokens
        if self._models.counting or self._callers.counting:
            return self._admit_counted(intake, tokens)
        if not self.waiting and self._total.take_within(tokens):
            return None
        return self._wait_or_refuse(intake, tokens)

    def _admit_counted(self, intake: Intake, tokens: int) -> TandemError | Entrance | None:
        model, caller = self._models.of(intake.owner), self._callers.of(intake.caller)
        if intake.caller and not caller.fits(tokens):
            return QuotaExceeded("Your requests in flight are at your limit; send more when some have ended.")
        if self.waiting or not model.fits(tokens) or not self._total.take_within(tokens):
            return self._wait_or_refuse(intake, tokens)
        if self._models.counting:
            model.take(tokens)
        if self._callers.counting:
            caller.take(tokens)
        return None

    def release(self, intake: Intake) -> None:
        """A request that came in is over."""
        tokens = intake.prompt_tokens
        self._total.give(tokens)
        if self._models.counting:
            self._models.of(intake.owner).give(tokens)
        if self._callers.counting:
            self._callers.of(intake.caller).give(tokens)

    # The line.

    def _wait_or_refuse(self, intake: Intake, tokens: int) -> TandemError | Entrance:
        if self._limits.waiting_requests and (self._has_room(tokens) or self._last_below(intake.priority) is not None):
            return WAIT
        flight = f"{self.requests} requests with prompts of about {self.tokens} tokens are in flight"
        line = f" and {self.waiting} wait" if self.waiting else ""
        return Overloaded(f"{flight}{line}, which is the limit; try again shortly.")

    def _has_room(self, tokens: int) -> bool:
        fits = not self.waiting or self.waiting_tokens + tokens <= self._limits.waiting_tokens
        return fits and self.waiting < self._limits.waiting_requests

    def _last_below(self, priority: int) -> Entry | None:
        """Who waits in the last place, if its priority is worse than this one."""
        lasts = [last for line in self._lines.values() if (last := line.last()) is not None]
        worst = max(lasts, key=lambda last: last[0], default=None)
        return worst[1] if worst is not None and worst[0] > priority else None

    def wait(self, entry: Entry) -> Entry | None:
        """The entry waits until `next` names it or `leave` follows. Returns who has lost its place to it, if anybody.

        Whoever has lost its place is out of the line; its `leave` must follow all the same.
        """
        intake = entry.intake
        tokens = intake.prompt_tokens
        lost = None if self._has_room(tokens) else self._last_below(intake.priority)
        if lost is not None:
            self._remove(lost)
        self._lines.setdefault(intake.owner, Line()).put(entry, intake.caller, tokens, intake.priority)
        self.waiting += 1
        self.waiting_tokens += tokens
        if self._callers.counting:
            self._callers.of(intake.caller).take(tokens)
        return lost

    def leave(self, entry: Entry) -> None:
        """The entry that has waited does not, and has not come in."""
        self._remove(entry)
        if self._callers.counting:
            self._callers.of(entry.intake.caller).give(entry.intake.prompt_tokens)

    def _remove(self, entry: Entry) -> None:
        line = self._lines.get(entry.intake.owner)
        if line is not None and line.remove(entry):
            self._shorten(entry.intake)

    def _shorten(self, intake: Intake) -> None:
        """A request has left the line of its model."""
        self.waiting -= 1
        self.waiting_tokens -= intake.prompt_tokens
        if not self._lines[intake.owner]:
            del self._lines[intake.owner]

    def next(self) -> Entry | None:
        """The next one has come in, as if by `admit`; None when nobody waits or nobody fits.

        Models take turns. The first whose own budget has room is waited for, however large its request is: smaller ones
        would else overtake it for ever.
        """
        for model, line in self._lines.items():
            entry = line.first()
            assert entry is not None  # an empty line is dropped
            tokens = entry.intake.prompt_tokens
            if self._models.counting and not self._models.of(model).fits(tokens):
                continue
            if not self._total.fits(tokens):
                return None
            line.pop()
            self._total.take(tokens)
            if self._models.counting:
                self._models.of(model).take(tokens)
            self._lines[model] = self._lines.pop(model)  # its turn is over
            self._shorten(entry.intake)
            return entry
        return None
