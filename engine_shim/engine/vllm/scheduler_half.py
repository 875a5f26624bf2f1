"""The scheduler half of the connector: which sequences wait for KV, which blocks stay, and how busy vLLM is.

It runs inside vLLM's EngineCore, where an exception ends the whole engine. So nothing that a request carries is
trusted: a hand-over is what carries this start's secret, and everything else is an ordinary request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from engine_shim.engine.port import Purpose
from engine_shim.engine.vllm.messages import (
    PURPOSE,
    SECRET,
    SEQ_ID,
    BlocksHeld,
    FromScheduler,
    SchedulerLoad,
    SeatsTaken,
)
from router.contract.ids import TransferId
from router.contract.instance import KVIdentity
from router.contract.kv import BlockTable
from router.contract.rendezvous import PrefillDone
from router.contract.wire import answer_params

FINISHED = ("FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED")
"""Names of vLLM's RequestStatus after which a prompt's KV is whole; every other end has none to hand over."""


class _Status(Protocol):
    name: str


class Request(Protocol):
    """What is read of vLLM's Request."""

    request_id: str
    num_prompt_tokens: int
    # Any: decoded JSON of whoever sent the request.
    kv_transfer_params: dict[str, Any] | None
    status: _Status


class BlockPool(Protocol):
    """What is read of vLLM's BlockPool."""

    num_gpu_blocks: int

    def get_num_free_blocks(self) -> int:
        """Blocks that a sequence may take, cached ones included."""


class SchedulerHalf:
    """Answers vLLM's scheduler; called on its thread only."""

    def __init__(self, tell: Callable[[FromScheduler], None], secret: str, identity: KVIdentity) -> None:
        self._tell = tell
        self._secret = secret
        self._identity = identity
        self._pool: BlockPool | None = None
        self._queued: dict[str, int] = {}
        """Prompt tokens of requests that have not begun."""
        self._begun: set[str] = set()
        self._parked: set[str] = set()
        """Requests whose seats are taken and whose KV has not come."""
        self._seated: set[str] = set()
        """RECEIVE requests that have had their seats: when they are preempted, they compute their prompt themselves."""
        self._told: SchedulerLoad | None = None

    def bind(self, pool: BlockPool) -> None:
        """Blocks are given out of this pool."""
        self._pool = pool

    def on_new(self, request: Request) -> None:
        """vLLM has queued a request."""
        self._queued[request.request_id] = request.num_prompt_tokens

    def num_wanted(self, request: Request, num_cached: int) -> int:
        """Tokens beyond the `num_cached` first ones that will come from prefill; decode computes the last by itself."""
        if self._purpose_of(request) is not Purpose.RECEIVE or request.request_id in self._seated:
            return 0
        return max(0, request.num_prompt_tokens - 1 - num_cached)

    def on_blocks(self, request: Request, blocks: BlockTable, num_wanted: int) -> None:
        """vLLM has given blocks to a request, and will wait for `num_wanted` tokens of KV."""
        request_id = request.request_id
        if self._purpose_of(request) is not Purpose.RECEIVE or request_id in self._seated:
            return
        self._seated.add(request_id)
        num_tokens = request.num_prompt_tokens - 1
        if num_wanted:
            self._parked.add(request_id)
            self._queued.pop(request_id, None)
        self._tell(SeatsTaken(_seq_of(request), request_id, tuple(blocks), num_tokens - num_wanted, num_tokens))

    def on_step(self, scheduled: Iterable[str]) -> None:
        """These requests are computed in this step."""
        for request_id in scheduled:
            if request_id not in self._begun:
                self._begun.add(request_id)
                self._queued.pop(request_id, None)
                self._parked.discard(request_id)

    def on_finished(self, request: Request, blocks: BlockTable) -> dict[str, object] | None:
        """The request is over. What its answer carries when its blocks stay until GiveBack, else None."""
        request_id = request.request_id
        self._queued.pop(request_id, None)
        self._begun.discard(request_id)
        self._parked.discard(request_id)
        self._seated.discard(request_id)
        if self._purpose_of(request) is not Purpose.HOLD or request.status.name not in FINISHED or not blocks:
            return None
        seq_id, num_tokens = _seq_of(request), request.num_prompt_tokens
        self._tell(BlocksHeld(seq_id, request_id, tuple(blocks), num_tokens))
        done = PrefillDone(TransferId(seq_id.partition(":")[2]), tuple(blocks), num_tokens)
        return answer_params(done, self._identity)

    def on_step_end(self) -> None:
        """A step's outcome has been taken in; the shim hears of the load when it has changed."""
        if self._pool is None:
            return
        load = SchedulerLoad(
            running_seqs=len(self._begun),
            waiting_seqs=len(self._queued),
            parked_seqs=len(self._parked),
            queued_prompt_tokens=sum(self._queued.values()),
            free_blocks=self._pool.get_num_free_blocks(),
            total_blocks=self._pool.num_gpu_blocks - 1,
        )
        if load != self._told:
            self._told = load
            self._tell(load)

    def _purpose_of(self, request: Request) -> Purpose:
        params = request.kv_transfer_params
        if not isinstance(params, Mapping) or params.get(SECRET) != self._secret:
            return Purpose.GENERATE
        return Purpose(params[PURPOSE])


def _seq_of(request: Request) -> str:
    params = request.kv_transfer_params or {}
    return str(params[SEQ_ID])
