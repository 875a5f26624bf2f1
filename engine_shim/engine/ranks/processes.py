"""RankProcesses: the ranks of one engine as processes.

One interpreter imports what all need and becomes all of them by fork, in a process group of their own. They live and
die together. A rank that ends, or says that it gives up, takes the others with it, since none of them can
finish a step without it; `restart` then begins a new group with a new name. Everything here is bounded in time.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, TypeVar

import torch

from engine_shim.engine.ranks.messages import (
    Compute,
    Computed,
    Failed,
    FromRank,
    Joining,
    Ready,
    Start,
    Together,
    ToRank,
)
from engine_shim.engine.ranks.shared_memory import SharedMemory
from router.contract.errors import BadSettings, RankGone

log = logging.getLogger("tandem.ranks")

START_FOR_S = 120.0
"""Imports, agents and the first step together, without weights."""
LEAST_LOAD_BYTES_PER_S = 30e6
"""A network file system that many ranks read at once; weights may take so long beside that."""
STEP_FOR_S = 120.0
"""No step computes longer than this, besides what its ranks may wait for each other."""
END_FOR_S = 10.0
"""The longest that a killed rank needs to end."""

Answer = TypeVar("Answer", Joining, Ready, Computed)


@dataclass(slots=True)
class RankProcesses:
    """All ranks of one engine. One thread uses it."""

    plan: Start
    """What all ranks are told; what differs between them is filled in."""
    kv: SharedMemory
    devices: Sequence[torch.device]
    """Where each rank computes."""
    weights_bytes: int = 0
    """Of the checkpoint."""
    num_restarts: int = 0
    hashes: dict[str, str] = field(default_factory=dict)
    """Digest of every tensor that any rank has read."""
    pids: list[int] = field(default_factory=list)
    """Of the processes, by rank; empty when they are down."""
    _leader: subprocess.Popen[bytes] | None = None
    _connections: list[Connection[ToRank, FromRank]] = field(default_factory=list)
    _generation: int = 0
    _ready: bool = False

    @property
    def num_ranks(self) -> int:
        """How many there are when all is well."""
        return self.plan.share.num_ranks

    def start(self) -> None:
        """All ranks are ready.

        Raises:
            BadSettings: at the first start, a rank says that the set-up must be changed. None is left then.
            RankGone: any other reason; none is left either.
        """
        self._generation += 1
        self._ready = False
        try:
            self._start_together(f"{self.plan.group}.{self._generation}")
        except OSError as error:
            self._give_up(f"an expert rank cannot be reached ({error})")
        finally:
            if not self._ready:
                self.close()

    def _start_together(self, group: str) -> None:
        self._spawn()
        for number, connection in enumerate(self._connections):
            device = self.devices[number]
            kv = self.kv.handle_for(device)
            connection.send(replace(self.plan, rank=number, group=group, device=device, kv=kv))
        joining = self._all(Joining, START_FOR_S)
        self.pids = [one.pid for one in joining]
        self._tell(Together({number: one.card for number, one in enumerate(joining)}))
        for ready in self._all(Ready, START_FOR_S + self.weights_bytes / LEAST_LOAD_BYTES_PER_S):
            self.hashes |= ready.hashes
        self._ready = True
        log.info("%d expert ranks are ready, %d bytes of buffers each.", self.num_ranks, joining[0].buffer_bytes)

    def ensure(self) -> bool:
        """All ranks are alive; True when they had to be started again. Raises RankGone when they cannot be."""
        # Between steps no rank has anything to say but that it has ended.
        if self._connections and not any(connection.poll() for connection in self._connections):
            return False
        self.close()
        self.num_restarts += 1
        self.start()
        return True

    def compute(self, parts: Sequence[Compute]) -> list[Computed]:
        """One step of all ranks. Raises RankGone, and then none is left."""
        try:
            for connection, part in zip(self._connections, parts, strict=True):
                connection.send(part)
        except OSError as error:
            self._give_up(f"an expert rank cannot be reached ({error})")
        return self._all(Computed, STEP_FOR_S + self.plan.settings.expert_wait_for_s)

    def close(self) -> None:
        """No rank is left, and none of them writes to the KV cache any more."""
        connections, self._connections = self._connections, []
        self.pids = []
        if self._leader is not None:
            # The leader is not waited for before, so its number still names its group, even if it has ended.
            os.killpg(self._leader.pid, signal.SIGKILL)
            self._leader.wait()
            for connection in connections:
                await_end(connection)
            reap_group(self._leader.pid)
            self._leader = None
        for connection in connections:
            connection.close()

    def _spawn(self) -> None:
        pipes = [Pipe() for _ in range(self.num_ranks)]
        fds = [theirs.fileno() for _, theirs in pipes]
        argv = [sys.executable, "-m", "engine_shim.engine.ranks.rank", *map(str, fds)]
        self._leader = subprocess.Popen(
            argv, pass_fds=(*fds, *self.kv.fds), stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
        )
        for _, theirs in pipes:
            theirs.close()
        self._connections = [ours for ours, _ in pipes]
        for ours in self._connections:
            # Between steps a rank reads at once, or it has been stopped.
            limit_sends(ours, self.plan.settings.expert_wait_for_s)

    def _tell(self, message: ToRank) -> None:
        for connection in self._connections:
            connection.send(message)

    def _all(self, kind: type[Answer], wait_for_s: float) -> list[Answer]:
        """One answer of each rank, by rank. Raises RankGone as soon as one ends or gives up."""
        answers: dict[int, Answer] = {}
        ends_at = time.monotonic() + wait_for_s
        while len(answers) < len(self._connections):
            waiting = {one: number for number, one in enumerate(self._connections) if number not in answers}
            came = wait(list(waiting), max(ends_at - time.monotonic(), 0.0))
            if not came:
                self._give_up(f"expert ranks {sorted(waiting.values())} have not answered in {wait_for_s:.0f} s")
            for connection in came:
                number = waiting[connection]  # type: ignore[index]
                answers[number] = self._answer(number, kind)
        return [answers[number] for number in range(len(self._connections))]

    def _answer(self, number: int, kind: type[Answer]) -> Answer:
        try:
            message = self._connections[number].recv()
        except (EOFError, OSError):
            self._give_up(f"expert rank {number} has ended")
        if isinstance(message, Failed):
            if message.by_setup and self._generation == 1 and not self._ready:
                self.close()
                raise BadSettings(f"The expert ranks cannot start. {message.sentence}")
            self._give_up(f"expert rank {number} gives up ({message.sentence})")
        assert isinstance(message, kind)
        return message

    def _give_up(self, why: str) -> NoReturn:
        log.warning("%s; all of them are ended.", why)
        self.close()
        what = "The step failed" if self._ready else "The expert ranks did not start"
        is_first = self._generation == 1 and not self._ready
        todo = "see what they have logged, and start the instance again" if is_first else "send the request again"
        raise RankGone(f"{what}: {why}; {todo}.")


# Any: what is said on it does not matter.
def limit_sends(connection: Connection[Any, Any], for_s: float) -> None:
    """A message that is not taken in `for_s` raises OSError, and the connection is of no use any more."""
    seconds = struct.pack("ll", int(for_s), int(for_s % 1 * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)


def await_end(connection: Connection[Any, Any]) -> None:
    """The other end is closed, as that of a killed process is once its memory is gone; or END_FOR_S have passed."""
    with suppress(EOFError, OSError):
        while connection.poll(END_FOR_S):
            connection.recv_bytes()


def reap_group(leader: int) -> None:
    """None of this killed group is a zombie of ours: as process 1 of a container we inherit them."""
    with suppress(ChildProcessError):  # none is left, or somebody else has inherited them
        while True:
            os.waitpid(-leader, 0)
