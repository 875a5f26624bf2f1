import asyncio
import json
import os

import pytest

from router.cli import story
from router.cli.running import Running, noted
from router.contract.errors import BadSettings, StoreDown
from router.contract.ids import Attempt, RequestId, TransferId
from router.contract.ledger import Closed, Noted, Outcome, StoryLine
from router.contract.rendezvous import JoinEffect, JoinState
from router.store.connection import connect
from router.store.ledger import Ledger

REQUEST = RequestId("req-" + "ab" * 16)


@pytest.fixture
def told(redis_url, namespace):
    """A request whose Story has two lines."""

    async def write():
        redis = connect(redis_url)
        ledger = Ledger(redis, namespace, "router-1")
        ledger.post(Noted(TransferId(f"{REQUEST}.1"), "first_token", "after 12 ms"))
        ledger.post(Closed(TransferId(f"{REQUEST}.1"), Outcome.SERVED))
        await ledger.flush()
        await redis.aclose()

    asyncio.run(write())
    return ["--store", redis_url, "--namespace", namespace]


@pytest.mark.parametrize("asked", [REQUEST, f"{REQUEST}.1"])
def test_a_story_is_printed_in_order(told, capsys, asked):
    assert story.main([asked, *told]) == 0
    head, first, last = capsys.readouterr().out.splitlines()
    assert head == REQUEST
    assert first.split()[1:] == ["+0.000", "s", "1", "router-1", "first_token", "after", "12", "ms"]
    assert last.split()[3:] == ["1", "router-1", "served"]


def test_store_and_namespace_come_from_the_routers_environment(told, capsys, monkeypatch):
    monkeypatch.setenv("TANDEM_STORE", told[1])
    monkeypatch.setenv("TANDEM_NAMESPACE", told[3])
    assert story.main([REQUEST]) == 0


def test_a_story_as_json(told, capsys):
    assert story.main([REQUEST, *told, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["request_id"] == REQUEST
    assert [line["stage"] for line in printed["story"]] == ["first_token", "served"]


def test_an_unknown_request_is_status_1(told, capsys):
    assert story.main(["req-unknown", *told]) == 1
    assert capsys.readouterr().out.startswith("req-unknown: the store knows nothing of it")


def test_moves_and_effects_are_shown():
    line = StoryLine(0.5, Attempt(2), "p-0", "prefilled", "n", JoinState.SEATED, JoinState.MATCHED, (JoinEffect.WRITE,))
    text = story.as_text([line])
    assert text.endswith(
        f"+0.000 s  2  p-0  prefilled  {JoinState.SEATED} -> {JoinState.MATCHED} [{JoinEffect.WRITE}] n"
    )


def test_columns_are_as_wide_as_their_widest_word():
    lines = [StoryLine(1.0, Attempt(1), writer, "s", "note") for writer in ("router", "prefill-0@1795996373909")]
    first, last = story.as_text(lines).splitlines()
    assert first.index("note") == last.index("note")


def test_the_store_of_this_folders_set_up_is_found(told, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TANDEM_STORE", raising=False)
    _, url, *namespace = told
    with pytest.raises(BadSettings, match="No store is known"):
        story.main([REQUEST, *namespace])
    with noted(Running(os.getpid(), "http://x", url)):
        assert story.main([REQUEST, *namespace]) == 0
    monkeypatch.setenv("TANDEM_STORE", url)
    assert story.main([REQUEST, *namespace]) == 0


def test_a_store_that_is_down_is_said(tmp_path):
    with pytest.raises(StoreDown):
        story.main([REQUEST, "--store", f"unix://{tmp_path}/none.sock"])
