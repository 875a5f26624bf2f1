"""Policies: which of several instances takes the next leg.

A policy sees its candidates, their weights, the request, and `turn`, a number that grows by one with each choice.
Nothing here is random: a policy that wants to spread its choices scrambles the turn, so a test can repeat any choice.
These four remember nothing; `policy_table` names them and those that do.
"""

from __future__ import annotations

from collections.abc import Callable

from router.core.fleet import Member
from router.core.intake import Intake
from router.core.roster import Roster

Weigh = Callable[[Member], int]
"""How much work waits at an instance; only comparisons count."""

Policy = Callable[[Roster, Weigh, Intake, int], Member]
"""Candidates (at least one), their weight, the request, turn -> the chosen one."""

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def scramble(turn: int) -> int:
    """64 bits that look random and are the same for the same turn (the finaliser of splitmix64)."""
    mixed = (turn * _GOLDEN) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def power_of_two(members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
    """The lighter one of two that the turn picks; of two equals the first picked."""
    num = len(members)
    if num == 1:
        return members[0]
    mixed = scramble(turn)
    first = mixed % num
    second = (first + 1 + (mixed >> 32) % (num - 1)) % num
    one, other = members[first], members[second]
    return other if weigh(other) < weigh(one) else one


def least_loaded(members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
    """The lightest of all; equals take turns."""
    start = turn % len(members)
    return min((*members[start:], *members[:start]), key=weigh)


def round_robin(members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
    """Each in its turn, whatever its weight."""
    return members[turn % len(members)]


def random(members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
    """Any, whatever its weight."""
    return members[scramble(turn) % len(members)]
