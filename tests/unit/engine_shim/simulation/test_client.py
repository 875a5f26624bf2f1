"""What a client of the simulated world calls a broken promise."""

import random

import pytest

from engine_shim.simulation.client import PATIENCE_S, Client, End
from engine_shim.simulation.engine import Prompt
from engine_shim.simulation.messages import Ask, Failure, Token
from engine_shim.simulation.network import Connection, Ending, Host, Network, Noise, Server
from engine_shim.simulation.scene import Pace, Scene
from engine_shim.simulation.timeline import Timeline
from router.contract.errors import EngineDown
from router.contract.ids import TransferId


class Router(Server):
    """Answers with what it was told to answer with."""

    def __init__(self, answers: list[object]) -> None:
        super().__init__("r1")
        self.answers = answers

    def on_call(self, connection: Connection, message: object) -> None:
        connection.server = self
        for answer in self.answers:
            connection.send(self, answer)

    def on_message(self, connection: Connection, message: object) -> None: ...

    def on_lost(self, connection: Connection, ending: Ending) -> None: ...

    def on_notice(self, notice: object) -> None: ...

    def on_unreachable(self, host: Host) -> None: ...


def token(index: int, *, of: str = "q1.1", is_last: bool = False) -> Token:
    return Token(TransferId(of), index, is_last)


def ask(answers: list[object]) -> tuple[Client, Scene]:
    timeline = Timeline(random.Random(1))
    scene = Scene(timeline, Network(timeline, Noise(), 2.0), Pace(), frozenset())
    scene.network.host("r1").process = Router(answers)
    client = Client(scene, Ask("q1", Prompt(1, 2, 0.1, False, True), 3.0), "r1", None)
    client.start()
    timeline.run(3.0 + PATIENCE_S + 1.0, lambda: False)
    return client, scene


FAILED = Failure(EngineDown("Down."))


@pytest.mark.parametrize(
    ("answers", "end", "broken"),
    [
        ([token(0), token(1, is_last=True)], End.SERVED, []),
        ([FAILED], End.FAILED, []),
        ([token(0), FAILED], End.BROKEN, []),
        ([token(0), token(1, of="q1.2", is_last=True)], End.SERVED, ["whole_stream"]),
        ([token(1), token(1, is_last=True)], End.SERVED, ["whole_stream"]),
        ([token(0, is_last=True)], End.SERVED, ["whole_stream"]),
        ([FAILED, token(0)], End.FAILED, ["one_outcome"]),
        ([token(0)], End.TIMED_OUT, ["one_outcome"]),
    ],
)
def test_the_end_and_what_is_wrong_with_it(answers: list[object], end: End, broken: list[str]) -> None:
    client, scene = ask(answers)
    assert client.end is end
    assert [violation.invariant.value for violation in scene.story.violations] == broken
