"""Times of one case of `tandem bench transfer`, told only when its bytes were right."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from engine_shim.bench.transfer_agent import AgentProcess, Took
from engine_shim.bench.transfer_case import Case
from engine_shim.fabric.port import CopyOp
from router.contract.errors import TransferFailed

_labels = count(1)
Pair = tuple[AgentProcess, AgentProcess]


@dataclass(frozen=True, slots=True)
class Figures:
    """One case, all timed rounds; seconds."""

    name: str
    num_bytes: int
    case: Case | None
    """None for a copy without a fabric."""
    num_spans: int
    plan_s: list[float] = field(default_factory=list)
    post_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    landed_s: list[float] = field(default_factory=list)

    @property
    def gb_per_s(self) -> float:
        """Bytes over the median of `landed`, 1e9 a second."""
        return self.num_bytes / quantile(self.landed_s, 0.5) / 1e9


def quantile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed; 0 when there are none."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else 0.0


def measure(agents: Pair, case: Case, rounds: int, name: str = "") -> Figures:
    """The case's times. Raises TransferFailed when a byte is wrong."""
    _check(agents, case, seed=1)
    figures = Figures(name or f"{case.op.value} {case.path}", case.num_bytes, case, _move(agents, case)[0].num_spans)
    for _ in range(rounds):
        took, landed_at = _move(agents, case)
        figures.plan_s.append(took.plan_s)
        figures.post_s.append(took.post_s)
        figures.done_s.append(took.done_s)
        figures.landed_s.append(landed_at - took.began_at)
    _check(agents, case, seed=2)
    return figures


def measure_copy(agent: AgentProcess, num_bytes: int, rounds: int) -> Figures:
    """A plain copy within the agent's memory."""
    agent.ask("copy_halves", num_bytes)
    return Figures(
        "plain copy", num_bytes, None, 1, landed_s=[agent.ask("copy_halves", num_bytes) for _ in range(rounds)]
    )


def _check(agents: Pair, case: Case, seed: int) -> None:
    source, target = agents
    source.ask("fill", seed)
    target.ask("poison")
    _move(agents, case)
    wrong = target.ask("wrong_bytes", case, seed)
    if wrong:
        raise TransferFailed(f"{wrong} bytes are wrong after {case}; do not trust this fabric, and report it.")


def _move(agents: Pair, case: Case) -> tuple[Took, float]:
    """What the mover saw, and when the target knew that all is there."""
    source, target = agents
    if case.op is CopyOp.READ:
        took: Took = target.ask("move", case, b"")
        return took, took.began_at + took.done_s
    label = b"%d" % next(_labels)
    took = source.ask("move", case, label)
    return took, target.ask("landed", label)
