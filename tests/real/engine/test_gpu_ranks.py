"""The reference engine on a GPU over expert ranks: the same greedy tokens for every number of ranks and transport."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from engine_shim.engine.port import SequenceFailed, TokensOut
from engine_shim.engine.ranks import shared_memory
from engine_shim.engine.ranks.opening import open_ranked_engine
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import ExpertTransport, Numerics, ReferenceSettings
from engine_shim.experts.shape import ExpertNumerics
from engine_shim.fabric.mapping import CudaMapper
from router.contract.errors import RankGone
from router.contract.kv import Region
from tests.support.nvlink_groups import LIBRARY_VARIABLE
from tests.support.tiny_models import ask

pytestmark = [pytest.mark.needs("gpu", "nixl"), pytest.mark.timeout(300)]

PROMPTS = [range(3, 4), range(40, 73), range(100, 170), range(9, 159)]
NUM_TOKENS = 16


@contextmanager
def engine_of(model: str, ranks: int, dtype: str, **more: object) -> Iterator[ReferenceEngine]:
    settings = ReferenceSettings(
        model=model,
        device="cuda",
        dtype=dtype,
        num_ranks=ranks,
        max_batch_tokens=64,
        expert_kernels=os.environ.get(LIBRARY_VARIABLE, ""),
        **{"numerics": Numerics.INVARIANT, **more},  # type: ignore[arg-type]
    )
    engine = open_engine(settings) if ranks == 1 else open_ranked_engine(settings)
    try:
        yield engine
    finally:
        engine.close()


def greedy(engine: ReferenceEngine, prompts: list[range]) -> list[list[int]]:
    """The second half of the prompts comes while the first is being computed."""
    found: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    waiting = list(enumerate(prompts))
    for number, prompt in waiting[:2]:
        engine.add(ask(str(number), prompt, max_tokens=NUM_TOKENS))
    for step in range(1000):
        if step == 3:
            for number, prompt in waiting[2:]:
                engine.add(ask(str(number), prompt, max_tokens=NUM_TOKENS))
        for event in engine.step():
            assert not isinstance(event, SequenceFailed), event.error.message
            if isinstance(event, TokensOut):
                found[event.seq_id] += event.token_ids
        if step > 3 and not engine.has_work():
            return list(found.values())
    raise AssertionError("The engine did not come to an end.")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["tiny-moe", "tiny-deepseek"])
def test_greedy_tokens_are_those_of_one_rank(model: str, dtype: str) -> None:
    with engine_of(model, 1, dtype) as engine:
        alone = greedy(engine, PROMPTS)
    assert len({tuple(tokens) for tokens in alone}) == len(PROMPTS)
    for ranks, transport, overlap in (
        (2, ExpertTransport.NVLINK, False),
        (2, ExpertTransport.NIXL, False),
        (3, ExpertTransport.NVLINK, True),
        (3, ExpertTransport.NIXL, True),
    ):
        with engine_of(model, ranks, dtype, expert_transport=transport, expert_overlap=overlap) as engine:
            assert greedy(engine, PROMPTS) == alone, (ranks, transport)


@pytest.mark.parametrize("transport", list(ExpertTransport))
def test_greedy_tokens_of_eight_ranks_are_those_of_one(transport: ExpertTransport) -> None:
    with engine_of("tiny-moe", 1, "float32") as engine:
        alone = greedy(engine, PROMPTS)
    with engine_of("tiny-moe", 8, "float32", expert_transport=transport) as engine:
        assert greedy(engine, PROMPTS) == alone


@pytest.mark.parametrize("transport", list(ExpertTransport))
def test_ranks_on_another_gpu_address_the_cache(transport: ExpertTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_of("tiny-moe", 1, "float32") as engine:
        alone = greedy(engine, PROMPTS)
    # With one GPU, its ranks reach the cache as those of another one would.
    monkeypatch.setattr(shared_memory.SharedMemory, "handle_for", lambda self, _device: card_of(self.memory))
    with engine_of("tiny-moe", 4, "float32", expert_transport=transport) as engine:
        devices = engine._ranks.processes.devices  # type: ignore[union-attr]
        assert len(set(devices)) == min(4, torch.cuda.device_count())
        assert greedy(engine, PROMPTS) == alone


def card_of(memory: torch.Tensor) -> bytes:
    region = Region(memory.data_ptr(), memory.numel(), "cuda", memory.device.index)
    return CudaMapper(region).card()


def test_de_duplicated_tokens_are_the_same_on_both_transports() -> None:
    found = []
    for transport in ExpertTransport:
        numerics = ExpertNumerics.DEDUP
        with engine_of("tiny-moe", 2, "bfloat16", expert_transport=transport, expert_numerics=numerics) as engine:
            found.append(greedy(engine, PROMPTS))
    assert found[0] == found[1]


def test_fast_numerics_give_the_same_tokens_on_both_transports() -> None:
    found = []
    for transport in ExpertTransport:
        with engine_of("tiny-moe", 2, "bfloat16", expert_transport=transport, numerics=Numerics.FAST) as engine:
            found.append(greedy(engine, PROMPTS))
    assert found[0] == found[1] and {len(tokens) for tokens in found[0]} == {NUM_TOKENS}


@pytest.mark.parametrize("transport", list(ExpertTransport))
def test_a_rank_that_is_killed_fails_its_requests_and_all_begin_anew(transport: ExpertTransport) -> None:
    with engine_of("tiny-moe", 2, "bfloat16", expert_transport=transport) as engine:
        before = greedy(engine, PROMPTS)
        processes = engine._ranks.processes  # type: ignore[union-attr]
        engine.add(ask("x", range(40), max_tokens=64))
        engine.step()
        killed = max(processes.pids)
        os.kill(killed, signal.SIGKILL)
        failed: list[SequenceFailed] = []
        while engine.has_work():
            failed += [event for event in engine.step() if isinstance(event, SequenceFailed)]
        # Between two steps it is noticed before one is lost, and the sequence goes on.
        assert [type(one.error) for one in failed] in ([], [RankGone])
        assert greedy(engine, PROMPTS) == before
        assert processes.num_restarts == 1 and killed not in processes.pids
