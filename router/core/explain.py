"""Explain: why a request was placed as it was, or refused.

Beside what was chosen it names every instance of the model, what each weighed at that moment, and why it was out of the
question. Made for the last few choices, and only where somebody has asked for it.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

import msgspec

from router.contract.ids import InstanceId
from router.core.cost import has_room, predict_prefill_s, predict_step_s
from router.core.fleet import Fleet, Member
from router.core.intake import Intake
from router.core.placement import Placement, Refusal
from router.core.session import UNNAMED
from router.core.weights import weigh_sequences, weigh_tokens


class Candidate(msgspec.Struct, frozen=True):
    """One instance of the model, as it looked when the choice was made."""

    instance_id: str
    role: str
    zone: str
    tokens: int
    """Prompt tokens that wait there."""
    sequences: int
    """Sequences that run or wait there."""
    prefill_s: float
    """Seconds until its prefill's answer, as its pace predicts them."""
    step_s: float
    """Seconds per output token, as its pace predicts them."""
    room: bool
    """False when the KV cache of the prompt is known not to fit."""
    skipped: str
    """draining, excluded (it has failed this request, or is held to be unwell), other_role (it does not decode, and the
    request is local), no_pair (it cannot exchange KV cache with the one chosen for the other role), or empty: it could
    have been chosen, in its role."""


class Explanation(msgspec.Struct, frozen=True):
    """One choice."""

    at_s: float
    """Seconds of the clock that the caller reads."""
    request_id: str
    model: str
    prompt_tokens: int
    mode: str
    """Empty for a refusal."""
    reason: str
    """Why this mode, or the refusal's error code."""
    prefill: str
    decode: str
    """Empty as long as it is to be chosen late: that choice is explained by itself."""
    session: bool
    """The request has named a session."""
    candidates: tuple[Candidate, ...]


def explain(
    fleet: Fleet, intake: Intake, choice: Placement | Refusal, excluded: frozenset[InstanceId], at_s: float
) -> Explanation:
    """Why `choice` was made on this fleet; called before the legs of the choice weigh anything."""
    pool = fleet.pools.get(intake.model)
    placed = choice if isinstance(choice, Placement) else None
    candidates = tuple(
        _candidate(member, intake, _why_not(member, placed, fleet, intake.model, excluded))
        for member in (pool.members if pool is not None else ())
    )
    return Explanation(
        at_s=at_s,
        request_id=intake.request_id,
        model=intake.model,
        prompt_tokens=intake.prompt_tokens,
        mode=placed.mode if placed is not None else "",
        reason=choice.reason if isinstance(choice, Placement) else choice.error.code,
        prefill=placed.prefill.instance.instance_id if placed is not None and placed.prefill is not None else "",
        decode=placed.decode.instance.instance_id if placed is not None and placed.decode is not None else "",
        session=bytes(intake.session) not in UNNAMED,
        candidates=candidates,
    )


def _candidate(member: Member, intake: Intake, skipped: str) -> Candidate:
    tokens = intake.prompt_tokens
    return Candidate(
        member.instance.instance_id,
        member.instance.role,
        member.instance.zone,
        weigh_tokens(member),
        weigh_sequences(member),
        predict_prefill_s(member, tokens),
        predict_step_s(member),
        has_room(member, tokens),
        skipped,
    )


def _why_not(
    member: Member, placed: Placement | None, fleet: Fleet, model: str, excluded: frozenset[InstanceId]
) -> str:
    if member.instance.draining:
        return "draining"
    if member.instance.instance_id in excluded:
        return "excluded"
    if placed is None or member in (placed.prefill, placed.decode):
        return ""
    if placed.prefill is None:
        return "" if member.instance.role.decodes else "other_role"
    either = fleet.pools[model].either
    pairs = ((placed.prefill, member), (member, placed.decode))
    holds = either is not None and any(two is not None and either.holds(one, two) for one, two in pairs)
    return "" if holds else "no_pair"


class Explanations:
    """The last choices and why."""

    __slots__ = ("_ring",)

    def __init__(self, keep: int) -> None:
        """The last `keep` are kept."""
        self._ring: deque[Explanation] = deque(maxlen=keep)

    def add(self, explanation: Explanation) -> None:
        """One more choice was made."""
        self._ring.append(explanation)

    def newest(self, num: int) -> list[Explanation]:
        """At most `num` of them, the newest first."""
        return list(islice(reversed(self._ring), num))
