"""Small vocabularies for tests, written as the files that checkpoints carry."""

from __future__ import annotations

from pathlib import Path

import gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPACE = "\u2581"


def byte_chars() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE, in byte order (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_byte_level_gguf(
    path: Path, *, pre: str = "gpt-2", merges: tuple[str, ...] = ("! !",), **flags: bool
) -> list[str]:
    """A byte-level GGUF vocabulary of all bytes, the joins of `merges`, `<s>`, `</s>`, `<eot>` and `<think>`."""
    tokens = byte_chars() + [merge.replace(" ", "") for merge in merges] + ["<s>", "</s>", "<eot>", "<think>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([NORMAL] * (len(tokens) - 4) + [CONTROL] * 3 + [USER_DEFINED])
    writer.add_token_merges(list(merges))
    writer.add_bos_token_id(len(tokens) - 4)
    writer.add_eos_token_id(len(tokens) - 3)
    writer.add_eot_token_id(len(tokens) - 2)
    writer.add_chat_template("{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}")
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    _finish(writer)
    return tokens


def write_sentencepiece_gguf(path: Path, pieces: dict[str, float], **flags: bool) -> list[str]:
    """A SentencePiece GGUF vocabulary: `<unk>`, `<s>`, `</s>`, 256 byte tokens, then `pieces` with their scores."""
    specials = ["<unk>", "<s>", "</s>"]
    tokens = specials + [f"<0x{byte:02X}>" for byte in range(256)] + list(pieces)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + list(pieces.values()))
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    _finish(writer)
    return tokens


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
