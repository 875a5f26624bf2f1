"""Instances of the fleet: who they are, and how busy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from router.contract.ids import EngineId, Epoch, InstanceId
from router.contract.kv import KVLayout


class Role(StrEnum):
    """What an instance may be asked to do."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        """True when the instance takes prefill legs."""
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        """True when the instance takes decode legs."""
        return self is not Role.PREFILL


class Mode(StrEnum):
    """How the KV cache of a request reaches decode."""

    PUSH = "push"
    """Prefill WRITEs into seats that decode registered early; both legs leave together."""
    PULL = "pull"
    """Decode READs from prefill's blocks after prefill has answered; the legs leave one after the other."""
    LOCAL = "local"
    """Decode computes the prompt itself; there is no prefill leg."""


class EngineKind(StrEnum):
    """Whose contract an instance speaks."""

    TANDEM = "tandem"
    """An engine with our shim: it tells who it is, takes attempts back and fails honestly."""
    VLLM = "vllm"
    """A plain vLLM server with a NIXL connector, or none: who it is must be given or found out."""


@dataclass(frozen=True, slots=True)
class KVIdentity:
    """All that a peer must know, before the first request, to exchange KV cache with this instance."""

    engine_id: EngineId
    side_channel_host: str
    side_channel_port: int
    layout: KVLayout | None
    """None for an engine that does not tell it."""
    compat_hash: str
    """Digest of everything that must be equal on both sides: model, weights, dtype, heads, layers, protocol version."""
    modes: tuple[Mode, ...]
    tp_size: int = 1
    """0: not known, of a decode instance that nobody needs to call."""
    pp_size: int = 1
    dp_rank: int = 0
    takes_back: bool = False
    """It serves `POST /kv/cancel`: a finished prefill that nobody will fetch can be taken back at once."""
    block_tokens: int = 0
    """Tokens of a KV block where there is no layout; 0: not known."""

    @property
    def tokens_per_block(self) -> int:
        """Tokens of a KV block, or 0 when it is not known."""
        return self.block_tokens if self.layout is None else self.layout.block_tokens


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine at one address, in one start."""

    instance_id: InstanceId
    role: Role
    epoch: Epoch
    url: str
    """HTTP base without a trailing slash, `http://host:port`."""
    model: str
    """Served model name."""
    max_context_tokens: int
    """0: it does not tell."""
    kv: KVIdentity | None
    """None for an engine that cannot hand KV cache over; it then serves local mode only."""
    draining: bool = False
    engine: EngineKind = EngineKind.TANDEM
    aliases: tuple[str, ...] = ()
    """Names that it serves beside `model`: other served names and LoRA adapters."""
    dp_size: int = 1
    """Above 1, one server at `url` has so many data-parallel ranks, and this instance is one of them."""
    zone: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """What operators have written beside it, by name."""
    endpoints: tuple[str, ...] = ()
    """Paths that it serves beside chat and text completions."""
    lacks: tuple[str, ...] = ()
    """Options that it cannot serve, by the names of `router.core.abilities`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every model name that it serves."""
        return (self.model, *self.aliases)


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an instance was at its last heartbeat."""

    running_seqs: int = 0
    waiting_seqs: int = 0
    queued_prompt_tokens: int = 0
    """Prompt tokens that are waiting for their prefill."""
    free_blocks: int = 0
    """Blocks that a new sequence may take, cached ones included."""
    held_blocks: int = 0
    """Blocks pinned for a transfer: prefill's finished KV and decode's Seats."""
    quarantined_blocks: int = 0
    """Held blocks whose request is over and that somebody might still write."""
    live_transfers: int = 0
    expired_leases: int = 0
    """Of plain vLLM: finished prompts so far whose KV was freed before anybody came for it."""
    open_tickets: int = 0
    """Rendezvous that have neither LANDED nor become VOID."""
