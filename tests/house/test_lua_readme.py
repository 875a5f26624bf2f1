"""The tables beside the Lua scripts say what the code does."""

import inspect
import re

import pytest

from router.contract.ids import InstanceId, RequestId
from router.store import keys
from tests.support.source_tree import ROOT

LUA = ROOT / "router" / "store" / "lua"
README = (LUA / "README.md").read_text(encoding="utf-8")
PARTS = ("clock", "walk")
"""Files that are put in front of scripts and are none themselves."""


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, cell by cell."""
    rows = README.split(f"## {heading}\n")[1].partition("\n|")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def key_functions() -> dict[str, str]:
    """Every key function of `keys.py` with the pattern that it makes."""
    given: dict[str, object] = {"namespace": "NS", "shard": "N", "name": "NAME"}
    patterns = {}
    for name, function in inspect.getmembers(keys, inspect.isfunction):
        wanted = inspect.signature(function).parameters
        if "namespace" in wanted:
            ids = {"instance_id": InstanceId("ID"), "request_id": RequestId("ID")}
            patterns[name] = function(**{part: {**given, **ids}[part] for part in wanted})
    return patterns


def test_the_key_table_lists_every_key_and_no_other() -> None:
    assert sorted(row[0].strip("`") for row in table("Keys")) == sorted(key_functions().values())


def test_every_key_has_a_type_that_redis_knows_and_a_ttl() -> None:
    for key, kind, meaning, ttl in table("Keys"):
        assert kind in {"string", "hash", "list", "set", "sorted set"}, key
        assert meaning
        assert ttl


def test_the_number_of_shards_is_the_documented_one() -> None:
    assert f"0 to {keys.LEDGER_SHARDS - 1}" in README


def scripts() -> list[str]:
    return sorted(path.stem for path in LUA.glob("*.lua") if path.stem not in PARTS)


def test_the_script_table_lists_every_script_and_no_other() -> None:
    assert sorted(row[0].strip("`") for row in table("Scripts")) == scripts()


@pytest.mark.parametrize("name", scripts())
def test_a_script_names_its_keys_and_arguments_as_the_table_does(name: str) -> None:
    head = " ".join(
        line.lstrip("- ") for line in (LUA / f"{name}.lua").read_text().splitlines() if line.startswith("--")
    )
    match = re.match(r"KEYS: (.*?)\s+ARGV: (.*?)\s+(?:\w+: |returns: )", head)
    assert match is not None, head
    (row,) = [row for row in table("Scripts") if row[0] == f"`{name}`"]
    in_script = (match[1], "" if match[2] == "none" else match[2])
    without_asides = [re.sub(r"\(.*?\)", "", part) for part in (*in_script, row[1], row[2])]
    assert without_asides[:2] == without_asides[2:]
