from __future__ import annotations

import pytest

from engine_shim.visible_gpus import VARIABLE, see_only
from router.contract.errors import BadSettings


@pytest.mark.parametrize(
    ("shown", "gpus", "left"),
    [(None, (2, 0), "2,0"), ("4,5,6", (2, 0), "6,4"), ("GPU-aa, GPU-bb", (1,), "GPU-bb")],
)
def test_gpus_are_counted_among_those_that_are_shown(shown: str | None, gpus: tuple[int, ...], left: str) -> None:
    environ = {} if shown is None else {VARIABLE: shown}
    see_only(gpus, environ)
    assert environ == {VARIABLE: left}


@pytest.mark.parametrize("shown", ["4,5", ""])
def test_a_gpu_that_is_not_shown_is_named(shown: str) -> None:
    environ = {VARIABLE: shown}
    with pytest.raises(BadSettings, match="GPU 2"):
        see_only((2,), environ)
    assert environ == {VARIABLE: shown}
