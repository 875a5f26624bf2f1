"""World: hosts, clients, faults and time of one seed, from its beginning to the day of reckoning."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine_shim.simulation.chaos import (
    CHUNK_MOMENTS,
    LAST_FAULT_S,
    QUIET,
    Chaos,
    Fault,
    FaultKind,
    draw_chaos,
    draw_chunk_faults,
)
from engine_shim.simulation.client import Client, End
from engine_shim.simulation.copies import Copies
from engine_shim.simulation.engine import Prompt
from engine_shim.simulation.late import draw_late
from engine_shim.simulation.messages import Ask
from engine_shim.simulation.network import Network, Noise, Server
from engine_shim.simulation.pushes import draw_pushes
from engine_shim.simulation.replica import Replica
from engine_shim.simulation.scene import Pace, Scene
from engine_shim.simulation.shim import Shim
from engine_shim.simulation.store import Shelf, Store
from engine_shim.simulation.story import Invariant, StoryLine, Violation
from engine_shim.simulation.timeline import Timeline
from engine_shim.simulation.turns import NUM_BLOCKS, draw_turns
from engine_shim.simulation.wishes import draw_prompt, draw_waits
from router.contract.ids import Epoch, InstanceId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Mode, Role
from router.contract.kv import KVLayout
from router.contract.wire import NO_WAITS

LAST_REQUEST_S = 8.0
CALM_S = 7.0
"""From the end of the faults until requests must be served again: leases have ended and been renewed."""
QUIET_S = 45.0
"""From the last request until nothing may be held."""
NUM_PROBES = 2
LEAVE_S = 0.2
MAX_REQUESTS = 6
CHUNKS = 0xA8000
"""Tells this source of chance from the world's own, so that worlds without chunks are what they were before."""
LEAVES_AT_CHUNK = 0.04
"""How often a client leaves when a chunk of some prompt has been computed or written."""


_LAYOUT = KVLayout(1, 1, 1, 16, 10, "float32")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one seed has shown."""

    seed: int
    requests: int
    counts: Counter[str]
    """Outcomes, faults, rows of the tables."""
    violations: tuple[Violation, ...] = ()
    story: tuple[StoryLine, ...] = ()
    """Of the first violation's request, or of everything; empty without a violation unless it was asked for."""


@dataclass
class World:
    """One seed."""

    seed: int
    off: frozenset[str] = frozenset()
    _epochs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = self._rng = random.Random(self.seed)
        # Another source than the world's own, whose draws make a seed the history that it is.
        self._wishes = random.Random(~self.seed)
        pace = Pace()
        timeline = Timeline(rng)
        network = Network(timeline, Noise(), pace.connect_s)
        self.scene = Scene(timeline, network, pace, self.off, rng.choice((6, 8, 10)), rng.random() < 0.25)
        if self._wishes.random() < 0.3:
            self.scene.hedge_after_s = self._wishes.choice((0.2, 1.0, 2.5))
        self.copies = Copies(self.scene)
        self._shelf = Shelf()
        self._mode = Mode.PUSH if rng.random() < 0.65 else Mode.PULL
        shims = [f"p{k + 1}" for k in range(rng.choice((1, 2, 2)))] + [f"d{k + 1}" for k in range(rng.choice((1, 2)))]
        self._routers = [f"r{k + 1}" for k in range(rng.choice((1, 2, 2)))]
        self.clients: list[Client] = []
        faults, network.noise = draw_chaos(rng, ("store", *shims, *self._routers))
        self._chunks = random.Random(self.seed ^ CHUNKS)
        if self._chunks.random() < 0.5:
            draw_pushes(self.scene, self.seed, self._chunks)
            faults += draw_chunk_faults(self._chunks, ("store", *shims, *self._routers))
        self.scene.late, more = draw_late(self.seed, self._mode, ("store", *shims, *self._routers))
        faults += more
        turns = draw_turns(self.seed, ("store", *shims, *self._routers))
        if turns is not None:
            self.scene.returns, self.scene.num_blocks = True, NUM_BLOCKS
            faults += turns.faults
        for name in ("store", *shims, *self._routers):
            self._start(name)
        self._chaos = Chaos(faults, self._strike)
        self.scene.on_moment = self._on_moment
        for fault in self._chaos.timed:
            timeline.timer(fault.at_s, None, self._strike, fault, fault.host)
        for number in range(rng.randint(2, 4)):
            self._expect(f"q{number + 1}", 0.3 + LAST_REQUEST_S * rng.random(), draw_prompt(rng))
        for at_s, prompt in () if turns is None else turns.prompts:
            self._expect(f"q{len(self.clients) + 1}", 0.3 + at_s, prompt)
        self._most_requests = max(MAX_REQUESTS, len(self.clients))
        self._calm_at = LAST_FAULT_S
        timeline.timer(self._calm_at, None, self._calm_down)
        self._probes: list[Client] = []

    def run(self, *, tells: bool = False) -> Verdict:
        """Everything happens; returns what it has shown, with the Story if that is bad or `tells` is set."""
        self.scene.timeline.run(LAST_REQUEST_S + 100.0, self._is_over)
        self._reckon()
        scene = self.scene
        violations = tuple(scene.story.violations)
        story = scene.story.of(violations[0].request if violations else "") if violations or tells else ()
        return Verdict(self.seed, len(self.clients), scene.counts, violations, tuple(story))

    # Requests.

    def _expect(self, request: str, at_s: float, prompt: Prompt, *, is_probe: bool = False) -> Client:
        rng = self._rng
        leaves = not is_probe and rng.random() < 0.25
        total_s = self.scene.pace.total_s if is_probe or rng.random() < 0.7 else rng.choice((1.0, 3.0, 8.0))
        ask = Ask(request, prompt, total_s, NO_WAITS if is_probe else draw_waits(self._wishes))
        client = Client(self.scene, ask, rng.choice(self._routers), 4.0 * rng.random() if leaves else None)
        self.clients.append(client)
        self.scene.timeline.timer(at_s, client, client.start)
        return client

    # Hosts.

    def _start(self, name: str) -> None:
        host = self.scene.network.host(name)
        if name == "store":
            host.process = Store(self.scene, self._shelf)
        elif name.startswith("r"):
            replica = Replica(self.scene, name, self._mode)
            host.process = replica
            replica.start()
        else:
            shim = self._new_shim(name)
            host.process = shim
            self.copies.agents[shim.engine_id] = shim
            shim.start()

    def _new_shim(self, name: str) -> Shim:
        epoch = self._epochs[name] = self._epochs.get(name, 0) + 1
        engine_id = engine_id_of(InstanceId(name), Epoch(epoch))
        kv = KVIdentity(engine_id, name, 1, _LAYOUT, "same", (Mode.PUSH, Mode.PULL), takes_back=True)
        role = Role.PREFILL if name.startswith("p") else Role.DECODE
        instance = Instance(InstanceId(name), role, Epoch(epoch), f"http://{name}:1", "model", 4096, kv)
        return Shim(self.scene, self.copies, instance, kv)

    # Faults.

    def _on_moment(self, moment: str, host: str) -> None:
        self._chaos.on_moment(moment, host, self.scene.now)
        if not self.scene.chunk_blocks or moment not in CHUNK_MOMENTS or self.scene.now > LAST_FAULT_S:
            return
        if self._chunks.random() < LEAVES_AT_CHUNK:
            client = self._chunks.choice(self.clients)
            self.scene.timeline.after(0.0, client, client.leave)

    def _strike(self, fault: Fault, name: str) -> None:
        scene = self.scene
        scene.counts[f"fault {fault.kind}"] += 1
        self._calm_at = max(self._calm_at, scene.now + fault.for_s)
        if len(self.clients) < self._most_requests and self._rng.random() < 0.5:
            # In the wake of a fault, when others do not know of it yet.
            self._expect(f"q{len(self.clients) + 1}", fault.for_s + 0.7 * self._rng.random(), draw_prompt(self._rng))
        self._excuse(name)
        scene.tell("chaos", fault.describe(name))
        process = scene.network.host(name).process
        match fault.kind:
            case FaultKind.KILL if process is not None:
                # Not at once: whoever has caused the moment is still in the middle of its step.
                scene.timeline.after(0.0, None, self._kill, process, fault)
            case FaultKind.LEAVE if process is not None:
                if isinstance(process, Shim):
                    process.drain()
                    scene.timeline.after(LEAVE_S, process, process.leave)
                scene.timeline.after(LEAVE_S + 0.01, None, self._kill, process, fault)
            case FaultKind.STOP if process is not None:
                scene.timeline.stop(process)
                scene.timeline.after(fault.for_s, None, self._resume, process)
            case FaultKind.CUT if name != fault.other:
                scene.network.cut(name, fault.other, silently=fault.silently)
                self.copies.break_between(name, fault.other)
                self._trouble(name, fault.other)
            case FaultKind.PART if name != fault.other:
                scene.network.part(name, fault.other, fault.for_s)

    def _excuse(self, router: str) -> None:
        """Clients of this router may have to find out by themselves that it does not answer."""
        for client in self.clients:
            client.excused = client.excused or client.router == router

    def _kill(self, process: Server, fault: Fault) -> None:
        host = self.scene.network.host(process.name)
        if host.process is not process:
            return
        process.dead = True
        self._excuse(process.name)
        host.process = None
        if isinstance(process, Shim):
            self.copies.agents.pop(process.engine_id, None)
        elif isinstance(process, Store) and fault.silently:
            self._shelf = Shelf()
        self.scene.network.on_killed(process, silently=fault.silently)
        self.copies.on_killed(process)
        if isinstance(process, Shim):
            for other in self.scene.network.hosts:
                self._trouble(process.name, other)
        self.scene.timeline.after(fault.for_s, None, self._start, process.name)

    def _resume(self, process: Server) -> None:
        if not process.dead:
            self.scene.timeline.resume(process)

    def _trouble(self, one: str, other: str) -> None:
        """Each shim may notice that its transport to the other has broken."""
        for mine, theirs in ((one, other), (other, one)):
            process = self.scene.network.host(mine).process
            if isinstance(process, Shim) and self._rng.random() < 0.7:
                self.scene.timeline.after(0.01, process, process.on_unreachable, self.scene.network.host(theirs))

    # The end.

    def _calm_down(self) -> None:
        scene = self.scene
        if scene.now < self._calm_at:
            scene.timeline.timer(self._calm_at - scene.now, None, self._calm_down)
            return
        scene.network.noise = QUIET
        scene.tell("chaos", "is over")
        for number in range(NUM_PROBES):
            prompt = Prompt(2 + number, 2, 0.1, False, True, conversation="calm" if scene.returns else "")
            self._probes.append(self._expect(f"probe{number + 1}", CALM_S + number, prompt, is_probe=True))
        self._ends_at = scene.now + CALM_S + QUIET_S

    def _is_over(self) -> bool:
        if not self._probes:
            return False
        if self.scene.now > self._ends_at:
            return True
        return all(client.end is not None for client in self.clients) and not any(self._held())

    def _held(self) -> Iterable[str]:
        """What is left, in words."""
        for host in self.scene.network.hosts.values():
            process = host.process
            if isinstance(process, Shim) and process.num_held:
                yield process.describe_held()
            elif isinstance(process, Replica) and process.live:
                yield f"{process.name} has {len(process.live)} exchanges"
        for transfer_id in self._shelf.ledger.opened:
            yield f"the ticket of {transfer_id} is open"

    def _reckon(self) -> None:
        scene = self.scene
        for what in self._held():
            scene.violate(Invariant.NOTHING_HELD, "", what)
        for transfer_id, attempt in self._shelf.ledger.attempts.items():
            if attempt.writes > 1:
                scene.violate(Invariant.WRITE_ONCE, "", f"the ledger orders {attempt.writes} Writes of {transfer_id}")
        for client in self.clients:
            if client.end is None:
                scene.violate(Invariant.ONE_OUTCOME, client.name, "has no Outcome at the end")
        for client in self._probes:
            if client.end is not End.SERVED:
                what = f"is {client.end} ({client.code}) though all runs again"
                scene.violate(Invariant.KEEPS_SERVING, client.name, what)
