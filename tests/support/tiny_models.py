"""Tiny seeded models behind a real ReferenceEngine, and what tests do with engines."""

from __future__ import annotations

import ctypes
import functools
import json
import tempfile
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file

from engine_shim.engine.port import (
    EngineEvent,
    Prefilled,
    Purpose,
    SamplingParams,
    Seated,
    SequenceFailed,
    SequenceRequest,
    TokensOut,
)
from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import TORCH_DTYPES
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings
from engine_shim.engine.reference.tokenizer import Tokenizer
from engine_shim.engine.reference.weights import Weights, load_weights
from router.contract.kv import KVLayout, KVOrder
from tests.support.vocabularies import write_byte_level_gguf

Event = TypeVar("Event", TokensOut, Seated, Prefilled, SequenceFailed)

TINY_LLAMA = ModelConfig(
    family="llama",
    vocab_size=300,
    hidden_size=48,
    intermediate_size=80,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    rms_eps=1e-5,
    rope_theta=10000.0,
    max_context_tokens=512,
    tied_embeddings=True,
)
TINY_QWEN3 = ModelConfig(
    family="qwen3",
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    rms_eps=1e-6,
    rope_theta=1e6,
    max_context_tokens=512,
    tied_embeddings=False,
    qk_norm=True,
)
LLAMA_JSON: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
"""A configuration as Hugging Face writes it into config.json."""


class SeededCheckpoint:
    """A Checkpoint whose tensors are a function of (seed, name)."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        self.seed = seed

    def has(self, name: str) -> bool:
        return name != "rope_freqs"

    def read(self, name: str, out: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(hash_of(f"{self.seed} {name}"))
        values = torch.randn(out.shape, generator=generator)
        out.copy_(1 + values / 10 if out.dim() == 1 else values / out.shape[-1] ** 0.5)

    def digest(self) -> str:
        return f"{hash_of(f'{self.seed} {self.config}'):032x}"


def hash_of(text: str) -> int:
    return functools.reduce(lambda value, byte: (value * 257 + byte) % (2**61 - 1), text.encode(), 1)


@functools.cache
def tiny_tokenizer() -> Tokenizer:
    """One token per byte; EOS ids 258 and 259."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bytes.gguf"
        write_byte_level_gguf(path)
        return Tokenizer.load(path)


@functools.cache
def tiny_weights(config: ModelConfig = TINY_LLAMA, numerics: Numerics = Numerics.INVARIANT, seed: int = 0) -> Weights:
    return load_weights(
        SeededCheckpoint(config, seed), TORCH_DTYPES["float32"], torch.device("cpu"), kernels_of(numerics)
    )


def tiny_engine(config: ModelConfig = TINY_LLAMA, **settings: object) -> ReferenceEngine:
    """An engine in invariant numerics with 64 blocks of 16 tokens, unless `settings` say otherwise."""
    # Matrices this small are slower on several threads.
    torch.set_num_threads(1)
    given = ReferenceSettings(**({"model": "tiny", "num_blocks": 64, "numerics": Numerics.INVARIANT} | settings))  # type: ignore[arg-type]
    return ReferenceEngine(config, tiny_weights(config, given.numerics), tiny_tokenizer(), given)


def prompt_of(num_tokens: int, seed: int = 1) -> tuple[int, ...]:
    """Seeded token ids that are no special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 256, (num_tokens,), generator=generator).tolist())


def ask(
    seq_id: str,
    prompt: Iterable[int],
    *,
    purpose: Purpose = Purpose.GENERATE,
    max_tokens: int = 12,
    in_parts: bool = False,
    layers_from_tokens: int = 0,
    **sampling: object,
) -> SequenceRequest:
    """Greedy and without EOS, unless `sampling` says otherwise."""
    params = {"temperature": 0.0, "ignore_eos": True} | sampling
    chosen = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return SequenceRequest(seq_id, tuple(prompt), chosen, purpose, in_parts, layers_from_tokens)


def drain(engine: ReferenceEngine) -> list[EngineEvent]:
    """All events until there is no more work."""
    events: list[EngineEvent] = []
    while engine.has_work():
        events += engine.step()
    return events


def tokens_of(events: Iterable[EngineEvent], seq_id: str) -> list[int]:
    return [token for out in outs_of(events, seq_id) for token in out.token_ids]


def outs_of(events: Iterable[EngineEvent], seq_id: str) -> list[TokensOut]:
    return [event for event in events if isinstance(event, TokensOut) and event.seq_id == seq_id]


def only(events: Iterable[EngineEvent], kind: type[Event]) -> Event:
    """The one event of this kind."""
    (event,) = (event for event in events if isinstance(event, kind))
    return event


def generate(engine: ReferenceEngine, *requests: SequenceRequest) -> list[list[int]]:
    """Each request's tokens, all run together."""
    for request in requests:
        engine.add(request)
    events = drain(engine)
    return [tokens_of(events, request.seq_id) for request in requests]


def hand_over(source: ReferenceEngine, done: Prefilled, sink: ReferenceEngine, seats: Seated) -> None:
    """Copy the wanted tokens by their addresses, as the contract states them: prefill's blocks to decode's seats."""
    for token in range(seats.first_token, seats.num_tokens):
        for layer in range(source.layout.num_layers):
            for part, head in product(range(2), range(source.layout.num_kv_heads)):
                ctypes.memmove(
                    address_of(sink, seats.seats, token, layer, part) + head_offset(sink.layout, head),
                    address_of(source, done.blocks, token, layer, part) + head_offset(source.layout, head),
                    source.layout.slab_token_bytes // source.layout.num_kv_heads,
                )


def head_offset(layout: KVLayout, head: int) -> int:
    """Bytes from the first head of a token to another."""
    tokens = layout.num_layers * 2 * layout.block_tokens if layout.order is KVOrder.HEAD_MAJOR else 1
    return head * tokens * layout.slab_token_bytes // layout.num_kv_heads


def address_of(engine: ReferenceEngine, table: tuple[int, ...], token: int, layer: int, part: int) -> int:
    """Where the first head of one token's K (part 0) or V (part 1) of one layer begins."""
    layout = engine.layout
    block, offset = table[token // layout.block_tokens], token % layout.block_tokens
    if layout.order is KVOrder.HEAD_MAJOR:
        head_token_bytes = layout.slab_token_bytes // layout.num_kv_heads
        slab = (layer * 2 + part) * layout.block_tokens + offset
        return engine.region.base + block * layout.block_bytes + slab * head_token_bytes
    if layout.order is KVOrder.BLOCK_FIRST:
        slab = (block * layout.num_layers + layer) * 2 + part
    else:
        slab = (layer * 2 + part) * layout.num_blocks + block
    return engine.region.base + (slab * layout.block_tokens + offset) * layout.slab_token_bytes


_PARTS = {
    "self_attn.q_proj": (48, 48),
    "self_attn.k_proj": (16, 48),
    "self_attn.v_proj": (16, 48),
    "self_attn.o_proj": (48, 48),
    "mlp.gate_proj": (80, 48),
    "mlp.up_proj": (80, 48),
    "mlp.down_proj": (48, 80),
    "input_layernorm": (48,),
    "post_attention_layernorm": (48,),
}


def write_tiny_llama(folder: Path) -> None:
    """`folder` holds TINY_LLAMA, seed 0, as a Hugging Face checkpoint."""
    sizes = {f"model.layers.{layer}.{part}.weight": shape for layer in range(2) for part, shape in _PARTS.items()}
    sizes |= {"model.embed_tokens.weight": (300, 48), "model.norm.weight": (48,)}
    tensors = {name: torch.empty(shape) for name, shape in sizes.items()}
    for name, tensor in tensors.items():
        SeededCheckpoint(TINY_LLAMA).read(name, tensor)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tiny_tokenizer()._backend.save(str(folder / "tokenizer.json"))
