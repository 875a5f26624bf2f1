"""The tests are where tests/README.md says, and unit tests stand where their modules stand."""

import re

from tests.support.source_tree import ROOT

TESTS = ROOT / "tests"
README = (TESTS / "README.md").read_text(encoding="utf-8")
NO_TIER = {"support", "__pycache__"}


def test_every_folder_of_tests_has_its_row_and_every_row_its_folder() -> None:
    documented = set(re.findall(r"^\| `(\w+)/", README, re.MULTILINE))
    folders = {path.name for path in TESTS.iterdir() if path.is_dir()} - NO_TIER
    assert folders == documented


def test_every_test_lies_in_a_tier() -> None:
    assert [path.name for path in TESTS.glob("test_*.py")] == []


def test_every_capability_is_documented() -> None:
    from tests.support.probes import PROBES

    documented = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert documented == set(PROBES)


def modules_of(test: str) -> list[str]:
    """What `test` (a file's stem) may be of: test_x_y is of x_y, or one of several files of x."""
    words = test.removeprefix("test_").split("_")
    return ["_".join(words[:size]) for size in range(len(words), 0, -1)]


def test_every_unit_test_stands_where_its_module_stands() -> None:
    unit = TESTS / "unit"
    lost = []
    for path in unit.rglob("test_*.py"):
        room = ROOT / path.relative_to(unit).parent
        there = [name for name in modules_of(path.stem) if (room / f"{name}.py").exists() or (room / name).is_dir()]
        if not there:
            lost.append(path.relative_to(TESTS).as_posix())
    assert lost == []
