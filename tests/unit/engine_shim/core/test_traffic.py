from engine_shim.core.traffic import MAX_PEERS, OTHER, Traffic
from router.contract.ids import EngineId


def test_a_peers_copies_add_up_over_its_starts():
    traffic = Traffic()
    traffic.add(EngineId("d@1"), "WRITE", (100, 3), 0.5)
    traffic.add(EngineId("d@2"), "WRITE", (50, 1), 0.25)
    traffic.add(EngineId("d@2"), "READ", (7, 1), 1.0)
    write, read = traffic.flows["d", "WRITE"], traffic.flows["d", "READ"]
    assert (write.done, write.num_bytes, write.num_spans, write.seconds) == (2, 150, 4, 0.75)
    assert (read.done, read.num_bytes) == (1, 7)


def test_a_failed_copy_carries_nothing():
    traffic = Traffic()
    traffic.add(EngineId("d@1"), "WRITE", (100, 3), None)
    flow = traffic.flows["d", "WRITE"]
    assert (flow.done, flow.failed, flow.num_bytes, flow.seconds) == (0, 1, 0, 0.0)


def test_the_peers_of_a_large_fleet_are_counted_together():
    traffic = Traffic()
    for number in range(MAX_PEERS + 5):
        traffic.add(EngineId(f"d-{number}@1"), "WRITE", (1, 1), 1.0)
    assert len(traffic.flows) == MAX_PEERS + 1
    assert traffic.flows[OTHER, "WRITE"].done == 5
    traffic.add(EngineId("d-0@9"), "WRITE", (1, 1), 1.0)
    assert traffic.flows["d-0", "WRITE"].done == 2
