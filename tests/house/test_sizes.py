"""Files, functions and nesting stay small enough to be read in one sitting."""

import ast

from tests.support.source_tree import Function, modules

MAX_FILE_LINES = 300
MAX_INIT_LINES = 20
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAX_KERNEL_PARAMETERS = 8
MAX_NESTING = 3
LONGER_FILES = {"router/contract/errors.py": 400}
"""One concept that is long: the whole error tree, drawn at its top."""

LAUNCHED = ("engine_shim/experts/twins/kernels.py", "engine_shim/engine/reference/cuda_kernels.py")
"""Triton kernels: their parameters are a launch's, which has no structs."""

BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Match)
"""What a reader has to keep in mind; `with` and `try` only frame."""


def test_files_are_short() -> None:
    long = {}
    for module in modules():
        limit = MAX_INIT_LINES if module.path.endswith("__init__.py") else MAX_FILE_LINES
        num_lines = len(module.text.splitlines())
        if num_lines > LONGER_FILES.get(module.path, limit):
            long[module.path] = num_lines
    assert long == {}


def test_every_exemption_is_still_needed() -> None:
    lines_of = {module.path: len(module.text.splitlines()) for module in modules()}
    assert all(lines_of[path] > MAX_FILE_LINES for path in LONGER_FILES)


def test_functions_are_short() -> None:
    long = {
        f"{module.path}:{function.lineno} {function.name}": num_lines
        for module in modules()
        for function in module.functions()
        if (num_lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


def parameters(function: Function) -> list[str]:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def is_kernel(function: Function) -> bool:
    """Compiled by Triton, which knows no structs."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_functions_take_few_parameters() -> None:
    many = {
        f"{module.path}:{function.lineno} {function.name}": names
        for module in modules()
        if module.path not in LAUNCHED
        for function in module.functions()
        if len(names := parameters(function)) > (MAX_KERNEL_PARAMETERS if is_kernel(function) else MAX_PARAMETERS)
    }
    assert many == {}


def nesting(node: ast.AST, depth: int = 0) -> int:
    """How many blocks lie inside each other. An `elif` is no deeper than its `if`; an inner function starts anew."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef | ast.Lambda):
            continue
        elif_ = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child, depth + (isinstance(child, BLOCKS) and not elif_)))
    return deepest


def test_blocks_are_not_nested_deeply() -> None:
    deep = {
        f"{module.path}:{function.lineno} {function.name}": depth
        for module in modules()
        for function in module.functions()
        if (depth := nesting(function)) > MAX_NESTING
    }
    assert deep == {}


def test_nesting_is_counted_as_a_reader_would() -> None:
    function = ast.parse(
        "def f():\n if a:\n  pass\n elif b:\n  for c in d:\n   with e:\n    def g():\n     while h:\n      pass\n"
    ).body[0]
    assert nesting(function) == 2
