"""The prompts on which the law is checked: lengths 1 to 900 tokens, unicode, chat and completion; seeded.

What transformers answers to them is kept (`tests/support/oracle.py`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.support.texts import FIXED, awkward_texts

NUM_CASES = 204
ANSWER_TOKENS = 4
LONGEST_TEXT_TOKENS = 64
"""Long prompts are those of exact lengths; every token is computed twice."""

_SUBJECTS = [
    "The river",
    "A small robot",
    "My neighbour",
    "Every engineer",
    "The old library",
    "Our planet",
    "She",
    "The committee",
]
_VERBS = [
    "follows",
    "remembers",
    "builds",
    "questions",
    "repairs",
    "describes",
    "carries",
    "paints",
    "measures",
    "forgets",
]
_OBJECTS = [
    "a quiet road",
    "the last train",
    "seven letters",
    "an honest answer",
    "the northern sky",
    "its own shadow",
    "numbers",
]
_ENDS = [
    "in the morning.",
    "because it must.",
    "without a map!",
    "and then rests.",
    "for 12 years;",
    "as far as I know.",
    "?",
]


@dataclass(frozen=True)
class LawCase:
    """One request; `tokens` is the exact prompt when the request carries token ids."""

    name: str
    endpoint: str
    body: dict[str, Any]


def prose(rng: random.Random, num_sentences: int) -> str:
    """Plain sentences, some with a unicode neighbour."""
    parts = []
    for _ in range(num_sentences):
        parts.append(" ".join(rng.choice(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS)))
        if rng.random() < 0.1:
            parts.append(rng.choice(FIXED))
    return " ".join(parts)


def law_cases(encode: Any) -> list[LawCase]:
    """All cases. `encode(text) -> list[int]` is the tokenizer's, used to cut prompts to exact lengths."""
    rng = random.Random(20)
    lengths = [1, 1, 2, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 385, 900]
    lengths += [int(2 ** rng.uniform(0, 5.5)) for _ in range(90 - len(lengths))]
    cases = []
    for index, length in enumerate(lengths):
        tokens = encode(prose(rng, 3 + length // 6))[:length]
        assert len(tokens) == length, (length, len(tokens))
        cases.append(LawCase(f"ids-{index}-{length}", "/v1/completions", {"prompt": tokens}))
    texts = [text for text in awkward_texts(160, seed=3) if text and len(encode(text)) <= LONGEST_TEXT_TOKENS][:70]
    cases += [LawCase(f"text-{k}", "/v1/completions", {"prompt": text}) for k, text in enumerate(texts)]
    for index in range(NUM_CASES - len(cases)):
        messages = [{"role": "user", "content": prose(rng, 1)}]
        if index % 3 == 0:
            messages.insert(0, {"role": "system", "content": "Answer briefly. " + rng.choice(FIXED[4:30])})
        if index % 4 == 3:
            messages += [
                {"role": "assistant", "content": prose(rng, 1)},
                {"role": "user", "content": rng.choice(("Why?", "Go on 👍", "再说一遍。"))},
            ]
        cases.append(LawCase(f"chat-{index}", "/v1/chat/completions", {"messages": messages}))
    return cases
