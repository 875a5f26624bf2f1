import msgspec

from router.contract.ids import Attempt, Epoch, InstanceId, RequestId
from router.contract.instance import Mode
from router.contract.ledger import StoryLine
from router.contract.rendezvous import JoinEffect, JoinState, Ticket
from router.store.story import pack_ticket, read_story


def packed(
    at_us: int, posted_s: float, stage: str, *step: str, writer: str = "w", note: object = "note"
) -> list[object]:
    return [at_us, posted_s, 1, writer, stage, note, *(step or ("", "", ""))]


def story(*lines: list[object]) -> tuple[StoryLine, ...]:
    """What is read back of these lines, which were written in this order."""
    fields = {b"#%d" % number: msgspec.msgpack.encode([number, *line]) for number, line in enumerate(lines)}
    return read_story({b"newest": b"1", b"1:state": b"SEATED", **fields})


def test_no_lines_are_no_story() -> None:
    assert read_story({}) == ()
    assert story() == ()


def test_lines_of_several_writers_are_ordered_by_time_and_equal_times_by_writing() -> None:
    lines = story(packed(20, 2.0, "c", writer="x"), packed(10, 1.0, "a", writer="y"), packed(10, 1.5, "b", writer="z"))
    assert [line.stage for line in lines] == ["a", "b", "c"]
    assert [line.at_s for line in lines] == [10e-6, 10e-6, 20e-6]


def test_lines_of_one_writer_keep_their_order_when_the_first_was_long_on_its_way() -> None:
    lines = story(
        packed(30, 1.0, "a"), packed(25, 1.1, "b"), packed(40, 1.2, "c"), packed(31, 9.0, "x", writer="other")
    )
    assert [line.stage for line in lines] == ["a", "b", "x", "c"]


def test_a_ring_that_has_gone_round_is_read_from_its_oldest_line() -> None:
    lines = {b"#%d" % (number % 4): msgspec.msgpack.encode([number, *packed(5, number, "s")]) for number in range(10)}
    raw = [msgspec.msgpack.decode(value)[0] for value in lines.values()]
    assert sorted(raw) == [6, 7, 8, 9]
    assert len(read_story(lines)) == 4


def test_a_line_that_was_sent_twice_is_told_once_with_its_first_step() -> None:
    first = packed(10, 1.0, "Prefilled", "SEATED", "MATCHED", "Write")
    again = packed(13, 1.0, "Prefilled", "MATCHED", "MATCHED", "")
    (line,) = story(first, again)
    assert (line.before, line.after, line.effects) == (JoinState.SEATED, JoinState.MATCHED, (JoinEffect.WRITE,))


def test_equal_lines_of_two_writers_are_two() -> None:
    assert len(story(packed(10, 1.0, "a", writer="x"), packed(10, 1.0, "a", writer="y"))) == 2


def test_several_effects_keep_their_order() -> None:
    (line,) = story(packed(10, 1.0, "WriterFailed", "MATCHED", "VOID", "FreeSeats,FreeKV"))
    assert line.effects == (JoinEffect.FREE_SEATS, JoinEffect.FREE_KV)


def test_a_ticket_is_put_into_words() -> None:
    def words(prefill: InstanceId | None, mode: Mode, decode: str = "d0") -> str:
        named = InstanceId(decode) if decode else None
        ticket = Ticket(RequestId("req-1"), Attempt(1), mode, prefill, Epoch(3), named, Epoch(4), 1.5, "router-a")
        (line,) = story(packed(10, 1.0, "opened", note=pack_ticket(ticket)))
        return line.note

    assert words(InstanceId("p0"), Mode.PUSH) == "push p0@3 -> d0@4, 1.5 s, by router-a"
    assert words(None, Mode.LOCAL) == "local d0@4, 1.5 s, by router-a"
    assert words(InstanceId("p0"), Mode.PUSH, "") == "push p0@3 -> decode to be chosen, 1.5 s, by router-a"


def test_the_course_of_an_attempt_is_put_into_words() -> None:
    def words(code: str, *at_s: float) -> str:
        (line,) = story(packed(10, 1.0, "served", note=(code, "push", "configured", *at_s)))
        return line.note

    assert words("", 0.2, 0.3, 0.4, 1) == (
        "push (configured); sent 200.0 ms, prefill 300.0 ms, first byte 400.0 ms, end 1000.0 ms"
    )
    assert words("no_pair", 0.2, 0.0, 0.0, 0.6) == (
        "no_pair; push (configured); sent 200.0 ms, prefill never, first byte never, end 600.0 ms"
    )
