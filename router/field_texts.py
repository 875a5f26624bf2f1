"""What stands below each field of a class: the one place where a field is described."""

from __future__ import annotations

import ast
import inspect
import itertools


def field_texts(cls: type) -> dict[str, str]:
    """The description of each field that has one, by name, without its full stop."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(tree, ast.ClassDef)
    texts: dict[str, str] = {}
    for one, text in itertools.pairwise(tree.body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, ast.Expr):
            texts[one.target.id] = str(ast.literal_eval(text.value)).removesuffix(".")
    return texts
