"""What a set-up on one machine consists of, and the command lines of its engines and its router."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex

from router.cli.processes import Program
from router.contract.errors import RouterError
from router.contract.hosts import authority
from router.contract.instance import Mode, Role
from router.contract.seal import KEY_VARIABLE

DEFAULT_MODEL = "smollm2-135m"
SEEDED_MODELS = (
    "tiny-qwen3",
    "tiny-moe",
    "tiny-deepseek",
    *(f"seeded-qwen3-{size}" for size in ("0.6b", "1.7b", "4b", "8b", "14b", "32b")),
)
"""Models with random weights, which engines make themselves: tiny ones, and the shapes of Qwen3 to measure speed by."""


def _key() -> str:
    return os.environ.get(KEY_VARIABLE) or token_hex(32)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What all engines of a set-up have in common. None leaves a setting to the engine's own default."""

    model: str = DEFAULT_MODEL
    """A name that the engine knows, a checkpoint's directory, or a GGUF file."""
    model_name: str | None = None
    """Served name."""
    device: str = "cpu"
    numerics: str = "fast"
    block_tokens_prefill: int | None = None
    block_tokens_decode: int | None = None
    """Tokens a KV block, of decode engines and of those that do whole requests."""
    kv_bytes: int | None = None
    threads: int | None = None
    """Of each engine; None shares the machine's cores evenly."""
    ep: int | None = None
    """Processes of each engine that share the model's experts."""
    devices: tuple[int, ...] = ()
    """GPUs by number, of which engines get theirs in turn; none: each begins with the first."""
    expert_transport: str | None = None
    """How rows travel between those processes."""
    progressive: bool = True
    """KV cache is pushed while prefill still computes."""
    post_between_steps: bool = False
    """Copies wait for the engine's steps, and these for them, as where both are on one loop."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """A store, engines by role, and one router before them, all on this machine."""

    engine: EngineChoice = EngineChoice()
    prefill: int = 1
    decode: int = 1
    both: int = 0
    """Engines that do a whole request each: a monolithic set-up has only these."""
    mode: Mode = Mode.PUSH
    host: str = "127.0.0.1"
    port: int = 8000
    """The router's; engines take free ports."""
    store: str = "embedded"
    """`embedded`, the URL of a Redis, or `none`: no ledger then, and the router knows its engines by address."""
    namespace: str = "tandem"
    deployment_key: str = field(default_factory=_key, repr=False, compare=False)
    """Seals what router and shims tell each other; random unless the environment gives one."""

    @property
    def url(self) -> str:
        """Where this machine reaches the router."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{authority(host, self.port)}"

    @property
    def num_engines(self) -> int:
        """How many engine processes there are."""
        return self.prefill + self.decode + self.both

    @property
    def moves_kv(self) -> bool:
        """True when there are engines that can exchange KV cache, and so need NIXL, whatever the mode is."""
        return self.prefill > 0 and self.decode > 0

    @property
    def threads_per_engine(self) -> int:
        """Threads of each engine, at least 1."""
        return self.engine.threads or max(1, len(os.sched_getaffinity(0)) // max(1, self.num_engines))


def engine_programs(setup: SetUp, store_url: str) -> tuple[Program, ...]:
    """Return the engines' Programs, named by role and number: `prefill-0`, `decode-0`, `both-0`, …"""
    engines = [
        (role, index)
        for role, count in ((Role.PREFILL, setup.prefill), (Role.DECODE, setup.decode), (Role.BOTH, setup.both))
        for index in range(count)
    ]
    return tuple(
        _engine_program(setup, store_url, (role, index), gpus_of(setup.engine, number))
        for number, (role, index) in enumerate(engines)
    )


def gpus_of(choice: EngineChoice, number: int) -> tuple[int, ...]:
    """The GPUs of engine `number` of all: one a rank, dealt in turn and beginning again where there are not enough."""
    ranks = choice.ep or 1
    dealt = (choice.devices[(number * ranks + rank) % len(choice.devices)] for rank in range(ranks) if choice.devices)
    return tuple(dict.fromkeys(dealt))


def router_program(setup: SetUp, store_url: str, engine_urls: Sequence[str] = ()) -> Program:
    """Return the router's Program. Without a store it needs `engine_urls`, in the order of `engine_programs`."""
    flags: dict[str, str | None] = {
        "--host": setup.host,
        "--port": str(setup.port),
        "--store": store_url or None,
        "--mode": setup.mode.value,
        "--namespace": setup.namespace,
    }
    roles = ("--prefill",) * setup.prefill + ("--decode",) * setup.decode
    fixed = [word for pair in zip(roles, engine_urls, strict=False) for word in pair]
    argv = (sys.executable, "-m", "router", *_words(flags), *fixed)
    return Program("router", argv, failure=RouterError, env={KEY_VARIABLE: setup.deployment_key})


def _engine_program(setup: SetUp, store_url: str, who: tuple[Role, int], gpus: tuple[int, ...]) -> Program:
    engine, (role, index) = setup.engine, who
    block_tokens = engine.block_tokens_prefill if role is Role.PREFILL else engine.block_tokens_decode
    flags = {
        "--role": role.value,
        "--engine": "reference",
        "--fabric": "nixl" if setup.moves_kv else "none",
        "--host": "127.0.0.1",
        "--port": "0",
        "--store": store_url or None,
        "--instance-id": f"{role.value}-{index}",
        "--model": engine.model,
        "--model-name": engine.model_name,
        "--device": engine.device,
        "--devices": ",".join(map(str, gpus)) or None,
        "--numerics": engine.numerics,
        "--block-tokens": _text(block_tokens),
        "--kv-bytes": _text(engine.kv_bytes),
        "--ep": _text(engine.ep),
        "--expert-transport": engine.expert_transport,
        "--threads": str(setup.threads_per_engine),
        "--namespace": setup.namespace,
    }
    switches = [] if engine.progressive else ["--no-progressive"]
    switches += ["--post-between-steps"] if engine.post_between_steps else []
    argv = (sys.executable, "-m", "engine_shim", *_words(flags), *switches)
    return Program(f"{role.value}-{index}", argv, env={KEY_VARIABLE: setup.deployment_key})


def _words(flags: dict[str, str | None]) -> list[str]:
    return [word for flag, value in flags.items() if value is not None for word in (flag, value)]


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)
