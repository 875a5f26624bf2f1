"""The drawing at the top of errors.py is the tree that its classes make."""

import re

from router.contract import errors
from router.contract.errors import TandemError


def drawn() -> dict[str, tuple[str, int | None]]:
    """Of each class in the drawing: its parent, and its HTTP status where one is drawn."""
    tree: dict[str, tuple[str, int | None]] = {}
    branch = ""
    lines = (errors.__doc__ or "").split("TandemError\n")[1].splitlines()
    for line in lines:
        if line.startswith("+- "):
            branch = line[3:].split()[0]
            tree[branch] = ("TandemError", None)
            continue
        for name, status in re.findall(r"\+- ([A-Z]\w+)(?: +(\d{3}))?", line):
            tree[name] = (branch, int(status) if status else None)
    return tree


def built() -> dict[str, tuple[str, int | None]]:
    """The same of the classes; the status of classes that end the process, and of branches, is not drawn."""
    tree: dict[str, tuple[str, int | None]] = {}
    for name, member in vars(errors).items():
        if isinstance(member, type) and issubclass(member, TandemError) and member is not TandemError:
            (parent,) = member.__bases__
            ends_process = issubclass(member, errors.DeploymentError)
            branch = parent is TandemError
            tree[name] = (parent.__name__, None if ends_process or branch else member.http_status)
    return tree


def test_the_drawing_shows_every_class_below_its_parent_with_its_status() -> None:
    assert drawn() == built()


def test_every_class_is_one_of_two_levels() -> None:
    assert {parent for parent, _ in built().values()} - {"TandemError"} <= set(built())
