"""The project's own files, as the house tests look at them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("router", "engine_shim")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """One Python file of the product."""

    path: str
    """From the root, with slashes."""
    text: str
    tree: ast.Module

    def functions(self) -> Iterator[Function]:
        """All functions and methods, inner ones included."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


@cache
def modules() -> tuple[Module, ...]:
    """Every Python file of both packages."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return tuple(
        Module(path.relative_to(ROOT).as_posix(), text := path.read_text(encoding="utf-8"), ast.parse(text))
        for path in paths
    )


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that git tracks and that still exists."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())
