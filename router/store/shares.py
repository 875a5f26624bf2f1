"""Shares of budgets in Redis: who holds how much, under a lease. `lua/share.lua` keeps the sum within each total."""

from __future__ import annotations

from collections.abc import Mapping

from router.contract.shares import Answer, Question
from router.store import keys
from router.store.connection import StoreClient
from router.store.scripts import read_script

KEEP_S = 3600

_SHARE = read_script("clock", "share")

Questions = Mapping[str, tuple[Question, Question]]
"""By name of the budget: requests, tokens."""


class ShareStore:
    """The shares of one replica. Methods raise StoreDown when Redis does not answer."""

    def __init__(self, redis: StoreClient, namespace: str, owner: str) -> None:
        self._redis = redis
        self._namespace = namespace
        self._owner = owner
        self._answered = 0

    async def ask(self, questions: Questions, lease_s: float) -> dict[str, Answer]:
        """What this replica holds from here on, until `lease_s` seconds after its last question; 0 gives all back."""
        names = tuple(keys.budget(self._namespace, name) for name in questions)
        numbers = [
            number
            for asked in questions.values()
            for one in asked
            for number in (one.total, one.keeps, one.target, one.wants)
        ]
        arguments: tuple[str | int, ...]
        arguments = (self._owner, round(lease_s * 1000), KEEP_S * 1000, self._answered, *numbers)
        replies = await _SHARE.run(self._redis, names, *arguments)
        self._answered = 1
        return {name: _answer(reply) for name, reply in zip(questions, replies, strict=True)}


def _answer(reply: list[bytes | int]) -> Answer:
    requests, tokens, doubt, *others = reply
    names = [name.decode() for name in others[::3] if isinstance(name, bytes)]
    wants = [{name: int(count) for name, count in zip(names, others[at::3], strict=True)} for at in (1, 2)]
    return Answer((int(requests), int(tokens)), doubt == 1, (wants[0], wants[1]))
