"""Every public name says what is true about it."""

import ast
from collections.abc import Iterator

from tests.support.source_tree import Definition, Module, modules


def undocumented(module: Module) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring; what lies in a private one is private."""
    if not ast.get_docstring(module.tree):
        yield f"{module.path}:1"
    waiting: list[ast.Module | Definition] = [module.tree]
    while waiting:
        for node in waiting.pop().body:
            if not isinstance(node, Definition) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node):
                yield f"{module.path}:{node.lineno} {node.name}"
            if isinstance(node, ast.ClassDef):
                waiting.append(node)


def test_every_public_name_has_a_docstring() -> None:
    assert [name for module in modules() for name in undocumented(module)] == []


def test_what_is_missing_is_noticed() -> None:
    text = '"""M."""\nclass A:\n    """A."""\n    def b(self): ...\n    def _c(self): ...\ndef d(): ...\n'
    module = Module("m.py", text, ast.parse(text))
    assert sorted(undocumented(module)) == ["m.py:4 b", "m.py:6 d"]
