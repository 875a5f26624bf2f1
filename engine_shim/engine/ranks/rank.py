"""Rank processes: `python -m engine_shim.engine.ranks.rank FD ...`, one for each socket FD to an engine.

The interpreter forks before it has threads or an agent, so that its imports are paid for once. A rank ends when its
socket does: an engine that dies leaves no ranks behind.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.ranks.halves import forward_in_halves
from engine_shim.engine.ranks.meeting import meeting_of
from engine_shim.engine.ranks.messages import (
    Compute,
    Computed,
    Failed,
    FromRank,
    Joining,
    Ready,
    Start,
    Together,
)
from engine_shim.engine.ranks.shared_memory import map_memory
from engine_shim.engine.reference.batch import make_batch
from engine_shim.engine.reference.checkpoint import locate
from engine_shim.engine.reference.expert_share import expert_shape
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import TORCH_DTYPES, KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.safetensors_dir import SafetensorsCheckpoint
from engine_shim.engine.reference.self_check import check_invariance
from engine_shim.engine.reference.settings import Numerics
from engine_shim.engine.reference.weights import Holding, load_weights
from engine_shim.experts.stats import ExpertStats
from router.contract.errors import DeploymentError, TandemError

log = logging.getLogger("tandem.rank")


def main() -> None:
    """Serve one engine until the socket closes."""
    fds = [int(word) for word in sys.argv[1:]]
    mine = fds[0]
    for fd in fds[1:]:
        if not os.fork():
            mine = fd
            break
    for fd in fds:
        if fd != mine:
            os.close(fd)
    logging.basicConfig(level="INFO", format="%(levelname).1s %(name)s %(message)s", stream=sys.stderr)
    connection: Connection[FromRank, Start | Together | Compute] = Connection(mine)
    try:
        _serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The engine is gone, or has begun a new group.
        return
    except TandemError as error:
        _say_why(connection, error)


def _say_why(connection: Connection[FromRank, Start | Together | Compute], error: TandemError) -> None:
    try:
        connection.send(Failed(error.message, isinstance(error, DeploymentError)))
    except OSError:
        log.warning("%s", error.message)


def _serve(connection: Connection[FromRank, Start | Together | Compute]) -> None:
    start = connection.recv()
    assert isinstance(start, Start)
    settings = start.settings
    torch.set_num_threads(max(settings.num_threads, 1))
    checkpoint = SafetensorsCheckpoint(locate(settings.model))
    dtype = TORCH_DTYPES[start.layout.dtype]
    device = start.device
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shape = expert_shape(checkpoint.config, dtype, start.share)
    meeting = meeting_of(shape, start.rank, start.group, device, settings)
    connection.send(Joining(meeting.card, meeting.buffer_bytes, os.getpid()))
    together = connection.recv()
    assert isinstance(together, Together)
    group = meeting.meet(together.cards)
    kernels = kernels_of(settings.numerics)
    weights = load_weights(checkpoint, dtype, device, kernels, Holding(group))
    model = Model(checkpoint.config, weights, start.num_positions, kernels)
    cache = KVCache(start.layout, device, map_memory(start.kv, start.layout.total_bytes, device))
    if settings.numerics is Numerics.INVARIANT:
        check_invariance(model, start.layout, start.num_positions, device)
    compute = _computing(model, cache, in_halves=settings.expert_overlap)
    compute(Compute(()))
    connection.send(Ready(checkpoint.hashes))
    while isinstance(message := connection.recv(), Compute):
        hidden = compute(message).float().cpu().numpy()
        if device.type == "cuda":
            # Where no row is wanted nothing has been waited for, and the engine may now give the KV cache away.
            torch.cuda.current_stream(device).synchronize()
        connection.send(Computed(hidden, _load(group.stats)))


def _computing(model: Model, cache: KVCache, *, in_halves: bool) -> Callable[[Compute], torch.Tensor]:
    @torch.inference_mode()
    def compute(message: Compute) -> torch.Tensor:
        if in_halves:
            return forward_in_halves(model, message.chunks, cache)
        batch = make_batch(message.chunks, cache.layout.block_tokens, cache.tensor.device)
        return model.forward(batch, cache)

    return compute


def _load(stats: ExpertStats) -> ExpertRankLoad:
    return ExpertRankLoad(
        num_steps=stats.num_steps,
        dispatch_s=stats.dispatch_s,
        combine_s=stats.combine_s,
        dispatch_wait_s=stats.dispatch_wait_s,
        combine_wait_s=stats.combine_wait_s,
        rows=sum(stats.expert_rows),
    )


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    # UCX may abort in its destructors when a peer has died before us.
    os._exit(0)
