"""The two sides of `tandem bench engine`: each generates greedily and says how long prefill and decode took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from engine_shim.engine.port import SamplingParams, SequenceRequest, TokensOut
from engine_shim.engine.reference.checkpoint import locate
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Timing:
    """One generation of a batch."""

    prefill_s: float
    """From the start until every sequence has its first token."""
    decode_s: float
    """From there until every sequence has its last."""
    tokens: list[list[int]]
    """What was generated, per sequence."""
    step_s: tuple[float, ...] = ()
    """Of each step in which all sequences decoded, from the second one on."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one contestant runs in one round."""

    prompts: Prompts
    output_tokens: int


Contestant = Callable[[Workload], Timing]


def reference_engine(model: str, threads: int, numerics: str, max_tokens: int) -> ReferenceEngine:
    """An engine whose cache holds `max_tokens` tokens; it remembers no prefixes, so that every round is new work."""
    return open_engine(
        ReferenceSettings(
            model,
            num_threads=threads,
            num_blocks=max_tokens // 16 + 1,
            max_num_seqs=1024,
            # All prompts in one pass, as `generate` takes them.
            max_batch_tokens=max_tokens,
            numerics=Numerics(numerics),
            prefix_cache=False,
        )
    )


def run_reference(engine: ReferenceEngine, work: Workload) -> Timing:
    """Ours."""
    sampling = SamplingParams(max_tokens=work.output_tokens, temperature=0.0, ignore_eos=True)
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(work.prompts))}
    started = time.perf_counter()
    first_at = started
    step_at: list[float] = []
    for seq_id, prompt in zip(tokens, work.prompts, strict=True):
        engine.add(SequenceRequest(seq_id, tuple(prompt), sampling))
    while engine.has_work():
        for event in engine.step():
            if not isinstance(event, TokensOut):
                raise TypeError(f"the engine answered {event}")
            tokens[event.seq_id] += event.token_ids
        if first_at == started and all(tokens.values()):
            first_at = time.perf_counter()
        if first_at != started and engine.load().running_seqs == len(tokens):
            step_at.append(time.perf_counter())
    decode_s = time.perf_counter() - first_at
    step_s = tuple(after - before for before, after in pairwise(step_at))
    return Timing(first_at - started, decode_s, list(tokens.values()), step_s)


def has_transformers() -> bool:
    """True when there is somebody to compare with."""
    return find_spec("transformers") is not None


# Any: transformers' model classes are not typed, and it need not be installed.
def transformers_model(model: str) -> Any:  # noqa: ANN401
    """transformers' model of the same file, float32 on CPU."""
    transformers = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    path = locate(model)
    source: tuple[Path, dict[str, str]] = (path, {}) if path.is_dir() else (path.parent, {"gguf_file": path.name})
    loaded = transformers.AutoModelForCausalLM.from_pretrained(source[0], dtype=torch.float32, **source[1]).eval()
    loaded.generation_config.eos_token_id = None
    loaded.generation_config.pad_token_id = 0
    return loaded


# Any: see transformers_model.
def run_transformers(model: Any, work: Workload) -> Timing:  # noqa: ANN401
    """Theirs: `generate` with its key-value cache, all prompts of one length."""
    token_at: list[float] = []

    def tick(input_ids: torch.Tensor, _scores: object, **_: object) -> torch.Tensor:
        token_at.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)

    input_ids = torch.tensor(work.prompts)
    started = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=work.output_tokens,
            do_sample=False,
            use_cache=True,
            stopping_criteria=[tick],
        )
    tokens = out[:, input_ids.shape[1] :].tolist()
    return Timing(token_at[0] - started, token_at[-1] - token_at[0], tokens)
