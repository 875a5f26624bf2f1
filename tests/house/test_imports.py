"""The import rules of pyproject.toml hold, and they would notice."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import PACKAGES, ROOT

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(root: Path) -> tuple[int, str]:
    """Exit status and output of import-linter over a tree."""
    run = subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=root, capture_output=True, text=True, check=False)
    return run.returncode, run.stdout


def test_all_contracts_hold() -> None:
    status, output = lint_imports(ROOT)
    assert status == 0, output


@pytest.mark.parametrize(
    ("where", "planted", "broken"),
    [
        ("router/contract/ids.py", "import time", "core and contract are pure"),
        ("router/core/__init__.py", "import asyncio", "core and contract are pure"),
        ("router/store/keys.py", "import engine_shim", "The router imports nothing of the shim"),
        ("engine_shim/core/__init__.py", "import router.core", "The shim knows the router's contract and store"),
        ("router/store/keys.py", "import router.driver", "Imports of the router flow one way"),
        ("engine_shim/core/__init__.py", "import engine_shim.serve", "Imports of the shim flow one way"),
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
