"""Tiny models with seeded weights, written as Hugging Face checkpoints: they serve anywhere, and say nothing sensible.

A mixture of experts that fits a laptop is not to be had as a package, and a set-up over several ranks should be tried
before one is downloaded. 24 experts are shared evenly by 1, 2, 3, 4, 6 and 8 ranks.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import tokenizers
import torch
from safetensors.torch import save_file

from engine_shim.engine.reference.checkpoint_names import tensor_shapes
from engine_shim.engine.reference.config import config_from_hf
from engine_shim.engine.reference.shapes import write_shape

SEED = 20261201
_SHAPE: dict[str, object] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "eos_token_id": 257,
    "torch_dtype": "float32",
}
SEEDED: dict[str, dict[str, object]] = {
    "tiny-qwen3": _SHAPE | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "tiny-moe": _SHAPE
    | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 24,
        "decoder_sparse_step": 1,
    },
    "tiny-deepseek": _SHAPE
    | {
        "model_type": "dots1",
        "architectures": ["Dots1ForCausalLM"],
        "n_routed_experts": 24,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
    },
}
"""Name to `config.json`."""

_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def seeded_model(name: str) -> Path:
    """The directory of the model `name` of SEEDED or SHAPES, written if it is not there."""
    folder = Path(tempfile.gettempdir()) / f"tandem-models-{os.getuid()}" / f"{name}-{SEED}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        (write_model if name in SEEDED else write_shape)(name, fresh)
        try:
            fresh.rename(folder)
        except OSError:
            # Somebody else was quicker, and has written the same.
            shutil.rmtree(fresh)
    return folder


def write_model(name: str, folder: Path) -> None:
    """`folder` holds configuration, weights and tokenizer."""
    raw = SEEDED[name]
    generator = torch.Generator().manual_seed(SEED)
    tensors = {}
    for tensor, sizes in sorted(tensor_shapes(config_from_hf(raw)).items()):
        values = torch.randn(sizes, generator=generator)
        tensors[tensor] = 1 + values / 10 if tensor.endswith("norm.weight") else values * 2 / sizes[-1] ** 0.5
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    _byte_tokenizer().save(str(folder / "tokenizer.json"))
    words = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


def _byte_tokenizer() -> tokenizers.Tokenizer:
    """A token for each byte, then `<s>` and `</s>`."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend
