"""One agent of `tandem bench transfer`, in a process of its own: it obeys a pipe and advances its fabric meanwhile."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from engine_shim.bench.transfer_case import BLOCK_TOKENS, Case
from engine_shim.bench.transfer_memory import count_wrong_bytes, noise, poison, take_memory
from engine_shim.core.copy_costs import Path
from engine_shim.core.transfer_plan import Side, TransferPlan, plan_transfer
from engine_shim.fabric.copier import open_ring
from engine_shim.fabric.mapping import open_mapper
from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import CopyKey, CopyOrder, CopyState, PeerName
from engine_shim.fabric.ring import make_ring
from engine_shim.fabric.staged import StagedFabric, Staging
from router.contract.errors import TandemError, TransferFailed
from router.contract.kv import Region
from router.contract.seal import Seal

POLLS_PER_LOOK = 16
"""Polls of the fabric between two looks into the pipe, which cost more."""
COPY_WITHIN_S = 60.0
END_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """How to start an agent."""

    name: str
    device: str
    num_bytes: int
    backend: str
    ring_bytes: int = 0
    """Of the staging ring; 0 for none."""


@dataclass(frozen=True, slots=True)
class Card:
    """What the other agent needs to know."""

    name: str
    metadata: bytes
    region: Region


@dataclass(frozen=True, slots=True)
class Took:
    """One copy, seen by its mover; seconds."""

    began_at: float
    """Monotonic clock when the posting began; the plan was there."""
    plan_s: float
    post_s: float
    done_s: float
    """From before the posting until the copy had ended."""
    num_spans: int


def fabric_of(spec: AgentSpec, region: Region) -> StagedFabric:
    """The agent's fabric over this memory."""
    ring = None
    if spec.ring_bytes:
        ring = make_ring(*open_ring(region, spec.ring_bytes), time.monotonic, open_mapper(region))
    inner = NixlFabric(spec.name, region, spec.backend, ring.card.region if ring else None)
    return StagedFabric(spec.name, region, inner, Staging(ring, Seal()))


class Agent:
    """The verbs of the pipe."""

    def __init__(self, spec: AgentSpec) -> None:
        self._name = spec.name
        self._memory = take_memory(spec.device, spec.num_bytes)
        self._fabric = fabric_of(spec, self._memory.region)
        self._peer: Card | None = None
        self._keys = count(1)
        self._landed: dict[bytes, float] = {}

    def card(self) -> Card:
        """For the peer's `meet`."""
        return Card(self._name, self._fabric.metadata(), self._memory.region)

    def meet(self, card: Card) -> None:
        """The peer can be reached."""
        self._fabric.add_peer(card.metadata)
        self._peer = card

    def fill(self, seed: int) -> None:
        """The memory holds noise."""
        self._memory.load(noise(self._memory.region.num_bytes, seed))

    def poison(self) -> None:
        """The memory holds what no noise looks like."""
        self._memory.load(poison(self._memory.region.num_bytes))

    def copy_halves(self, num_bytes: int) -> float:
        """Seconds of a plain copy within this memory."""
        return self._memory.copy_halves(num_bytes)

    def wrong_bytes(self, case: Case, seed: int) -> int:
        """Bytes of this once poisoned memory that are not what `case` brings from a memory filled with `seed`."""
        source = noise(self._memory.region.num_bytes, seed)
        return count_wrong_bytes(self._memory.save(), source, _plan(case, case.sides()))

    def move(self, case: Case, label: bytes) -> Took:
        """The copy is over. Raises TransferFailed when it failed or took too long."""
        if self._peer is None:
            raise TransferFailed("The agents have not met.")
        self._fabric.force = None if case.path == "auto" else Path(case.path)
        sides = case.sides()
        planning_at = time.monotonic()
        plan = _plan(case, sides)
        key = CopyKey(next(self._keys))
        order = CopyOrder(key, case.op, PeerName(self._peer.name), plan, self._peer.region, label)
        began_at = time.monotonic()
        state = self._fabric.post(order)
        posted_at = time.monotonic()
        while state is CopyState.BUSY and time.monotonic() - posted_at < COPY_WITHIN_S:
            self.advance()
            state = self._fabric.poll(key)
        ended_at = time.monotonic()
        self._fabric.release(key)
        if state is not CopyState.DONE:
            raise TransferFailed(f"The {case.op.value} is {state.value} after {ended_at - began_at:.1f} s.")
        return Took(began_at, began_at - planning_at, posted_at - began_at, ended_at - began_at, len(plan.spans))

    def landed(self, label: bytes) -> float:
        """When this label arrived; it is waited for. Raises TransferFailed when it does not come."""
        began_at = time.monotonic()
        while label not in self._landed:
            self.advance()
            if time.monotonic() - began_at > COPY_WITHIN_S:
                raise TransferFailed("The tag of a WRITE that was done has not arrived.")
        return self._landed.pop(label)

    def advance(self) -> None:
        """The fabric has moved on."""
        for _, notice in self._fabric.advance():
            self._landed[notice] = time.monotonic()


def _plan(case: Case, sides: tuple[Side, Side]) -> TransferPlan:
    return plan_transfer(*sides, 0, case.num_blocks * BLOCK_TOKENS)


def serve(spec: AgentSpec, pipe: Connection) -> None:
    """Obey until the pipe closes or says `end`. An answer is (True, value) or (False, sentence)."""
    try:
        agent = Agent(spec)
    except TandemError as error:
        pipe.send((False, error.message))
        return
    pipe.send((True, None))
    while True:
        for _ in range(POLLS_PER_LOOK):
            agent.advance()
        if not pipe.poll():
            continue
        try:
            verb, arguments = pipe.recv()
        except EOFError:
            return
        if verb == "end":
            return
        try:
            pipe.send((True, getattr(agent, verb)(*arguments)))
        except TandemError as error:
            pipe.send((False, error.message))


class AgentProcess:
    """A running agent, seen from the process that measures."""

    def __init__(self, spec: AgentSpec) -> None:
        """Start it. Raises TransferFailed with its sentence when it cannot start."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(spec, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.name = spec.name
        self._answer()

    # Any: the answer's type is the verb's.
    def ask(self, verb: str, *arguments: object) -> Any:  # noqa: ANN401
        """The verb is done; its result. Raises TransferFailed with the agent's sentence."""
        self._pipe.send((verb, arguments))
        return self._answer()

    def end(self) -> None:
        """The process is gone."""
        if self._process.is_alive():
            self._pipe.send(("end", ()))
            self._process.join(END_WITHIN_S)
        self._process.kill()
        self._process.join()

    # Any: as for `ask`.
    def _answer(self) -> Any:  # noqa: ANN401
        try:
            worked, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise TransferFailed(f"The process of agent {self.name} has died; its last words are above.") from error
        if not worked:
            raise TransferFailed(value)
        return value
