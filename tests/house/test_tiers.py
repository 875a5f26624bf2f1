"""The tests are where tests/README.md says, and unit tests stand where their modules stand."""

import re

from tests.support.source_tree import ROOT

TESTS = ROOT / "tests"
README = (TESTS / "README.md").read_text(encoding="utf-8")
NO_TIER = {"support", "__pycache__"}


def test_every_folder_of_tests_has_its_row() -> None:
    documented = set(re.findall(r"^\| `(\w+)/", README, re.MULTILINE))
    folders = {path.name for path in TESTS.iterdir() if path.is_dir()} - NO_TIER
    assert folders <= documented


def test_every_test_lies_in_a_tier() -> None:
    assert [path.name for path in TESTS.glob("test_*.py")] == []


def test_every_capability_is_documented() -> None:
    from tests.support.probes import PROBES

    documented = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert documented == set(PROBES)


def test_every_unit_test_stands_where_its_module_stands() -> None:
    unit = TESTS / "unit"
    lost = [
        path.relative_to(TESTS).as_posix()
        for path in unit.rglob("test_*.py")
        if not (ROOT / path.relative_to(unit).with_name(path.name.removeprefix("test_"))).exists()
        and not (ROOT / path.relative_to(unit).parent / path.stem.removeprefix("test_")).is_dir()
    ]
    assert lost == []
