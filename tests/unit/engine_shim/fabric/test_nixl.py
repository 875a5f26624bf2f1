import pytest

from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import CopyState


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
