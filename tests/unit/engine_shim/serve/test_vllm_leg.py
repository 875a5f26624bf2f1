"""Bodies for vLLM: nobody's hand-over but ours reaches it, and only what can be handed over is."""

import json

import pytest

from engine_shim.serve.vllm_leg import read_leg
from router.contract import wire
from router.contract.errors import BadRequest
from router.contract.ids import EngineId, TransferId
from router.contract.instance import KVIdentity, Mode

PUSH = wire.push_params(TransferId("t.1"), KVIdentity(EngineId("p@1"), "10.0.0.1", 9000, None, "", (Mode.PUSH,)))
HOLD = wire.prefill_params(TransferId("t.1"))


def leg_of(body: dict[str, object], **headers: str):
    return read_leg(json.dumps(body).encode(), headers, 600.0)


@pytest.mark.parametrize(("params", "purpose"), [(PUSH, "receive"), (HOLD, "hold")])
def test_vllm_gets_our_parameters_in_the_place_of_the_routers(params: dict[str, object], purpose: str) -> None:
    leg = leg_of({"model": "m", "prompt": "hi", "kv_transfer_params": params, "seed": 7})
    sent = json.loads(leg.body("secret", "decode:t.1"))
    ours = {"tandem_secret": "secret", "tandem_seq_id": "decode:t.1", "tandem_purpose": purpose}
    assert sent == {"model": "m", "prompt": "hi", "seed": 7, "kv_transfer_params": ours}


def test_without_a_hand_over_vllm_gets_no_parameters() -> None:
    leg = leg_of({"prompt": "hi", "kv_transfer_params": {"do_remote_prefill": False, "tandem_secret": "x"}})
    assert leg.handoff is None
    assert json.loads(leg.body("secret", "local:x#1")) == {"prompt": "hi"}


@pytest.mark.parametrize("smuggled", ["x", 7, {"do_remote_prefill": True}], ids=str)
def test_nor_by_the_back_door(smuggled: object) -> None:
    leg = leg_of({"prompt": "hi", "vllm_xargs": {"kv_transfer_params": smuggled, "other": 1}})
    assert json.loads(leg.body("secret", "local:x#1")) == {"prompt": "hi", "vllm_xargs": {"other": 1}}


@pytest.mark.parametrize("extra", [None, [1], "x", {"other": 1.0}], ids=str)
def test_other_extra_arguments_go_through(extra: object) -> None:
    assert json.loads(leg_of({"vllm_xargs": extra}).body("s", "x")) == {"vllm_xargs": extra}


def test_what_is_not_ours_goes_through_byte_for_byte() -> None:
    leg = read_leg(b'{"temperature":1.00,"big":123456789012345678901234567890}', {}, 600.0)
    assert leg.body("s", "x") == b'{"temperature":1.00,"big":123456789012345678901234567890}'


@pytest.mark.parametrize(
    "asked",
    [{"n": 2}, {"best_of": 3}, {"use_beam_search": True}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]},
     {"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}],
    ids=lambda asked: next(iter(asked)),
)  # fmt: skip
def test_a_hand_over_is_of_one_sequence(asked: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match="handed over"):
        leg_of({"prompt": "hi", "kv_transfer_params": PUSH} | asked)
    assert leg_of({"prompt": "hi"} | asked).handoff is None


@pytest.mark.parametrize("prompt", ["a", ["a"], [1, 2, 3], [[1, 2, 3]]], ids=str)
def test_one_prompt_has_four_forms(prompt: object) -> None:
    assert leg_of({"prompt": prompt, "kv_transfer_params": PUSH}).handoff is not None


def test_a_prefill_leg_does_not_stream() -> None:
    with pytest.raises(BadRequest, match="stream"):
        leg_of({"prompt": "hi", "stream": True, "kv_transfer_params": HOLD})


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 5000], ids=lambda raw: repr(raw[:8]))
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        read_leg(raw, {}, 600.0)


def test_the_routers_deadline_counts_and_never_lengthens() -> None:
    assert leg_of({}, **{"x-request-deadline-ms": "1500"}).deadline_for_s == 1.5
    assert leg_of({}, **{"x-request-deadline-ms": "9000000"}).deadline_for_s == 600.0
