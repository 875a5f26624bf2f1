import pytest

from router.contract.shares import Question
from router.core.shares import ask, fair_share, grant, settle, wanted


def test_what_is_in_flight_is_kept_and_less_is_let_in():
    question, allowed = ask(10, used=6, share=8, wants=13, fair=4)
    assert question == Question(total=10, keeps=6, target=4, wants=13)
    assert allowed == 4


def test_a_share_that_grows_grows_with_the_answer_only():
    question, allowed = ask(10, used=3, share=4, wants=7, fair=7)
    assert (question.keeps, allowed) == (4, 4)
    assert settle(question, 6) == 6


@pytest.mark.parametrize(
    ("others", "in_doubt", "granted"),
    [(0, False, 7), (3, False, 7), (5, False, 5), (9, False, 4), (20, False, 4), (0, True, 4)],
)
def test_what_is_granted_fits_beside_the_others_and_what_is_kept_is_a_fact(others, in_doubt, granted):
    assert grant(Question(10, keeps=4, target=7, wants=7), others, in_doubt=in_doubt) == granted


def test_a_replica_asks_for_twice_as_much_once_half_is_gone():
    assert [wanted(used, 10) for used in (0, 4, 5, 10)] == [0, 4, 11, 21]
    assert wanted(0, 0) == 1


def test_modest_wishes_are_fulfilled_first_and_the_rest_is_divided():
    wants = {"a": 1, "b": 50, "c": 50}
    assert [fair_share(31, wants, owner, 0) for owner in wants] == [1, 15, 15]
    assert [fair_share(301, wants, owner, 0) for owner in wants] == [68, 117, 116]
