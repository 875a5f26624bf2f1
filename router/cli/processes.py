"""Child processes that live and die together, and never outlive this process.

Theory of operation. Every Child runs in a process group of its own, so that Ctrl-C on the terminal reaches this process
alone and the order of stopping is ours; it stays in our session, because the kernel's scheduler weighs sessions against
each other. The kernel kills a Child when this process dies, however it dies (PR_SET_PDEATHSIG). stderr goes straight
to the Child's log file; stdout is read here, because a Child announces there, by one JSON line, that it is ready, and
is copied to the same file.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from router.contract.errors import DeploymentError, EngineDown, TandemError
from router.store.embedded import end_with_parent

_TAIL_LINES = 12
_LINE_BYTES = 1 << 20
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Program:
    """What to start: a name (also the log's), the argument vector, and the error that its death is raised as."""

    name: str
    argv: tuple[str, ...]
    failure: type[TandemError] = EngineDown
    env: dict[str, str] = field(default_factory=dict)
    """Added to this process's environment."""


@dataclass(frozen=True, slots=True)
class Child:
    """A started Program."""

    program: Program
    process: asyncio.subprocess.Process
    log_path: Path
    ready: asyncio.Future[dict[str, object]]
    """The JSON object by which it said that it is ready; never set if it dies before, or says nothing."""


class Children:
    """The Children of this process, in order of their start. Create it inside a running event loop."""

    def __init__(self, log_dir: Path) -> None:
        """Keep logs as `log_dir/NAME.log`, each begun anew."""
        log_dir.mkdir(parents=True, exist_ok=True)
        self._log_dir = log_dir
        self._children: list[Child] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._death: asyncio.Future[TandemError] = asyncio.get_running_loop().create_future()

    @property
    def running(self) -> tuple[Child, ...]:
        """The Children that have been started and not been stopped."""
        return tuple(self._children)

    async def start(self, program: Program) -> Child:
        """Start `program`; its death, from now to `aclose`, ends whatever is awaited through `guard`."""
        log_path = self._log_dir / f"{program.name}.log"
        log = log_path.open("wb")
        try:
            process = await asyncio.create_subprocess_exec(
                *program.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE_BYTES,
                env={**os.environ, **program.env},
                preexec_fn=end_with_parent(os.getpid()),
            )
        except OSError:
            log.close()
            raise
        child = Child(program, process, log_path, asyncio.get_running_loop().create_future())
        self._children.append(child)
        self._keep(self._follow(child, log))
        return child

    def adopt(self, name: str, pid: int, failure: type[TandemError]) -> None:
        """Watch a child process that something else started and will stop; its death counts like a Child's."""
        self._keep(self._watch_pid(name, pid, failure))

    async def guard(self, work: Coroutine[Any, Any, _Result]) -> _Result:  # Any: the two types that await never uses
        """Await `work`, unless a Child dies first: then `work` is cancelled and the death is raised.

        Raises:
            DeploymentError: the Child exited with status 2, which means that it named what to change; its sentence.
            TandemError: the Program's `failure`, with how it ended and its last log lines.
        """
        task = asyncio.ensure_future(work)
        first: set[asyncio.Future[Any]] = {task, self._death}  # Any: what each brings is taken from itself below
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if self._death.done():
                raise self._death.result()
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def aclose(self, grace_s: float = 10.0) -> None:
        """Stop all Children, last started first: SIGTERM and, once `grace_s` are over, SIGKILL. None is left then."""
        end_at = asyncio.get_running_loop().time() + grace_s
        if not self._death.done():
            self._death.cancel()
        for child in reversed(self._children):
            _send(child.process, signal.SIGTERM)
            try:
                async with asyncio.timeout_at(end_at):
                    await child.process.wait()
            except TimeoutError:
                _send(child.process, signal.SIGKILL)
                await child.process.wait()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._children.clear()

    def kill(self) -> None:
        """Send SIGKILL to all Children, so that an `aclose` in progress ends at once."""
        for child in self._children:
            _send(child.process, signal.SIGKILL)

    def _keep(self, watching: Coroutine[Any, Any, None]) -> None:  # Any: as in guard
        watcher = asyncio.ensure_future(watching)
        self._watchers.add(watcher)

    async def _follow(self, child: Child, log: BinaryIO) -> None:
        """Copy stdout to the log and pick the ready line out of it; report the death at its end."""
        stdout = child.process.stdout
        assert stdout is not None
        with log:
            async for line in stdout:
                if not child.ready.done() and (said := _ready_line(line)) is not None:
                    child.ready.set_result(said)
                log.write(line)
                log.flush()
        self._report(_obituary(child, await child.process.wait()))

    async def _watch_pid(self, name: str, pid: int, failure: type[TandemError]) -> None:
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        descriptor = os.pidfd_open(pid)
        loop.add_reader(descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._report(failure(f"{name} (pid {pid}) has ended on its own; start the command again."))

    def _report(self, death: TandemError) -> None:
        if not self._death.done():
            self._death.set_result(death)


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        process.send_signal(number)


def _ready_line(line: bytes) -> dict[str, object] | None:
    """Return the object of a line such as `{"ready": true, "url": ...}`, None for any other line."""
    try:
        said = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        return None
    return said if said.get("ready") is True else None


def _obituary(child: Child, status: int) -> TandemError:
    lines = child.log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    name = child.program.name
    if status == 2 and lines:
        return DeploymentError(f"{name}: {lines[-1]}")
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    tail = "".join(f"\n  | {line}" for line in lines)
    return child.program.failure(f"{name} {how}; its log {child.log_path} ends so:{tail or ' (empty)'}")
