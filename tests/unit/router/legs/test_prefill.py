import json

import pytest

from router.contract.errors import LegBroken, PeerGone, TransferFailed
from router.contract.instance import Mode, Role
from router.legs import prefill
from router.legs.hand_over import read_hand_over
from router.legs.params import leg_request
from router.legs.pool import LegPool, PoolLimits
from router.legs.prefill import PrefillLeg, bare_request, prefill_body
from tests.support.instances import instance

P0 = instance("p0", Role.PREFILL)


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"max_tokens": 50}, {"max_tokens": 1}),
        ({"max_completion_tokens": 50}, {"max_tokens": 1, "max_completion_tokens": 1}),
        ({"max_tokens": None, "stream": True}, {"max_tokens": 1}),
        ({"stream_options": {}, "min_tokens": 3, "min_completion_tokens": 1}, {"max_tokens": 1}),
        ({"n": 1, "best_of": 1, "use_beam_search": False}, {"max_tokens": 1}),
        ({"logprobs": 1, "top_logprobs": 1, "prompt_logprobs": None, "echo": True}, {"max_tokens": 1}),
        ({"x": {"y": [None, "é"]}, "temperature": 0}, {"max_tokens": 1, "x": {"y": [None, "é"]}, "temperature": 0}),
        ({"kv_transfer_params": {"evil": 1}}, {"max_tokens": 1}),
    ],
)
def test_prefill_computes_one_token_and_keeps_the_rest(fields, sent):
    raw = json.dumps({"model": "m"} | fields, ensure_ascii=False).encode()
    expected = {"model": "m", "stream": False, "kv_transfer_params": {"a": 1}} | sent
    assert json.loads(prefill_body(raw, b'{"a":1}')) == expected


def test_once_more_only_the_prompt_is_asked_for():
    fields = {"model": "m", "prompt": [1, 2], "structured_outputs": {"json": "bad"}, "top_k": 2**70, "n": 3, "x": 1}
    pool = LegPool("http://h:1", PoolLimits())
    made = [
        leg_request(pool, b"/v1/completions", b"req-1.1", 5.0, b"traceparent: t\r\n", prefill_body(body, b'{"a":1}'))
        for body in (json.dumps(fields, separators=(",", ":")).encode(), b'{"model":"m","prompt":[1,2]}')
    ]
    assert bare_request(made[0]) == bare_request(made[1]) == made[1]


def test_values_are_not_re_encoded():
    assert b"1.50e0" in prefill_body(b'{"model":"m","temperature":1.50e0}', b"{}")


def answer(**params) -> bytes:
    return json.dumps({"id": "x", "kv_transfer_params": params or None}).encode()


def test_a_push_answer_must_come_from_the_engine_that_decode_was_told_of():
    assert read_hand_over(answer(remote_engine_id="p0@1"), P0, Mode.PUSH) == b""
    spaced = b'{"kv_transfer_params": {"remote_engine_id": "p0@1"}}'
    assert read_hand_over(spaced, P0, Mode.PUSH) == b""
    assert isinstance(read_hand_over(answer(remote_engine_id="p0@2"), P0, Mode.PUSH), PeerGone)
    assert isinstance(read_hand_over(answer(other=1), P0, Mode.PUSH), PeerGone)


def test_text_that_looks_like_an_identity_is_none():
    told = json.dumps({"choices": [{"text": '"remote_engine_id":"p0@1"'}], "kv_transfer_params": None}).encode()
    assert isinstance(read_hand_over(told, P0, Mode.PUSH), TransferFailed)


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
@pytest.mark.parametrize("body", [answer(), b"{}", b"[]", b"not json", b'{"kv_transfer_params":' + b"[" * 100_000])
def test_an_answer_without_a_hand_over_fails(mode, body):
    assert isinstance(read_hand_over(body, P0, mode), TransferFailed)


PULLED = {
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 1,
    "tp_size": 1,
    "remote_block_ids": [[1, 2]],
}


def test_a_pull_answer_is_passed_on_as_it_stands():
    params = json.dumps(PULLED | {"x": 1.0}, indent=1).encode()
    raw = b'{"id":"x", "kv_transfer_params" : %b}' % params
    assert read_hand_over(raw, P0, Mode.PULL) == params


@pytest.mark.parametrize("name", PULLED)
def test_a_pull_answer_that_would_kill_a_stock_decode_engine_is_no_hand_over(name):
    without = {key: value for key, value in PULLED.items() if key != name}
    assert isinstance(
        read_hand_over(json.dumps({"kv_transfer_params": without}).encode(), P0, Mode.PULL), TransferFailed
    )
    wrong = PULLED | {name: None if name != "remote_block_ids" else []}
    assert isinstance(read_hand_over(json.dumps({"kv_transfer_params": wrong}).encode(), P0, Mode.PULL), TransferFailed)


class Owner:
    def __init__(self):
        self.answers, self.errors = [], []

    def on_prefill_answer(self, status, headers, body):
        self.answers.append((status, headers, body))

    def on_leg_failed(self, leg, error):
        self.errors.append(error)


class Line:
    status, headers, aborted = 200, [(b"a", b"b")], False

    def abort(self):
        self.aborted = True


def test_an_answer_is_reported_once_and_whole():
    owner, line = Owner(), Line()
    leg = PrefillLeg(owner, LegPool("http://h:1", PoolLimits()))
    leg.connection = line
    for piece in (b"a", b"b"):
        leg.on_answer(line, piece, False)
    assert not owner.answers
    leg.on_answer(line, b"c", True)
    assert owner.answers == [(200, [(b"a", b"b")], b"abc")]
    assert leg.connection is None


def test_an_endless_answer_is_cut(monkeypatch):
    monkeypatch.setattr(prefill, "MAX_ANSWER_BYTES", 10)
    owner, line = Owner(), Line()
    leg = PrefillLeg(owner, LegPool("http://h:1", PoolLimits()))
    leg.connection = line
    leg.on_answer(line, b"x" * 11, False)
    assert line.aborted and leg.cancelled
    assert isinstance(owner.errors[0], LegBroken)
