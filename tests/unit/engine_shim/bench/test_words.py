from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from engine_shim.bench.expert_steps import Routing
from engine_shim.bench.words import names, new_file, number, numbers


def test_words_become_what_they_say(tmp_path: Path) -> None:
    assert number("7") == 7
    assert numbers("1, 8,32") == [1, 8, 32]
    assert names(Routing)("hot, zipf") == [Routing.HOT, Routing.ZIPF]
    assert new_file(str(tmp_path / "out.json")) == tmp_path / "out.json"


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (number, "0", "'0' is no number from 1 up"),
        (number, "many", "'many' is no number"),
        (numbers, "1,,2", "'' is no number"),
        (numbers, "1,-1", "'-1' is no number"),
        (names(Routing), "hot,cold", "'hot,cold' must be of uniform, zipf, hot, by commas"),
        (new_file, "/nowhere/out.json", "'/nowhere/out.json' is no file in a folder that exists"),
        (new_file, "/", "'/' is no file"),
    ],
)
def test_words_that_say_nothing_are_refused(parse: Callable[[str], object], text: str, words: str) -> None:
    with pytest.raises(ArgumentTypeError, match=words):
        parse(text)
