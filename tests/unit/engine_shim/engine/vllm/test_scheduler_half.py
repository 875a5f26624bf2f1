"""The scheduler half, with requests as vLLM's scheduler shows them."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from engine_shim.engine.port import Purpose
from engine_shim.engine.vllm.messages import PURPOSE, SECRET, SEQ_ID, BlocksHeld, SchedulerLoad, SeatsTaken
from engine_shim.engine.vllm.scheduler_half import SchedulerHalf
from router.contract.ids import EngineId
from router.contract.instance import KVIdentity, Mode

IDENTITY = KVIdentity(EngineId("p@1"), "10.0.0.1", 9000, None, "", (Mode.PUSH,))


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int
    kv_transfer_params: dict[str, Any] | None = None
    status: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="RUNNING"))


def handed(request_id: str, purpose: Purpose, num_prompt_tokens: int = 300, **changes: Any) -> Request:
    params = {SECRET: "s", SEQ_ID: f"decode:{request_id}", PURPOSE: purpose} | changes
    return Request(f"{request_id}-1234abcd", num_prompt_tokens, params)


@pytest.fixture
def told() -> list[Any]:
    return []


@pytest.fixture
def half(told: list[Any]) -> SchedulerHalf:
    half = SchedulerHalf(told.append, "s", IDENTITY)
    half.bind(SimpleNamespace(num_gpu_blocks=65, get_num_free_blocks=lambda: 60))
    return half


def test_decode_waits_for_all_but_the_last_prompt_token(half: SchedulerHalf, told: list[Any]) -> None:
    request = handed("r", Purpose.RECEIVE)
    assert half.num_wanted(request, 128) == 171
    half.on_blocks(request, (4, 5, 6), 171)
    assert told == [SeatsTaken("decode:r", "r-1234abcd", (4, 5, 6), 128, 299)]


def test_when_all_is_cached_nothing_is_wanted_and_prefill_hears_of_it(half: SchedulerHalf, told: list[Any]) -> None:
    request = handed("r", Purpose.RECEIVE, 129)
    assert half.num_wanted(request, 128) == 0
    half.on_blocks(request, (4, 5), 0)
    assert told == [SeatsTaken("decode:r", "r-1234abcd", (4, 5), 128, 128)]


def test_after_a_preemption_decode_computes_by_itself(half: SchedulerHalf, told: list[Any]) -> None:
    request = handed("r", Purpose.RECEIVE)
    half.on_blocks(request, (4, 5, 6), 299)
    assert half.num_wanted(request, 0) == 0
    half.on_blocks(request, (7, 8, 9), 0)
    assert len(told) == 1


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"do_remote_prefill": True, "remote_engine_id": "x"},
        {SECRET: "guessed", SEQ_ID: "decode:r", PURPOSE: "receive"},
        {SECRET: None},
        ["do_remote_prefill"],
        "text",
    ],
)
def test_without_the_secret_a_request_is_an_ordinary_one(half: SchedulerHalf, told: list[Any], params: Any) -> None:
    request = Request("r", 300, params, SimpleNamespace(name="FINISHED_STOPPED"))
    half.on_new(request)
    assert half.num_wanted(request, 0) == 0
    half.on_blocks(request, (1, 2, 3), 0)
    assert half.on_finished(request, (1, 2, 3)) is None
    assert told == []


@pytest.mark.parametrize("end", ["FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"])
def test_finished_kv_stays_and_the_answer_says_where(half: SchedulerHalf, told: list[Any], end: str) -> None:
    request = handed("r", Purpose.HOLD, **{SEQ_ID: "prefill:req-1.1"})
    request.status.name = end
    answer = half.on_finished(request, (4, 5, 6))
    assert told == [BlocksHeld("prefill:req-1.1", "r-1234abcd", (4, 5, 6), 300)]
    assert answer is not None
    assert (answer["remote_engine_id"], answer["remote_port"]) == ("p@1", 9000)
    assert (answer["transfer_id"], answer["remote_block_ids"]) == ("req-1.1", [[4, 5, 6]])


@pytest.mark.parametrize("end", ["FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_REPETITION"])
def test_an_end_without_whole_kv_holds_nothing(half: SchedulerHalf, told: list[Any], end: str) -> None:
    request = handed("r", Purpose.HOLD)
    request.status.name = end
    assert half.on_finished(request, (4, 5, 6)) is None
    assert told == []


def test_a_prefill_that_was_never_given_blocks_holds_nothing(half: SchedulerHalf) -> None:
    request = handed("r", Purpose.HOLD)
    request.status.name = "FINISHED_STOPPED"
    assert half.on_finished(request, ()) is None


def test_the_load_follows_a_request_and_is_told_when_it_changes(half: SchedulerHalf, told: list[Any]) -> None:
    request = handed("r", Purpose.RECEIVE)
    half.on_new(request)
    half.on_step_end()
    half.on_blocks(request, (4, 5, 6), 299)
    half.on_step_end()
    half.on_step_end()
    half.on_step(["r-1234abcd"])
    half.on_step_end()
    half.on_finished(request, (4, 5, 6))
    half.on_step_end()
    loads = [one for one in told if isinstance(one, SchedulerLoad)]
    seen = [(one.running_seqs, one.waiting_seqs, one.parked_seqs, one.queued_prompt_tokens) for one in loads]
    assert seen == [(0, 1, 0, 300), (0, 0, 1, 0), (1, 0, 0, 0), (0, 0, 0, 0)]
    assert (loads[0].free_blocks, loads[0].total_blocks) == (60, 64)
