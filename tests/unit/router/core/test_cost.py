import pytest

from router.contract.instance import Load
from router.core.burden import Burdens
from router.core.cost import SAMPLE, LeastPrefill, has_room, least_step, predict_prefill_s, predict_step_s
from router.core.fleet import fold
from router.core.roster import Roster
from router.core.weights import weigh_sequences, weigh_tokens
from tests.support.instances import Seen, decode, fleet, intake, roster

PROMPT = intake(body=b"x" * 4 * 99)


def prefill_pick(members, turn=0):
    return LeastPrefill()(members, weigh_tokens, PROMPT, turn)


def step_pick(members, turn=0):
    return least_step(members, weigh_sequences, PROMPT, turn)


def full(name: str, free_blocks: int) -> Seen:
    return Seen(decode(name).instance, Load(running_seqs=1, free_blocks=free_blocks))


@pytest.mark.parametrize("pick", [prefill_pick, step_pick])
def test_equals_are_all_used(pick):
    members = roster(20)
    assert len({pick(members, turn).instance.instance_id for turn in range(200)}) == 20
    assert pick(Roster(members[:1])) is members[0]


def test_prefill_goes_where_least_waits():
    members = roster(3)
    members[0].burden.take(1000)
    members[1].burden.take(10)
    members[2].burden.take(500)
    assert {prefill_pick(members, turn) for turn in range(9)} == {members[1]}


def test_a_faster_prefill_is_worth_a_longer_queue():
    members = roster(2)
    for tokens in range(0, 4000, 20):
        members[0].burden.pace.prefill.add(tokens, tokens / 40_000)
        members[1].burden.pace.prefill.add(tokens, tokens / 4000)
    members[0].burden.take(500)
    assert prefill_pick(members) is members[0]
    assert predict_prefill_s(members[0], 100) == pytest.approx(600 / 40_000, rel=0.01)
    members[0].burden.take(5000)
    assert prefill_pick(members) is members[1]


def test_decode_goes_where_steps_are_short():
    members = roster(2)
    for sequences in range(64):
        members[0].burden.pace.step.add(sequences, 0.005 + sequences * 0.0001)
        members[1].burden.pace.step.add(sequences, 0.020 + sequences * 0.0001)
    for _ in range(30):
        members[0].burden.take(1)
    assert step_pick(members) is members[0]
    assert predict_step_s(members[0]) == pytest.approx(0.0081, rel=0.05)


def test_an_instance_without_room_for_the_prompt_is_avoided():
    members = Roster(fleet(full("d0", 6), full("d1", 7)).members)  # 16 tokens a block, a prompt of 100
    members[1].burden.take(3000)
    members[1].burden.hear(Load(running_seqs=2, free_blocks=7))
    assert not has_room(members[0], 100)
    assert {step_pick(members, turn) for turn in range(8)} == {prefill_pick(members)} == {members[1]}


def test_what_was_sent_since_the_heartbeat_takes_room():
    (member,) = fleet(full("d0", 7)).members
    assert has_room(member, 112)
    member.burden.take(13)
    assert has_room(member, 99)
    assert not has_room(member, 100)
    member.burden.hear(Load(running_seqs=2, free_blocks=6))
    assert has_room(member, 100), "the heartbeat has counted it"


def test_without_a_heartbeat_there_is_room():
    (member,) = fleet(decode("d0")).members
    assert has_room(member, 10**9)


def test_all_are_looked_at_before_one_without_room_is_taken():
    seen = [full(f"d{number:02}", 99 if number == 17 else 0) for number in range(3 * SAMPLE)]
    members = Roster(fleet(*seen).members)
    assert {step_pick(members, turn).instance.instance_id for turn in range(50)} == {"d17"}


def test_one_without_room_is_better_than_none():
    members = Roster(fleet(full("d0", 0), full("d1", 0)).members)
    assert step_pick(members) in members


def test_pace_and_room_survive_a_snapshot():
    burdens = Burdens()
    (before,) = fold([full("d0", 7)], burdens).members
    before.burden.pace.step.add(1, 9.0)
    before.burden.take(50)
    (after,) = fold([full("d0", 7)], burdens).members
    assert predict_step_s(after) == predict_step_s(before)
    assert not has_room(after, 100), "an old heartbeat is no news"


def talk(num_bytes=4096):
    body = b"x" * num_bytes
    return intake(body=body, prompt=body)


def test_what_an_instance_has_computed_before_is_not_waited_for():
    policy, members = LeastPrefill(), roster(4)
    asked = talk()
    holder = policy(members, weigh_tokens, asked, 0)
    assert asked.kept_tokens == 0
    for turn in range(8):
        again = talk(6000)
        assert policy(members, weigh_tokens, again, turn) is holder
        assert again.kept_tokens == (1448 if turn else 1024)
        members[0 if members[0] is not holder else 1].burden.take(1)
    holder.burden.take(1449)
    elsewhere = talk(6000)
    assert policy(members, weigh_tokens, elsewhere, 0) is not holder
    assert elsewhere.kept_tokens == 0


def test_a_holder_without_room_is_none():
    members = Roster(fleet(full("d0", 9999), full("d1", 9999)).members)
    policy = LeastPrefill()
    holder = policy(members, weigh_tokens, talk(), 0)
    seen = [full(name, 0 if name == holder.instance.instance_id else 9999) for name in ("d0", "d1")]
    assert policy(Roster(fleet(*seen).members), weigh_tokens, talk(), 0).instance != holder.instance
