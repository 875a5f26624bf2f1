"""Steady: one step of a task that goes on for ever; a bug, or a value that nobody has thought of, costs that step."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

LOG = logging.getLogger("tandem.router")


class Steady:
    """Takes the steps of one task."""

    def __init__(self, name: str) -> None:
        """`name` is what the log calls the step."""
        self._name = name
        self.broken = False
        """The last step has failed by a bug."""

    async def take(self, step: Awaitable[None]) -> None:
        """The step has been taken, or the log says, once for several in a row, why not."""
        try:
            await step
        except Exception:  # the boundary of the task, which must not end by one bad value
            if not self.broken:
                LOG.exception("%s fails by a bug; what was known before stays in force", self._name)
            self.broken = True
        else:
            self.broken = False
