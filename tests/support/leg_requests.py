"""Random requests over all fields that the two legs treat, each greedy, so that its answer can be foretold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]
WORDS = ("apple", "river", "seven", "why", "é", "run", "北京", "\n", "The", "and then", "🌍")

_ANY: dict[str, Callable[[random.Random], Any]] = {
    "top_p": lambda dice: dice.choice((None, 0.5, 1)),
    "top_k": lambda dice: dice.choice((-1, 1, 5)),
    "seed": lambda dice: dice.randrange(1000),
    "presence_penalty": lambda dice: dice.choice((0, 0.7)),
    "repetition_penalty": lambda dice: dice.choice((1, 1.3)),
    "logit_bias": lambda dice: {str(dice.randrange(3, 200)): dice.choice((-100, 5))},
    "min_tokens": lambda dice: dice.choice((0, 1)),
    "ignore_eos": lambda dice: dice.random() < 0.5,
    "stop": lambda dice: dice.choice((None, "zzzz", ["zzzz", "yyyy"])),
    "skip_special_tokens": lambda dice: dice.random() < 0.5,
    "add_special_tokens": lambda dice: dice.random() < 0.5,
    "cache_salt": lambda dice: dice.choice(("s1", "s2")),
    "priority": lambda dice: dice.randrange(-3, 4),
    "user": lambda dice: "ann",
    "metadata": lambda dice: {"a": "b"},
    "n": lambda dice: dice.choice((None, 1, 1, 2)),
    "x_unknown": lambda dice: {"a": [1, None, "é"]},
    "request_id": lambda dice: "mine",
    "kv_transfer_params": lambda dice: {"do_remote_prefill": True, "remote_host": "evil"},
}
_CHAT: dict[str, Callable[[random.Random], Any]] = {
    "max_completion_tokens": lambda dice: dice.randint(1, 6),
    "logprobs": lambda dice: True,
    "chat_template_kwargs": lambda dice: {"enable_thinking": dice.random() < 0.5},
    "add_generation_prompt": lambda dice: dice.random() < 0.5,
    "tools": lambda dice: [{"type": "function", "function": {"name": "f", "parameters": {}}}],
}
_TEXT: dict[str, Callable[[random.Random], Any]] = {
    "echo": lambda dice: dice.random() < 0.7,
    "logprobs": lambda dice: dice.choice((None, 0, 2)),
}


def leg_request(seed: int) -> tuple[str, Fields]:
    """Path and fields of request `seed`; always the same for the same seed."""
    dice = random.Random(seed)
    chat = dice.random() < 0.5
    fields: Fields = {"model": "tiny", "temperature": 0, "return_token_ids": True, "max_tokens": dice.randint(1, 6)}
    fields |= {"messages": _messages(dice)} if chat else {"prompt": _prompt(dice)}
    optional = _ANY | (_CHAT if chat else _TEXT)
    for name in sorted(optional):
        if dice.random() < 0.25:
            fields[name] = optional[name](dice)
    if fields.get("logprobs") is True and dice.random() < 0.5:
        fields["top_logprobs"] = 3
    if dice.random() < 0.4:
        fields["stream"] = True
        fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": dice.random() < 0.5}
    elif dice.random() < 0.1:
        fields["prompt_logprobs"] = 1
    names = list(fields)
    dice.shuffle(names)
    return "/v1/chat/completions" if chat else "/v1/completions", {name: fields[name] for name in names}


def _text(dice: random.Random) -> str:
    return " ".join(dice.choice(WORDS) for _ in range(dice.randint(1, 20)))


def _prompt(dice: random.Random) -> Any:
    kinds = (
        _text,
        _text,
        lambda d: [d.randrange(3, 200) for _ in range(d.randint(1, 40))],
        lambda d: [_text(d), _text(d)],
    )
    return dice.choice(kinds)(dice)


def _messages(dice: random.Random) -> list[Fields]:
    messages: list[Fields] = [{"role": "system", "content": _text(dice)}] if dice.random() < 0.3 else []
    if dice.random() < 0.3:
        messages += [{"role": "user", "content": _text(dice)}, {"role": "assistant", "content": _text(dice)}]
    parts = [{"type": "text", "text": _text(dice)}, {"type": "text", "text": _text(dice)}]
    return [*messages, {"role": "user", "name": "ann", "content": parts if dice.random() < 0.3 else _text(dice)}]
