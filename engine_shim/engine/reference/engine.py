"""ReferenceEngine: the Engine port over a torch model, in one thread.

One step:   schedule -> run (forward, logits, sample) -> for each sequence: append the token, settle text, end?
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from engine_shim.engine.port import (
    EngineEvent,
    EngineLoad,
    FinishReason,
    ModelCard,
    Prefilled,
    Prefilling,
    Purpose,
    SequenceFailed,
    SequenceRequest,
    TokensOut,
)
from engine_shim.engine.reference.admission import check
from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.block_pool import BlockPool
from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.device import is_lost
from engine_shim.engine.reference.ending import Ending, ending_of
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import ForwardPass, Model
from engine_shim.engine.reference.parts import Parts
from engine_shim.engine.reference.pins import Pins
from engine_shim.engine.reference.ranks import Ranks
from engine_shim.engine.reference.runner import Runner
from engine_shim.engine.reference.sampler import Sampled, Sampler
from engine_shim.engine.reference.scheduler import Limits, Scheduler
from engine_shim.engine.reference.self_check import check_invariance
from engine_shim.engine.reference.sequence import Sequence
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings
from engine_shim.engine.reference.text_stream import TextStream
from engine_shim.engine.reference.tokenizer import Tokenizer
from engine_shim.engine.reference.weights import Weights
from router.contract.errors import EngineDown, ModelUnusable, RankGone, StaleAttempt, TandemError
from router.contract.kv import KVLayout, Region

log = logging.getLogger("tandem.engine")

DEFAULT_KV_TOKENS = 8192


class ReferenceEngine:
    """See `engine_shim.engine.port.Engine`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        tokenizer: Tokenizer,
        settings: ReferenceSettings,
        ranks: Ranks | None = None,
    ) -> None:
        """An idle engine; with `ranks`, they compute, and `weights` have no layers.

        Raises:
            ModelUnusable: the KV cache would not hold a single block.
            BadSettings: invariant numerics are asked for where the device does not keep them.
        """
        self.tokenizer = tokenizer
        self._settings = settings
        device = weights.embedding.device
        self.layout: KVLayout = layout_of(config, weights.embedding.dtype, settings)
        self._cache = KVCache(self.layout, device, None if ranks is None else ranks.memory)
        self._max_context_tokens = context_of(config, self.layout, settings)
        self._ranks = ranks
        model = ranks.model if ranks is not None else self._own_model(config, weights)
        eos_token_ids = tuple(token_id for token_id in tokenizer.eos_token_ids if token_id < config.vocab_size)
        self._runner = Runner(model, self._cache, Sampler(eos_token_ids))
        self._seeds = Random(settings.seed)
        self._pool = BlockPool(self.layout.num_blocks, prefix_cache=settings.prefix_cache)
        limits = Limits(settings.max_num_seqs, settings.max_batch_tokens, settings.block_tokens)
        self._pins = Pins(self._pool)
        self._parts = Parts(self._pins, self._cache.mark, config.num_layers)
        self._scheduler = Scheduler(self._pool, self._pins, limits)
        self._live: dict[str, Sequence] = {}
        self.card = ModelCard(
            name=settings.name or Path(settings.model).name,
            family=config.family,
            max_context_tokens=self._max_context_tokens,
            vocab_size=config.vocab_size,
            eos_token_ids=eos_token_ids,
            weights_digest=weights.digest,
            created_unix_s=int(time.time()),
        )

    def _own_model(self, config: ModelConfig, weights: Weights) -> ForwardPass:
        settings, device = self._settings, weights.embedding.device
        kernels = kernels_of(settings.numerics, device.type)
        model = Model(config, weights, self._max_context_tokens, kernels)
        if settings.numerics is Numerics.INVARIANT:
            check_invariance(model, self.layout, self._max_context_tokens, device)
        elif device.type == "cuda" and settings.cuda_graphs and config.moe is None:
            # Only where there is a GPU.
            from engine_shim.engine.reference.graphs import GraphedModel  # noqa: PLC0415

            return GraphedModel(model, kernels, self._cache, settings.max_num_seqs)
        return model

    def tell_early(self, tell: Callable[[Prefilling], None]) -> None:
        """See Engine.tell_early."""
        self._parts.tell_early(tell)

    def close(self) -> None:
        """Processes of the engine's own have ended."""
        self._parts.close()
        if self._ranks is not None:
            self._ranks.close()

    @property
    def region(self) -> Region:
        """See Engine.region."""
        return self._cache.region

    def add(self, request: SequenceRequest) -> None:
        """See Engine.add."""
        if request.seq_id in self._live or request.seq_id in self._pins:
            raise StaleAttempt(f"Sequence id {request.seq_id} is in use; choose a fresh one.")
        check(request, self.card, self.layout)
        sequence = Sequence(
            request,
            self._seeds.getrandbits(64) if request.sampling.seed is None else request.sampling.seed,
            BlockNames(self.layout.block_tokens),
            TextStream(self.tokenizer, request.sampling),
        )
        self._live[request.seq_id] = sequence
        self._scheduler.add(sequence)

    def abort(self, seq_id: str) -> None:
        """See Engine.abort."""
        sequence = self._live.pop(seq_id, None)
        if sequence is not None:
            self._scheduler.end(sequence)

    def kv_ready(self, seq_id: str) -> None:
        """See Engine.kv_ready."""
        if seq_id in self._scheduler.parked and self._pins.drop(seq_id):
            self._scheduler.ready(self._live[seq_id])

    def recompute(self, seq_id: str) -> None:
        """See Engine.recompute."""
        sequence = self._live.get(seq_id)
        if sequence is not None and self._scheduler.recompute(sequence):
            self._pins.quarantine(seq_id)

    def unpin(self, seq_id: str) -> None:
        """See Engine.unpin."""
        self._pins.drop(seq_id)

    def num_cached(self, prompt: tuple[int, ...]) -> int:
        """See Engine.num_cached."""
        return self._scheduler.num_cached(prompt)

    def has_work(self) -> bool:
        """See Engine.has_work."""
        return self._scheduler.has_work()

    def load(self) -> EngineLoad:
        """See Engine.load."""
        scheduler = self._scheduler
        return EngineLoad(
            running_seqs=len(scheduler.running),
            waiting_seqs=len(scheduler.waiting),
            parked_seqs=len(scheduler.parked),
            queued_prompt_tokens=scheduler.queued_prompt_tokens,
            free_blocks=self._pool.num_available,
            total_blocks=self._pool.num_blocks,
            held_blocks=self._pool.num_pinned,
            quarantined_blocks=self._pins.num_quarantined(self._live),
            preemptions=scheduler.num_preemptions,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            prefix_query_tokens=scheduler.prefix_query_tokens,
            expert_ranks=() if self._ranks is None else self._ranks.loads,
            expert_restarts=0 if self._ranks is None else self._ranks.num_restarts,
        )

    @torch.inference_mode()
    def step(self) -> list[EngineEvent]:
        """See Engine.step. Raises RankGone when ranks that ended cannot be started again, and what lost it its GPU."""
        if self._ranks is not None:
            self._ranks.ensure()
        schedule = self._scheduler.schedule()
        fresh = self._pool.take_fresh()
        if fresh:
            self._cache.clear(fresh)
        events: list[EngineEvent] = [*schedule.seated]
        if schedule.seated and (cleared := self._cache.mark()):
            # Whoever hears of seats writes to them past the device's stream, where they may wait to be cleared yet.
            cleared()
        if not schedule.rows:
            return events
        try:
            outcomes = self._runner.run(schedule.rows, self._parts.during(schedule.rows))
        except RankGone as error:
            return events + [self._fail(sequence, error) for sequence in list(self._scheduler.running)]
        except Exception as error:
            # The one boundary of a batch: a bad one fails those that run, and the engine goes on, if its device does.
            if is_lost(self._cache.tensor.device):
                raise
            log.exception("A batch failed.")
            failed = EngineDown(f"The engine could not compute a batch ({type(error).__name__}); send it again.")
            return events + [self._fail(sequence, failed) for sequence in list(self._scheduler.running)]
        for sequence, count in schedule.rows:
            sequence.num_computed += count
            self._scheduler.remember(sequence)
        events += self._parts.after([sequence for sequence, _ in schedule.rows])
        for sequence, outcome in outcomes:
            if isinstance(outcome, TandemError):
                events.append(self._fail(sequence, outcome))
            else:
                events += self._take(sequence, outcome)
        return events

    def _take(self, sequence: Sequence, sampled: Sampled) -> list[EngineEvent]:
        """`sequence` has one token more, and has ended if that was its last."""
        sequence.append(sampled.token_id)
        sampling = sequence.sampling
        ending = ending_of(sequence, self.card.eos_token_ids, self._max_context_tokens)
        delta = sequence.text.push(
            () if ending and ending.by_token and not sampling.include_stop_str_in_output else (sampled.token_id,),
            may_stop=sequence.num_output_tokens >= sampling.min_tokens,
            finished=ending is not None,
        )
        if delta.stop is not None:
            ending = Ending(FinishReason.STOP, delta.stop)
        out = TokensOut(
            seq_id=sequence.seq_id,
            token_ids=(sampled.token_id,),
            text=delta.text,
            logprobs=() if sampled.logprob is None else (sampled.logprob,),
            finish_reason=ending.reason if ending else None,
            stop_reason=ending.stop_reason if ending else None,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            prompt_logprobs=tuple(sequence.prompt_logprobs) if sequence.num_output_tokens == 1 else (),
        )
        if ending is None:
            return [out]
        held = [self._hold(sequence)] if sequence.purpose is Purpose.HOLD else []
        self.abort(sequence.seq_id)
        return [*held, out]

    def _hold(self, sequence: Sequence) -> Prefilled:
        num_blocks = self.layout.blocks_for(sequence.num_prompt_tokens)
        blocks = tuple(sequence.table[:num_blocks])
        if sequence.seq_id not in self._pins:
            self._pins.put(sequence.seq_id, sequence.purpose, blocks)
        return Prefilled(sequence.seq_id, blocks, sequence.num_prompt_tokens)

    def _fail(self, sequence: Sequence, error: TandemError) -> SequenceFailed:
        self.abort(sequence.seq_id)
        return SequenceFailed(sequence.seq_id, error)


def context_of(config: ModelConfig, layout: KVLayout, settings: ReferenceSettings) -> int:
    """The longest sequence, tokens: what was asked for, but no more than the cache and the model hold."""
    limit = settings.max_context_tokens or layout.num_blocks * layout.block_tokens
    return min(limit, config.max_context_tokens)


def layout_of(config: ModelConfig, dtype: torch.dtype, settings: ReferenceSettings) -> KVLayout:
    """The KV cache that these settings ask for. Raises ModelUnusable when it would hold no block."""
    layout = KVLayout(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_tokens=settings.block_tokens,
        num_blocks=settings.num_blocks or max(DEFAULT_KV_TOKENS // settings.block_tokens, 1),
        dtype=str(dtype).removeprefix("torch."),
        order=settings.kv_order,
    )
    if not settings.num_blocks and settings.kv_bytes:
        if settings.kv_bytes < layout.block_bytes:
            raise ModelUnusable(
                f"A KV cache of {settings.kv_bytes} bytes holds no block of {layout.block_bytes} bytes; enlarge it."
            )
        layout = replace(layout, num_blocks=settings.kv_bytes // layout.block_bytes)
    return layout
