import json

import msgspec
import pytest

from router.contract.errors import BadRequest
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.rendezvous import PrefillDone
from router.contract.wire import (
    MAX_ID_CHARS,
    DecodeHandoff,
    Keeper,
    PrefillHandoff,
    answer_params,
    drop_handovers,
    keeper_params,
    prefill_params,
    push_params,
    read_handoff,
)
from tests.support.fleets import an_instance

T = TransferId("req-1.1")
PEER = an_instance("p0", epoch=7).kv
assert PEER is not None


def test_the_wire_form_of_a_prefill_leg() -> None:
    assert prefill_params(T) == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
        "transfer_id": "req-1.1",
    }


def test_the_wire_form_of_a_push_leg_names_the_peer_and_no_blocks() -> None:
    assert push_params(T, PEER) == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "p0@7",
        "remote_host": "127.0.0.1",
        "remote_port": 9100,
        "tp_size": 1,
        "pp_size": 1,
        "remote_request_id": "req-1.1",
        "transfer_id": "req-1.1",
    }


def test_the_wire_form_of_prefills_answer_adds_the_blocks() -> None:
    answer = answer_params(PrefillDone(T, (4, 5), 31), PEER)
    assert answer == {**push_params(T, PEER), "remote_block_ids": [[4, 5]], "remote_num_tokens": 31}


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False}, {"do_remote_prefill": 1}, {"other": True}])
def test_params_that_ask_for_nothing_are_no_handoff(params: object) -> None:
    assert read_handoff(params, "req-1.1") is None


def test_without_a_transfer_id_the_request_id_stands_in_and_then_the_peers() -> None:
    params = {name: value for name, value in push_params(T, PEER).items() if name != "transfer_id"}
    assert read_handoff(params, "header") == DecodeHandoff(
        TransferId("header"), Mode.PUSH, EngineId("p0@7"), "127.0.0.1", 9100
    )
    handoff = read_handoff(params, "")
    assert isinstance(handoff, DecodeHandoff)
    assert handoff.transfer_id == T
    assert read_handoff({"do_remote_decode": True}, "header") == PrefillHandoff(TransferId("header"))


@pytest.mark.parametrize(
    "change",
    [
        {"do_remote_decode": True},
        {"remote_engine_id": None},
        {"remote_engine_id": 7},
        {"remote_host": ""},
        {"remote_host": "h" * (MAX_ID_CHARS + 1)},
        {"remote_port": None},
        {"remote_port": "9100"},
        {"remote_port": True},
        {"remote_port": 0},
        {"remote_port": 65536},
        {"registration_timeout_ms": 0},
        {"registration_timeout_ms": "100"},
        {"kv_wait_timeout_ms": 1.5},
        {"kv_wait_timeout_ms": True},
        {"transfer_id": ["req-1.1"]},
        {"transfer_id": "t" * (MAX_ID_CHARS + 1)},
    ],
)
def test_a_missing_or_ill_typed_field_is_a_bad_request(change: dict[str, object]) -> None:
    with pytest.raises(BadRequest) as refusal:
        read_handoff({**push_params(T, PEER), **change}, "")
    assert refusal.value.param == "kv_transfer_params"


@pytest.mark.parametrize("params", [[], "x", 7, True])
def test_params_that_are_no_object_are_a_bad_request(params: object) -> None:
    with pytest.raises(BadRequest):
        read_handoff(params, "")


def test_without_any_id_there_is_no_handoff_to_meet_under() -> None:
    with pytest.raises(BadRequest):
        read_handoff({"do_remote_decode": True}, "")


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"a": 1, "kv_transfer_params": {"x": 1}, "ec_transfer_params": None}, {"a": 1}),
        ({"vllm_xargs": {"kv_transfer_params": 1, "ec_transfer_params": [], "b": 2}}, {"vllm_xargs": {"b": 2}}),
        ({"vllm_xargs": [1], "n": 2}, {"vllm_xargs": [1], "n": 2}),
        ({"vllm_xargs": {"b": "kv_transfer_params"}}, {"vllm_xargs": {"b": "kv_transfer_params"}}),
    ],
    ids=str,
)
def test_a_body_without_hand_overs_has_everything_else(body: dict[str, object], kept: dict[str, object]) -> None:
    fields = msgspec.json.decode(json.dumps(body), type=dict[str, msgspec.Raw])
    drop_handovers(fields)
    assert json.loads(msgspec.json.encode(fields)) == kept


def test_a_prefill_leg_may_name_who_keeps_kv_of_its_prompts_beginning() -> None:
    params = {**prefill_params(T), **keeper_params(PEER)}
    assert read_handoff(params, "") == PrefillHandoff(T, Keeper(EngineId("p0@7"), "127.0.0.1", 9100))
    assert read_handoff(prefill_params(T), "") == PrefillHandoff(T)


@pytest.mark.parametrize("change", [{"keeper_engine_id": 7}, {"keeper_host": None}, {"keeper_port": "9100"}])
def test_half_a_keeper_is_a_bad_request(change: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        read_handoff({**prefill_params(T), **keeper_params(PEER), **change}, "")
