"""A network in one process that does everything a network may do, in an order drawn from a seed.

A Put is cut into pieces that land one by one, in any order, between pieces of other Puts; a piece may land twice; its
bytes are read from the outbox only when it lands, as a network card reads them. A Signal becomes due when the last
piece of its own Put has landed, waits again, and may come a second time at any later moment. Nothing stronger is
promised, so a protocol that leans on more breaks here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import torch

from engine_shim.experts.regions import Regions
from engine_shim.experts.signal import Signal
from engine_shim.experts.transport import Put

SIGNAL_COPIES = 0.1
"""Odds that a Signal comes twice, and that a piece lands twice."""


@dataclass(slots=True)
class _Piece:
    source: int
    put: Put
    begin: int
    end: int
    siblings: list[int]
    """How many pieces of this Put have not landed; shared by them."""


@dataclass(slots=True)
class LocalNetwork:
    """All ranks' memory, and what is between them."""

    regions: Regions
    random: Random
    most_pieces: int = 3
    dead: set[int] = field(default_factory=set)
    _pieces: list[_Piece] = field(default_factory=list)
    _due: list[tuple[int, Put]] = field(default_factory=list)
    _landed: dict[int, list[tuple[int, Signal]]] = field(default_factory=dict)
    _memory: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def transport(self, rank: int) -> LocalTransport:
        """Rank's end of the network, with memory that holds 0xFF: NaN in every format."""
        sizes = self.regions.inbox_bytes, self.regions.outbox_bytes
        inbox, outbox = (torch.full((size,), 0xFF, dtype=torch.uint8) for size in sizes)
        self._memory[rank] = inbox, outbox
        self._landed[rank] = []
        return LocalTransport(self, rank, inbox, outbox)

    def send(self, source: int, put: Put) -> None:
        """The Put is on its way."""
        if source in self.dead or put.peer in self.dead:
            return
        if not put.num_bytes:
            self._due.append((source, put))
            return
        cuts = sorted({self.random.randrange(put.num_bytes) for _ in range(self.random.randrange(self.most_pieces))})
        edges = [0, *(cut for cut in cuts if cut), put.num_bytes]
        siblings = [len(edges) - 1]
        self._pieces += [_Piece(source, put, *edge, siblings) for edge in pairwise(edges)]

    def move(self) -> None:
        """One thing lands: a piece, or a Signal that is due."""
        num_things = len(self._pieces) + len(self._due)
        if not num_things:
            return
        at = self.random.randrange(num_things)
        if at < len(self._pieces):
            self._land(at)
        else:
            self._tell(at - len(self._pieces))

    def kill(self, rank: int) -> None:
        """Nothing from or to this rank lands any more."""
        self.dead.add(rank)
        self._pieces = [one for one in self._pieces if rank not in (one.source, one.put.peer)]
        self._due = [(source, put) for source, put in self._due if rank not in (source, put.peer)]

    def take(self, rank: int) -> list[tuple[int, Signal]]:
        """Signals that have come to `rank` since the last call."""
        taken, self._landed[rank] = self._landed[rank], []
        return taken

    def _land(self, at: int) -> None:
        piece, put = self._pieces[at], self._pieces[at].put
        inbox, outbox = self._memory[put.peer][0], self._memory[piece.source][1]
        size = piece.end - piece.begin
        target, source = put.target + piece.begin, put.source + piece.begin
        inbox[target : target + size] = outbox[source : source + size]
        if self.random.random() < SIGNAL_COPIES:
            return
        _swap_out(self._pieces, at)
        piece.siblings[0] -= 1
        if not piece.siblings[0]:
            self._due.append((piece.source, put))

    def _tell(self, at: int) -> None:
        source, put = self._due[at]
        self._landed[put.peer].append((source, put.signal))
        if self.random.random() >= SIGNAL_COPIES:
            _swap_out(self._due, at)


@dataclass(frozen=True, slots=True)
class LocalTransport:
    """See Transport. Things land when the network moves, not when it is polled."""

    network: LocalNetwork
    rank: int
    inbox: torch.Tensor
    outbox: torch.Tensor

    def scatter(self, puts: Sequence[Put]) -> None:
        """See Transport."""
        for put in puts:
            self.network.send(self.rank, put)

    def poll(self) -> list[tuple[int, Signal]]:
        """See Transport."""
        return self.network.take(self.rank)

    @property
    def gone(self) -> frozenset[int]:
        """Nobody: a dead rank is silent here, and only a deadline tells."""
        return frozenset()

    @property
    def busy(self) -> frozenset[int]:
        """Nobody: the network moves by itself."""
        return frozenset()

    def close(self) -> None:
        """See Transport."""


def _swap_out(things: list, at: int) -> None:  # type: ignore[type-arg]
    things[at] = things[-1]
    things.pop()
