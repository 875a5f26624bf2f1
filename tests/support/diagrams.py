"""The state diagrams of ARCHITECTURE.md: `python -m tests.support.diagrams` prints them anew between their markers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from router.contract.diagram import Edge, join_diagram, state_diagram
from router.contract.instance import Mode
from router.core.lifecycle import START, Client, Node, Stand
from router.core.lifecycle import Edge as Fact
from tests.support.desk_walks import fates_diagram, seats_diagram

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
PLACE = re.compile(r"(<!-- diagram: (?P<name>[\w-]+) -->\n)(?P<body>.*?)(<!-- end of diagram -->)", re.DOTALL)


def lifecycle_diagram(mode: Mode) -> str:
    """One attempt in this mode: client, prefill leg, decode leg; of an ended one, how it ended for the client."""
    edges: list[Edge] = []
    seen: set[Node] = set()
    waiting = [START[mode]]
    while waiting:
        node = waiting.pop(0)
        if node in seen or node.stand.client.over:
            continue
        seen.add(node)
        for fact in Fact:
            step = node.steps[fact]
            if step is not None:
                after, effects = step
                label = f"{fact.name} [{', '.join(effect.name for effect in effects)}]" if effects else fact.name
                edges.append((_name(node.stand), _name(after.stand), label))
                waiting.append(after)
    ends = (client.name for client in Client if client.over)
    return state_diagram(_name(START[mode].stand), edges, ends)


def _name(stand: Stand) -> str:
    if stand.client.over:
        return stand.client.name
    legs = [f"P_{stand.prefill.name}"] * (stand.mode is not Mode.LOCAL) + [f"D_{stand.decode.name}"]
    return "_".join([stand.client.name, *legs])


DIAGRAMS: dict[str, Callable[[], str]] = {
    "join": join_diagram,
    "seats": seats_diagram,
    "fates": fates_diagram,
    **{f"lifecycle-{mode}": (lambda mode=mode: lifecycle_diagram(mode)) for mode in Mode},
}


def redrawn(text: str) -> str:
    """The text with every diagram printed from its table."""
    return PLACE.sub(lambda place: f"{place[1]}```mermaid\n{DIAGRAMS[place['name']]()}```\n{place[4]}", text)


def main() -> None:
    """ARCHITECTURE.md shows the tables as they are."""
    ARCHITECTURE.write_text(redrawn(ARCHITECTURE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
