"""VllmServer: the vLLM process behind the shim, on a Unix socket that nobody else can reach."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import sys
from dataclasses import dataclass

import httpx
import msgspec

from engine_shim.engine.vllm.messages import IDENTITY, SECRET_VARIABLE, SOCKET
from router.contract.errors import BadSettings, EngineDown
from router.contract.instance import KVIdentity, Role
from router.store.embedded import end_with_parent

log = logging.getLogger("tandem.vllm")

CONNECTOR = "TandemConnector"
CONNECTOR_MODULE = "engine_shim.engine.vllm.connector"
KV_ROLES = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer", Role.BOTH: "kv_both"}
OURS = ("--host", "--port", "--uds", "--kv-transfer-config", "--api-key", "--ssl-keyfile", "--ssl-certfile")
"""Arguments of `vllm serve` that the shim sets, or that would keep it out."""
ENDPOINTS = (
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/tokenize",
    "/detokenize",
)
"""Beside chat and text completions, what a router passes on to engines that have it."""
LOOK_EVERY_S = 0.1
STOP_FOR_S = 15.0


class _Document(msgspec.Struct):
    """What is read of an OpenAPI document."""

    paths: dict[str, msgspec.Raw]


@dataclass(frozen=True, slots=True)
class Wiring:
    """How vLLM and the shim find each other."""

    folder: str
    """That nobody else may enter."""
    secret: str
    identity: KVIdentity
    """What prefill answers; its layout is not known yet, and not needed."""

    @property
    def http_path(self) -> str:
        """Unix socket of vLLM's HTTP."""
        return f"{self.folder}/http"

    @property
    def link_path(self) -> str:
        """Unix socket of the shim's link."""
        return f"{self.folder}/link"


def read_engine_args(text: str) -> tuple[str, ...]:
    """Arguments of `vllm serve`, as a shell reads them. Raises BadSettings for those that the shim sets itself."""
    try:
        args = tuple(shlex.split(text))
    except ValueError as error:
        raise BadSettings(f"--engine-args cannot be read ({error}); quote it as in a shell.") from error
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        if name in OURS or name.startswith("--kv-transfer-config"):
            raise BadSettings(f"--engine-args must not have {name}: the shim stands in front of vLLM and sets it.")
    return args


def command_of(args: tuple[str, ...], wiring: Wiring, role: Role) -> tuple[str, ...]:
    """The argument vector that starts vLLM with our connector."""
    config = {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": CONNECTOR_MODULE,
        "kv_role": KV_ROLES[role],
        "engine_id": wiring.identity.engine_id,
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {
            SOCKET: wiring.link_path,
            IDENTITY: msgspec.to_builtins(wiring.identity),
        },
    }
    python = (sys.executable, "-m", "vllm.entrypoints.cli.main", "serve")
    return (*python, *args, "--uds", wiring.http_path, "--kv-transfer-config", msgspec.json.encode(config).decode())


class VllmServer:
    """One started vLLM. It is killed when this process dies, however it dies."""

    def __init__(self, wiring: Wiring, process: asyncio.subprocess.Process) -> None:
        self._process = process
        transport = httpx.AsyncHTTPTransport(uds=wiring.http_path, limits=httpx.Limits(keepalive_expiry=30.0))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=None)
        """Calls it; nobody's proxy settings count."""

    @classmethod
    async def start(cls, args: tuple[str, ...], wiring: Wiring, role: Role) -> VllmServer:
        """The process runs; it takes half a minute and more until it serves."""
        command = command_of(args, wiring, role)
        log.info("Starting vLLM: %s", shlex.join(command[: 4 + len(args)]))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**os.environ, SECRET_VARIABLE: wiring.secret},
            preexec_fn=end_with_parent(os.getpid()),
        )
        return cls(wiring, process)

    async def ended(self) -> EngineDown:
        """What to say once the process has ended by itself."""
        status = await self._process.wait()
        return EngineDown(f"vLLM has ended with status {status}; its own lines above say why.")

    async def serves(self) -> None:
        """It answers `GET /health`. Never returns when it does not; race it with `ended`."""
        while True:
            try:
                if (await self.client.get("/health", timeout=5.0)).status_code == httpx.codes.OK:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(LOOK_EVERY_S)

    async def endpoints(self) -> tuple[str, ...]:
        """The paths of ENDPOINTS that it has; which ones depends on the model. Empty when it does not say."""
        try:
            reply = await self.client.get("/openapi.json", timeout=30.0)
            paths = msgspec.json.decode(reply.content, type=_Document).paths
        except (httpx.HTTPError, msgspec.DecodeError):
            return ()
        return tuple(path for path in ENDPOINTS if path in paths)

    async def aclose(self) -> None:
        """The process and its children are gone."""
        await self.client.aclose()
        if self._process.returncode is None:
            self._process.terminate()
        try:
            async with asyncio.timeout(STOP_FOR_S):
                await self._process.wait()
        except TimeoutError:
            log.warning("vLLM does not end; it is killed.")
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
