"""The engine on a GPU against the engine on the CPU: the same weights in float32, the same tokens."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from queue import SimpleQueue

import pytest
import torch

from engine_shim.engine.port import Prefilled, Prefilling, Purpose, SamplingParams, SequenceRequest, TokensOut
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import ReferenceSettings
from router.contract.kv import KVOrder

pytestmark = pytest.mark.needs("gpu")

PROMPTS = [tuple((7 * number + 13 * place) % 256 for place in range(1 + 61 * number)) for number in range(12)]


def engine_on(device: str, order: KVOrder = KVOrder.BLOCK_FIRST, **settings: object) -> ReferenceEngine:
    chosen = {"dtype": "float32", "num_blocks": 512, "max_batch_tokens": 96, "max_num_seqs": 12} | settings
    return open_engine(ReferenceSettings("tiny-qwen3", device=device, kv_order=order, **chosen))  # type: ignore[arg-type]


def greedy(engine: ReferenceEngine, max_tokens: int = 24) -> dict[str, list[int]]:
    """Tokens of all prompts together, so that prompts are computed in chunks beside others that decode."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    tokens: dict[str, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        engine.add(SequenceRequest(str(number), prompt, sampling))
    while engine.has_work():
        for event in engine.step():
            assert isinstance(event, TokensOut), event
            tokens.setdefault(event.seq_id, []).extend(event.token_ids)
    return tokens


def test_tokens_are_those_of_the_cpu_with_graphs_and_without() -> None:
    expected = greedy(engine_on("cpu"))
    assert all(len(tokens) == 24 for tokens in expected.values())
    for order, graphs in product(KVOrder, (True, False)):
        assert greedy(engine_on("cuda", order, cuda_graphs=graphs)) == expected, (order, graphs)


def test_half_precision_attends_to_what_float32_does() -> None:
    """Flash attention of prompts: a row that saw one token too few or too many would move the first token of many."""
    expected = greedy(engine_on("cpu"), max_tokens=1)
    found = greedy(engine_on("cuda", dtype="bfloat16"), max_tokens=1)
    assert sum(found[key] == expected[key] for key in expected) >= len(PROMPTS) - 2


def test_layers_are_told_of_when_they_are_in_memory_and_while_others_are_computed() -> None:
    """Whoever is told reads them at once, on a stream of its own as a network card would."""
    settings = {"device": "cuda", "dtype": "bfloat16", "num_blocks": 512, "max_batch_tokens": 4096}
    engine = open_engine(ReferenceSettings("seeded-qwen3-0.6b", prefix_cache=False, **settings))  # type: ignore[arg-type]
    side, told = torch.cuda.Stream(), SimpleQueue[tuple[int, torch.Tensor]]()  # type: ignore[no-untyped-call]

    def read(blocks: tuple[int, ...], num_layers: int) -> torch.Tensor:
        return torch.stack([layer[list(blocks)] for layer in engine._cache.layers[:num_layers]]).cpu()

    def tell(part: Prefilling) -> None:
        with torch.cuda.stream(side):
            told.put((part.num_layers, read(part.blocks, part.num_layers)))

    engine.tell_early(tell)
    prompt = tuple((31 * place) % 1000 for place in range(4096))
    ask = SequenceRequest("", prompt, SamplingParams(max_tokens=1, temperature=0.0), Purpose.HOLD, True, 1024)
    for number in range(3):
        engine.add(replace(ask, seq_id=str(number)))
        events = []
        while engine.has_work():
            events += engine.step()
        blocks = next(event.blocks for event in events if isinstance(event, Prefilled))
        final = read(blocks, 28)
        for layers in range(4, 28, 4):
            num_layers, found = told.get(timeout=10)
            assert num_layers == layers
            assert torch.equal(found, final[:layers]), f"{layers} layers were told of too early"
        assert all(layer.any() for layer in final)
        engine._cache.tensor.zero_()
        engine.unpin(str(number))
    engine.close()
