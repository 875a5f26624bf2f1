"""JSON schemas of the settings file and of the fleet file, and the settings as they are in force."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_type_hints

import msgspec

from router.discovery.entry import Entry, Identity
from router.field_texts import field_texts
from router.settings import SECRETS, Settings, help_texts

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
HIDDEN = "(hidden)"

# Any: a JSON schema.
Schema = dict[str, Any]


def settings_schema() -> Schema:
    """The schema of a settings file."""
    hints, texts = get_type_hints(Settings), help_texts()
    properties: Schema = {}
    for one in fields(Settings):
        (made,), found = msgspec.json.schema_components([hints[one.name]])
        if "$ref" in made:
            made = found[made["$ref"].rpartition("/")[2]]
        properties[one.name] = {"description": texts[one.name], **made}
        if one.name not in SECRETS:
            properties[one.name]["default"] = msgspec.to_builtins(one.default)
    return {
        "$schema": _DIALECT,
        "title": "Settings of the Tandem router",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def fleet_schema() -> Schema:
    """The schema of a fleet file."""
    _, found = msgspec.json.schema_components([Entry], ref_template="#/$defs/{name}")
    for cls in (Entry, Identity):
        made = found[cls.__name__]
        made["additionalProperties"] = False
        for name, text in field_texts(cls).items():
            if name in made["properties"]:
                made["properties"][name]["description"] = text
    engines = found["Entry"]["properties"]
    engines["labels"] = {"type": "object", "additionalProperties": {"type": "string"}, "default": {}}
    several = engines["identity"]
    engines["identity"] = {"anyOf": [{"$ref": "#/$defs/Identity"}, several], "description": several.pop("description")}
    return {
        "$schema": _DIALECT,
        "title": "Fleet file of the Tandem router",
        "type": "object",
        "properties": {"engines": {"type": "array", "items": {"$ref": "#/$defs/Entry"}}},
        "required": ["engines"],
        "additionalProperties": False,
        "$defs": found,
    }


def effective(settings: Settings) -> dict[str, object]:
    """Every setting as it is in force; secrets are only said to be there."""
    shown: dict[str, object] = {}
    for one in fields(Settings):
        value = msgspec.to_builtins(getattr(settings, one.name))
        if one.name in SECRETS and value:
            value = HIDDEN
        elif isinstance(value, str):
            value = re.sub(r"(://[^/@]*:)[^/@]+@", rf"\1{HIDDEN}@", value)
        shown[one.name] = value
    return shown
