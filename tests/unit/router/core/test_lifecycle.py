import pytest

from router.contract.instance import Mode
from router.core.lifecycle import NODES, START, Client, Edge, Effect, LegState, Stand, step
from tests.support.playbook import Playbook

C, F, X = Client, Effect, Edge


def placed(mode=Mode.PUSH) -> Playbook:
    play = Playbook(mode) >> X.PLACED
    if mode is Mode.PUSH:
        return play << F.SEND_PREFILL << F.SEND_DECODE
    return play << (F.SEND_PREFILL if mode is Mode.PULL else F.SEND_DECODE)


def streaming(mode=Mode.PUSH) -> Playbook:
    if mode is Mode.LOCAL:
        return placed(mode) >> X.DECODE_STREAMING << F.COMMIT
    play = placed(mode) >> X.PREFILL_DONE
    if mode is Mode.PULL:
        play = play << F.SEND_DECODE
    return play >> X.DECODE_STREAMING << F.COMMIT


def test_push_sends_both_legs_at_once_and_serves():
    play = streaming() >> X.DECODE_DONE << F.SERVE << F.CLOSE
    assert play
    assert play.stand == Stand(Mode.PUSH, C.SERVED, LegState.DONE, LegState.DONE, closed=True)


def test_pull_sends_decode_when_prefill_is_done():
    assert placed(Mode.PULL) >> X.PREFILL_DONE << F.SEND_DECODE >> X.DECODE_STREAMING << F.COMMIT


def test_local_has_no_prefill_leg():
    play = streaming(Mode.LOCAL) >> X.DECODE_DONE << F.SERVE << F.CLOSE
    assert play
    assert play.stand.prefill is LegState.IDLE


def test_decode_may_stream_before_prefill_has_answered():
    assert placed() >> X.DECODE_STREAMING << F.COMMIT >> X.PREFILL_DONE >> X.DECODE_DONE << F.SERVE << F.CLOSE


@pytest.mark.parametrize("mode", Mode)
def test_an_answer_that_comes_whole_is_delivered(mode):
    play = placed(mode)
    if mode is Mode.PULL:
        play = play >> X.PREFILL_DONE << F.SEND_DECODE
    play = play >> X.DECODE_WHOLE << F.DELIVER
    if mode is Mode.PUSH:
        play = play << F.LEAVE_PREFILL
    assert play << F.CLOSE


def test_prefill_is_left_to_finish_when_decode_is_first():
    play = placed() >> X.DECODE_STREAMING << F.COMMIT >> X.DECODE_DONE << F.SERVE << F.LEAVE_PREFILL << F.CLOSE
    assert play
    assert play.stand.prefill is LegState.LEFT


def test_prefill_failing_stops_decode_and_is_the_answer():
    assert placed() >> X.PREFILL_FAILED << F.ANSWER << F.CANCEL_DECODE << F.CLOSE


def test_prefill_failing_in_pull_mode_has_no_decode_to_stop():
    assert placed(Mode.PULL) >> X.PREFILL_FAILED << F.ANSWER << F.CLOSE


def test_decode_failing_stops_prefill_and_is_the_answer():
    assert placed() >> X.DECODE_FAILED << F.ANSWER << F.CANCEL_PREFILL << F.CLOSE


def test_prefill_failing_after_decode_streams_changes_nothing():
    play = placed() >> X.DECODE_STREAMING << F.COMMIT >> X.PREFILL_FAILED
    assert play
    assert play >> X.DECODE_DONE << F.SERVE << F.CLOSE


def test_decode_failing_after_it_streams_breaks_the_stream():
    assert streaming() >> X.DECODE_FAILED << F.BREAK << F.CLOSE
    assert placed() >> X.DECODE_STREAMING << F.COMMIT >> X.DECODE_FAILED << F.BREAK << F.CANCEL_PREFILL << F.CLOSE


@pytest.mark.parametrize(("edge", "cancel"), [(X.PREFILL_LOST, F.CANCEL_DECODE), (X.DECODE_LOST, F.CANCEL_PREFILL)])
def test_a_lost_leg_stops_the_other_and_starts_anew(edge, cancel):
    play = placed() >> edge << cancel << F.RETRY
    assert play
    assert play.stand == Stand(Mode.PUSH)
    assert play >> X.PLACED << F.SEND_PREFILL << F.SEND_DECODE


def test_a_retry_that_finds_nobody_is_answered():
    assert placed() >> X.DECODE_LOST << F.CANCEL_PREFILL << F.RETRY >> X.REFUSED << F.ANSWER << F.CLOSE


@pytest.mark.parametrize("edge", [X.PREFILL_LOST, X.DECODE_LOST])
def test_nothing_is_retried_after_the_first_byte(edge):
    assert streaming().refuses(edge), "a retry would repeat what the client has"


@pytest.mark.parametrize("mode", Mode)
def test_a_client_that_leaves_stops_whatever_runs(mode):
    cancels = {
        Mode.PUSH: [F.CANCEL_DECODE, F.CANCEL_PREFILL],
        Mode.PULL: [F.CANCEL_PREFILL],
        Mode.LOCAL: [F.CANCEL_DECODE],
    }
    play = placed(mode) >> X.CLIENT_GONE
    for effect in cancels[mode]:
        play = play << effect
    assert play << F.CLOSE


def test_a_client_that_leaves_in_mid_stream_stops_decode():
    assert streaming() >> X.CLIENT_GONE << F.CANCEL_DECODE << F.CLOSE


def test_time_running_out_is_answered_before_and_breaks_after_the_first_byte():
    assert placed() >> X.TIMED_OUT << F.ANSWER << F.CANCEL_DECODE << F.CANCEL_PREFILL << F.CLOSE
    assert streaming() >> X.TIMED_OUT << F.BREAK << F.CANCEL_DECODE << F.CLOSE


def test_facts_that_cannot_be_have_no_row():
    for edge in (X.PREFILL_DONE, X.DECODE_STREAMING, X.DECODE_DONE, X.DECODE_FAILED):
        assert step(Stand(Mode.PUSH), edge) is None
    assert step(START[Mode.LOCAL].stand, X.PREFILL_FAILED) is None
    assert placed().refuses(X.PLACED), "two attempts at once"


def test_the_closure_agrees_with_the_tables():
    for stand, node in NODES.items():
        for edge in Edge:
            moved, stored = step(stand, edge), node.steps[edge]
            assert (moved is None) is (stored is None)
            if moved is not None:
                assert stored == (NODES[moved[0]], moved[1])


def test_a_stand_reads_as_a_sentence():
    assert str(Stand(Mode.PUSH)) == "push: client waiting, P idle, D idle"
    assert str(Stand(Mode.PULL, C.GONE, LegState.LEFT, LegState.DONE, lost=True, closed=True)) == (
        "pull: client gone, P left, D done lost closed"
    )


def placed_late() -> Playbook:
    return Playbook(Mode.PUSH) >> X.PLACED_LATE << F.SEND_PREFILL


def test_decode_that_is_chosen_late_leaves_when_it_is_due():
    play = placed_late() >> X.DECODE_DUE << F.SEND_DECODE >> X.PREFILL_DONE
    assert play >> X.DECODE_STREAMING << F.COMMIT >> X.DECODE_DONE << F.SERVE << F.CLOSE


def test_prefills_answer_is_the_last_moment_to_choose_decode():
    play = placed_late() >> X.PREFILL_DONE << F.SEND_DECODE
    assert play >> X.DECODE_WHOLE << F.DELIVER << F.CLOSE


@pytest.mark.parametrize(
    ("edge", "effects"),
    [
        (X.PREFILL_FAILED, (F.ANSWER, F.CLOSE)),
        (X.PREFILL_LOST, (F.RETRY,)),
        (X.CLIENT_GONE, (F.CANCEL_PREFILL, F.CLOSE)),
        (X.TIMED_OUT, (F.ANSWER, F.CANCEL_PREFILL, F.CLOSE)),
    ],
)
def test_what_ends_before_decode_is_due_has_no_decode_leg(edge, effects):
    play = placed_late() >> edge
    for effect in effects:
        play = play << effect
    assert play


def test_only_push_chooses_decode_late():
    assert step(Stand(Mode.PULL), X.PLACED_LATE) is None
    assert step(Stand(Mode.LOCAL), X.PLACED_LATE) is None
    assert step(Stand(Mode.PULL, prefill=LegState.SENT), X.DECODE_DUE) is None
    assert step(Stand(Mode.PUSH, prefill=LegState.SENT, decode=LegState.SENT), X.DECODE_DUE) is None
