"""Whatever the documents name is there: commands with their flags, targets of make, files."""

import ast
import re
from fnmatch import fnmatch
from functools import cache

import pytest

from tests.support.commands import code_of, commands_of, unknown_words
from tests.support.source_tree import ROOT, modules, tracked_files

FILES = [path.relative_to(ROOT).as_posix() for path in tracked_files()]
PAGES = [name for name in FILES if name.endswith(".md")]
PAST = {"CHANGELOG.md", "DECISIONS.md"}
"""What they name was there when it was written."""
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
OURS = re.compile(r"[\w.*/-]+\.(?:py|md|lua|cu|cuh|sh|mjs|tpl)")


def unknown_files(text: str) -> list[str]:
    """Files that are named in backticks and that no path of ours ends with."""
    named = {code.removeprefix("../") for code in code_of(text) if OURS.fullmatch(code)}
    return sorted(name for name in named if not any(fnmatch(f"/{path}", f"*/{name}") for path in FILES))


def unknown_targets(text: str) -> list[str]:
    """What `make` is asked for and cannot make."""
    asked = [re.match(r"make ([a-z][a-z-]*)", code) for code in code_of(text)]
    return [target[1] for target in asked if target and target[1] not in TARGETS]


@cache
def constants() -> dict[str, set[float]]:
    """What the product's constants are, by name."""
    found: dict[str, set[float]] = {}
    for module in modules():
        for node in module.tree.body:
            match node:
                case ast.Assign([ast.Name(name)], ast.Constant(int() | float() as value)):
                    found.setdefault(name, set()).add(float(value))
    return found


def wrong_numbers(text: str) -> list[tuple[str, str]]:
    """Numbers that are followed by the name of a constant which is another one."""
    given = re.findall(r"(\d[\d.]*)(?: [\w ]+)? \(`([A-Z][A-Z_]+)`\)", text)
    return [(number, name) for number, name in given if float(number) not in constants().get(name, ())]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_target_of_a_page_is_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert [wrong for words in commands_of(text) if (wrong := unknown_words(words))] == []
    assert unknown_targets(text) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page not in PAST])
def test_every_file_and_link_of_a_page_is_there(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (ROOT / page).with_name(link).exists()] == []
    assert unknown_files(text) == []


def test_whatever_make_runs_is_there() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    named = re.findall(r"-m ((?:tests|deploy|engine_shim)[\w.]+)", text)
    modules = [f"{name.replace('.', '/')}{end}" for name in named for end in (".py", "/__main__.py")]
    assert len({*modules} & {*FILES}) == len({*named}) > 10
    paths = re.findall(r"(?:tests|deploy|helm|engine_shim|router)/[\w./-]+", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_room_has_its_place_on_the_map() -> None:
    rooms = {
        "/".join(name.split("/")[:2]) for name in FILES if re.match(r"(router|engine_shim)/\w+/__init__\.py", name)
    }
    assert len(rooms) > 15
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert [room for room in sorted(rooms) if f"`{room}`" not in text] == []


def test_every_file_beside_the_rooms_has_its_place_on_the_map() -> None:
    beside = [name for name in FILES if re.match(r"(router|engine_shim)/[a-z]\w+\.py", name)]
    assert len(beside) > 15
    named = {f"*/{code.rpartition('/')[2]}" for code in code_of((ROOT / "ARCHITECTURE.md").read_text("utf-8"))}
    assert [name for name in beside if not any(fnmatch(name, one) for one in named)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page not in PAST])
def test_a_number_that_a_page_gives_a_constant_is_that_constants(page: str) -> None:
    assert wrong_numbers((ROOT / page).read_text("utf-8")) == []


def test_what_is_not_there_is_noticed() -> None:
    text = "`tandem up --nonsense 1`, `tandem dance`, `make nothing`, `house/test_docs.py`, `house/no.py`\n"
    block = "```sh\nA=1 tandem up \\\n  --also-none\n```\n"
    assert [unknown_words(words) for words in commands_of(text + block)] == [["--also-none"], ["--nonsense"], ["dance"]]
    assert unknown_targets(text) == ["nothing"] and unknown_files(text) == ["house/no.py"]
    assert wrong_numbers("every 0.25 s (`FLUSH_EVERY_S`), 7 of them (`FLUSH_EVERY_S`), 1 s (`NO_S`)") == [
        ("7", "FLUSH_EVERY_S"),
        ("1", "NO_S"),
    ]
