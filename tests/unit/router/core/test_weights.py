from router.contract.instance import Load, Role
from router.core.weights import weigh_sequences, weigh_tokens
from tests.support.instances import Seen, fleet, instance


def test_the_larger_of_own_legs_and_heartbeat_counts():
    busy = Load(running_seqs=2, waiting_seqs=3, queued_prompt_tokens=70)
    (member,) = fleet(Seen(instance("d0", Role.DECODE), busy)).members
    assert (weigh_tokens(member), weigh_sequences(member)) == (70, 5)
    for _ in range(6):
        member.burden.take(20)
    assert (weigh_tokens(member), weigh_sequences(member)) == (120, 6)
