"""Aliases: other names for models, which clients may use and engines need not know."""

from __future__ import annotations

from collections.abc import Iterable

from router.contract.errors import BadSettings


def read_aliases(listed: Iterable[str]) -> dict[str, str]:
    """The model of each alias, from entries `alias=model`.

    Raises:
        BadSettings: an entry is none, or an alias is given twice or stands for another alias.
    """
    models: dict[str, str] = {}
    for entry in listed:
        alias, _, model = (part.strip() for part in entry.partition("="))
        if not alias or not model:
            raise BadSettings(f"model_aliases must be alias=model, got {entry!r}.")
        if alias in models:
            raise BadSettings(f"model_aliases names {alias!r} twice; keep one.")
        models[alias] = model
    for alias, model in models.items():
        if model in models:
            raise BadSettings(f"model_aliases sends {alias!r} to {model!r}, an alias itself; name the model.")
    return models
