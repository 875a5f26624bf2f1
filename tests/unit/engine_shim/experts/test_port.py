from engine_shim.experts.port import Phase, Status, unpack_status


def test_a_status_is_one_word() -> None:
    status = Status(epoch=7, phase=Phase.COMBINE, peer=3, expected=5, seen=4)
    assert unpack_status(status.pack()) == status
    assert status.failed


def test_a_well_group_is_the_word_zero() -> None:
    assert Status().pack() == 0
    assert not unpack_status(0).failed


def test_many_ranks_and_late_epochs_fit() -> None:
    word = Status(epoch=2**32 - 1, phase=Phase.DISPATCH, peer=4095, expected=300, seen=256).pack()
    assert word < 2**64
    assert unpack_status(word) == Status(2**32 - 1, Phase.DISPATCH, 4095, 255, 255)
