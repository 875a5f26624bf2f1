"""What `tandem bench router` puts under load: mock engines, Tandem's routers and other people's, each on its core."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from router.contract.errors import BadRequest, EngineDown, RouterError
from router.store.embedded import end_with_parent

NAMESPACE = "bench"
READY_WITHIN_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Booked:
    """Entries of a router of ours, of all loads: a ledger that loses them spares the router their cost."""

    target: str
    written: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Target:
    """Somebody to load: a port, and the process whose CPU and memory count with its children's (0: none)."""

    name: str
    port: int
    pid: int = 0

    def cpu_s(self) -> float:
        """CPU seconds used so far."""
        return sum(_cpu_s(pid) for pid in _family(self.pid))

    def rss_mib(self) -> float:
        """Resident memory now."""
        return sum(_rss_mib(pid) for pid in _family(self.pid))

    async def ledger(self) -> Booked:
        """What a router of ours has told the ledger so far."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{self.port}/metrics")).text
        written, dropped = (
            int(float(text.partition(f'\ntandem_ledger_entries_total{{result="{result}"}} ')[2].split(maxsplit=1)[0]))
            for result in ("written", "dropped")
        )
        return Booked(self.name, written, dropped)


@asynccontextmanager
async def mock_engines(store: str, core: int, *flags: str) -> AsyncIterator[dict[str, str]]:
    """URLs by role of a prefill and a decode that compute nothing; `flags` are those of `tandem bench mock`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router.bench.mock_engines",
        *("--store", store, "--namespace", NAMESPACE, *flags),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=end_with_parent(os.getpid()),
    )
    assert process.stdin is not None and process.stdout is not None
    os.sched_setaffinity(process.pid, {core})
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_WITHIN_S)
        if not line:
            raise EngineDown("The mock engines did not start; their message stands above.")
        yield json.loads(line)
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def tandem_router(
    store: str, data_path: str, cores: set[int], workers: int = 1, name: str = ""
) -> AsyncIterator[Target]:
    """A router with everything on; its request log is written, but to nowhere."""
    given = {"port": 0, "store": store, "namespace": NAMESPACE, "data-path": data_path, "workers": workers}
    flags = [f"--{name}={value}" for name, value in given.items()]
    async with _process((sys.executable, "-m", "router", *flags), cores, asyncio.subprocess.PIPE) as process:
        target = Target(name or data_path, await _port_of(process), process.pid)
        await _until_answers(f"http://127.0.0.1:{target.port}/readyz", process, "the router")
        yield target


@asynccontextmanager
async def peer(name: str, command: str, urls: dict[str, str], core: int) -> AsyncIterator[Target]:
    """Another router before the same engines.

    Raises:
        BadRequest: the program is not there.
        RouterError: it does not get ready.
    """
    port = _free_port()
    words = [word.format(prefill=urls["prefill"], decode=urls["decode"], port=port) for word in shlex.split(command)]
    try:
        async with _process(words, {core}, asyncio.subprocess.DEVNULL) as process:
            await _until_answers(f"http://127.0.0.1:{port}/health", process, name)
            yield Target(name, port, process.pid)
    except FileNotFoundError as error:
        raise BadRequest(f"The peer's program {words[0]} is not there; install it or drop --peer {name}.") from error


@asynccontextmanager
async def nginx(program: str, urls: dict[str, str], core: int) -> AsyncIterator[Target]:
    """nginx as a plain reverse proxy to decode: the floor, for it sends one leg and knows nothing of what it carries.

    Raises:
        BadRequest: the program is not there.
        RouterError: it does not get ready.
    """
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="tandem-nginx-") as folder:
        upstream = urls["decode"].removeprefix("http://")
        text = NGINX.format(folder=folder, port=port, upstream=upstream)
        Path(folder, "nginx.conf").write_text(text, encoding="ascii")
        words = [program, "-p", folder, "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]
        try:
            async with _process(words, {core}, asyncio.subprocess.DEVNULL) as process:
                await _until_answers(f"http://127.0.0.1:{port}/health", process, "nginx")
                yield Target("nginx", port, process.pid)
        except FileNotFoundError as error:
            raise BadRequest(f"{program} is not there; install nginx or drop --nginx.") from error


NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream decode {{ server {upstream}; keepalive 4096; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://decode; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


@asynccontextmanager
async def _process(
    words: list[str] | tuple[str, ...], cores: set[int], stderr: int
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Running on those cores alone, gone afterwards."""
    end_with_us = end_with_parent(os.getpid())

    def before() -> None:
        os.sched_setaffinity(0, cores)
        end_with_us()

    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.DEVNULL, stderr=stderr, preexec_fn=before
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10.0)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _port_of(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async with asyncio.timeout(READY_WITHIN_S):
        while line := (await process.stderr.readline()).decode():
            if "listening on" in line:
                return int(line.partition("listening on ")[2].partition(",")[0].rpartition(":")[2])
    raise RouterError("The router did not start; run `tandem router` to see why.")


async def _until_answers(url: str, process: asyncio.subprocess.Process, name: str) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(int(READY_WITHIN_S / 0.1)):
            try:
                if process.returncode is None and (await client.get(url)).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # not listening yet
            await asyncio.sleep(0.1)
    raise RouterError(f"{name} was not ready within {READY_WITHIN_S:g} s; run its command by hand to see why.")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _family(pid: int) -> list[int]:
    """The process and everything under it."""
    if not pid:
        return []
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return [pid, *(one for child in children for one in _family(int(child)))]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
