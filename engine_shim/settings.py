"""Settings of one shim: flags, `TANDEM_SHIM_...` environment, or a TOML/JSON file; flags win, then the environment."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from math import inf
from pathlib import Path
from typing import Any

from router.contract.errors import BadSettings
from router.contract.gpus import gpu_numbers
from router.contract.hosts import Reach, reach_of
from router.contract.instance import Role
from router.contract.seal import KEY_VARIABLE, check_key

ENV_PREFIX = "TANDEM_SHIM_"
LEAST_STAGING_BYTES = 1 << 20


def _setting(default: object, about: str, choices: Sequence[str] = ()) -> Any:  # noqa: ANN401 - as dataclasses.field
    return field(default=default, metadata={"about": about, "choices": tuple(choices)})


@dataclass(frozen=True, slots=True)
class ShimSettings:
    """Everything that a shim can be told. The text of each field is its help."""

    role: str = _setting("both", "what this instance does", [role.value for role in Role])
    engine: str = _setting("reference", "engine behind the shim", ["reference", "vllm"])
    engine_args: str = _setting("", "vllm only: arguments of `vllm serve`, model first; as well what follows --")
    fabric: str = _setting("nixl", "how KV cache moves; none serves local mode only", ["nixl", "none"])
    nixl_backend: str = _setting("UCX", "NIXL backend; LIBFABRIC on EFA")
    host: str = _setting("127.0.0.1", "address to listen on")
    port: int = _setting(0, "port to listen on; 0 takes a free one")
    advertise_host: str = _setting("", "address that routers and peers use; default: host")
    store: str = _setting("", "redis:// URL of the fleet and ledger; empty for none")
    namespace: str = _setting("tandem", "prefix of all keys in the store")
    deployment_key: str = _setting("", "secret shared by all routers and shims; better set by TANDEM_DEPLOYMENT_KEY")
    instance_id: str = _setting("", "stays the same over restarts; default: role-host-port")
    model: str = _setting("smollm2-135m", "checkpoint: a directory, a .gguf file, or smollm2-135m")
    model_name: str = _setting("", "served model name; default: from the checkpoint")
    device: str = _setting("cpu", "where the engine runs", ["cpu", "cuda"])
    devices: str = _setting(
        "",
        "GPUs by number, such as 2,3: the engine is on the first; with --ep, ranks go round; default: 0, or one a rank",
    )
    dtype: str = _setting("", "weights and KV cache; default: float32 on cpu, bfloat16 on cuda")
    numerics: str = _setting("fast", "fast, or invariant: results independent of batching", ["fast", "invariant"])
    block_tokens: int = _setting(16, "tokens per KV block")
    kv_bytes: int = _setting(0, "bytes of KV cache; 0: the engine's default")
    kv_order: str = _setting(
        "block_first", "memory order of the KV cache", ["block_first", "layer_first", "head_major"]
    )
    threads: int = _setting(0, "CPU threads of the engine; 0: all cores")
    max_num_seqs: int = _setting(64, "sequences that run at once")
    max_batch_tokens: int = _setting(512, "tokens of one step; longer prompts are computed in chunks")
    max_context_tokens: int = _setting(0, "longest prompt plus answer; 0: the checkpoint's own")
    prefix_cache: bool = _setting(True, "keep KV of finished prompts for prompts with the same beginning")
    cuda_graphs: bool = _setting(True, "on a GPU, replay decode steps as CUDA graphs, captured at the start")
    ep: int = _setting(1, "processes that share the experts of a mixture-of-experts model; must divide its experts")
    expert_numerics: str = _setting(
        "exact", "exact: sums in one order whatever --ep is; dedup: fewer bytes, another last bit", ["exact", "dedup"]
    )
    expert_transport: str = _setting(
        "nixl", "how rows travel between expert ranks; nvlink: CUDA kernels, with --device cuda", ["nixl", "nvlink"]
    )
    expert_kernels: str = _setting("", "library of those kernels built ahead; default: built at first use, with nvcc")
    expert_wait_for_s: float = _setting(10.0, "longest that one expert rank waits for the others in a layer, seconds")
    expert_overlap: bool = _setting(
        False, "expert ranks compute each batch in two halves: one computes while rows of the other travel"
    )
    seed: int = _setting(0, "of the engine's own random stream")
    lease_for_s: float = _setting(30.0, "seconds that prefill keeps finished KV for a decode that does not register")
    seat_wait_for_s: float = _setting(60.0, "seconds that prefill keeps a registration whose prefill leg does not come")
    kv_wait_for_s: float = _setting(
        120.0, "seconds that decode waits for KV after it has registered, prefill's queue and computing included"
    )
    registration_for_s: float = _setting(
        120.0, "seconds that decode waits for room for KV; a router may ask for less, as for kv_wait_for_s"
    )
    progressive: bool = _setting(True, "push KV chunk by chunk while a long prompt is still being computed")
    layerwise: bool = _setting(True, "push the last chunk of a prompt layer by layer while it is being computed")
    push_least_tokens: int = _setting(
        256, "least tokens, or layers that weigh as much, that are pushed before all of a prompt is computed"
    )
    push_most_bytes: int = _setting(
        256 << 20, "most bytes of one WRITE of a progressive push; of a request two are under way at most"
    )
    recall_least_tokens: int = _setting(
        64, "least tokens of a conversation whose KV prefill fetches from an earlier turn's decode; 0: none ever"
    )
    recall_wait_for_s: float = _setting(2.0, "seconds after which prefill computes what has not come back")
    staging_bytes: int = _setting(
        0, "bytes of a ring in which fragmented KV is gathered, to be written at once and scattered on decode; 0: off"
    )
    post_between_steps: bool = _setting(
        False, "for measuring only: copies wait for the engine's step and its next step for them, as inside an engine"
    )
    kv_failure: str = _setting(
        "fail", "when KV does not come: fail the request, or recompute its prompt on decode", ["fail", "recompute"]
    )
    request_for_s: float = _setting(600.0, "longest life of a request, seconds")
    fleet_lease_for_s: float = _setting(5.0, "seconds without a heartbeat after which the instance is out of the fleet")
    heartbeat_every_s: float = _setting(1.0, "seconds between heartbeats")
    keep_alive_s: int = _setting(30, "seconds for which an idle connection is kept; routers close theirs before")
    max_body_bytes: int = _setting(16 << 20, "largest request body, bytes")
    drain_for_s: float = _setting(20.0, "seconds that running requests get at shutdown")
    log_level: str = _setting("info", "least severe log line", ["debug", "info", "warning", "error"])

    def __post_init__(self) -> None:
        """Raise BadSettings for a value out of range."""
        for one in fields(self):
            value, choices = getattr(self, one.name), one.metadata["choices"]
            if choices and value not in choices:
                raise BadSettings(f"--{_flag(one.name)} must be one of {', '.join(choices)}, not {value!r}.")
        for name in (
            "block_tokens",
            "max_num_seqs",
            "max_batch_tokens",
            "max_body_bytes",
            "ep",
            "push_least_tokens",
            "push_most_bytes",
        ):
            if getattr(self, name) < 1:
                raise BadSettings(f"--{_flag(name)} must be at least 1, not {getattr(self, name)}.")
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, float) and not 0 <= value < inf:  # neither is true of a NaN
                raise BadSettings(f"--{_flag(one.name)} must be a number of seconds, not {value}.")
        _check_ranges(self)
        if self.engine == "vllm":
            _check_vllm(self)
        check_key(self.deployment_key, self.host)
        _check_advertised(self.host, self.advertise_host)
        if not 0 <= self.port < 65536:
            raise BadSettings(f"--port must be 0 to 65535, not {self.port}.")


def _check_ranges(settings: ShimSettings) -> None:
    """Raise BadSettings for a time or a size that cannot be."""
    for name in _TIMES:
        if getattr(settings, name) <= 0:
            raise BadSettings(f"--{_flag(name)} must be more than 0 seconds, not {getattr(settings, name)}.")
    for name, least in (("staging_bytes", LEAST_STAGING_BYTES), ("recall_least_tokens", 1)):
        if 0 != getattr(settings, name) < least:
            raise BadSettings(f"--{_flag(name)} must be 0 or at least {least}, not {getattr(settings, name)}.")
    if gpu_numbers(settings.devices) and (settings.engine != "reference" or settings.device != "cuda"):
        raise BadSettings("--devices is for the reference engine with --device cuda; vLLM reads CUDA_VISIBLE_DEVICES.")


def _check_vllm(settings: ShimSettings) -> None:
    """Raise BadSettings for what vLLM behind the shim cannot do."""
    if not settings.engine_args:
        raise BadSettings(
            "--engine vllm needs the arguments of `vllm serve`, the model first: ... -- MODEL --dtype ..."
        )
    if settings.fabric == "none" or settings.staging_bytes:
        raise BadSettings("--engine vllm needs --fabric nixl and no --staging-bytes: its connector owns the memory.")


_TIMES = (
    "lease_for_s",
    "seat_wait_for_s",
    "recall_wait_for_s",
    "kv_wait_for_s",
    "registration_for_s",
    "request_for_s",
    "fleet_lease_for_s",
    "heartbeat_every_s",
    "keep_alive_s",
    "expert_wait_for_s",
)


def _check_advertised(host: str, advertise_host: str) -> None:
    """Who listens beyond this machine tells others an address that they can call. Raises BadSettings."""
    told = advertise_host or host
    if reach_of(told) is Reach.EVERYWHERE or (reach_of(host) is not Reach.HERE and reach_of(told) is Reach.HERE):
        raise BadSettings(
            f"Listening on {host}, this instance would tell others to call {told}, where they cannot reach it; "
            "set --advertise-host to this machine's own address (in a pod: status.podIP)."
        )


_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""The words that the router takes, too."""
_WANTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}


def read_settings(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> ShimSettings:
    """Settings from flags, environment and `--config FILE`, in this order of precedence.

    Raises:
        BadSettings: an unknown name (with a suggestion), a value that does not fit, or a file that cannot be read.
    """
    parser = argparse.ArgumentParser(prog="tandem shim", description="Serve one engine and move its KV cache.")
    parser.add_argument("--config", metavar="FILE", help="TOML or JSON file with the same names")
    for one in fields(ShimSettings):
        _add_flag(parser, one)
    own, rest = _split(argv)
    flags = vars(parser.parse_args(own))
    if rest:
        flags["engine_args"] = shlex.join(rest)
    config = flags.pop("config")
    chosen: dict[str, object] = _read_file(Path(config)) if config else {}
    chosen.update(_read_environ(environ))
    chosen.update({name: value for name, value in flags.items() if value is not None})
    # Any: one value of each field's own type, which _convert has made sure of.
    typed: dict[str, Any] = {name: _convert(name, value) for name, value in chosen.items()}
    return ShimSettings(**typed)


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The shim's own arguments, and what follows `--`: the engine's."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


# Any: a field of any type.
def _add_flag(parser: argparse.ArgumentParser, one: Field[Any]) -> None:
    choices = f" ({', '.join(one.metadata['choices'])})" if one.metadata["choices"] else ""
    text = f"{one.metadata['about']}{choices}; default: {one.default if one.default != '' else 'none'}"
    if one.type == "bool":
        parser.add_argument(f"--{_flag(one.name)}", action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        parser.add_argument(f"--{_flag(one.name)}", default=None, metavar=str(one.type).upper(), help=text)


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _known(name: str, where: str) -> str:
    names = [one.name for one in fields(ShimSettings)]
    wanted = name.replace("-", "_")
    if wanted in names:
        return wanted
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise BadSettings(f"{where} sets {name!r}, which is no setting of a shim.{hint}")


def _read_environ(environ: Mapping[str, str]) -> dict[str, object]:
    ours = {name: value for name, value in environ.items() if name.startswith(ENV_PREFIX)}
    if KEY_VARIABLE in environ:
        ours.setdefault(f"{ENV_PREFIX}DEPLOYMENT_KEY", environ[KEY_VARIABLE])
    return {
        _known(name.removeprefix(ENV_PREFIX).lower(), f"Environment variable {name}"): v for name, v in ours.items()
    }


def _read_file(path: Path) -> dict[str, object]:
    try:
        raw = path.read_text()
        table = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw)
    except OSError as error:
        raise BadSettings(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise BadSettings(f"{path} is neither TOML nor JSON: {error}.") from error
    if not isinstance(table, dict):
        raise BadSettings(f"{path} must hold a table of settings.")
    return {_known(str(name), str(path)): value for name, value in table.items()}


def _convert(name: str, value: object) -> object:
    kind = str(next(one.type for one in fields(ShimSettings) if one.name == name))
    try:
        if kind == "bool":
            return _TRUTH[str(value).lower()]
        return {"int": int, "float": float, "str": str}[kind](str(value))
    except (ValueError, KeyError) as error:
        raise BadSettings(f"--{_flag(name)} must be {_WANTED[kind]}, not {value!r}.") from error
