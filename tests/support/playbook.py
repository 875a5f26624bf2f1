"""A test of the Lifecycle that reads as the conversation it specifies: `>>` is a fact, `<<` an effect that it orders.

    assert Playbook(Mode.PUSH) >> Edge.PLACED << Effect.SEND_PREFILL << Effect.SEND_DECODE

All effects of a fact must be named, in order. A playbook that is never asserted fails, since it would prove nothing.
"""

from __future__ import annotations

from router.contract.instance import Mode
from router.core.lifecycle import START, Edge, Effect, Stand


class Playbook:
    """One request, step by step."""

    def __init__(self, mode: Mode) -> None:
        self._node = START[mode]
        self._due: list[Effect] = []
        self._script: list[str] = [f"{self._node.stand}"]
        self._asserted = False

    @property
    def stand(self) -> Stand:
        return self._node.stand

    def __rshift__(self, edge: Edge) -> Playbook:
        self._nothing_is_due()
        step = self._node.steps[edge]
        self._script.append(f">> {edge.name}")
        if step is None:
            self._fail(f"there is no row for {edge.name}")
        self._node, effects = step
        self._due = list(effects)
        return self

    def __lshift__(self, effect: Effect) -> Playbook:
        self._script.append(f"<< {effect.name}")
        if not self._due:
            self._fail(f"{effect.name} is not ordered")
        if self._due[0] is not effect:
            self._fail(f"{self._due[0].name} is ordered, not {effect.name}")
        self._due.pop(0)
        return self

    def refuses(self, edge: Edge) -> bool:
        """True when the table has no row for this fact; counts as an assertion."""
        self._asserted = True
        self._nothing_is_due()
        return self._node.steps[edge] is None

    def __bool__(self) -> bool:
        self._asserted = True
        self._nothing_is_due()
        return True

    def _nothing_is_due(self) -> None:
        if self._due:
            self._fail(f"{[effect.name for effect in self._due]} is ordered too")

    def _fail(self, why: str) -> None:
        self._asserted = True
        raise AssertionError("\n".join([*self._script, f"   {self.stand}", f"!! {why}"]))

    def __del__(self) -> None:
        if not self._asserted:
            raise AssertionError(f"a playbook was never asserted: {self._script}")
