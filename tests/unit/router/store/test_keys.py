from redis.crc import key_slot

from router.contract.ids import InstanceId, RequestId
from router.store import keys


def slots(*names: str) -> set[int]:
    return {key_slot(name.encode()) for name in names}


def test_all_keys_of_the_fleet_live_on_one_node() -> None:
    same = slots(
        keys.fleet_leases("a"),
        keys.fleet_instances("a"),
        keys.fleet_loads("a"),
        keys.fleet_draining("a"),
        keys.fleet_start("a", InstanceId("p0")),
        keys.fleet_start("a", InstanceId("{other}")),
    )
    assert len(same) == 1


def test_all_keys_of_a_shard_live_on_one_node_and_shards_on_several() -> None:
    shards = [
        slots(
            keys.ledger_open("a", shard),
            keys.ledger_owned("a", shard),
            keys.ledger_tickets("a", shard),
            keys.ledger_request("a", shard, RequestId("req-1")),
            keys.ledger_request("a", shard, RequestId("req-{2}")),
        )
        for shard in range(keys.LEDGER_SHARDS)
    ]
    assert [len(shard) for shard in shards] == [1] * keys.LEDGER_SHARDS
    assert len(set.union(*shards)) == keys.LEDGER_SHARDS


def test_a_request_has_the_same_shard_in_every_process() -> None:
    # Fixed values: what one release has written, the next must find.
    assert [keys.ledger_shard(RequestId(f"req-{number}")) for number in range(3)] == [3, 1, 3]
    assert {keys.ledger_shard(RequestId(f"req-{number}")) for number in range(64)} == set(range(keys.LEDGER_SHARDS))


def test_namespaces_do_not_meet() -> None:
    assert keys.fleet_leases("a") != keys.fleet_leases("b")
    assert keys.ledger_open("a", 0) != keys.ledger_open("b", 0)
