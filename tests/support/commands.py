"""The commands that a text names, and what they say of themselves."""

from __future__ import annotations

import importlib
import re
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO

from router.cli.main import Command, find_command

_CODE = re.compile(r"^ *```\w*\n(.*?)^ *```|`([^`]+)`", re.MULTILINE | re.DOTALL)
_TANDEM = re.compile(r"(?:^|-- |^\w+=\S* )tandem (?=[a-z])")


def code_of(text: str) -> list[str]:
    """What stands in backticks, and the lines of code blocks, those that go on as one; with single spaces."""
    said = [line for block, _ in _CODE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return [" ".join(one.split()) for one in (*said, *(inline for _, inline in _CODE.findall(text)))]


def commands_of(text: str) -> list[list[str]]:
    """The words of every `tandem ...` after `tandem`, without what comes after a bare `--`, which is another's."""
    told = [_TANDEM.split(code, maxsplit=1) for code in code_of(text)]
    return [parts[1].partition(" -- ")[0].split() for parts in told if len(parts) == 2]


def unknown_words(words: list[str]) -> list[str]:
    """Of a command's words, all when there is no such command, else the flags that it does not have."""
    command = find_command(words)
    if command is None:
        return words
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    return [flag for flag in flags if not re.search(rf"{flag}(?![\w-])", help_of(command))]


@cache
def help_of(command: Command) -> str:
    """What its `--help` prints."""
    name = command.module if "." in command.module else f"{command.module}.__main__"
    with redirect_stdout(StringIO()) as said, suppress(SystemExit):
        importlib.import_module(name).main(["--help"])
    return said.getvalue()
