import pytest

from router.core import responses as module
from router.core.responses import Responses
from tests.support.instances import decode, fleet

CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1","output":[]}}\n\n'


def pool(*seen):
    return fleet(*seen).pools["m"].solos


def held(responses: Responses, members, previous=b'"resp_1"') -> list[str] | None:
    holding = responses.holding(members, previous)
    return None if holding is None else list(holding.ids)


@pytest.mark.parametrize(
    ("answer", "streamed"),
    [
        (b'{"id":"resp_1","output":[{"id":"resp_2"}]}', False),
        (b'{"metadata":{"id":"resp_2"},"id": "resp_1"}', False),
        (CREATED, True),
        (b": keep-alive\n\n" + CREATED + b'data: {"response":{"id":"resp_2"}}\n\n', True),
        (CREATED[:-2], True),
    ],
)
def test_an_answer_says_who_holds_it(answer, streamed):
    members, responses = pool(decode("d0"), decode("d1")), Responses()
    assert held(responses, members) is None
    responses.learn(members[1].instance, answer, streamed=streamed)
    assert held(responses, members) == ["d1"]
    assert held(responses, members, b'"resp_2"') is None


@pytest.mark.parametrize("answer", [b"", b"{", b'{"id":7}', b"[]", b'{"object":"response"}', b'{"id":"\xff"}'])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_without_a_name_is_held_by_nobody(answer, streamed):
    members, responses = pool(decode("d0"), decode("d1")), Responses()
    responses.learn(members[0].instance, answer if not streamed else b"data: " + answer, streamed=streamed)
    assert held(responses, members) is None


@pytest.mark.parametrize("previous", [b"7", b"{}", b'"\xff"', b'"resp_9"'])
def test_an_id_that_nobody_knows_may_still_be_held_by_the_only_one(previous):
    assert held(Responses(), pool(decode("d0"), decode("d1")), previous) is None
    assert held(Responses(), pool(decode("d0")), b'"resp_9"') == ["d0"]


def test_a_new_start_holds_nothing_of_the_old_one():
    responses = Responses()
    responses.learn(decode("d0", epoch=1).instance, CREATED, streamed=True)
    assert held(responses, pool(decode("d0", epoch=1), decode("d1"))) == ["d0"]
    assert held(responses, pool(decode("d0", epoch=2), decode("d1"))) is None
    assert held(responses, pool(decode("d1"))) is None, "it is gone"


def test_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 2)
    members, responses = pool(decode("d0"), decode("d1")), Responses()
    for number in (1, 2, 1, 3):
        responses.learn(members[0].instance, b'{"id":"resp_%d"}' % number, streamed=False)
    assert [held(responses, members, b'"resp_%d"' % number) for number in (1, 2, 3)] == [["d0"], None, ["d0"]]
