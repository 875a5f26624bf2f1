from dataclasses import replace

import pytest

from router.contract.instance import Load, Mode, Role
from router.core.burden import Burdens
from router.core.fleet import EMPTY, fold
from tests.support.instances import Seen, both, decode, fleet, instance, names, prefill


def test_nobody_serves_nothing():
    assert not EMPTY.serves
    assert EMPTY.members == ()


def test_a_pair_serves_its_model():
    folded = fleet(prefill(), decode())
    pool = folded.pools["m"]
    assert folded.serves and pool.serves
    assert names(pool.pairings[Mode.PUSH].prefills) == ["p0"]
    assert names(pool.pairings[Mode.PUSH].decodes_of["p0"]) == ["d0"]
    assert names(pool.solos) == ["d0"]
    assert names(folded.members) == ["d0", "p0"]


@pytest.mark.parametrize("seen", [[prefill()], [decode()], []])
def test_half_a_pair_serves_nothing(seen):
    assert not fleet(*seen).serves


def test_one_instance_that_is_both_serves_without_a_pairing():
    pool = fleet(both()).pools["m"]
    assert pool.serves and pool.only_both
    assert not pool.pairings


def test_two_that_are_both_need_no_pairing_either():
    pool = fleet(both("b0"), both("b1")).pools["m"]
    assert pool.only_both and pool.serves


def test_one_that_is_both_steps_in_for_the_role_that_nobody_has():
    pool = fleet(prefill(), both()).pools["m"]
    assert not pool.only_both
    assert names(pool.pairings[Mode.PUSH].decodes_of["p0"]) == ["b0"]
    pool = fleet(decode(), both()).pools["m"]
    assert names(pool.pairings[Mode.PUSH].prefills) == ["b0"]


def test_dedicated_instances_come_before_those_that_are_both():
    pool = fleet(prefill(), decode(), both()).pools["m"]
    assert names(pool.pairings[Mode.PUSH].prefills) == ["p0"]
    assert names(pool.pairings[Mode.PUSH].decodes_of["p0"]) == ["d0"]


def test_only_compatible_instances_are_paired():
    pool = fleet(prefill("p0", compat="a"), prefill("p1", compat="b"), decode("d0", compat="b")).pools["m"]
    assert names(pool.pairings[Mode.PUSH].prefills) == ["p1"]
    assert fleet(prefill(compat="a"), decode(compat="b")).pools["m"].pairings == {}


def test_a_mode_needs_both_sides():
    pool = fleet(prefill(modes=(Mode.PULL,)), decode()).pools["m"]
    assert set(pool.pairings) == {Mode.PULL}
    pool = fleet(prefill(), decode(modes=(Mode.PUSH,))).pools["m"]
    assert set(pool.pairings) == {Mode.PUSH}


def test_an_engine_that_hands_nothing_over_is_in_no_pairing():
    assert fleet(prefill(kv=False), decode()).pools["m"].pairings == {}
    assert fleet(prefill(), decode(kv=False)).pools["m"].pairings == {}


def test_draining_instances_get_nothing_new_but_stay_known():
    folded = fleet(prefill(draining=True), decode(), prefill("p1"))
    assert names(folded.pools["m"].pairings[Mode.PUSH].prefills) == ["p1"]
    assert "p0" in names(folded.members)
    assert not fleet(both(draining=True)).serves


def test_lapsed_leases_are_left_out():
    lapsed = Seen(instance("p0", Role.PREFILL), lease_left_s=0.0)
    assert names(fleet(lapsed, decode()).members) == ["d0"]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_newest_start_of_an_instance_counts(order):
    folded = fleet(*(prefill(epoch=epoch) for epoch in order))
    assert [member.instance.epoch for member in folded.members] == [2]


def test_models_are_apart_and_the_smallest_context_counts():
    folded = fleet(prefill(model="a", context=100), decode(model="a", context=50), decode("d1", model="b"))
    assert folded.pools["a"].max_context_tokens == 50
    assert fleet(prefill(context=0), decode(context=50)).pools["m"].max_context_tokens == 50
    assert fleet(prefill(context=0), decode(context=0)).pools["m"].max_context_tokens == 0
    assert folded.pools["a"].serves and not folded.pools["b"].serves


def test_members_keep_their_burden_over_snapshots():
    burdens = Burdens()
    before = fold([prefill()], burdens).members[0]
    before.burden.take(10)
    after = fold([Seen(prefill().instance, Load(running_seqs=3))], burdens).members[0]
    assert after.burden is before.burden
    assert after.load.running_seqs == 3


def test_room_is_what_the_last_heartbeat_left():
    folded = fleet(
        Seen(prefill().instance, Load(free_blocks=3, running_seqs=1)),
        Seen(decode("d0").instance, Load(held_blocks=8)),
        decode("d1"),
        Seen(decode("d2", kv=False).instance, Load(free_blocks=3)),
    )
    rooms = {member.instance.instance_id: member.room_tokens for member in folded.members}
    assert rooms == {"p0": 3 * 16, "d0": 0, "d1": None, "d2": None}


def test_an_instance_is_in_the_pool_of_each_of_its_names_and_counted_once():
    p0, d0 = prefill("p0"), decode("d0")
    p0 = replace(p0, instance=replace(p0.instance, aliases=("a", "b")))
    d0 = replace(d0, instance=replace(d0.instance, aliases=("a",)))
    folded = fleet(p0, d0)
    assert [name for name, pool in folded.pools.items() if pool.serves] == ["m", "a"]
    assert names(folded.members) == ["d0", "p0"]
    assert [pool.owner for pool in folded.pools.values()] == ["m", "m", "m"]


def test_only_ranks_of_a_server_with_several_are_named_in_headers():
    one = prefill("p0")
    (alone,) = fleet(one).members
    assert alone.lines == b""
    ranked = replace(one.instance, dp_size=2, kv=replace(one.instance.kv, dp_rank=1))
    (member,) = fleet(replace(one, instance=ranked)).members
    assert member.lines == b"x-data-parallel-rank: 1\r\n"


def test_what_two_sources_say_of_one_start_adds_up():
    stored = prefill("p0", aliases=("a",), endpoints=("/v1/x",), lacks=("n",), zone="z")
    stored = replace(stored, load=Load(running_seqs=3))
    listed = prefill("p0", aliases=("b",), draining=True, lacks=("echo",), labels=(("gpu", "h200"),))
    listed = replace(listed, instance=replace(listed.instance, url="http://listed:1"))
    for first, second in ((stored, listed), (listed, stored)):
        folded = fleet(first, second, decode())
        member = next(one for one in folded.members if one.instance.instance_id == "p0")
        seen = member.instance
        assert (seen.draining, seen.zone, seen.labels) == (True, "z", (("gpu", "h200"),))
        assert (set(seen.aliases), set(seen.lacks), seen.endpoints) == ({"a", "b"}, {"n", "echo"}, ("/v1/x",))
        assert seen.url == second.instance.url, "the list, which comes last, says where it is"
        assert member.load.running_seqs == 3, "heartbeats come from one of them"
        assert not folded.serves
