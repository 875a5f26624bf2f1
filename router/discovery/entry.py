"""Entry: one server that belongs to the fleet, as a file, a flag or Kubernetes names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from router.contract.engine_url import read_engine_url
from router.contract.errors import BadSettings
from router.contract.instance import Mode, Role
from router.contract.wire import MAX_ID_CHARS


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


def check_entry(entry: Entry, where: str) -> None:
    """The entry can be asked, whatever names it; what is said of a field begins with `where`.

    Raises:
        BadSettings: something in it cannot be, or contradicts the rest.
    """
    try:
        read_engine_url(entry.url)
    except BadSettings as error:
        raise BadSettings(f"{where}url must look like http://host:port, got {entry.url!r}.") from error
    if len(entry.name) > MAX_ID_CHARS or not entry.name.isascii() or not entry.name.isprintable():
        raise BadSettings(f"{where}name must be at most {MAX_ID_CHARS} printable ASCII characters.")
    if entry.contract is Contract.VLLM and entry.role is None:
        raise BadSettings(f"{where}role is needed: a plain vLLM server does not say what it is for.")
    if entry.identity and entry.contract is Contract.TANDEM:
        raise BadSettings(f"{where}identity is the shim's to tell; leave it out.")
    check_unique([str(identity.dp_rank) for identity in entry.identity], f"{where}identity.dp_rank")
    for identity in entry.identity:
        complete = bool(identity.engine_id and identity.host and 0 < identity.port < 65536)
        if entry.role is Role.PREFILL and not complete:
            raise BadSettings(f"{where}identity of a prefill server needs engine_id, host and port.")
        if min(identity.tp_size, identity.pp_size) < 1 or min(identity.block_tokens, identity.dp_rank) < 0:
            raise BadSettings(f"{where}identity has a size that cannot be.")


def check_unique(values: Sequence[str], what: str) -> None:
    """No value is there twice.

    Raises:
        BadSettings: one is; `what` it is, is for the message.
    """
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise BadSettings(f"{what} {twice[0]!r} is there more than once.")
