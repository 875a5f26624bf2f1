"""What a plain vLLM server tells of itself: /v1/models, /version, /metrics, /openapi.json, and `kv_transfer_params`.

Field and metric names are those of vLLM 0.32 and 0.33. Whatever is missing or unreadable is left out, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite

import msgspec
from msgspec import Raw

from router.contract.instance import Load, Mode
from router.discovery.entry import Identity


@dataclass(frozen=True, slots=True)
class Names:
    """What a server serves."""

    model: str
    aliases: tuple[str, ...]
    """Other served names, and its LoRA adapters."""
    root: str
    """Where its weights came from."""
    max_context_tokens: int


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    cards: list[_Card] = msgspec.field(name="data")


class _Version(msgspec.Struct):
    version: str = ""


class _Document(msgspec.Struct):
    paths: dict[str, Raw] = {}


class _Params(msgspec.Struct):
    remote_engine_id: str
    remote_host: str
    remote_port: int
    tp_size: int
    pp_size: int = 1
    transfer_mode: str = ""


class _Probed(msgspec.Struct):
    kv_transfer_params: _Params | None = None


def read_names(body: bytes) -> Names | None:
    """The answer of GET /v1/models, or None when it names no model."""
    try:
        cards = msgspec.json.decode(body, type=_Cards).cards
    except msgspec.DecodeError:
        return None
    own = [card for card in cards if not card.parent]
    if not own or not own[0].id:
        return None
    first = own[0]
    aliases = tuple(dict.fromkeys(card.id for card in cards if card.id and card.id != first.id))
    return Names(first.id, aliases, first.root or first.id, first.max_model_len or 0)


def read_version(body: bytes) -> str:
    """The answer of GET /version, or empty."""
    try:
        return msgspec.json.decode(body, type=_Version).version
    except msgspec.DecodeError:
        return ""


def read_endpoints(body: bytes) -> tuple[str, ...]:
    """The paths of GET /openapi.json, or none."""
    try:
        return tuple(sorted(msgspec.json.decode(body, type=_Document).paths))
    except msgspec.DecodeError:
        return ()


def read_identity(body: bytes, dp_rank: int) -> Identity | None:
    """Who has answered this prefill: its identity for KV transfer, or None when it hands none over."""
    try:
        params = msgspec.json.decode(body, type=_Probed).kv_transfer_params
    except msgspec.DecodeError:
        return None
    if params is None or not params.remote_engine_id or not params.remote_host:
        return None
    if not 0 < params.remote_port < 65536 or params.tp_size < 1 or params.pp_size < 1:
        return None
    # Connectors before 0.32 do not say which they are; only the pulling one existed.
    mode = Mode(params.transfer_mode) if params.transfer_mode in ("push", "pull") else Mode.PULL
    return Identity(
        params.remote_engine_id,
        params.remote_host,
        params.remote_port,
        params.tp_size,
        params.pp_size,
        dp_rank=dp_rank,
        mode=mode,
    )


@dataclass(frozen=True, slots=True)
class Rank:
    """One data-parallel rank as the metrics show it."""

    load: Load
    block_tokens: int
    """0 when they do not say."""
    cache_dtype: str


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the metrics of a server show."""

    started_unix_s: float
    """When its process started, or 0.0 when they do not say."""
    ranks: dict[int, Rank]


_STARTED = re.compile(rb"^process_start_time_seconds (\S+)", re.MULTILINE)
_SAMPLES = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc|cache_config_info"
    rb"|nixl_num_kv_expired_reqs_total)\{([^\n]*)\} (\S+)",
    re.MULTILINE,
)
_LABELS = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')


def read_gauges(text: bytes) -> Gauges:
    """The answer of GET /metrics. Costs about 0.1 ms for 100 KiB: only the few lines that count are looked at."""
    values: dict[int, dict[bytes, float]] = {}
    caches: dict[int, dict[bytes, bytes]] = {}
    for name, raw_labels, raw in _SAMPLES.findall(text):
        labels = dict(_LABELS.findall(raw_labels))
        number = labels.get(b"engine", b"0")
        if not number.isdigit():
            continue
        rank = int(number)
        if name == b"cache_config_info":
            caches[rank] = labels
        else:
            values.setdefault(rank, {})[name] = _number(raw)
    started = _STARTED.search(text)
    ranks = {rank: _rank(values.get(rank, {}), caches.get(rank, {})) for rank in sorted(values.keys() | caches.keys())}
    return Gauges(_number(started[1]) if started else 0.0, ranks)


def _rank(values: dict[bytes, float], cache: dict[bytes, bytes]) -> Rank:
    num_blocks, block_tokens = (_whole(cache.get(name, b"")) for name in (b"num_gpu_blocks", b"block_size"))
    used = values.get(b"kv_cache_usage_perc", 0.0)
    load = Load(
        running_seqs=int(values.get(b"num_requests_running", 0)),
        waiting_seqs=int(values.get(b"num_requests_waiting", 0)),
        free_blocks=max(0, round(num_blocks * (1.0 - used))),
        expired_leases=int(values.get(b"nixl_num_kv_expired_reqs_total", 0)),
    )
    return Rank(load, block_tokens, cache.get(b"cache_dtype", b"").decode("ascii", "replace"))


def _number(raw: bytes) -> float:
    try:
        value = float(raw)
    except ValueError:
        return 0.0
    return value if isfinite(value) else 0.0


def _whole(raw: bytes) -> int:
    return int(raw) if raw.isdigit() else 0
