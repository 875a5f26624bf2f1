import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.instance import Instance, Load
from router.store.codec import decode_instance, decode_load, encode_instance, encode_load
from tests.support.fleets import an_instance, instances, loads


@given(instances())
def test_an_instance_comes_back_as_it_was(instance: Instance) -> None:
    assert decode_instance(encode_instance(instance)) == instance


@given(loads())
def test_a_load_comes_back_as_it_was(load: Load) -> None:
    assert decode_load(encode_load(load)) == load


def test_fields_of_a_newer_writer_are_ignored() -> None:
    record = json.loads(encode_instance(an_instance()))
    record["colour"] = "blue"
    record["instance"]["colour"] = {"deep": [1, 2]}
    record["instance"]["kv"]["layout"]["colour"] = None
    assert decode_instance(json.dumps(record).encode()) == an_instance()


def test_fields_that_an_older_writer_lacks_take_their_default() -> None:
    record = json.loads(encode_instance(replace(an_instance(), draining=True)))
    del record["instance"]["draining"]
    assert decode_instance(json.dumps(record).encode()) == an_instance()
    assert decode_load(b'{"v":1,"load":{"running_seqs":3}}') == Load(running_seqs=3)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": "1"},
        {"instance": None},
        {"instance": {"role": "cook"}},
        {"instance": {"epoch": "7"}},
        {"instance": {"kv": {"layout": {"num_layers": 0}}}},
        {"instance": {"kv": {"layout": {"dtype": "int3"}}}},
        {"instance": {"kv": {"modes": ["teleport"]}}},
    ],
)
def test_a_record_that_this_version_cannot_read_is_none(change: dict[str, object]) -> None:
    assert decode_instance(json.dumps(merged(json.loads(encode_instance(an_instance())), change)).encode()) is None


@pytest.mark.parametrize("raw", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"v":1}', b'{"v":1,"x":' + b"[" * 100_000])
def test_bytes_that_are_no_record_are_none(raw: bytes) -> None:
    assert decode_instance(raw) is None
    assert decode_load(raw) is None


@given(st.data())
def test_a_damaged_record_never_raises(data: st.DataObject) -> None:
    raw = bytearray(encode_instance(an_instance()))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] = data.draw(st.integers(0, 255))
    decoded = decode_instance(bytes(raw))
    assert decoded is None or isinstance(decoded, Instance)


def merged(record: dict[str, object], change: dict[str, object]) -> dict[str, object]:
    out = dict(record)
    for name, value in change.items():
        old = out.get(name)
        out[name] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out
