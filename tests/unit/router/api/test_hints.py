import json

import pytest
from msgspec import Raw

from router.api.hints import Hints
from router.api.intake import read_intake
from router.contract.errors import BadRequest
from router.contract.instance import Mode
from router.core.intake import Endpoint

PUSH, PULL, LOCAL = Mode.PUSH, Mode.PULL, Mode.LOCAL
HINTS = Hints(b"x-session", b"x-mode", {"nick": "org/model"})


def hinted(headers=None, hints=HINTS, **fields):
    intake = read_intake(Endpoint.CHAT, json.dumps({"model": "m"} | fields).encode())
    hints.apply(intake, headers or {})
    return intake


def test_only_what_is_set_is_listened_to():
    assert not Hints().listens
    assert all(hints.listens for hints in (Hints(b"a"), Hints(mode_header=b"a"), Hints(aliases={"a": "b"})))
    deaf = hinted({b"x-session": b"s", b"x-mode": b"pull", b"": b"pull"}, Hints())
    assert (bytes(deaf.session), deaf.allowed) == (b"", None)


def test_only_who_asks_with_1_is_told_of_the_way():
    hints = Hints(explain_header=b"x-explain")
    assert hints.listens
    assert [hinted({b"x-explain": value}, hints).explained for value in (b"1", b"0", b"")] == [True, False, False]
    assert not hinted({}, hints).explained and not hinted({b"": b"1"}, HINTS).explained


def test_the_session_header_comes_before_the_body():
    assert hinted({b"x-session": b"s"}, user="u").session == b"s"
    assert hinted({b"x-session": b""}, user="u").session == Raw(b'"u"')


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (b"pull", {PULL}),
        (b" Local", {LOCAL}),
        (b"push, pull", {PUSH, PULL}),
        (b"!local", {PUSH, PULL}),
        (b"!push,!pull", {LOCAL}),
        (b"push,!push,pull", {PULL}),
    ],
)
def test_the_mode_header_names_what_may_be(value, allowed):
    assert hinted({b"x-mode": value}).allowed == allowed


@pytest.mark.parametrize("value", [b"", b"fast", b"!", b"push,!push", b"!push,!pull,!local", b"\xff"])
def test_a_mode_header_that_names_nothing_is_refused(value):
    with pytest.raises(BadRequest, match="x-mode must name modes"):
        hinted({b"x-mode": value})


def test_what_cannot_be_split_cannot_be_forbidden_local():
    with pytest.raises(BadRequest, match="cannot be split") as caught:
        hinted({b"x-mode": b"push"}, n=2)
    assert caught.value.param == "n"
    assert hinted({b"x-mode": b"local"}, n=2).allowed == {LOCAL}


def test_an_alias_becomes_the_model_and_nothing_else_changes():
    intake = hinted(model="nick", messages=[{"role": "user", "content": "é\u2028"}], x=1.0)
    assert intake.model == "org/model"
    assert json.loads(intake.body) == {
        "model": "org/model",
        "messages": [{"role": "user", "content": "é\u2028"}],
        "x": 1.0,
    }
    assert bytes(intake.prompt) == json.dumps([{"role": "user", "content": "é\u2028"}]).encode()


def test_other_models_keep_their_bodies():
    intake = hinted(model="org/model")
    assert intake.body == b'{"model": "org/model"}'
