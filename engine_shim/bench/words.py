"""Words of a benchmark's command line, checked before anything is measured; for argparse's `type`."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

Name = TypeVar("Name", bound=StrEnum)


def number(text: str) -> int:
    """A number from 1 up. Raises ArgumentTypeError."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number from 1 up")
    return int(text)


def numbers(text: str) -> list[int]:
    """Numbers from 1 up, by commas. Raises ArgumentTypeError."""
    return [number(word) for word in text.split(",")]


def names(kind: type[Name]) -> Callable[[str], list[Name]]:
    """Names of `kind`, by commas; the function raises ArgumentTypeError."""

    def parse(text: str) -> list[Name]:
        words = [word.strip() for word in text.split(",")]
        known = [str(name) for name in kind]
        if not set(words) <= set(known):
            raise ArgumentTypeError(f"{text!r} must be of {', '.join(known)}, by commas")
        return [kind(word) for word in words]

    return parse


def new_file(text: str) -> Path:
    """A file that can be written in the end: its folder is there. Raises ArgumentTypeError."""
    file = Path(text)
    if not file.parent.is_dir() or file.is_dir():
        raise ArgumentTypeError(f"{text!r} is no file in a folder that exists")
    return file
