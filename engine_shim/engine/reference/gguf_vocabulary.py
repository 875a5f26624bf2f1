"""The Vocabulary of a GGUF file, rebuilt as the tokenizer that the checkpoint was trained with.

GGUF keeps the tokens, their kinds and (for byte-level BPE) the merges, but only the *name* of the pre-tokenizer. Two
models are known:

    gpt2     byte-level BPE: merges as stored, pre-tokenizer by name
    llama    SentencePiece BPE: no merges; a pair may merge when its join is a token, best score first
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine_shim.engine.reference.gguf_fields import Field, read_gguf_fields
from engine_shim.engine.reference.vocabulary import DEFAULT_TEMPLATE, Vocabulary
from router.contract.errors import ModelUnusable

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
Pre = pre_tokenizers.PreTokenizer


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """The Vocabulary of the GGUF file at `path`.

    Raises:
        ModelUnusable: not a GGUF file, no tokenizer in it, or a tokenizer of an unknown model or pre-tokenizer.
    """
    fields = read_gguf_fields(path)
    tokens = cast(list[str], fields.get("tokenizer.ggml.tokens") or [])
    if not tokens:
        raise ModelUnusable(f"{path} carries no tokenizer; convert the checkpoint again with its tokenizer beside it.")
    backend = _backend(path, fields, tokens)
    kinds = cast(list[int], fields.get("tokenizer.ggml.token_type") or [])
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=kind == _CONTROL, normalized=False)])
    _frame_with_special_tokens(backend, fields, tokens)
    template = fields.get("tokenizer.chat_template")
    return Vocabulary(
        backend,
        _eos_ids(fields),
        _special_tokens(fields, tokens),
        {DEFAULT_TEMPLATE: template} if isinstance(template, str) else {},
    )


def _backend(path: Path, fields: dict[str, Field], tokens: list[str]) -> Tokenizer:
    model = fields.get("tokenizer.ggml.model")
    if model == "gpt2":
        return _byte_level(path, fields, tokens)
    if model == "llama":
        return _sentencepiece(path, fields, tokens)
    raise ModelUnusable(f"{path} has a {model!r} tokenizer; this engine reads 'gpt2' and 'llama' ones.")


def _byte_level(path: Path, fields: dict[str, Field], tokens: list[str]) -> Tokenizer:
    name = str(fields.get("tokenizer.ggml.pre", "default"))
    if name not in _PRE_TOKENIZERS:
        raise ModelUnusable(f"{path} has the pre-tokenizer {name!r}; this engine knows {', '.join(_PRE_TOKENIZERS)}.")
    pairs = [tuple(merge.split(" ", 1)) for merge in cast(list[str], fields.get("tokenizer.ggml.merges") or [])]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    backend = _bpe(path, vocab, cast(list[tuple[str, str]], pairs), ignore_merges=name == "llama-bpe")
    backend.pre_tokenizer = _PRE_TOKENIZERS[name]()
    backend.decoder = decoders.ByteLevel()
    if name == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _bpe(path: Path, vocab: dict[str, int], merges: list[tuple[str, str]], **options: bool | str) -> Tokenizer:
    if not merges:
        raise ModelUnusable(f"{path} carries no merges and no scores; convert the checkpoint again.")
    try:
        return Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    # The tokenizers library raises plain Exception where merges and tokens contradict each other.
    except Exception as error:
        raise ModelUnusable(f"{path} has a broken tokenizer ({error}); download the file again.") from error


def _gpt2() -> Pre:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> Pre:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _split(digits: str) -> Pre:
    pattern = Regex(_SPLIT.replace("DIGITS", digits))
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PRE_TOKENIZERS: dict[str, Callable[[], Pre]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "qwen2": lambda: _split(r"\p{N}"),
    "llama-bpe": lambda: _split(r"\p{N}{1,3}"),
}
"""Source: `tokenizer.json` of GPT-2, SmolLM2, Qwen2 and Llama 3."""


def _sentencepiece(path: Path, fields: dict[str, Field], tokens: list[str]) -> Tokenizer:
    unknown = cast(int, fields.get("tokenizer.ggml.unknown_token_id", 0))
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    scores = cast(list[float], fields.get("tokenizer.ggml.scores") or [])
    merges = _merges(vocab, scores) if len(scores) == len(tokens) else []
    backend = _bpe(path, vocab, merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True)
    prefixed = fields.get("tokenizer.ggml.add_space_prefix", True) is True
    replace, restore = normalizers.Replace(" ", _SPACE), decoders.Replace(_SPACE, " ")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefixed else replace
    steps = [restore, decoders.ByteFallback(), decoders.Fuse()] + ([decoders.Strip(" ", 1, 0)] if prefixed else [])
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens whose join is a token, the best-scored join first."""
    ranked = [
        (-scores[joined_id], joined[:cut], joined[cut:])
        for joined, joined_id in vocab.items()
        for cut in range(1, len(joined))
        if joined[:cut] in vocab and joined[cut:] in vocab
    ]
    ranked.sort(key=lambda each: each[0])
    return [(left, right) for _, left, right in ranked]


def _frame_with_special_tokens(backend: Tokenizer, fields: dict[str, Field], tokens: list[str]) -> None:
    """Let `add_special_tokens` put BOS before and EOS after, as the file asks; Llama's two families imply BOS."""
    implied = fields.get("tokenizer.ggml.model") == "llama" or fields.get("tokenizer.ggml.pre") == "llama-bpe"
    names = []
    if fields.get("tokenizer.ggml.add_bos_token", implied) is True:
        names.append("bos")
    names.append("A")
    if fields.get("tokenizer.ggml.add_eos_token", False) is True:
        names.append("eos")
    ids = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in names if name != "A"}
    known = {name: token_id for name, token_id in ids.items() if type(token_id) is int}
    single = " ".join("$A" if name == "A" else tokens[known[name]] for name in names if name == "A" or name in known)
    if known:
        backend.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(tokens[token_id], token_id) for token_id in known.values()]
        )


def _special_tokens(fields: dict[str, Field], tokens: list[str]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
    return {name: tokens[token_id] for name, token_id in ids.items() if type(token_id) is int}


def _eos_ids(fields: dict[str, Field]) -> tuple[int, ...]:
    ids = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(token_id for token_id in ids if type(token_id) is int))
