"""Shares: one budget divided among replicas. Pure.

    before a question   a replica lowers what it lets in to its fair part, and says what it keeps: that, or what it has
                        in flight if that is more
    the store           adds up what the others hold, and grants what is asked as far as the total allows; what is kept
                        is a fact and always granted
    after the answer    the replica lets in what it has been granted

So at every moment each replica holds no more than the store has written down for it, and all of that together is
within the total.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.contract.shares import Question


def ask(total: int, used: int, share: int, wants: int, fair: int) -> tuple[Question, int]:
    """The question of a replica that has `used` of its `share`, and what it may let in until it has the answer."""
    allowed = min(share, fair)
    return Question(total, max(used, allowed), fair, wants), allowed


def settle(question: Question, granted: int) -> int:
    """The share that follows from the answer."""
    return min(granted, question.target)


def grant(question: Question, others: int, *, in_doubt: bool) -> int:
    """What the store writes down for a replica while the other ones hold `others`; `lua/share.lua` is the same.

    In doubt, when the store may not know what others hold, nobody's part grows.
    """
    if in_doubt:
        return question.keeps
    return max(question.keeps, min(question.target, question.total - others))


def wanted(used: int, share: int) -> int:
    """What a replica asks for that has `used` of its share: with half of it gone, twice as much."""
    return 2 * used + 1 if 2 * used >= share else used


def fair_share(total: int, wants: Mapping[str, int], owner: str, turn: int) -> int:
    """The part of `owner`: what it wants as far as an equal part allows, and its part of what nobody wants.

    The parts of all owners add up to the total. Where units cannot be divided, `turn` says who gets one more.
    """
    owners = sorted(wants)
    start = turn % len(owners)
    modest_first = sorted(owners[start:] + owners[:start], key=wants.__getitem__)
    left, parts = total, dict.fromkeys(owners, 0)
    for number, one in enumerate(modest_first):
        parts[one] = min(wants[one], left // (len(owners) - number))
        left -= parts[one]
    each, more = divmod(left, len(owners))
    return parts[owner] + each + (modest_first.index(owner) < more)
