"""FateDesk: silence is no proof of death, and the dead keep their access until it has settled."""

import pytest

from engine_shim.core.fates import AccessEnded, Address, Call, CallPeer, Fate, FateClocks, FateDesk, PeerDied
from router.contract.ids import EngineId

P, NEXT = EngineId("p@5"), EngineId("p@6")
HOME = Address("10.0.0.1", 7000)


@pytest.fixture
def desk() -> FateDesk:
    desk = FateDesk(FateClocks(call_every_s=1.0, doubt_every_s=5.0, settle_for_s=1.0))
    assert desk.on_met(P, HOME)
    return desk


def test_a_lost_peer_is_called_at_once_and_then_every_second_until_it_answers(desk: FateDesk) -> None:
    assert desk.on_lost(P, 10.0) == [CallPeer(P, HOME)]
    assert desk.on_lost(P, 10.1) == []
    assert desk.on_tick(12.0) == [], "one call is under way"
    assert desk.on_called(P, Call.SILENT) == []
    assert desk.on_tick(12.6) == [CallPeer(P, HOME)]
    assert desk.fate_of(P) is Fate.LOST
    assert desk.on_called(P, Call.ANSWERED) == []
    assert desk.fate_of(P) is Fate.MET
    assert desk.on_tick(20.0) == []


def test_silence_is_no_proof_however_long(desk: FateDesk) -> None:
    desk.on_lost(P, 0.0)
    for now in range(1, 10_000):
        desk.on_called(P, Call.SILENT)
        assert not any(isinstance(effect, PeerDied | AccessEnded) for effect in desk.on_tick(float(now)))
    assert desk.with_fate(Fate.LOST) == [P]


@pytest.mark.parametrize("call", [Call.REFUSED, Call.ANOTHER])
def test_proof_of_death_is_told_once_and_access_ends_when_it_has_settled(desk: FateDesk, call: Call) -> None:
    desk.on_lost(P, 10.0)
    assert desk.on_called(P, call) == [PeerDied(P, f"call_{call}")]
    assert desk.on_death(P, "left") == []
    told = [now / 4 for now in range(41, 60) if desk.on_tick(now / 4) == [AccessEnded(P)]]
    assert told == [11.25], "1 s after the first tick that saw it dead, once"
    assert desk.fate_of(P) is Fate.GONE


def test_time_in_which_nobody_polled_settles_nothing(desk: FateDesk) -> None:
    desk.on_tick(10.0)
    desk.on_death(P, "left")
    assert desk.on_tick(10.2) == []
    assert desk.on_tick(999.0) == [], "the process had been stopped"
    assert desk.fate_of(P) is Fate.DEAD
    assert desk.on_tick(999.5) == [AccessEnded(P)]


def test_a_dead_engine_id_never_comes_back_but_its_successor_is_welcome(desk: FateDesk) -> None:
    desk.on_death(P, "left")
    assert not desk.on_met(P, HOME)
    for now in range(20):
        desk.on_tick(now / 4)
    assert desk.fate_of(P) is Fate.GONE
    assert not desk.on_met(P, HOME)
    assert not desk.on_met(EngineId("p@4"), HOME), "an earlier start is gone as well"
    assert desk.on_met(NEXT, HOME)
    assert desk.fate_of(NEXT) is Fate.MET


def test_a_doubted_peer_is_called_now_and_then_and_stays_met(desk: FateDesk) -> None:
    assert desk.on_doubted(P, 100.0) == [CallPeer(P, HOME)]
    assert desk.on_doubted(P, 101.0) == []
    desk.on_called(P, Call.SILENT)
    assert desk.on_doubted(P, 104.0) == []
    assert desk.on_doubted(P, 105.0) == [CallPeer(P, HOME)]
    assert desk.fate_of(P) is Fate.MET
    assert desk.on_called(P, Call.REFUSED) == [PeerDied(P, "call_refused")]


def test_strangers_change_nothing(desk: FateDesk) -> None:
    stranger = EngineId("somebody else")
    assert desk.on_lost(stranger, 1.0) == []
    assert desk.on_doubted(stranger, 1.0) == []
    assert desk.on_called(stranger, Call.REFUSED) == []
    assert desk.on_death(stranger, "fenced") == []
    assert desk.fate_of(stranger) is None
