import json
from dataclasses import replace
from math import inf

from router.contract.instance import Mode, Role
from router.contract.wire import NO_WAITS, DecodeHandoff, Keeper, PrefillHandoff, Waits, push_params, read_handoff
from router.legs.params import leg_request, prefill_params_json, push_params_json, with_keeper, with_waits
from router.legs.pool import LegPool, PoolLimits
from tests.support.instances import instance

ID = b"req-" + b"a" * 32 + b".1"
KV = instance("p0", Role.PREFILL).kv


def test_prefills_parameters_are_those_of_the_contract():
    assert read_handoff(json.loads(prefill_params_json(ID)), "") == PrefillHandoff(ID.decode())


def test_decodes_parameters_are_those_of_the_contract():
    params = json.loads(push_params_json(ID, KV))
    assert params == push_params(ID.decode(), KV)
    handoff = read_handoff(params, "")
    assert isinstance(handoff, DecodeHandoff)
    assert (handoff.transfer_id, handoff.prefill_engine_id) == (ID.decode(), KV.engine_id)


def test_whoever_keeps_kv_goes_with_prefills_parameters():
    handoff = read_handoff(json.loads(with_keeper(prefill_params_json(ID), KV)), "")
    assert handoff == PrefillHandoff(ID.decode(), Keeper(KV.engine_id, KV.side_channel_host, KV.side_channel_port))


def test_waits_that_are_shorter_than_decodes_own_go_with_its_parameters():
    params = push_params_json(ID, KV)
    assert with_waits(params, NO_WAITS) is params
    assert with_waits(params, Waits()) == params
    for raw, mode in ((params, Mode.PUSH), (params[:-1] + b',"remote_block_ids":[[1]]}', Mode.PULL)):
        handoff = read_handoff(json.loads(with_waits(raw, Waits(1.5, 0.0002))), "")
        assert (handoff.mode, handoff.waits) == (mode, Waits(1.5, 0.001))
    assert read_handoff(json.loads(with_waits(params, Waits(kv_s=2.0))), "").waits == Waits(inf, 2.0)


def test_an_engine_that_has_moved_is_described_anew():
    push_params_json(ID, KV)
    moved = replace(KV, side_channel_port=9)
    assert json.loads(push_params_json(ID, moved))["remote_port"] == 9
    assert json.loads(push_params_json(ID, KV))["remote_port"] == 5600


def test_a_request_is_whole_http():
    pool = LegPool("http://[::1]:9001", PoolLimits())
    raw = leg_request(pool, b"/v1/completions", ID, 1.5, b"traceparent: x\r\n", b'{"a":1}')
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/completions HTTP/1.1"
    assert body == b'{"a":1}'
    assert {
        b"host: [::1]:9001",
        b"x-request-id: " + ID,
        b"x-request-deadline-ms: 1500",
        b"content-length: 7",
        b"traceparent: x",
    } <= set(lines)


def test_a_deadline_is_at_least_a_millisecond():
    pool = LegPool("http://h:1", PoolLimits())
    assert b"x-request-deadline-ms: 1\r\n" in leg_request(pool, b"/", ID, -3.0, b"", b"")
