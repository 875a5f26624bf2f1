"""Prompts of a wanted length that share no beginning, so that no prefix cache shortens the work."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from router.contract.errors import BadSettings

_TEXT = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out "
    "many then them these so some her would make like him into time has look two more write go see number no way "
    "could people my than first water been call who oil its now find long down day did get come made may part over "
    "new sound take only little work know place year live me back give most very after thing our just name good "
    "sentence man think say great where help through much before line right too mean old any same tell boy follow "
    "came want show also around form three small set put end does another well large must big even such because "
    "turn here why ask went men read need land different home us move try kind hand picture again change off play "
    "spell air away animal house point page letter "
)
_WORDS = tuple(_TEXT.split())
_PROBE_WORDS = 32


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words to make prompts of, and what they cost."""

    words: tuple[str, ...]
    extra_tokens: int
    """Tokens that every prompt has besides its words: the chat template, a begin-of-text token."""
    is_counted: bool
    """True when the server's own tokenizer says that a word is one token; else that is assumed."""

    def prompt(self, num_tokens: int, dice: random.Random) -> str:
        """Return a prompt of `num_tokens` tokens, or the shortest there is when that is too few."""
        return " ".join(dice.choices(self.words, k=max(1, num_tokens - self.extra_tokens)))


UNCOUNTED = Vocabulary(_WORDS, 0, is_counted=False)


async def learn_vocabulary(client: httpx.AsyncClient, model: str, *, chat: bool) -> Vocabulary:
    """Return the words that are one token each for `model`, asked of the server's `/tokenize` (vLLM's shape).

    Returns:
        UNCOUNTED when the server has no such route, or most words are several tokens for it.
    """
    if await _count(client, model, " the", chat=False, special=False) is None:
        return UNCOUNTED
    costs = [await _count(client, model, f" {word}", chat=False, special=False) for word in _WORDS]
    words = tuple(word for word, cost in zip(_WORDS, costs, strict=True) if cost == 1)
    probe = " ".join(words[:_PROBE_WORDS])
    whole = await _count(client, model, probe, chat=chat, special=True)
    if len(words) < _PROBE_WORDS or whole is None:
        return UNCOUNTED
    return Vocabulary(words, whole - _PROBE_WORDS, is_counted=True)


async def _count(client: httpx.AsyncClient, model: str, text: str, *, chat: bool, special: bool) -> int | None:
    asked: dict[str, object] = {"model": model}
    if chat:
        asked |= {"messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
    else:
        asked |= {"prompt": text, "add_special_tokens": special}
    answer = await client.post("/tokenize", json=asked)
    if answer.status_code != httpx.codes.OK:
        return None
    count = answer.json().get("count")
    return count if isinstance(count, int) else None


def read_prompts(path: Path) -> Sequence[str]:
    """Return the prompts of a text file, one a line; empty lines are left out.

    Raises:
        BadSettings: there is no such file, it is not UTF-8, or it holds no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"The prompts in {path} cannot be read ({error}); give a UTF-8 text file.") from error
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise BadSettings(f"The file {path} holds no prompt; write one a line.")
    return prompts
