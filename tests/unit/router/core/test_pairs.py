from dataclasses import replace

from router.contract.instance import Mode
from router.core.pairs import near
from tests.support.instances import Seen, both, decode, fleet, names, prefill


def zoned(seen, zone):
    return Seen(replace(seen.instance, zone=zone))


def test_either_is_all_pairs_and_the_same_object_where_modes_agree():
    pool = fleet(prefill(), decode()).pools["m"]
    assert pool.either.decodes_of["p0"] is pool.pairings[Mode.PUSH].decodes_of["p0"]
    pool = fleet(prefill("p0", modes=[Mode.PULL]), decode("d0", modes=[Mode.PULL])).pools["m"]
    assert pool.either is pool.pairings[Mode.PULL]
    pool = fleet(prefill("p0"), prefill("p1", modes=[Mode.PUSH]), decode("d0", modes=[Mode.PULL]), decode("d1")).pools[
        "m"
    ]
    assert names(pool.either.prefills) == ["p0", "p1"]
    assert {name: names(members) for name, members in pool.either.decodes_of.items()} == {
        "p0": ["d0", "d1"],
        "p1": ["d1"],
    }
    assert fleet(prefill()).pools["m"].either is None


def test_feeders_are_those_that_feed():
    pool = fleet(
        prefill("p0", compat="a"), decode("d0", compat="a"), prefill("p1"), decode("d1"), decode("d2", compat="lonely")
    ).pools["m"]
    pairing = pool.pairings[Mode.PUSH]
    assert names(pairing.decodes) == ["d0", "d1"]
    assert {name: names(feeders) for name, feeders in pairing.prefills_of.items()} == {"d0": ["p0"], "d1": ["p1"]}
    by_id = {member.instance.instance_id: member for member in pool.members}
    assert pairing.holds(by_id["p0"], by_id["d0"])
    assert not pairing.holds(by_id["p0"], by_id["d1"]) and not pairing.holds(by_id["d2"], by_id["d0"])


def test_an_instance_does_not_feed_itself():
    pairing = fleet(both("b0"), both("b1")).pools["m"].pairings[Mode.PUSH]
    assert {name: names(fed) for name, fed in pairing.decodes_of.items()} == {"b0": ["b1"], "b1": ["b0"]}


def test_pairs_outside_of_some():
    pairing = (
        fleet(prefill("p0", compat="a"), decode("d0", compat="a"), prefill("p1"), decode("d1"))
        .pools["m"]
        .pairings[Mode.PULL]
    )
    assert names(pairing.prefills_outside(frozenset({"d0"}))) == ["p1"]
    assert names(pairing.decodes_outside(frozenset({"p1"}))) == ["d0"]
    assert not pairing.prefills_outside(frozenset({"p0", "d1"}))


def test_the_near_come_first_and_all_lie_beyond():
    seen = [zoned(prefill(), "a"), zoned(decode("d0"), "a"), zoned(decode("d1"), "b"), zoned(prefill("p1"), "b")]
    pairing = fleet(*seen).pools["m"].either
    assert names(pairing.decodes_of["p0"]) == ["d0"] and names(pairing.decodes_of["p0"].everyone) == ["d0", "d1"]
    assert names(pairing.decodes_of["p1"]) == ["d1"]
    assert names(pairing.decodes) == ["d0", "d1"]
    assert names(pairing.prefills_of["d1"]) == ["p1"] and names(pairing.prefills_of["d1"].everyone) == ["p0", "p1"]
    assert all(pairing.holds(*pair) for pair in [(pairing.prefills[0], far) for far in pairing.decodes])


def test_zones_tell_nothing_where_nobody_or_everybody_is_near_or_no_zone_is_known():
    here = fleet(zoned(prefill(), "a")).members[0]
    nowhere = fleet(prefill()).members[0]
    for member, zones in ((here, "bb"), (here, "aa"), (nowhere, "ab")):
        others = fleet(*(zoned(decode(f"d{number}"), zone) for number, zone in enumerate(zones))).members
        assert names(near(member, others)) == ["d0", "d1"] and near(member, others).beyond is None
