"""A Vocabulary: what a checkpoint says about its text, before anything is encoded.

It comes from a Hugging Face directory here, and from a GGUF file in `gguf_vocabulary.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from router.contract.errors import ModelUnusable

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything that a Tokenizer is made of."""

    backend: tokenizers.Tokenizer
    eos_token_ids: tuple[int, ...]
    special_tokens: dict[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, ... as the chat template names them."""
    chat_templates: dict[str, str] = field(default_factory=dict)
    """Jinja sources by name; most checkpoints have only DEFAULT_TEMPLATE."""


def read_directory(path: Path) -> Vocabulary:
    """The Vocabulary of the Hugging Face directory at `path`.

    EOS ids are the tokenizer's own `eos_token` first, then those of `generation_config.json`; `config.json` is asked
    only when both are silent.

    Raises:
        ModelUnusable: `tokenizer.json` is missing, or one of the files is not what its name says.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelUnusable(f"{path} has no tokenizer.json; give a Hugging Face checkpoint directory or a .gguf file.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    # The tokenizers library raises plain Exception for every kind of bad file.
    except Exception as error:
        raise ModelUnusable(f"{file} is not a tokenizer ({error}); download the checkpoint again.") from error
    config = _json(path / "tokenizer_config.json")
    special = _special_tokens({**_json(path / "special_tokens_map.json"), **config})
    return Vocabulary(backend, _eos_ids(path, backend, special), special, _templates(path, config))


# Any: decoded JSON; each field is checked where it is read.
def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelUnusable(f"{path} is not JSON ({error}); download the checkpoint again.") from error
    if not isinstance(content, dict):
        raise ModelUnusable(f"{path} must hold a JSON object; download the checkpoint again.")
    return content


# Any: see _json.
def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


def _eos_ids(path: Path, backend: tokenizers.Tokenizer, special: dict[str, str]) -> tuple[int, ...]:
    own = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    ids = [] if own is None else [own]
    ids += _ids(_json(path / "generation_config.json").get("eos_token_id"))
    ids = ids or _ids(_json(path / "config.json").get("eos_token_id"))
    return tuple(dict.fromkeys(ids))


def _ids(value: object) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if type(each) is int]


# Any: see _json.
def _templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates of every place that Hugging Face has used; a `.jinja` file wins over the configuration."""
    templates: dict[str, str] = {}
    stated = config.get("chat_template")
    if isinstance(stated, str):
        templates[DEFAULT_TEMPLATE] = stated
    elif isinstance(stated, list):
        templates |= {str(each["name"]): str(each["template"]) for each in stated}
    if (path / "chat_template.jinja").is_file():
        templates[DEFAULT_TEMPLATE] = (path / "chat_template.jinja").read_text(encoding="utf-8")
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    return templates
