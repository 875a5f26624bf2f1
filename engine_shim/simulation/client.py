"""Client: asks once, may leave, and knows what it was promised."""

from __future__ import annotations

from enum import StrEnum

from engine_shim.simulation.messages import Ask, Failure, Token
from engine_shim.simulation.network import Connection, Ending
from engine_shim.simulation.scene import Scene
from engine_shim.simulation.story import Invariant
from engine_shim.simulation.timeline import Process
from router.contract.ids import TransferId

PATIENCE_S = 5.0
"""A client gives up so long after its deadline: its router is dead or stands still, which no router can tell it."""


class End(StrEnum):
    """What became of a request, as its client sees it."""

    SERVED = "served"
    FAILED = "failed"
    BROKEN = "broken"
    """The stream ended with an error after it had begun."""
    CUT = "cut"
    """The connection to the router broke."""
    LEFT = "left"
    TIMED_OUT = "timed_out"


class Client(Process):
    """One request's client."""

    def __init__(self, scene: Scene, ask: Ask, router: str, leaves_after_s: float | None) -> None:
        super().__init__(ask.request)
        self.ask = ask
        self.end: End | None = None
        self.code = ""
        self.router = router
        self.excused = False
        """Its router was killed, stopped or cut off, then or at its start: its deadline may pass in silence."""
        self._scene = scene
        self._leaves_after_s = leaves_after_s
        self._tokens: list[Token] = []
        self._connection: Connection | None = None

    def start(self) -> None:
        """The request is on its way."""
        timeline = self._scene.timeline
        self._scene.tell(self.name, f"asks {self.router}", self.name)
        router = self._scene.network.host(self.router).process
        self.excused = router is None or router.stopped
        self._connection = self._scene.network.call(self, self._scene.network.host(self.router), self.ask, self)
        timeline.timer(self.ask.total_s + PATIENCE_S, self, self._leave, End.TIMED_OUT)
        if self._leaves_after_s is not None:
            timeline.timer(self._leaves_after_s, self, self._leave, End.LEFT)

    def leave(self) -> None:
        """The client has had enough, if it has asked and has no answer yet."""
        if self._connection is not None:
            self._leave(End.LEFT)

    def on_message(self, connection: Connection, message: object) -> None:
        """A token, or the failure."""
        if self.end is not None:
            if self.end in (End.SERVED, End.FAILED, End.BROKEN):
                self._break(Invariant.ONE_OUTCOME, "is answered again after the end of its answer")
            return
        match message:
            case Failure(error):
                self.code = error.code
                self._finish(End.BROKEN if self._tokens else End.FAILED)
            case Token():
                self._take(message)
            case _:
                raise TypeError(f"no client is answered with {message!r}")

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """The router is gone, or cannot be reached."""
        if self.end is None:
            self._finish(End.CUT)

    def _take(self, token: Token) -> None:
        attempt: TransferId = self._tokens[0].transfer_id if self._tokens else token.transfer_id
        self._tokens.append(token)
        if token.transfer_id != attempt:
            self._break(Invariant.WHOLE_STREAM, f"gets a token of {token.transfer_id} after some of {attempt}")
        elif token.index != len(self._tokens) - 1:
            self._break(Invariant.WHOLE_STREAM, f"gets token {token.index} as number {len(self._tokens)}")
        if token.is_last:
            if len(self._tokens) != self.ask.prompt.num_tokens_out:
                self._break(Invariant.WHOLE_STREAM, f"is served with {len(self._tokens)} tokens")
            self._finish(End.SERVED)

    def _leave(self, end: End) -> None:
        if self.end is not None:
            return
        if end is End.TIMED_OUT and not self.excused:
            self._break(Invariant.ONE_OUTCOME, "has no Outcome within its deadline")
        self._finish(end)
        if self._connection is not None:
            self._connection.close(self)

    def _finish(self, end: End) -> None:
        self.end = end
        self._scene.tell(self.name, f"{end} {self.code}", self.name)
        self._scene.counts[f"outcome {end}"] += 1

    def _break(self, invariant: Invariant, what: str) -> None:
        self._scene.violate(invariant, self.name, what)
