"""Names say what a thing is. Words that say nothing are not used."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.source_tree import Definition, Module, modules

BANNED = frozenset(
    {"util", "utils", "helper", "helpers", "manager", "handler", "common", "misc", "data", "info", "ctx"}
)
BANNED_PREFIXES = ("do_", "process_")
GIVEN = frozenset({"data_received"})
"""Names that somebody else's interface has chosen: asyncio.Protocol."""
GIVEN_IN = {
    "engine_shim/serve/routes.py": frozenset({"data"}),
    "engine_shim/fabric/gather_cuda.py": frozenset({"data_ptr"}),
    "engine_shim/engine/vllm/memory.py": frozenset({"data_ptr"}),
    "router/api/protocol.py": frozenset({"timeout_keep_alive_handler"}),
}
"""The same for one file: OpenAI's list envelope, what Triton and torch ask of memory, what uvicorn's timer calls."""
SETTLED = frozenset({"data_path", "DATA_PATHS"})
"""The setting `data_path` names the way that the bytes of an answer take, which is what everybody calls it."""


def parts(name: str) -> list[str]:
    """The words of a name in snake_case, CamelCase or CAPITALS."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def speaks(name: str) -> bool:
    """True when the name uses none of the empty words."""
    return not BANNED.intersection(parts(name)) and not name.lstrip("_").startswith(BANNED_PREFIXES)


@pytest.mark.parametrize("name", ["JobManager", "my_utils", "HTTPHandler", "DATA", "do_it", "_process_line", "ctx"])
def test_an_empty_word_is_noticed(name: str) -> None:
    assert not speaks(name)


@pytest.mark.parametrize("name", ["updated", "processes", "metadata", "Context", "informed", "dataset", "doing"])
def test_a_word_that_only_looks_like_one_is_not(name: str) -> None:
    assert speaks(name)


def names(module: Module) -> Iterator[tuple[int, str]]:
    """All names that the module gives, with their line; parameters of GIVEN methods are given too."""
    given = {
        id(argument) for function in module.functions() if function.name in GIVEN for argument in function.args.args
    }
    for node in ast.walk(module.tree):
        if isinstance(node, Definition):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg) and id(node) not in given:
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def test_no_name_uses_an_empty_word() -> None:
    empty = [
        f"{module.path}:{line} {name}"
        for module in modules()
        for line, name in (*names(module), (1, module.path.rpartition("/")[2].removesuffix(".py")))
        if not speaks(name) and name not in GIVEN | SETTLED | GIVEN_IN.get(module.path, frozenset())
    ]
    assert empty == []
