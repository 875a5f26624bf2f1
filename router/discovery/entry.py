"""Entry: one server that belongs to the fleet, as a file, a flag or Kubernetes names it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from router.contract.instance import Mode, Role


class Contract(StrEnum):
    """How an entry's server is spoken to."""

    AUTO = "auto"
    """One that answers `GET /kv/instance` has our shim, any other is plain vLLM."""
    TANDEM = "tandem"
    VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Identity:
    """What decode must be told of a prefill engine, and what pairing must know of either. Of one data-parallel rank."""

    engine_id: str = ""
    """kv_transfer_config.engine_id, with its `_dp<rank>` where there are several ranks."""
    host: str = ""
    """VLLM_NIXL_SIDE_CHANNEL_HOST, as other engines can call it."""
    port: int = 0
    """VLLM_NIXL_SIDE_CHANNEL_PORT plus the rank."""
    tp_size: int = 1
    pp_size: int = 1
    block_tokens: int = 0
    """Tokens of a KV block; 0: as its metrics say."""
    dp_rank: int = 0
    mode: Mode | None = None
    """push for NixlPushConnector, pull for NixlConnector; None: whatever the others of its model do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One server."""

    url: str
    """HTTP base without a trailing slash."""
    role: Role | None = None
    """None: as its shim says."""
    contract: Contract = Contract.AUTO
    name: str = ""
    """Instance id; empty: the URL."""
    model: str = ""
    """Served name; empty: the first of GET /v1/models."""
    aliases: tuple[str, ...] = ()
    """More names that it serves, beside those that GET /v1/models lists."""
    identity: tuple[Identity, ...] = ()
    """Of each data-parallel rank; empty: learned from one probe for each rank of a prefill server."""
    compat: str = ""
    """Only servers with the same word exchange KV cache; empty: made of version, model and dtype of the cache."""
    zone: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    endpoints: tuple[str, ...] = ()
    """Paths that it serves beside chat and text completions; empty: as its shim or its /openapi.json says."""
    lacks: tuple[str, ...] = ()
    """Options that it cannot serve, such as n or prompt_logprobs."""
    draining: bool = False
    """It finishes what it has and gets nothing new."""

    @property
    def unmarked(self) -> Entry:
        """Without what is only written beside the server: equal ones are asked the same."""
        return replace(self, aliases=(), zone="", labels=(), endpoints=(), lacks=(), draining=False)
