"""The tree is the same everywhere: no path of one machine and no package index stands in it."""

import re

import pytest

from tests.support.source_tree import ROOT, tracked_files

# Written with a gap each, so that this file does not find itself.
HOME_PATHS = re.compile(r"(?<![\w.~}\-])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me/\w+|tmp" + r"/v)/")
INDEXES = re.compile(
    "|".join(["pyp" + r"i\.org", "pythonh" + r"osted\.org", "download\\.pyt" + r"orch\.org", "registry\\.np" + "mjs"])
)


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number} {line.strip()[:100]}")
    return found


def test_no_file_names_a_path_of_one_machine() -> None:
    assert lines_with(HOME_PATHS) == []


def test_no_file_names_a_package_index() -> None:
    assert lines_with(INDEXES) == []


@pytest.mark.parametrize("path", ["/wo" + "rk/main", "'/ro" + "ot/.cache'", "see /ho" + "me/me/x", "(/tmp" + "/v/y)"])
def test_a_path_of_one_machine_is_noticed(path: str) -> None:
    assert HOME_PATHS.search(path)


@pytest.mark.parametrize("path", ["/usr/lib", "a/wo" + "rk/b", "./ro" + "ot/x", "/tmp/store.sock", "/v1/models"])
def test_other_paths_are_not(path: str) -> None:
    assert not HOME_PATHS.search(path)
