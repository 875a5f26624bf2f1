import msgspec

from router.contract.rendezvous import JoinEffect, JoinState
from router.store.story import read_story


def packed(at_us: int, posted_s: float, stage: str, *step: str, writer: str = "w") -> bytes:
    return msgspec.msgpack.encode((at_us, posted_s, 1, writer, stage, "note", *(step or ("", "", ""))))


def test_no_lines_are_no_story() -> None:
    assert read_story([]) == ()


def test_lines_of_several_writers_are_ordered_by_time_and_equal_times_by_writing() -> None:
    raw = [packed(20, 2.0, "c", writer="x"), packed(10, 1.0, "a", writer="y"), packed(10, 1.5, "b", writer="z")]
    assert [line.stage for line in read_story(raw)] == ["a", "b", "c"]
    assert [line.at_s for line in read_story(raw)] == [10e-6, 10e-6, 20e-6]


def test_lines_of_one_writer_keep_their_order_when_the_first_was_long_on_its_way() -> None:
    raw = [packed(30, 1.0, "a"), packed(25, 1.1, "b"), packed(40, 1.2, "c"), packed(31, 9.0, "x", writer="other")]
    assert [line.stage for line in read_story(raw)] == ["a", "b", "x", "c"]


def test_a_line_that_was_sent_twice_is_told_once_with_its_first_step() -> None:
    first = packed(10, 1.0, "Prefilled", "SEATED", "MATCHED", "Write")
    again = packed(13, 1.0, "Prefilled", "MATCHED", "MATCHED", "")
    (line,) = read_story([first, again])
    assert (line.before, line.after, line.effects) == (JoinState.SEATED, JoinState.MATCHED, (JoinEffect.WRITE,))


def test_equal_lines_of_two_writers_are_two() -> None:
    assert len(read_story([packed(10, 1.0, "a", writer="x"), packed(10, 1.0, "a", writer="y")])) == 2


def test_several_effects_keep_their_order() -> None:
    (line,) = read_story([packed(10, 1.0, "WriterFailed", "MATCHED", "VOID", "FreeSeats,FreeKV")])
    assert line.effects == (JoinEffect.FREE_SEATS, JoinEffect.FREE_KV)
