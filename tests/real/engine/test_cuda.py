"""The engine on a GPU against the engine on the CPU: equal weights in float32, equal tokens. And what hurts it."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from itertools import product
from multiprocessing.connection import Connection
from queue import SimpleQueue

import numpy as np
import pytest
import torch

from engine_shim.core.staging import Chunk, StagedPlan
from engine_shim.engine.port import Prefilled, Prefilling, Purpose, SamplingParams, Seated, SequenceRequest, TokensOut
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import ReferenceSettings
from router.contract.kv import KVOrder, Region

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


def test_an_engine_whose_gpu_is_lost_says_so_and_does_not_go_on() -> None:
    """In a process of its own, since nothing on the GPU works there afterwards."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=lose_the_gpu, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(90)
    told = ours.recv()
    process.kill()
    assert told == ["SequenceFailed out of memory", "goes on", "AcceleratorError"]


def lose_the_gpu(link: Connection) -> None:
    """Two batches fail: for want of memory, and by a kernel that reads where nothing is."""
    engine, told = engine_on("cuda"), []
    forward = engine._runner._model.forward

    def starved(*_args: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("out of memory")

    def astray(*_args: object) -> torch.Tensor:
        found = torch.zeros(1, device="cuda")[torch.tensor([1 << 40], device="cuda")]
        return torch.tensor(found.tolist())

    for number, forward_then in enumerate((starved, forward, astray)):
        setattr(engine._runner._model, "forward", forward_then)  # noqa: B010 - a method is replaced
        engine.add(SequenceRequest(str(number), PROMPTS[1], SamplingParams(max_tokens=1, ignore_eos=True)))
        try:
            (event,) = engine.step()
            told.append("goes on" if isinstance(event, TokensOut) else f"{type(event).__name__} out of memory")
        except RuntimeError as error:
            told.append(type(error).__name__)
    link.send(told)


def test_seats_are_clear_before_anybody_hears_of_them() -> None:
    """Whoever hears of them writes at once, on a stream of its own as a network card would."""
    engine = engine_on("cuda", prefix_cache=False)
    engine._cache.tensor.fill_(1)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # the device's stream is busy
    engine.add(SequenceRequest("d", PROMPTS[3], SamplingParams(max_tokens=2), Purpose.RECEIVE))
    (seated,) = engine.step()
    assert isinstance(seated, Seated)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        engine._cache.tensor.fill_(2)
    torch.cuda.synchronize()
    assert bool((engine._cache.tensor == 2).all())


def test_columns_of_a_copy_lie_where_no_kernel_of_the_engine_has_yet_to_write() -> None:
    # Not to be had without a GPU.
    from engine_shim.fabric.gather_cuda import COLUMN_LEAST_ROWS, HEAD, CudaCopier

    granules, width = 512, 1024
    memory = torch.randint(256, (granules, width), dtype=torch.uint8, device="cuda")
    ring = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
    copier = CudaCopier(Region(memory.data_ptr(), memory.numel(), "cuda", 0), ring)
    order = np.random.default_rng(0).permutation(granules).astype(np.int32)
    plan = StagedPlan(width, np.stack([order, order]), (memory.numel(), memory.numel()))
    torch.cuda.synchronize()
    # The engine frees memory of a room's size that a kernel of its has yet to fill.
    torch.cuda._sleep(1_000_000_000)
    freed = torch.empty(HEAD + 2 * COLUMN_LEAST_ROWS, dtype=torch.int32, device="cuda")
    freed.fill_(7)
    del freed
    columns = copier.take_up(plan)
    for first in (0, granules // 2):
        columns.gather(Chunk(first, granules // 2), 0).wait()
        torch.cuda.synchronize()
        found = ring[: granules // 2 * width].view(-1, width)
        assert torch.equal(found, memory[torch.from_numpy(order[first : first + granules // 2]).long().cuda()])
