"""The import rules of pyproject.toml hold, and they would notice."""

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from pkgutil import iter_modules

import pytest

from tests.support.source_tree import PACKAGES, ROOT, modules

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


FOR_SHIMS = {"router.contract", "router.store", "router.process"}


def lint_imports(root: Path) -> tuple[int, str]:
    """Exit status and output of import-linter over a tree."""
    run = subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=root, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout


def imports(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported, by its whole name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_all_contracts_hold() -> None:
    status, output = lint_imports(ROOT)
    assert status == 0, output


def test_contract_needs_the_standard_library_and_msgspec_alone() -> None:
    contract = [module for module in modules() if module.path.startswith("router/contract/")]
    imported = {name.partition(".")[0] for module in contract for name in imports(module.tree)}
    assert imported - sys.stdlib_module_names == {"msgspec", "router"}
    ours = {name for module in contract for name in imports(module.tree) if name.startswith("router")}
    assert {name for name in ours if not name.startswith("router.contract")} == set()


def test_whatever_else_the_router_has_is_forbidden_to_shims() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rule,) = (one for one in contracts if one.get("source_modules") == ["engine_shim"])
    there = {module.name for module in iter_modules([str(ROOT / "router")], "router.")}
    assert set(rule["forbidden_modules"]) == there - FOR_SHIMS


@pytest.mark.parametrize(
    ("where", "planted", "broken"),
    [
        ("router/contract/ids.py", "import time", "core and contract are pure"),
        ("router/core/__init__.py", "import asyncio", "core and contract are pure"),
        ("router/store/keys.py", "import engine_shim", "The router imports nothing of the shim"),
        (
            "engine_shim/core/__init__.py",
            "import router.core",
            "The shim knows the router's contract, store and process",
        ),
        ("router/store/keys.py", "import router.driver", "Imports of the router flow one way"),
        ("engine_shim/core/__init__.py", "import engine_shim.serve", "Imports of the shim flow one way"),
        ("engine_shim/serve/sse.py", "import engine_shim.engine.reference", "What serves and drives an engine"),
    ],
    ids=lambda value: value.replace("/", "."),
)
def test_a_planted_import_is_noticed(tmp_path: Path, where: str, planted: str, broken: str) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    module = tmp_path / where
    module.write_text(f"{module.read_text()}\n{planted}\n")
    status, output = lint_imports(tmp_path)
    verdicts = [line for line in output.splitlines() if line.startswith(broken)]
    assert status != 0
    assert " BROKEN" in verdicts[0], output
