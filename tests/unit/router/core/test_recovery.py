from dataclasses import replace

import pytest

from router.contract.ids import Epoch, InstanceId, TransferId
from router.contract.instance import Role
from router.contract.ledger import Closed, OpenTicket, Outcome
from router.core.recovery import GIVE_UP_S, Owners, closing, reason_of, whom_to_tell
from tests.support.instances import instance

TICKET = OpenTicket(TransferId("req-1.1"), "a", InstanceId("p0"), Epoch(3), InstanceId("d0"), Epoch(4), -20.0)


def known(name: str, epoch: int, *, takes_back: bool = True, kv: bool = True):
    made = instance(name, Role.BOTH, epoch=epoch, kv=kv)
    return replace(made, kv=replace(made.kv, takes_back=takes_back)) if kv else made


def settled(left_s: dict[str, float]) -> Owners:
    """Someone who has seen leases for longer than one lasts."""
    owners = Owners(10.0, -100.0)
    for at in range(-100, 1):
        owners.see(left_s, float(at))
    return owners


def test_a_router_is_gone_when_its_lease_has_ended():
    assert settled({"a": -0.1, "b": 0.0, "c": 0.1}).gone(0.0) == {"a", "b"}


def test_after_an_absence_of_the_store_everybody_gets_one_whole_lease():
    owners = Owners(10.0, 0.0)
    owners.see({"a": -3.0}, 0.0)
    assert owners.gone(9.9) == frozenset()
    assert owners.gone(10.0) == {"a"}
    owners.lose_sight(12.0)
    owners.see({"a": 5.0, "b": -4.0}, 13.0)
    assert owners.gone(21.9) == frozenset()
    owners.see({"a": 5.0, "b": -4.0}, 18.0)
    owners.see({"a": 5.0, "b": -4.0}, 22.0)
    assert owners.gone(22.0) == {"b"}


def test_who_has_slept_believes_no_ended_lease_for_one_more():
    owners = settled({"a": 5.0})
    owners.see({"a": -1.0}, 6.0)
    assert owners.gone(6.0) == frozenset()
    owners.see({"a": -6.0}, 11.0)
    owners.see({"a": -11.0}, 16.0)
    assert owners.gone(16.0) == {"a"}


def test_a_lease_that_the_store_has_lost_is_not_one_that_has_ended():
    owners = settled({"a": 5.0})
    owners.find({"a", "lost"}, 0.0)
    assert owners.gone(9.9) == frozenset()
    owners.find({"a", "lost"}, 9.9)
    assert owners.gone(10.0) == {"lost"}
    owners.see({"a": 5.0, "lost": 10.0}, 9.9)
    owners.find({"lost"}, 10.0)
    assert owners.gone(15.0) == frozenset(), "it has renewed"
    owners.see({"a": 5.0}, 15.0)
    owners.find({"lost"}, 15.0)
    assert owners.gone(24.0) == frozenset(), "what was missing before does not count"


def test_a_lease_that_comes_back_at_the_last_moment_counts_at_once():
    owners = settled({"a": 5.0})
    owners.find({"late"}, 0.0)
    owners.see({"a": 5.0}, 5.0)
    owners.see({"a": 5.0, "late": 10.0}, 9.9)
    assert owners.gone(10.1) == frozenset()


def test_the_next_look_is_when_the_next_lease_ends():
    assert settled({"a": -1.0, "b": 2.5, "c": 7.0}).next_end_s() == 2.5
    assert settled({"a": -1.0}).next_end_s() == 10.0


def test_both_sides_are_told():
    instances = {InstanceId("p0"): known("p0", 3), InstanceId("d0"): known("d0", 4)}
    assert whom_to_tell(TICKET, instances) == ("http://p0:8000", "http://d0:8000")


@pytest.mark.parametrize(
    "decode",
    [None, known("d0", 5), known("d0", 4, takes_back=False), known("d0", 4, kv=False)],
    ids=["missing", "newer epoch", "cannot be told", "without kv"],
)
def test_an_instance_that_holds_nothing_or_cannot_be_told_is_not(decode):
    instances = {InstanceId("p0"): known("p0", 3)} | ({} if decode is None else {InstanceId("d0"): decode})
    assert whom_to_tell(TICKET, instances) == ("http://p0:8000",)


def test_an_instance_of_which_only_an_older_start_is_known_is_told():
    assert whom_to_tell(replace(TICKET, prefill=None), {InstanceId("d0"): known("d0", 3)}) == ("http://d0:8000",)


def test_one_instance_that_plays_both_sides_is_told_once():
    ticket = replace(TICKET, prefill=InstanceId("d0"), prefill_epoch=Epoch(4))
    assert whom_to_tell(ticket, {InstanceId("d0"): known("d0", 4)}) == ("http://d0:8000",)


def test_the_reason_is_the_owners_end_before_the_tickets():
    late = replace(TICKET, overdue_s=7.0)
    assert (reason_of(late, {"a"}), reason_of(late, {"b"})) == ("owner_gone", "overdue")


def test_a_ticket_is_closed_once_engines_have_been_told_or_it_is_far_too_late():
    assert closing(TICKET, "owner_gone", told=True) == Closed(TICKET.transfer_id, Outcome.ABANDONED, "owner_gone")
    assert closing(replace(TICKET, overdue_s=GIVE_UP_S - 0.1), "owner_gone", told=False) is None
    given_up = closing(replace(TICKET, overdue_s=GIVE_UP_S), "overdue", told=False)
    assert given_up == Closed(TICKET.transfer_id, Outcome.ABANDONED, "overdue, not every engine could be told")


def test_a_decode_that_was_never_chosen_need_not_be_told():
    early = replace(TICKET, decode=None, decode_epoch=Epoch(0))
    instances = {InstanceId("p0"): known("p0", 3), InstanceId("d0"): known("d0", 4)}
    assert whom_to_tell(early, instances) == (instances[InstanceId("p0")].url,)
