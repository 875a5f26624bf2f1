from __future__ import annotations

from engine_shim.engine.port import Purpose
from engine_shim.engine.reference.block_pool import BlockPool
from engine_shim.engine.reference.pins import Pins


def test_a_pin_outlives_its_sequence_until_it_is_dropped():
    pool = BlockPool(8)
    pins = Pins(pool)
    table = pool.allocate(3)
    pins.put("a", Purpose.HOLD, tuple(table))
    pool.release(table)
    assert "a" in pins
    assert (pool.num_pinned, pool.num_available) == (3, 5)
    assert pins.drop("a")
    assert not pins.drop("a")
    assert (pool.num_pinned, pool.num_available) == (0, 8)


def test_only_seats_without_a_live_sequence_are_in_quarantine():
    pool = BlockPool(8)
    pins = Pins(pool)
    for seq_id, purpose in (("hold", Purpose.HOLD), ("parked", Purpose.RECEIVE), ("gone", Purpose.RECEIVE)):
        pins.put(seq_id, purpose, tuple(pool.allocate(2)))
    shared = pins._pins["gone"].table
    pool.share(shared)
    pins.put("gone too", Purpose.RECEIVE, shared)
    assert pins.num_quarantined({"parked"}) == 2
