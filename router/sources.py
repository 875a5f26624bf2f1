"""Where settings come from. Precedence: flags > TANDEM_... environment > --config file > the defaults in `settings`.

Every field is a flag (`--next-token-s`), an environment variable (`TANDEM_NEXT_TOKEN_S`, lists comma-separated) and a
key of the file (`next_token_s` or `next-token-s`; YAML, TOML or JSON by its suffix). A name that is none of these is an
error, because a misspelt limit that is silently ignored is no limit.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

from router.contract.errors import BadSettings, MissingDependency
from router.settings import SECRETS, Settings, check

ENV_PREFIX = "TANDEM_"
OTHER_ENV = ("TANDEM_TEST_", "TANDEM_SHIM_", "TANDEM_UP_", "TANDEM_BENCH_")
"""Prefixes of variables that belong to other commands."""


def load(flags: Mapping[str, object], env: Mapping[str, str], config: str | None) -> Settings:
    """Settings from all sources, checked.

    Args:
        flags: those that were given, by field name.
        env: the process environment.
        config: path of a settings file, or None.
    Raises:
        BadSettings, MissingDependency: something cannot be read, is unknown, or is out of range.
    """
    values: dict[str, object] = {}
    if config is not None:
        values |= _known(read_table(Path(config)), f"in {config}")
    values |= _from_env(env)
    values |= flags
    hints = get_type_hints(Settings)
    # Any: _convert returns what the field's type says, which the type checker cannot follow through a mapping.
    return check(Settings(**{name: _convert(name, value, hints[name]) for name, value in values.items()}))  # type: ignore[arg-type]


def _from_env(env: Mapping[str, str]) -> dict[str, object]:
    ours = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in env.items()
        if name.startswith(ENV_PREFIX) and not name.startswith(OTHER_ENV) and not _is_service_link(name, value)
    }
    return _known(ours, "in the environment")


def _is_service_link(name: str, value: str) -> bool:
    """True for what Kubernetes injects for a Service whose name starts with `tandem`, such as TANDEM_PORT=tcp://..."""
    return value.startswith(("tcp://", "udp://")) or re.search(r"_SERVICE_(HOST|PORT)|_PORT_\d+_", name) is not None


def _known(values: Mapping[str, object], where: str) -> dict[str, object]:
    names = [one.name for one in fields(Settings)]
    known: dict[str, object] = {}
    for given, value in values.items():
        name = str(given).replace("-", "_")  # keys of YAML may be numbers, and `on` is a truth value
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {close[0]}?" if close else "."
            raise BadSettings(f"There is no setting {given!r} ({where}){hint}")
        if name in known:
            raise BadSettings(f"{name} stands there twice ({where}), and only one could count.")
        known[name] = value
    return known


def read_table(path: Path, what: str = "settings file") -> dict[str, object]:
    """The one table that a YAML, TOML or JSON file holds. `what` it is, is for messages.

    Raises:
        BadSettings, MissingDependency: it cannot be read.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:  # the latter for other encodings, and zero bytes in the path
        raise BadSettings(f"The {what} {path} cannot be read: {error}.") from error
    try:
        if path.suffix == ".toml":
            values: object = tomllib.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            values = _read_yaml(text)
        else:
            values = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadSettings(f"The {what} {path} is not valid: {error}.") from error
    if not isinstance(values, dict):
        raise BadSettings(f"The {what} {path} must hold one table.")
    return values


def _read_yaml(text: str) -> object:
    try:
        import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - needed for YAML files only
    except ImportError as error:
        raise MissingDependency("YAML settings need PyYAML; install it or write the file as TOML or JSON.") from error
    try:
        _check_once(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from error


def _once(members: list[tuple[str, object]]) -> dict[str, object]:
    """The members of an object that names none twice. Raises ValueError for another."""
    names = [name for name, _ in members]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands there twice, and only one could count")
    return dict(members)


def _check_once(root: object) -> None:
    """Raises ValueError where a table in this document of PyYAML's nodes names a member twice, which it lets pass."""
    nodes, seen = [root], set[int]()
    while nodes:
        node = nodes.pop()
        value = getattr(node, "value", None)  # of members in pairs, of a list, or text; None for no document
        if id(node) in seen or not isinstance(value, list):
            continue
        seen.add(id(node))  # an anchor may stand in what it names
        members = [one for one in value if isinstance(one, tuple)]
        _once([(name.value, None) for name, _ in members if isinstance(name.value, str)])
        nodes += [one for _, one in members] or value


_WANTED: dict[object, str] = {
    tuple[str, ...]: "a list of texts",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}
"""The types of settings, for messages."""


def _convert(name: str, value: object, wanted: object) -> object:
    """`value` as the field's type; text stands for any type, as flags and environment give it. Raises BadSettings."""
    try:
        return _read(value, wanted)
    except (ValueError, OverflowError) as error:
        shown = "what it is set to" if name in SECRETS else repr(value)
        raise BadSettings(f"{name} cannot be {shown}; give {_WANTED[wanted]}.") from error


def _read(value: object, wanted: object) -> object:
    """Raises ValueError or OverflowError for what is not of the type."""
    if wanted == tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, (list, tuple)) and all(isinstance(part, str) for part in parts):
            return tuple(part.strip().rstrip("/") for part in parts if part.strip())
    elif wanted is bool:
        return _as_bool(value)
    elif wanted is int and isinstance(value, (int, str)) and not isinstance(value, bool):
        return int(value)
    elif wanted is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return float(value)
    elif wanted is str and isinstance(value, str):
        return value
    raise ValueError  # without the value, which may be a secret


def _as_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return value.lower() in ("1", "true", "yes", "on")
    raise ValueError  # without the value, which may be a secret
