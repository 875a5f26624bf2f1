"""Open an engine whose experts are shared by rank processes."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.ranks.meeting import kernels_for
from engine_shim.engine.ranks.messages import Start
from engine_shim.engine.ranks.placement import Wish, place_ranks
from engine_shim.engine.ranks.processes import RankProcesses
from engine_shim.engine.ranks.ranked_model import RankedModel
from engine_shim.engine.ranks.shared_memory import Memory, share_memory
from engine_shim.engine.reference.checkpoint import locate
from engine_shim.engine.reference.engine import ReferenceEngine, context_of, layout_of
from engine_shim.engine.reference.expert_share import ExpertShare, expert_shape
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.opening import device_of, dtype_of
from engine_shim.engine.reference.safetensors_dir import SafetensorsCheckpoint
from engine_shim.engine.reference.self_check import LENGTHS
from engine_shim.engine.reference.settings import ExpertTransport, ReferenceSettings
from engine_shim.engine.reference.tokenizer import Tokenizer
from engine_shim.engine.reference.weights import Holding, load_weights
from router.contract.errors import BadSettings

log = logging.getLogger("tandem.ranks")


@dataclass(frozen=True, slots=True)
class OpenRanks:
    """See `engine.Ranks`."""

    processes: RankProcesses
    model: RankedModel

    @property
    def memory(self) -> Memory:
        """See Ranks."""
        return self.processes.kv.memory

    @property
    def loads(self) -> tuple[ExpertRankLoad, ...]:
        """See Ranks."""
        return self.model.loads

    @property
    def num_restarts(self) -> int:
        """See Ranks."""
        return self.processes.num_restarts

    def ensure(self) -> bool:
        """See Ranks."""
        return self.processes.ensure()

    def close(self) -> None:
        """See Ranks."""
        self.processes.close()
        self.processes.kv.close()


def open_ranked_engine(settings: ReferenceSettings) -> ReferenceEngine:
    """An idle engine with `settings.num_ranks` processes that compute for it.

    Raises:
        ModelUnusable: one sentence that says what is wrong with the checkpoint.
        BadSettings: the model's experts cannot be shared like this.
        RankGone: a rank ended while it started.
    """
    path = locate(settings.model)
    if not path.is_dir():
        raise BadSettings("Expert ranks compute Hugging Face checkpoints; name a directory, or use --ep 1.")
    checkpoint, device = SafetensorsCheckpoint(path), device_of(settings)
    config, dtype = checkpoint.config, dtype_of(settings, device)
    # The self-check's batches are larger than small engines' own.
    share = ExpertShare(settings.num_ranks, settings.expert_numerics, max(settings.max_batch_tokens, *LENGTHS))
    expert_shape(config, dtype, share)
    layout = layout_of(config, dtype, settings)
    threads = settings.num_threads or len(os.sched_getaffinity(0))
    plan = Start(
        rank=0,
        group=f"experts-{uuid.uuid4().hex}",
        share=share,
        device=device,
        settings=replace(settings, num_threads=max(threads // settings.num_ranks, 1)),
        layout=layout,
        kv=0,
        num_positions=context_of(config, layout, settings),
    )
    if settings.expert_transport is ExpertTransport.NVLINK:
        # Built here, once, and found ready by all ranks.
        kernels_for(settings)
    devices = _devices_of_ranks(settings, device)
    weights_bytes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    processes = RankProcesses(plan, share_memory("tandem-kv", layout.total_bytes, device), devices, weights_bytes)
    with ExitStack() as undone:
        undone.callback(processes.kv.close)
        undone.callback(processes.close)
        processes.start()
        outer = load_weights(checkpoint, dtype, device, kernels_of(settings.numerics), Holding(layers=False))
        checkpoint.hashes.update(processes.hashes)
        weights = replace(outer, digest=checkpoint.digest())
        ranks = OpenRanks(processes, RankedModel(processes, weights.head, dtype, device))
        engine = ReferenceEngine(config, weights, Tokenizer.load(path), settings, ranks)
        undone.pop_all()
    return engine


def _devices_of_ranks(settings: ReferenceSettings, own: torch.device) -> list[torch.device]:
    """Where each rank computes, of an engine on `own`. Raises BadSettings."""
    if own.type == "cpu":
        return [own] * settings.num_ranks
    addressed = settings.expert_transport is ExpertTransport.NVLINK
    wish = Wish(settings.num_ranks, own.index, settings.num_gpus, addressed)
    gpus = place_ranks(wish, torch.cuda.device_count(), torch.cuda.can_device_access_peer)
    log.info("Expert ranks compute on GPUs %s.", ", ".join(map(str, gpus)))
    return [torch.device("cuda", gpu) for gpu in gpus]
