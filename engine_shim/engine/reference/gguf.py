"""Weights of a GGUF file, dequantised while they are read.

Two habits of GGUF are undone here: its own tensor names, and, in files of architecture `llama`, the order of query and
key rows. llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ... where Hugging Face rotates (i, i + head_dim / 2), so
converters interleave the two halves of each head:

    Hugging Face   [head][half][i]      GGUF   [head][i][half]
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from engine_shim.engine.reference.config import FAMILIES, ModelConfig, RopeScaling
from engine_shim.engine.reference.gguf_fields import Field, GGUFTensor, read_gguf_head
from router.contract.errors import ModelUnusable

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_freqs": "rope_freqs.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_WIDE_BYTES = 8192
"""Bytes of a row from which on `dequantize` spends its time on values, not on calls: measured, 1.5 s became 0.4 s."""


class GGUFCheckpoint:
    """A Checkpoint over one GGUF file."""

    def __init__(self, path: Path) -> None:
        """Read the head of the file and map its tensors into memory.

        Raises:
            ModelUnusable: not a GGUF file, or a model that this engine does not compute.
        """
        self._path = path
        head = read_gguf_head(path)
        self._tensors = head.tensors
        self.config = _config(head.fields, head.tensors)
        self._bytes = np.memmap(path, np.uint8, mode="r")
        self._hash = hashlib.sha256(repr(self.config).encode())

    def has(self, name: str) -> bool:
        """See Checkpoint.has."""
        return _gguf_name(name) in self._tensors

    def read(self, name: str, out: torch.Tensor) -> None:
        """See Checkpoint.read."""
        at = self._tensors.get(_gguf_name(name))
        if at is None:
            raise ModelUnusable(f"{self._path} lacks the tensor {_gguf_name(name)}; convert the checkpoint again.")
        if at.sizes[::-1] != tuple(out.shape):
            raise ModelUnusable(f"{self._path}: {name} has sizes {at.sizes[::-1]}, not {tuple(out.shape)}.")
        rows = torch.from_numpy(self._dequantised(name, at))
        if self.config.family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            rows = rows.view(-1, self.config.head_dim // 2, 2, rows.shape[-1]).transpose(1, 2)
        out.copy_(rows.reshape(out.shape))

    def digest(self) -> str:
        """See Checkpoint.digest."""
        return self._hash.hexdigest()[:32]

    def _dequantised(self, name: str, at: GGUFTensor) -> npt.NDArray[np.float32]:
        try:
            kind = GGMLQuantizationType(at.kind)
            items_per_group, group_bytes = GGML_QUANT_SIZES[kind]
            if not at.sizes[0] or at.sizes[0] % items_per_group:
                raise ValueError(f"rows of {at.sizes[0]} values in groups of {items_per_group}")
            num_bytes = int(np.prod(at.sizes)) // items_per_group * group_bytes
            stored = self._bytes[at.offset : at.offset + num_bytes]
            self._hash.update(f"{name} {kind.name}".encode())
            self._hash.update(stored.data)
            row_bytes = at.sizes[0] // items_per_group * group_bytes
            wide = stored.reshape(-1, row_bytes * _rows_at_once(num_bytes // row_bytes, row_bytes))
            values = dequantize(np.asarray(wide), kind).reshape(at.sizes[::-1])
            return values if values.flags.writeable else values.copy()
        except (ValueError, NotImplementedError) as error:
            raise ModelUnusable(
                f"{self._path}: {name} is stored in a way that cannot be read ({error}); use Q4_0, Q8_0, F16 or F32."
            ) from error


def _rows_at_once(num_rows: int, row_bytes: int) -> int:
    """How many rows to show `dequantize` as one: it takes sixteen at a time, which for short rows is slow."""
    return math.gcd(num_rows, 1 << max(0, (_WIDE_BYTES // row_bytes).bit_length() - 1))


def _gguf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, _, index, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{index}.{_LAYER[part]}.weight"


def _config(fields: dict[str, Field], tensors: dict[str, GGUFTensor]) -> ModelConfig:
    family = str(fields.get("general.architecture"))
    if family not in FAMILIES:
        raise ModelUnusable(f"GGUF architecture {family!r} is not supported; use one of {', '.join(FAMILIES)}.")

    def number(name: str, default: float | None = None) -> float:
        value = fields.get(f"{family}.{name}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelUnusable(f"The GGUF file needs a number {family}.{name}, but has {value!r}.")
        return value

    hidden_size, num_heads = int(number("embedding_length")), int(number("attention.head_count"))
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelUnusable("The GGUF file lacks token_embd.weight; a vocabulary alone is no model.")
    return ModelConfig(
        family=family,
        vocab_size=embedding.sizes[-1],
        hidden_size=hidden_size,
        intermediate_size=int(number("feed_forward_length")),
        num_layers=int(number("block_count")),
        num_heads=num_heads,
        num_kv_heads=int(number("attention.head_count_kv", num_heads)),
        head_dim=int(number("attention.key_length", hidden_size // num_heads)),
        rms_eps=number("attention.layer_norm_rms_epsilon"),
        rope_theta=number("rope.freq_base", 10000.0),
        max_context_tokens=int(number("context_length")),
        tied_embeddings="output.weight" not in tensors,
        qk_norm=FAMILIES[family],
        rope_scaling=_rope_scaling(fields.get(f"{family}.rope.scaling.type", "none"), number),
    )


def _rope_scaling(kind: Field, number: Callable[[str], float]) -> RopeScaling | None:
    """The llama3 kind is not named here: converters store its divisors as the tensor `rope_freqs.weight`."""
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling("linear", number("rope.scaling.factor"))
    raise ModelUnusable(f"RoPE scaling {kind!r} of this GGUF file is not supported; none and linear are.")
