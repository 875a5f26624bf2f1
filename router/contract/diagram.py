"""State diagrams printed from the tables that the code walks, as Mermaid text for ARCHITECTURE.md."""

from __future__ import annotations

from collections.abc import Iterable

from router.contract.rendezvous import JOIN, JoinState

Edge = tuple[str, str, str]
"""(state before, state after, label)"""


def state_diagram(start: str, edges: Iterable[Edge], ends: Iterable[str]) -> str:
    """A Mermaid state diagram; edges that join the same two states share one arrow."""
    labels: dict[tuple[str, str], list[str]] = {}
    for before, after, label in edges:
        labels.setdefault((before, after), []).append(label)
    lines = [f"    [*] --> {start}"]
    lines += [f"    {before} --> {after}: {'<br/>'.join(texts)}" for (before, after), texts in labels.items()]
    lines += [f"    {end} --> [*]" for end in ends]
    return "\n".join(["stateDiagram-v2", *lines]) + "\n"


def join_diagram() -> str:
    """The JOIN table: arrivals, and in brackets the effects that they order. Rows that do nothing are left out."""
    edges = (
        (before.value, after.value, f"{arrival} [{', '.join(effects)}]" if effects else arrival.value)
        for (before, arrival), (after, effects) in JOIN.items()
        if after is not before or effects
    )
    return state_diagram(JoinState.EMPTY.value, edges, (state.value for state in JoinState if state.closed))
