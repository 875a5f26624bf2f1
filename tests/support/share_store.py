"""A store of shares that is one Python object, for tests of whoever asks it. `lua/share.lua` is held against it."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.contract.errors import StoreDown
from router.contract.shares import UNLIMITED, Answer, Question
from router.core.shares import grant
from router.store.shares import Questions


@dataclass(slots=True)
class Held:
    ends_at: float
    granted: tuple[int, int]
    wants: tuple[int, int]


@dataclass(slots=True)
class ShareServer:
    """What all replicas hold."""

    now: float = 0.0
    down: bool = False
    lost_memory_at: float | None = None
    held: dict[str, dict[str, Held]] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    doubt_until: dict[str, float] = field(default_factory=dict)

    def forget(self) -> None:
        """It starts anew with nothing in memory."""
        self.held, self.seen, self.doubt_until = {}, {}, {}
        self.lost_memory_at = self.now

    def sum(self, name: str, kind: int) -> int:
        return sum(one.granted[kind] for one in self.held.get(name, {}).values())

    def ask(self, client: ShareClient, questions: Questions, lease_s: float) -> dict[str, Answer]:
        if self.down:
            raise StoreDown("The store is down.")
        return {name: self._ask(client, name, asked, lease_s) for name, asked in questions.items()}

    def _ask(self, client: ShareClient, name: str, asked: tuple[Question, Question], lease_s: float) -> Answer:
        owner = client.owner
        doubt = lease_s > 0 and self._in_doubt(name, lease_s, client.answered)
        held = self.held.setdefault(name, {})
        for other in [one for one, its in held.items() if one != owner and its.ends_at <= self.now and not doubt]:
            del held[other]
        others = {one: its for one, its in held.items() if one != owner}
        granted = tuple(
            question.keeps
            if question.total == UNLIMITED
            else grant(question, sum(its.granted[kind] for its in others.values()), in_doubt=doubt)
            for kind, question in enumerate(asked)
        )
        held.pop(owner, None)
        if lease_s > 0:
            held[owner] = Held(self.now + lease_s, granted, (asked[0].wants, asked[1].wants))
        wants = tuple({one: its.wants[kind] for one, its in others.items()} for kind in (0, 1))
        return Answer(granted, doubt, wants)

    def _in_doubt(self, name: str, lease_s: float, answered: bool) -> bool:
        seen = self.seen.get(name)
        young = self.lost_memory_at is not None and self.now - self.lost_memory_at < lease_s
        if (seen is not None and self.now - seen > lease_s / 2) or (seen is None and (young or answered)):
            self.doubt_until[name] = self.now + lease_s
        self.seen[name] = self.now
        return self.now < self.doubt_until.get(name, 0.0)


@dataclass(slots=True)
class ShareClient:
    """One replica's way to it."""

    server: ShareServer
    owner: str
    cut: bool = False
    loses_answers: bool = False
    answered: bool = False

    async def ask(self, questions: Questions, lease_s: float) -> dict[str, Answer]:
        if self.cut:
            raise StoreDown("The way to the store is cut.")
        answers = self.server.ask(self, questions, lease_s)
        if self.loses_answers:
            raise StoreDown("The answer is lost.")
        self.answered = True
        return answers
