"""Running: sequences of a simulated shim that somebody waits for, or nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine_shim.simulation.messages import LegCall
from engine_shim.simulation.timeline import Process


class Ear(Protocol):
    """Who hears what becomes of a sequence."""

    def send(self, sender: Process, message: object) -> None:
        """The message is on its way."""


class Nobody:
    """An Ear that hears nothing: the sequence serves another engine, not a caller."""

    def send(self, sender: Process, message: object) -> None:
        """See Ear."""


@dataclass(eq=False, slots=True)
class Running:
    """A sequence that has not ended."""

    call: LegCall
    ear: Ear
