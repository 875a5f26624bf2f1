import json

import pytest

from router.contract.instance import Mode
from router.discovery.vllm_answers import read_gauges, read_identity, read_names, read_version

METRICS = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a\\"b}"} 2.0
vllm:num_requests_running{engine="1",model_name="a\\"b}"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="64",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="128",cache_dtype="fp8",engine="1",num_gpu_blocks="None"} 1.0
process_start_time_seconds 1.76e+09
"""


def test_gauges_are_read_for_each_rank():
    gauges = read_gauges(METRICS)
    assert gauges.started_unix_s == 1.76e9
    zero, one = gauges.ranks[0], gauges.ranks[1]
    assert (zero.load.running_seqs, zero.load.waiting_seqs, zero.load.free_blocks) == (2, 5, 48)
    assert (zero.block_tokens, zero.cache_dtype) == (128, "auto")
    assert (one.load.running_seqs, one.load.free_blocks, one.cache_dtype) == (1, 0, "fp8")


@pytest.mark.parametrize(
    "text", [b"", b"\xff\x00", b'vllm:num_requests_running{engine="x"} 1\nprocess_start_time_seconds ?']
)
def test_metrics_that_say_nothing_say_nothing(text):
    assert read_gauges(text).ranks == {} and read_gauges(text).started_unix_s == 0.0


def test_values_that_are_no_numbers_count_as_none():
    gauges = read_gauges(b'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_waiting{engine="0"} x\n')
    assert (gauges.ranks[0].load.running_seqs, gauges.ranks[0].load.waiting_seqs) == (0, 0)


def test_names_are_the_first_base_model_and_everything_else():
    cards = [
        {"id": "fr", "parent": "m", "root": "/l"},
        {"id": "m", "parent": None, "root": "/w", "max_model_len": 9},
        {"id": "m2", "root": "/w", "max_model_len": 9, "unknown": {}},
    ]
    names = read_names(json.dumps({"data": cards}).encode())
    assert (names.model, names.aliases, names.root, names.max_context_tokens) == ("m", ("fr", "m2"), "/w", 9)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"data":[]}', b'{"data":[{"id":""}]}', b'{"data":[{"id":"l","parent":"m"}]}']
)
def test_an_answer_without_a_model_names_none(body):
    assert read_names(body) is None


def test_versions():
    assert (read_version(b'{"version":"0.33.0"}'), read_version(b"x")) == ("0.33.0", "")


PARAMS = {
    "remote_engine_id": "e_dp1",
    "remote_host": "10.0.0.1",
    "remote_port": 5601,
    "tp_size": 2,
    "pp_size": 4,
    "transfer_mode": "push",
    "remote_block_ids": [[1]],
}


def told(**changes):
    return json.dumps({"id": "x", "kv_transfer_params": PARAMS | changes}).encode()


def test_an_identity_is_what_the_answer_says():
    identity = read_identity(told(), 1)
    assert (identity.engine_id, identity.host, identity.port) == ("e_dp1", "10.0.0.1", 5601)
    assert (identity.tp_size, identity.pp_size, identity.dp_rank, identity.mode) == (2, 4, 1, Mode.PUSH)
    assert read_identity(told(transfer_mode="pull"), 0).mode is Mode.PULL


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"kv_transfer_params":null}',
        told(remote_engine_id=""),
        told(remote_engine_id=None),
        told(remote_host=""),
        told(remote_port=0),
        told(remote_port=70000),
        told(remote_port="5600"),
        told(tp_size=0),
        told(pp_size=0),
    ],
)
def test_half_an_identity_is_none(body):
    assert read_identity(body, 0) is None
