"""Limits of what is in flight, and how the workers of a replica divide them."""

from __future__ import annotations

from dataclasses import replace

from router.contract.errors import BadSettings
from router.settings import Settings

BUDGETS = (
    "max_requests",
    "max_tokens",
    "model_max_requests",
    "model_max_tokens",
    "caller_max_requests",
    "caller_max_tokens",
)
"""Limits of what is in flight."""
DIVIDED = (*BUDGETS, "queue_requests", "queue_tokens")
"""Limits of a replica that its workers divide among them."""


def check_division(settings: Settings, size: int) -> None:
    """Each of `size` workers gets a part of every limit.

    Raises:
        BadSettings: a limit is smaller than the number of workers, and nobody keeps it for all of them.
    """
    for name in () if settings.shared_budgets else BUDGETS:
        if 0 < getattr(settings, name) < size:
            raise BadSettings(
                f"{name} is {getattr(settings, name)}, which {size} workers cannot divide; raise it, start fewer "
                "workers, or set shared_budgets."
            )


def share(settings: Settings, slot: int, size: int) -> Settings:
    """The settings of worker `slot` of `size`: its part of the limits, at least 1 place in the line if there is one."""
    if settings.shared_budgets:
        return settings
    whole = {name: getattr(settings, name) for name in DIVIDED}
    parts = {name: max(count // size + (slot < count % size), 1) if count else 0 for name, count in whole.items()}
    # Any: replace() takes the fields by name, and all of these are whole numbers.
    return replace(settings, **parts)  # type: ignore[arg-type]
