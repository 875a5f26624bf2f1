"""Whatever the product defines, the product uses; and every parameter that may be left out is given by somebody."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.support.source_tree import ROOT, Definition, Module, modules, tracked_files

CALLED_BY_OTHERS = {
    "capture_signals": "uvicorn",
    "on_url": "httptools, as it does the next three",
    "on_header": "httptools",
    "on_chunk_header": "httptools",
    "on_chunk_complete": "httptools",
    "join_diagram": "`make diagrams`",
    "_tojson": "Jinja",
}
"""Names that nobody of the product calls, and who does."""
FOR_OTHERS = {
    "engine_shim/engine/vllm/connector.py": "vLLM calls it",
    "engine_shim/experts/": "a library, and the specification by which its parts are judged",
    "engine_shim/bench/experts_baselines.py": "looked up by parts of names",
}


def defined(module: Module) -> Iterator[tuple[int, str]]:
    """Public functions, classes, methods and constants, with their line; what lies in a function is its own affair."""
    waiting: list[ast.Module | ast.ClassDef] = [module.tree]
    while waiting:
        scope = waiting.pop()
        for node in scope.body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                yield node.lineno, node.name
            if isinstance(node, ast.ClassDef):
                waiting.append(node)
            elif isinstance(node, ast.Assign) and scope is module.tree:
                targets = (one.id for one in node.targets if isinstance(one, ast.Name))
                yield from ((node.lineno, name) for name in targets if name.isupper() and not name.startswith("_"))


def used(module: Module) -> Iterator[str]:
    """Every name that is read, and every string: some are looked up by their names."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def unused(all_: Iterable[Module]) -> list[str]:
    """What is defined here and used nowhere."""
    known = CALLED_BY_OTHERS.keys() | {name for module in all_ for name in used(module)}
    return [
        f"{module.path}:{line} {name}"
        for module in all_
        if not module.path.startswith(tuple(FOR_OTHERS))
        for line, name in defined(module)
        if name not in known
    ]


def ungiven(all_: Iterable[Module], callers: Iterable[ast.Module]) -> list[str]:
    """Parameters with a default for which no call, of whatever has the function's name, gives a value."""
    calls: dict[str, list[ast.Call]] = defaultdict(list)
    heirs: dict[str, set[str]] = defaultdict(set)
    for tree in callers:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                for name in _called(node):
                    calls[name].append(node)
            elif isinstance(node, ast.ClassDef):
                for base in node.bases:
                    heirs[_last_word(base)].add(node.name)
    return [
        f"{module.path}:{function.lineno} {name}({parameter})"
        for module in all_
        if not module.path.startswith(tuple(FOR_OTHERS))
        for name, function in _named_functions(module)
        if name not in CALLED_BY_OTHERS
        for place, parameter in _optional(function)
        if not any(_gives(call, place, parameter) for one in _family(name, heirs) for call in calls[one])
    ]


def _family(name: str, heirs: dict[str, set[str]]) -> set[str]:
    """The name, and those of all classes that inherit from it."""
    return {name}.union(*(_family(heir, heirs) for heir in heirs.get(name, ()) if heir != name))


def _called(call: ast.Call) -> list[str]:
    """What is called by name, and with a `partial` what that is of: its arguments are given to that one."""
    asked = [call.func, *call.args[:1]] if _last_word(call.func) == "partial" else [call.func]
    return [_last_word(one) for one in asked]


def _last_word(node: ast.expr) -> str:
    """`c` of `a.b.c` and of `a.b.c[d]`; empty for what has no name."""
    if isinstance(node, ast.Subscript):
        return _last_word(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _named_functions(module: Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods by what they are called by: an `__init__` by its class."""
    for scope in (node for node in ast.walk(module.tree) if isinstance(node, ast.Module | ast.ClassDef)):
        for node in scope.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_made = node.name == "__init__" and isinstance(scope, ast.ClassDef)
                yield scope.name if is_made and isinstance(scope, ast.ClassDef) else node.name, node


def _optional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int | None, str]]:
    """Parameters with a default; those that may be given by their place with that, `self` not counted."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args) if one.arg not in ("self", "cls")]
    yield from list(enumerate(names))[len(names) - len(given.defaults) :]
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    yield from ((None, one.arg) for one, default in pairs if default is not None)


def _gives(call: ast.Call, place: int | None, parameter: str) -> bool:
    if any(one.arg in (None, parameter) for one in call.keywords):
        return True
    return place is not None and (len(call.args) > place or any(isinstance(one, ast.Starred) for one in call.args))


def test_whatever_is_defined_is_used() -> None:
    assert unused(modules()) == []


def test_every_parameter_that_may_be_left_out_is_given_by_somebody() -> None:
    ours = [module.tree for module in modules()]
    tests = [path for path in tracked_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")]
    assert ungiven(modules(), [*ours, *(ast.parse(path.read_text("utf-8")) for path in tests)]) == []


def test_every_exemption_is_still_needed() -> None:
    names = {name for module in modules() for node in ast.walk(module.tree) if (name := getattr(node, "name", None))}
    assert CALLED_BY_OTHERS.keys() <= names
    assert [path for path in FOR_OTHERS if not (ROOT / path).exists()] == []


def test_what_is_for_nobody_is_noticed() -> None:
    text = (
        "A = 1\nB = 2\nclass C:\n    def d(self, e=B): ...\n    def f(self): return C().d()\n"
        "def g(h, i=0, *, j=0): ...\ng(1, 2)\n"
    )
    module = Module("m.py", text, ast.parse(text))
    assert unused([module]) == ["m.py:1 A", "m.py:5 f"]
    assert ungiven([module], [module.tree]) == ["m.py:6 g(j)", "m.py:4 d(e)"]
