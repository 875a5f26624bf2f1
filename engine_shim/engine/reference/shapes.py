"""Shapes of Qwen3 without its weights: engines for measuring speed, which say nothing sensible.

Source of the numbers: the `config.json` of each model on Hugging Face. Their tokenizer is one of ours, of as many
tokens: every byte, then every word of one to four small letters with a space before it until the vocabulary is full,
so that each token has a text of its own and short English words are one token each.
"""

from __future__ import annotations

import json
from itertools import chain, islice, product
from pathlib import Path
from string import ascii_lowercase

import tokenizers

from engine_shim.engine.reference.seeded_checkpoint import SEED_FILE

SEED = 20251130


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, *, tied: bool) -> dict[str, object]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": tied,
        "eos_token_id": 257,
        "torch_dtype": "bfloat16",
    }


SHAPES: dict[str, dict[str, object]] = {
    "seeded-qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
    "seeded-qwen3-1.7b": _qwen3(2048, 6144, 28, 16, tied=True),
    "seeded-qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
    "seeded-qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
    "seeded-qwen3-14b": _qwen3(5120, 17408, 40, 40, tied=False),
    "seeded-qwen3-32b": _qwen3(5120, 25600, 64, 64, tied=False),
}
"""Name to `config.json`."""


def write_shape(name: str, folder: Path) -> None:
    """`folder` holds configuration, seed and tokenizer."""
    raw = SHAPES[name]
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    (folder / SEED_FILE).write_text(json.dumps(SEED))
    word_tokenizer(int(str(raw["vocab_size"]))).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))


def word_tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """Bytes are 0 to 255, `<s>` and `</s>` follow, then words up to `vocab_size`."""
    level = tokenizers.pre_tokenizers.ByteLevel
    ids = {char: number for number, char in enumerate(sorted(level.alphabet()))}
    words = chain.from_iterable(product(ascii_lowercase, repeat=letters) for letters in range(1, 5))
    ids |= {"Ġ" + "".join(letters): 258 + number for number, letters in enumerate(islice(words, vocab_size - 258))}
    # A word of the vocabulary is taken whole, for there are no merges that would build it.
    ids |= {"<s>": 256, "</s>": 257}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=ids, merges=[], ignore_merges=True))
    backend.pre_tokenizer = level(add_prefix_space=True)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    return backend
