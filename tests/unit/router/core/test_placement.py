from dataclasses import replace

import pytest

from router.contract.errors import BadRequest, ModelUnknown, NoDecode, NoPair, NoPrefill
from router.contract.instance import Mode
from router.core.placement import CROWDED, Desk, Rules
from router.core.policies import least_loaded, round_robin
from router.core.session import SessionAffinity
from tests.support.instances import Seen, both, decode, fleet, intake, prefill
from tests.support.placements import choose, chosen, mixed, refused


def test_a_pair_is_chosen_up_front():
    assert chosen(choose(fleet(prefill(), decode()))) == ("p0", "d0", Mode.PUSH, "configured")
    assert chosen(choose(fleet(prefill(), decode()), mode=Mode.PULL)) == ("p0", "d0", Mode.PULL, "configured")


def test_decode_is_chosen_among_those_that_prefill_can_feed():
    folded = fleet(prefill("p0", compat="a"), decode("d0", compat="b"), decode("d1", compat="a"))
    for turn in range(8):
        assert chosen(choose(folded, turn=turn))[:2] == ("p0", "d1")


def test_what_no_engine_can_do_is_the_clients_to_change():
    lacking, other = decode("d0", lacks=("n",)), decode("d1")
    folded = fleet(prefill(), lacking, other)
    for turn in range(4):
        assert chosen(choose(folded, intake(whole="n"), turn))[1] == "d1"
        assert chosen(choose(folded, intake(whole="n"), turn, mode=Mode.LOCAL))[1] == "d1"
    assert refused(choose(fleet(prefill(), lacking), intake(whole="n"))) is BadRequest
    assert refused(choose(folded, intake(whole="n"), excluded={"d1"})) is NoDecode
    assert refused(choose(fleet(prefill()), intake(whole="n"))) is NoDecode


def test_where_there_is_one_model_a_tokenizer_need_not_name_it():
    tokenizing = decode("d0", endpoints=("/tokenize",))
    assert chosen(choose(fleet(prefill(), tokenizing), intake("", whole="/tokenize")))[1:] == (
        "d0",
        Mode.LOCAL,
        "/tokenize",
    )
    several = fleet(tokenizing, prefill(), decode("d1", model="x"))
    assert refused(choose(several, intake("", whole="/tokenize"))) is ModelUnknown


@pytest.mark.parametrize(
    ("folded", "error"),
    [
        (fleet(), NoPrefill),
        (fleet(decode(model="other"), prefill(model="other")), ModelUnknown),
        (fleet(decode()), NoPrefill),
        (fleet(prefill()), NoDecode),
        (fleet(prefill(compat="a"), decode(compat="b")), NoPair),
    ],
)
def test_a_refusal_says_what_is_missing(folded, error):
    assert refused(choose(folded)) is error


def test_a_whole_request_needs_decode():
    assert refused(choose(fleet(prefill()), intake(whole="n"))) is NoDecode


def test_the_excluded_are_not_chosen_again():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    for turn in range(8):
        assert chosen(choose(folded, turn=turn, excluded={"p0", "d1"}))[:2] == ("p1", "d0")
    assert refused(choose(folded, excluded={"p0", "p1"})) is NoPrefill
    assert refused(choose(folded, excluded={"d0", "d1"})) is NoDecode
    assert refused(choose(folded, intake(whole="n"), excluded={"d0", "d1"})) is NoDecode


def test_an_instance_is_not_paired_with_itself():
    folded = fleet(both("b0"), prefill("p0", compat="other"))
    assert refused(choose(folded)) is NoPair


def test_prefill_is_weighed_in_prompt_tokens_and_decode_in_sequences():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    by_name = {member.instance.instance_id: member for member in folded.members}
    by_name["p0"].burden.take(1000)
    by_name["d1"].burden.take(1)
    for turn in range(8):
        assert chosen(choose(folded, turn=turn))[:2] == ("p1", "d0")


def test_each_role_has_its_policy():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    pairs = [
        chosen(choose(folded, turn=turn, prefill_policy=round_robin, decode_policy=least_loaded))[:2]
        for turn in range(2)
    ]
    assert [first for first, _ in pairs] == ["p0", "p1"]


def test_ten_slow_prefills_are_spread_evenly():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    counts = {"p0": 0, "p1": 0, "d0": 0, "d1": 0}
    for turn in range(10):
        placement = choose(folded, turn=turn)
        for member in (placement.prefill, placement.decode):
            member.burden.take(10)
            counts[member.instance.instance_id] += 1
    assert counts == {"p0": 5, "p1": 5, "d0": 5, "d1": 5}


def test_of_equals_everybody_meets_everybody():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    assert {chosen(choose(folded, turn=turn))[:2] for turn in range(40)} == {
        (first, second) for first in ("p0", "p1") for second in ("d0", "d1")
    }


def test_a_retry_finds_the_prefill_that_can_still_feed_somebody():
    folded = fleet(
        prefill("p0", compat="a"), decode("d0", compat="a"), prefill("p1", compat="b"), decode("d1", compat="b")
    )
    for turn in range(8):
        assert chosen(choose(folded, turn=turn, excluded={"d0"}))[:2] == ("p1", "d1")


def zoned(seen, zone):
    return Seen(replace(seen.instance, zone=zone))


def zones(near=2, far=2):
    near_, far_ = (
        tuple(zoned(decode(f"{zone}{n}"), zone) for n in range(num)) for zone, num in (("a", near), ("b", far))
    )
    return fleet(zoned(prefill("p0"), "a"), *near_, *far_)


def test_decode_is_taken_from_prefills_zone():
    folded = zones()
    assert {chosen(choose(folded, turn=turn))[1] for turn in range(40)} == {"a0", "a1"}
    assert {chosen(choose(folded, turn=turn, excluded={"a0", "a1"}))[1] for turn in range(40)} == {"b0", "b1"}
    assert {chosen(choose(zones(near=0), turn=turn))[1] for turn in range(40)} == {"b0", "b1"}


def test_a_crowded_zone_sends_across_what_the_other_can_take_more_easily():
    folded = zones(near=1, far=1)
    near, far = folded.pools["m"].solos
    for _ in range(CROWDED):
        assert chosen(choose(folded))[1] == "a0"
        near.burden.take(1)
    assert {chosen(choose(folded, turn=turn))[1] for turn in range(40)} == {"b0"}
    for _ in range(CROWDED // 2 + 1):
        far.burden.take(1)
    assert {chosen(choose(folded, turn=turn))[1] for turn in range(40)} == {"a0"}


def test_a_session_keeps_its_decode_instance_whatever_prefill_would_be_chosen():
    rules = {"decode_policy": SessionAffinity(), "decode_first": True}
    seen = {
        (request := f"s{n}".encode()): {
            chosen(choose(mixed(), intake(session=request), turn, mode=None, **rules))[1] for turn in range(30)
        }
        for n in range(20)
    }
    assert all(len(decodes) == 1 for decodes in seen.values())
    assert {next(iter(decodes)) for decodes in seen.values()} == {"d-push", "d-pull", "d-any"}


def test_decode_first_pairs_with_those_that_can_feed_it_and_are_not_excluded():
    rules = {"decode_policy": SessionAffinity(), "decode_first": True}
    folded = fleet(
        prefill("p0", compat="a"), decode("d0", compat="a"), prefill("p1", compat="b"), decode("d1", compat="b")
    )
    for turn in range(20):
        request = intake(session=b"%d" % turn)
        assert chosen(choose(folded, request, turn, **rules))[:2] in {("p0", "d0"), ("p1", "d1")}
        assert chosen(choose(folded, request, turn, {"p0"}, **rules))[:2] == ("p1", "d1")
        assert refused(choose(folded, request, turn, {"p0", "d1"}, **rules)) is NoDecode


def test_nobody_that_drains_is_chosen_and_those_that_are_both_step_in():
    folded = fleet(prefill("p0", draining=True), prefill("p1"), decode("d0"), decode("d1", draining=True))
    for turn in range(20):
        assert chosen(choose(folded, turn=turn))[:2] == ("p1", "d0")
        assert chosen(choose(folded, intake(whole="n"), turn))[1] == "d0"
    assert refused(choose(fleet(prefill(draining=True), decode()))) is NoPrefill
    assert refused(choose(fleet(prefill(), decode(draining=True)))) is NoDecode
    assert chosen(choose(fleet(prefill(draining=True), both("b0"))))[1:] == ("b0", Mode.LOCAL, "only_both")


def test_o25_only_those_that_have_the_adapter_are_paired():
    def with_adapter(seen):
        return Seen(replace(seen.instance, aliases=("lora",)))

    folded = fleet(prefill("p0"), with_adapter(prefill("p1")), decode("d0"), with_adapter(decode("d1")))
    for turn in range(20):
        assert chosen(choose(folded, intake("lora"), turn))[:2] == ("p1", "d1")
    assert {chosen(choose(folded, turn=turn))[:2] for turn in range(40)} == {
        (first, second) for first in ("p0", "p1") for second in ("d0", "d1")
    }
    lonely = fleet(with_adapter(prefill("p0")), decode("d0"))
    assert refused(choose(lonely, intake("lora"))) is NoDecode
    assert not lonely.pools["lora"].serves and lonely.pools["m"].serves
    assert refused(choose(lonely, intake("other"))) is ModelUnknown


RESPONSES = {"endpoints": ("/v1/responses",)}


def going_on(previous=b'"resp_1"'):
    return intake(whole="/v1/responses", previous=previous)


def test_a_request_that_goes_on_from_an_answer_goes_to_who_holds_it():
    folded = fleet(prefill(), *(decode(f"d{number}", **RESPONSES) for number in range(3)))
    desk = Desk(Rules())
    refusal = desk.choose(folded, going_on(), 1, frozenset())
    assert refused(refusal) is BadRequest and refusal.error.param == "previous_response_id"
    desk.responses.learn(folded.pools["m"].members[1].instance, b'{"id":"resp_1"}', streamed=False)
    for turn in range(6):
        assert chosen(desk.choose(folded, going_on(), turn, frozenset()))[1] == "d1"
    assert refused(desk.choose(folded, going_on(), 1, frozenset({"d1"}))) is NoDecode
    assert chosen(desk.choose(folded, intake(whole="/v1/responses"), 1, frozenset()))[0] is None


def test_where_one_engine_has_responses_it_holds_them():
    folded = fleet(prefill(), decode("d0", **RESPONSES), decode("d1"))
    assert chosen(choose(folded, going_on()))[1] == "d0"


def test_ranks_of_one_server_are_weighed_each_by_itself():
    def rank(number):
        seen = prefill(f"p0#dp{number}")
        kv = replace(seen.instance.kv, dp_rank=number)
        return Seen(replace(seen.instance, url="http://p0:8000", kv=kv, dp_size=2))

    folded = fleet(rank(0), rank(1), decode())
    first, second = folded.pools["m"].pairings[Mode.PUSH].prefills
    assert (first.lines, second.lines) == (b"x-data-parallel-rank: 0\r\n", b"x-data-parallel-rank: 1\r\n")
    first.burden.take(10)
    assert {chosen(choose(folded, turn=turn))[0] for turn in range(20)} == {"p0#dp1"}
