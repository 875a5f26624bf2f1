import os

import pytest

from router.cli.setup import EngineChoice, SetUp, engine_programs, gpus_of, router_program
from router.contract.instance import Mode


def flags_of(program):
    words = program.argv[3:]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_engines_are_named_and_told_apart_by_role():
    choice = EngineChoice("m.gguf", block_tokens_prefill=8, block_tokens_decode=32, kv_bytes=1000, threads=3)
    programs = engine_programs(SetUp(choice, prefill=2, decode=1, both=1), "redis://s")
    assert [program.name for program in programs] == ["prefill-0", "prefill-1", "decode-0", "both-0"]
    flags = [flags_of(program) for program in programs]
    assert [each["--role"] for each in flags] == ["prefill", "prefill", "decode", "both"]
    assert [each["--block-tokens"] for each in flags] == ["8", "8", "32", "32"]
    assert {each["--instance-id"] for each in flags} == {program.name for program in programs}
    for each in flags:
        assert (each["--store"], each["--model"], each["--threads"], each["--kv-bytes"]) == (
            "redis://s",
            "m.gguf",
            "3",
            "1000",
        )


def test_engines_are_told_not_to_push_progressively_where_they_shall_not():
    for progressive in (True, False):
        (program, _) = engine_programs(SetUp(EngineChoice(progressive=progressive)), "redis://s")
        assert ("--no-progressive" in program.argv) is not progressive


def test_what_is_not_chosen_is_left_to_the_engine():
    (program, _) = engine_programs(SetUp(), "redis://s")
    unset = {"--block-tokens", "--kv-bytes", "--model-name", "--ep", "--expert-transport", "--devices"}
    assert not unset & set(flags_of(program))


def test_engines_are_told_how_their_expert_ranks_meet_and_on_which_gpus():
    choice = EngineChoice(device="cuda", ep=2, devices=(0, 1, 2, 5), expert_transport="nvlink")
    flags = [flags_of(program) for program in engine_programs(SetUp(choice, prefill=1, decode=2), "s")]
    assert [each["--devices"] for each in flags] == ["0,1", "2,5", "0,1"]
    assert {(each["--ep"], each["--expert-transport"]) for each in flags} == {("2", "nvlink")}


@pytest.mark.parametrize(
    ("devices", "ep", "dealt"),
    [
        ((), 4, [(), ()]),
        ((3,), 2, [(3,), (3,)]),
        ((0, 1), None, [(0,), (1,)]),
        ((0, 1, 2, 3), 4, [(0, 1, 2, 3), (0, 1, 2, 3)]),
        ((0, 1, 2), 2, [(0, 1), (2, 0)]),
        ((0, 1, 2), 4, [(0, 1, 2), (1, 2, 0)]),
    ],
)
def test_gpus_are_dealt_to_engines_in_turn(devices, ep, dealt):
    choice = EngineChoice(devices=devices, ep=ep)
    assert [gpus_of(choice, number) for number in range(2)] == dealt


@pytest.mark.parametrize(
    ("setup", "fabric"),
    [(SetUp(), "nixl"), (SetUp(mode=Mode.LOCAL), "nixl"), (SetUp(prefill=0, decode=0, both=1), "none")],
)
def test_only_engines_that_exchange_kv_get_a_fabric(setup, fabric):
    assert {flags_of(program)["--fabric"] for program in engine_programs(setup, "s")} == {fabric}


def test_the_router_is_told_its_address_store_and_mode():
    flags = flags_of(router_program(SetUp(host="h", port=9, mode=Mode.PULL, namespace="n"), "redis://s"))
    assert flags == {"--host": "h", "--port": "9", "--store": "redis://s", "--mode": "pull", "--namespace": "n"}


def test_router_and_engines_of_a_set_up_share_a_key_that_no_other_has(monkeypatch):
    monkeypatch.delenv("TANDEM_DEPLOYMENT_KEY", raising=False)
    setup = SetUp()
    programs = (*engine_programs(setup, "s"), router_program(setup, "s"))
    (key,) = {program.env["TANDEM_DEPLOYMENT_KEY"] for program in programs}
    assert len(key) == 64
    assert SetUp().deployment_key != key
    assert key not in repr(setup)
    assert not any(key in word for program in programs for word in program.argv)
    monkeypatch.setenv("TANDEM_DEPLOYMENT_KEY", "the one that is given")
    assert SetUp().deployment_key == "the one that is given"


def test_cores_are_shared_evenly_and_each_engine_gets_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert SetUp(prefill=1, decode=2).threads_per_engine == 2
    assert SetUp(prefill=8, decode=8).threads_per_engine == 1
    assert SetUp(EngineChoice(threads=5)).threads_per_engine == 5


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:8000"), ("0.0.0.0", "http://127.0.0.1:8000"), ("::", "http://[::1]:8000")],
)
def test_the_url_is_one_that_this_machine_can_ask(host, url):
    assert SetUp(host=host).url == url
