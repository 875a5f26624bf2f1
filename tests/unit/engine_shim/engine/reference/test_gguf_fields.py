from __future__ import annotations

import gguf
import pytest

from engine_shim.engine.reference import gguf_fields
from engine_shim.engine.reference.gguf_fields import read_gguf_fields
from router.contract.errors import ModelUnusable
from tests.support.checkpoints import smollm2_gguf


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -5)
    writer.add_uint16("a.u16", 60000)
    writer.add_int16("a.i16", -300)
    writer.add_int32("a.i32", -70000)
    writer.add_uint64("a.u64", 1 << 40)
    writer.add_int64("a.i64", -(1 << 40))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "zwölf")
    writer.add_array("a.strings", ["x", "", "é"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_kind_of_field_is_read(small):
    fields = read_gguf_fields(small)
    assert fields["general.architecture"] == "llama"
    assert {key[2:]: value for key, value in fields.items() if key.startswith("a.")} == {
        "u8": 200,
        "i8": -5,
        "u16": 60000,
        "i16": -300,
        "i32": -70000,
        "u64": 1 << 40,
        "i64": -(1 << 40),
        "f32": 0.5,
        "f64": 0.1,
        "bool": True,
        "string": "zwölf",
        "strings": ["x", "", "é"],
        "ints": [1, -2, 3],
    }


def test_a_head_longer_than_the_first_read_is_read_on(small, monkeypatch):
    whole = read_gguf_fields(small)
    monkeypatch.setattr(gguf_fields, "_FIRST_READ_BYTES", 16)
    assert read_gguf_fields(small) == whole


@pytest.mark.needs("model")
def test_a_real_file_agrees_with_the_gguf_library():
    fields = read_gguf_fields(smollm2_gguf())
    assert fields["general.architecture"] == "llama"
    assert fields["llama.block_count"] == 30
    assert fields["llama.rope.freq_base"] == 100000.0
    assert len(fields["tokenizer.ggml.tokens"]) == 49152
    assert fields["tokenizer.ggml.merges"][0] == "Ġ t"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "not a whole GGUF"), (b"PK\x03\x04" + bytes(40), "not a whole GGUF"), (None, "cannot be read")],
    ids=["empty", "other format", "absent"],
)
def test_what_is_no_gguf_is_unusable(tmp_path, content, complaint):
    path = tmp_path / "x.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelUnusable, match=complaint):
        read_gguf_fields(path)


def test_a_cut_file_is_unusable(small):
    small.write_bytes(small.read_bytes()[:200])
    with pytest.raises(ModelUnusable, match="not a whole GGUF"):
        read_gguf_fields(small)
