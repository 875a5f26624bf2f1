"""Network: connections that break, half-open ones included, and notices that get lost, doubled and overtaken.

A connection carries messages in order. It ends by `close`, by the death of a process, or by a cut; the other end hears
of it, or, half-open, never does. A notice goes to whoever lives at the address when it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from engine_shim.simulation.timeline import Process, Timeline


class Ending(Enum):
    """How a connection ended that this end has not closed."""

    BROKEN = "broken"
    """It was there, and the other end or the way to it is gone."""
    REFUSED = "refused"
    """Nobody listens at the address."""
    SILENT = "silent"
    """Nothing came back from there within the time to connect."""


class Caller(Protocol):
    """One end of a connection."""

    def on_message(self, connection: Connection, message: object) -> None:
        """The next message from the other end."""

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """Nothing more will come."""


class Server(Process):
    """A process that others reach at its Host; `name` is the host's."""

    def on_call(self, connection: Connection, message: object) -> None:
        """Somebody has called; `connection.server` is to be set."""
        raise NotImplementedError

    def on_notice(self, notice: object) -> None:
        """A notice has arrived."""
        raise NotImplementedError

    def on_unreachable(self, host: Host) -> None:
        """A notice could not be brought there: the transport has an error."""
        raise NotImplementedError


class Host:
    """An address, and the process that lives there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: Server | None = None


SPARED = 4


@dataclass(slots=True)
class Noise:
    """How unkind the network is at the moment; probabilities."""

    lost: float = 0.0
    doubled: float = 0.0
    slow: float = 0.0
    """A message takes up to 2 s instead of a millisecond."""
    tag_lost: float = 0.0
    failing: float = 0.0
    """A copy fails in the middle."""
    fair: bool = False
    """After a lost notice the next SPARED ones on the same way pass."""


class Connection:
    """Between a process that has called and the one that has answered."""

    __slots__ = ("_arrives_at", "_closed", "_network", "client", "ends", "half_open", "server")

    def __init__(self, network: Network, caller: Process, callee: Server | None, client: Caller) -> None:
        self._network = network
        self.ends: tuple[Process, Server | None] = (caller, callee)
        self.client = client
        self.server: Caller | None = None
        self.half_open = False
        self._closed = [False, callee is None]
        self._arrives_at = [0.0, 0.0]

    @property
    def over(self) -> bool:
        """True when neither end will say or hear anything more."""
        return self._closed[0] and self._closed[1]

    def is_open_for(self, process: Process) -> bool:
        """True until this end has closed it or has heard of its end."""
        return not self._closed[0 if process is self.ends[0] else 1]

    def send(self, sender: Process, message: object) -> None:
        """The message is on its way to the other end."""
        mine = 0 if sender is self.ends[0] else 1
        if not self._closed[mine]:
            self._pass(1 - mine, message)

    def close(self, sender: Process) -> None:
        """This end hears nothing more; the other will hear of it."""
        mine = 0 if sender is self.ends[0] else 1
        if not self._closed[mine]:
            self._closed[mine] = True
            self._pass(1 - mine, None)
            self._network.forget(self)

    def finish(self) -> None:
        """Both ends have said all that there was to say."""
        self._closed = [True, True]
        self._network.forget(self)

    def cut(self, *, silently: bool) -> None:
        """Both ends hear of its end; or, silently, neither does and nothing passes any more."""
        if silently:
            self.half_open = True
            return
        for end in (0, 1):
            self._pass(end, None)

    def die(self, process: Process, *, silently: bool) -> None:
        """One of its processes is dead."""
        self.half_open = self.half_open or silently
        self.close(process)

    def _pass(self, end: int, message: object | None) -> None:
        process = self.ends[end]
        if process is None or self.half_open or self._closed[end]:
            return
        network = self._network
        delay_s = network.delay_s(self.ends[0].name, process.name if end else self._server_name())
        at = max(self._arrives_at[end], network.timeline.now + delay_s)
        self._arrives_at[end] = at
        network.timeline.after(at - network.timeline.now, process, self._arrive, end, message)

    def _server_name(self) -> str:
        return self.ends[1].name if self.ends[1] is not None else ""

    def _arrive(self, end: int, message: object | None) -> None:
        if self._closed[end] or self.half_open:
            return
        listener = self.client if end == 0 else self.server
        if message is None:
            self._closed[end] = True
            self._network.forget(self)
            if listener is not None:
                listener.on_lost(self, Ending.BROKEN)
        elif listener is not None:
            listener.on_message(self, message)


class Network:
    """All links of one world."""

    def __init__(self, timeline: Timeline, noise: Noise, connect_s: float) -> None:
        self.timeline = timeline
        self.noise = noise
        self.hosts: dict[str, Host] = {}
        self.connections: dict[Connection, None] = {}
        self._connect_s = connect_s
        self._parted_until: dict[frozenset[str], float] = {}
        self._spared: dict[tuple[str, str], int] = {}
        """How many more notices pass on a way, in a fair network, before one may be lost again."""

    def host(self, name: str) -> Host:
        """The host of that name; a new one is empty."""
        return self.hosts.setdefault(name, Host(name))

    def delay_s(self, one: str, other: str) -> float:
        """How long the next message between them takes."""
        rng, noise = self.timeline.rng, self.noise
        chance = rng.random()
        usual_s = 0.0002 + 0.003 * rng.random()
        delay_s = usual_s if chance >= noise.slow else 2.0 * rng.random()
        return delay_s + max(0.0, self.parted_until(one, other) - self.timeline.now)

    def parted_until(self, one: str, other: str) -> float:
        """When these two hosts can reach each other again; 0 when they can."""
        return self._parted_until.get(frozenset((one, other)), 0.0) if self._parted_until else 0.0

    def part(self, one: str, other: str, for_s: float) -> None:
        """Nothing passes between them for so long; what was sent by connections arrives afterwards."""
        self._parted_until[frozenset((one, other))] = self.timeline.now + for_s

    def call(self, caller: Process, host: Host, message: object, client: Caller) -> Connection:
        """The call is on its way. `client` hears answers, or that nobody is there."""
        callee = host.process
        connection = Connection(self, caller, callee, client)
        if callee is None or self.parted_until(caller.name, host.name) > self.timeline.now:
            delay_s = self._connect_s if callee is not None else self.delay_s(caller.name, host.name)
            ending = Ending.REFUSED if callee is None else Ending.SILENT
            self.timeline.after(delay_s, caller, self._refuse, connection, ending)
            return connection
        self.connections[connection] = None
        delay_s = self.delay_s(caller.name, host.name)
        connection._arrives_at[1] = self.timeline.now + delay_s
        self.timeline.after(delay_s, callee, self._ring, connection, message)
        return connection

    def notify(self, sender: Server, host: Host, notice: object) -> None:
        """The notice is on its way, if nothing happens to it."""
        rng, noise = self.timeline.rng, self.noise
        if host.process is None or self.parted_until(sender.name, host.name) > self.timeline.now:
            if rng.random() < 0.6:
                self.timeline.after(self.delay_s("", ""), sender, self._fail, sender, host)
            return
        way = (sender.name, host.name)
        spared = self._spared.get(way, 0)
        if rng.random() < noise.lost and not (noise.fair and spared):
            self._spared[way] = SPARED
            return
        self._spared[way] = max(spared - 1, 0)
        for _ in range(2 if rng.random() < noise.doubled else 1):
            # Not bound to a process: a notice to a process that has died finds its successor.
            self.timeline.after(self.delay_s(sender.name, host.name), None, self._bring, host, notice)

    def forget(self, connection: Connection) -> None:
        """Drop the connection once both ends are through with it."""
        if connection.over or connection.half_open:
            self.connections.pop(connection, None)

    def on_killed(self, process: Process, *, silently: bool) -> None:
        """All its connections end."""
        for connection in list(self.connections):
            if process in connection.ends:
                connection.die(process, silently=silently)

    def cut(self, one: str, other: str, *, silently: bool) -> int:
        """All connections between two hosts break; returns how many."""
        broken = [c for c in self.connections if {end.name for end in c.ends if end is not None} == {one, other}]
        for connection in broken:
            connection.cut(silently=silently)
        return len(broken)

    def _ring(self, connection: Connection, message: object) -> None:
        callee = connection.ends[1]
        if not connection.half_open and callee is not None:
            callee.on_call(connection, message)

    def _refuse(self, connection: Connection, ending: Ending) -> None:
        if connection.is_open_for(connection.ends[0]):
            connection.close(connection.ends[0])
            connection.client.on_lost(connection, ending)

    def _bring(self, host: Host, notice: object) -> None:
        process = host.process
        if process is None:
            return
        if process.stopped:
            process.piled.append((False, process.on_notice, (notice,)))
        else:
            process.on_notice(notice)

    def _fail(self, sender: Server, host: Host) -> None:
        sender.on_unreachable(host)
