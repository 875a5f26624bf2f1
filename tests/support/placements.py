"""What a desk chooses, put briefly."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from router.contract.instance import Mode
from router.contract.ledger import Outcome
from router.core.fleet import Fleet
from router.core.intake import Intake
from router.core.placement import Desk, Placement, Refusal, Rules
from router.core.record import Record
from tests.support.instances import decode, fleet, intake, prefill

NOBODY: frozenset[str] = frozenset()
LONG = b"x" * 40_000
"""A body of some 10,000 tokens: 1.27 s of prefill as long as nothing is learned."""
PUSHING, PULLING = {"modes": [Mode.PUSH]}, {"modes": [Mode.PULL]}


def choose(
    folded: Fleet, request: Intake | None = None, turn: int = 0, excluded: Collection[str] = NOBODY, **rules: Any
) -> Placement | Refusal:
    """What a new desk with these rules chooses."""
    return Desk(Rules(**rules)).choose(folded, request or intake(), turn, frozenset(excluded))


def chosen(placement: Placement | Refusal) -> tuple[str | None, str, Mode, str]:
    """Prefill, decode, mode, reason."""
    assert isinstance(placement, Placement) and placement.decode is not None
    first = placement.prefill.instance.instance_id if placement.prefill else None
    return first, placement.decode.instance.instance_id, placement.mode, placement.reason


def refused(refusal: Placement | Refusal) -> type:
    """The kind of error; its message ends as messages to clients do."""
    assert isinstance(refusal, Refusal)
    assert refusal.error.message.endswith((".", "again later."))
    return type(refusal.error)


def mixed() -> Fleet:
    """Two that push, two that pull, and two that can do both."""
    return fleet(
        prefill("p-push", **PUSHING),
        decode("d-push", **PUSHING),
        prefill("p-pull", **PULLING),
        decode("d-pull", **PULLING),
        prefill("p-any"),
        decode("d-any"),
    )


def served(**fields: Any) -> Record:
    """A request that was served at once: prefill took 0.5 s, ten more tokens came in a second."""
    times = {"sent_s": 0.01, "prefilled_s": 0.51, "content_s": 0.61, "last_byte_s": 1.61, "num_events": 11}
    fields = {"attempts": 1, "outcome": Outcome.SERVED} | times | fields
    return Record(0.0, "r", "", "m", "e", fields.pop("stream", True), **fields)
