from engine_shim.experts.port import Phase, Status


def test_a_group_is_well_until_a_phase_has_failed() -> None:
    assert not Status().failed
    assert Status(epoch=7, phase=Phase.COMBINE, peer=3, expected=5, seen=4).failed
