from dataclasses import fields

from router.discovery.entry import Entry, Identity
from router.schemas import HIDDEN, effective, fleet_schema, settings_schema
from router.settings import SECRETS, Settings

KEY = "0123456789abcdef"


def test_every_setting_is_in_the_schema_with_its_text_and_default():
    schema = settings_schema()
    assert list(schema["properties"]) == [one.name for one in fields(Settings)]
    assert not schema["additionalProperties"]
    assert schema["properties"]["attempts"]["type"] == "integer" and schema["properties"]["attempts"]["default"] == 2
    assert schema["properties"]["prefill"]["items"] == {"type": "string"}
    assert all(one["description"] for one in schema["properties"].values())


def test_every_key_of_a_fleet_file_is_in_its_schema():
    defs = fleet_schema()["$defs"]
    for cls in (Entry, Identity):
        assert set(defs[cls.__name__]["properties"]) == {one.name for one in fields(cls)}
        assert defs[cls.__name__]["additionalProperties"] is False
    assert defs["Entry"]["required"] == ["url"]
    assert defs["Entry"]["properties"]["labels"]["type"] == "object"


def test_secrets_are_only_said_to_be_there():
    shown = effective(Settings(**dict.fromkeys(SECRETS, KEY), store="redis://user:pass@h:1/0"))
    assert {shown[name] for name in SECRETS} == {HIDDEN}
    assert shown["store"] == f"redis://user:{HIDDEN}@h:1/0"
    assert KEY not in str(shown) and "pass@" not in str(shown)
    assert effective(Settings())["deployment_key"] == ""
