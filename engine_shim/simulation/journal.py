"""Journal: one process's line to the store. Nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable

from engine_shim.simulation.network import Connection, Ending
from engine_shim.simulation.scene import Scene
from engine_shim.simulation.store import Reply, Verb
from engine_shim.simulation.timeline import Process
from router.contract.ledger import Entry


class Journal:
    """Asks the store, and posts entries to the ledger: at least once each, as long as the process lives."""

    def __init__(self, scene: Scene, process: Process) -> None:
        self._scene = scene
        self._process = process
        self._pending: list[Entry] = []
        self._sent: list[Entry] = []
        self._sent_at = 0.0

    def post(self, entry: Entry) -> None:
        """The entry will be in the ledger soon, if this process lives until then."""
        self._pending.append(entry)

    def flush(self) -> None:
        """What has been posted is on its way; what was not confirmed within a while goes again."""
        now = self._scene.now
        if self._sent and now - self._sent_at > self._scene.pace.connect_s:
            self._take_back(self._sent)
        if not self._pending or self._sent:
            return
        sent, self._pending = self._pending, []
        self._sent, self._sent_at = sent, now
        self.ask(lambda store: store.post(sent), lambda _: self._confirm(sent), lambda: self._take_back(sent))

    def _confirm(self, sent: list[Entry]) -> None:
        if self._sent is sent:
            self._sent = []

    def _take_back(self, sent: list[Entry]) -> None:
        if self._sent is sent:
            self._pending, self._sent = sent + self._pending, []

    def ask(self, verb: Verb, on_reply: Callable[[object], None], on_error: Callable[[], None] = lambda: None) -> None:
        """The store is asked; exactly one of the two is called, unless its connection is half-open."""
        host = self._scene.network.host("store")
        self._scene.network.call(self._process, host, verb, _Asking(self._process, on_reply, on_error))


class _Asking:
    def __init__(self, process: Process, on_reply: Callable[[object], None], on_error: Callable[[], None]) -> None:
        self._process = process
        self._on_reply = on_reply
        self._on_error = on_error

    def on_message(self, connection: Connection, message: object) -> None:
        assert isinstance(message, Reply)
        connection.finish()
        self._on_reply(message.value)

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        self._on_error()
