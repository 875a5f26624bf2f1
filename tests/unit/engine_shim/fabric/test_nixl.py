from types import SimpleNamespace

import pytest

from engine_shim.fabric import nixl
from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import CopyState
from router.contract.errors import DeploymentError
from router.contract.kv import Region


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("DONE", CopyState.DONE),
        ("PROC", CopyState.BUSY),
        ("ERR", CopyState.FAILED),
        ("CANCELED", CopyState.FAILED),
        ("TIMEOUT", CopyState.FAILED),
        ("99", CopyState.FAILED),
        ("", CopyState.FAILED),
    ],
)
def test_e11_only_done_is_success_and_what_is_unknown_is_a_failure(word: str, state: CopyState) -> None:
    assert NixlFabric._state(word) is state


class NixlNotFoundError(Exception):
    pass


@pytest.mark.parametrize(
    ("broken", "words"),
    [("agent", "cannot start its backend LIBFABRIC"), ("register", "cannot register 4 MiB of cpu memory .* memlock")],
)
def test_g5_g15_what_nixl_cannot_begin_is_one_sentence_that_says_where_to_look(monkeypatch, broken, words) -> None:
    def fail(*_: object) -> None:
        raise NixlNotFoundError

    agent = SimpleNamespace(backends={"LIBFABRIC": 1}, register_memory=fail)
    api = SimpleNamespace(
        nixl_agent_config=lambda **_: None, nixl_agent=fail if broken == "agent" else lambda *_: agent
    )
    monkeypatch.setattr(nixl, "_load_nixl", lambda: (api, SimpleNamespace(nixlNotFoundError=NixlNotFoundError)))
    with pytest.raises(DeploymentError, match=words):
        NixlFabric("p@1", Region(0, 4 << 20, "cpu"), "LIBFABRIC")
