"""VllmServer: a plain vLLM server, with no code of ours inside, as instances of the fleet.

In push mode decode must be told who prefill is before prefill has answered, and vLLM has no call that says so. So the
identity is given by the operator, or it is learned from one probe for each data-parallel rank: a prefill of one short
prompt, whose answer carries it. It is learned anew whenever the process may be another one: its start time has changed,
it was silent and does not tell its start time, or it has answered a request as somebody else.

Decode is never probed: nobody needs to know its identity, and a probe would pin blocks for a lease.
"""

from __future__ import annotations

import logging
import os
import time
from time import monotonic

import msgspec

from router.contract.errors import Blame, LegTimeout
from router.contract.ids import EngineId, Epoch, InstanceId, TransferId
from router.contract.instance import EngineKind, Instance, KVIdentity, Load, Mode, Role
from router.contract.wire import prefill_params
from router.core.intake import Endpoint
from router.discovery.entry import Entry, Identity
from router.discovery.vllm_answers import (
    Gauges,
    Names,
    Rank,
    read_endpoints,
    read_gauges,
    read_identity,
    read_names,
    read_version,
)
from router.legs.call import Reply, call, get_request
from router.legs.params import leg_request
from router.legs.pool import LegPool

LOG = logging.getLogger("tandem.router")

TIMEOUT_S = 2.0
PROBE_S = 30.0
"""Seconds for a probe; it waits in prefill's queue like any request."""
PROBE_AGAIN_S = 10.0
"""Seconds between two probes of a rank that has handed nothing over."""
NAMES_S = 10.0
"""Seconds between two looks at the served names: LoRA adapters come and go."""

_UNKNOWN = Rank(Load(), 0, "")
_ENDPOINTS = frozenset(endpoint.value for endpoint in Endpoint)
_BOTH_MODES = (Mode.PUSH, Mode.PULL)


class VllmServer:
    """See the module. Belongs to one event loop."""

    def __init__(self, entry: Entry, pool: LegPool) -> None:
        self._entry = entry
        self._pool = pool
        self._role = entry.role or Role.BOTH
        self._side = Blame.PREFILL if self._role is Role.PREFILL else Blame.DECODE
        self._names: Names | None = None
        self._version = ""
        self._endpoints: tuple[str, ...] = ()
        self._named_at = 0.0
        self._identity: dict[int, Identity] = {}
        self._probe_at = 0.0
        self._gauges = Gauges(0.0, {})
        self._epoch = Epoch(0)
        self._doubted = True
        """The process may be another one than the one that was learned."""

    @property
    def found(self) -> tuple[tuple[Instance, Load], ...]:
        """One instance for each rank that is known."""
        names = self._names
        if names is None:
            return ()
        ranks = self._ranks()
        return tuple((self._instance(names, rank, len(ranks)), self._rank(rank).load) for rank in ranks)

    async def look(self) -> tuple[tuple[Instance, Load], ...]:
        """Who serves there now; see Speaker."""
        was_doubted, self._doubted = self._doubted, True
        if (await self._get(b"/health")).status != 200:
            return ()
        metrics = await self._get(b"/metrics")
        gauges = read_gauges(metrics.body) if metrics.status == 200 else Gauges(0.0, {})
        restarted = gauges.started_unix_s != self._gauges.started_unix_s
        if restarted or (was_doubted and not gauges.started_unix_s):
            self._forget()
        self._gauges = gauges
        if not await self._learn_names():
            return ()
        await self._learn_identity()
        self._doubted = False
        return self.found

    def relearn(self, instance: Instance, answer: bytes) -> bool:
        """True when prefill's `answer` comes from another start than the known one; that one is known from here on."""
        rank = instance.kv.dp_rank if instance.kv is not None else 0
        known, told = self._identity.get(rank), read_identity(answer, rank)
        if known is None or told is None or told.engine_id == known.engine_id:
            return False
        LOG.warning("engine %s answers as %s and was %s", self._entry.url, told.engine_id, known.engine_id)
        self._epoch = Epoch(max(_unix_ms(), self._epoch + 1))
        self._identity = {rank: told}
        self._probe_at = 0.0  # the other ranks have started anew as well
        return True

    async def _get(self, path: bytes) -> Reply:
        return await call(self._pool, get_request(self._pool, path), self._side, TIMEOUT_S)

    def _forget(self) -> None:
        self._names = None
        self._identity = {}
        self._probe_at = 0.0

    async def _learn_names(self) -> bool:
        """True when it is known what is served."""
        if self._names is not None and monotonic() - self._named_at < NAMES_S:
            return True
        cards, version = await self._get(b"/v1/models"), await self._get(b"/version")
        names = read_names(cards.body) if cards.status == 200 else None
        if names is None:
            return False
        if self._names is None:
            document = await self._get(b"/openapi.json")
            served = read_endpoints(document.body) if document.status == 200 else ()
            self._endpoints = tuple(path for path in served if path in _ENDPOINTS)
            started_ms = int(self._gauges.started_unix_s * 1000)
            self._epoch = Epoch(started_ms or max(_unix_ms(), self._epoch + 1))
        self._names, self._named_at = names, monotonic()
        self._version = read_version(version.body) if version.status == 200 else ""
        return True

    async def _learn_identity(self) -> None:
        """Every rank's identity is known as far as it can be; those given by the operator count until proven wrong."""
        given = {identity.dp_rank: identity for identity in self._entry.identity}
        for rank, one in given.items():
            self._identity.setdefault(rank, one)
        missing = [rank for rank in self._gauges.ranks or (0,) if rank not in self._identity]
        if self._role is not Role.PREFILL or given or not missing or monotonic() < self._probe_at:
            return
        self._probe_at = monotonic() + PROBE_AGAIN_S
        for rank in missing:
            identity = await self._probe(rank)
            if identity is None:
                LOG.warning(
                    "engine %s hands no KV cache over, so it prefills for nobody; "
                    "start it with --kv-transfer-config and NixlPushConnector or NixlConnector",
                    self._entry.url,
                )
                return
            if identity.engine_id in {known.engine_id for known in self._identity.values()}:
                LOG.warning("engine %s ignores X-data-parallel-rank, so it prefills for nobody", self._entry.url)
                self._identity = {}
                return
            self._identity[rank] = identity

    async def _probe(self, rank: int) -> Identity | None:
        """Who answers a prefill on this rank."""
        assert self._names is not None
        probe_id = f"probe-{os.urandom(16).hex()}"  # 32 hex digits: vLLM takes 8 at the end for a suffix of its own
        body = {
            "model": self._names.model,
            "prompt": "Hello",
            "max_tokens": 1,
            "temperature": 0,
            "stream": False,
            "kv_transfer_params": prefill_params(TransferId(probe_id)),
        }
        lines = b"x-data-parallel-rank: %d\r\n" % rank if len(self._gauges.ranks) > 1 else b""
        raw = msgspec.json.encode(body)
        request = leg_request(self._pool, b"/v1/completions", probe_id.encode(), PROBE_S, lines, raw)
        reply = await call(self._pool, request, self._side, PROBE_S)
        if reply.status in (429, 502, 503, 504):
            raise LegTimeout(f"It answered {reply.status} to a probe.", side=self._side, phase="probe")
        return read_identity(reply.body, rank) if reply.status == 200 else None

    def _ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self._identity.keys() | self._gauges.ranks.keys())) or (0,)

    def _rank(self, rank: int) -> Rank:
        return self._gauges.ranks.get(rank, _UNKNOWN)

    def _instance(self, names: Names, rank: int, dp_size: int) -> Instance:
        entry = self._entry
        name = entry.name or entry.url
        aliases = dict.fromkeys((names.model, *names.aliases))
        model = entry.model or names.model
        aliases.pop(model, None)
        return Instance(
            InstanceId(f"{name}#dp{rank}" if dp_size > 1 else name),
            self._role,
            self._epoch,
            entry.url,
            model,
            names.max_context_tokens,
            self._kv(names, rank),
            engine=EngineKind.VLLM,
            aliases=tuple(aliases),
            dp_size=dp_size,
            endpoints=self._endpoints,
        )

    def _kv(self, names: Names, rank: int) -> KVIdentity | None:
        """None for one that could only be local; decode needs no identity of its own to take a cache."""
        identity = self._identity.get(rank)
        if identity is None:
            if self._role is not Role.DECODE:
                return None
            identity = Identity(tp_size=0, dp_rank=rank)
        seen = self._rank(rank)
        return KVIdentity(
            EngineId(identity.engine_id),
            identity.host,
            identity.port,
            None,
            self._entry.compat or f"vllm {self._version} {names.root} {seen.cache_dtype}",
            _BOTH_MODES if identity.mode is None else (identity.mode,),
            identity.tp_size,
            identity.pp_size,
            rank,
            block_tokens=identity.block_tokens or seen.block_tokens,
        )


def _unix_ms() -> int:
    return int(time.time() * 1000)
