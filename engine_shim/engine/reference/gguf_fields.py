"""The head of a GGUF file, read in one pass without touching the tensors: key-value fields and the tensor table.

    magic `GGUF` | version u32 | num_tensors u64 | num_fields u64 | num_fields x (key string, type u32, value)
    | num_tensors x (name string, num_dims u32, num_dims x size u64, type u32, offset u64) | padding | tensors
    string = length u64, UTF-8 bytes        array = item type u32, length u64, items

Everything is little-endian. Source: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from router.contract.errors import ModelUnusable

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_HEAD = struct.Struct("<4sIQQ")
_FIRST_READ_BYTES = 8 << 20
_DEFAULT_ALIGNMENT = 32

Field = bool | int | float | str | list["Field"]


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies."""

    sizes: tuple[int, ...]
    """Sizes as GGUF has them: the fastest-running axis first."""
    kind: int
    """GGML's number of the storage type."""
    offset: int
    """Bytes from the beginning of the file."""


@dataclass(frozen=True, slots=True)
class GGUFHead:
    """All of a GGUF file but the tensors' bytes."""

    fields: dict[str, Field]
    tensors: dict[str, GGUFTensor]


class _Cursor:
    """A position in the head of the file; reads past what is loaded raise struct.error."""

    def __init__(self, raw: bytes, offset: int) -> None:
        self.raw = raw
        self.offset = offset

    def scalar(self, form: struct.Struct) -> bool | int | float:
        value: bool | int | float = form.unpack_from(self.raw, self.offset)[0]
        self.offset += form.size
        return value

    def string(self) -> str:
        length: int = _U64.unpack_from(self.raw, self.offset)[0]
        begin = self.offset + _U64.size
        if begin + length > len(self.raw):
            raise struct.error("string reaches past the end")
        self.offset = begin + length
        return self.raw[begin : self.offset].decode("utf-8", "replace")

    def value(self, kind: int) -> Field:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item_kind, length = int(self.scalar(_U32)), int(self.scalar(_U64))
        if item_kind in (_STRING, _ARRAY):
            return [self.value(item_kind) for _ in range(length)]
        form = struct.Struct(f"<{length}{_SCALARS[item_kind].format[1:]}")
        items = list(form.unpack_from(self.raw, self.offset))
        self.offset += form.size
        return items


def read_gguf_fields(path: Path) -> dict[str, Field]:
    """All fields of the GGUF file at `path`, keyed by their names. Raises as `read_gguf_head`."""
    return read_gguf_head(path).fields


def read_gguf_head(path: Path) -> GGUFHead:
    """The fields and the tensor table of the GGUF file at `path`, both keyed by name.

    Raises:
        ModelUnusable: no such file, not a GGUF file of version 2 or 3, or cut short.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            raw = file.read(_FIRST_READ_BYTES)
            while True:
                try:
                    return _head(raw)
                except struct.error:
                    # The head has no stated length: load as much again until it parses or the file ends.
                    if len(raw) >= size:
                        raise
                    raw += file.read(len(raw))
    except OSError as error:
        raise ModelUnusable(f"{path} cannot be read ({error.strerror}); give the path of a GGUF file.") from error
    except (struct.error, KeyError, ValueError) as error:
        raise ModelUnusable(f"{path} is not a whole GGUF file of version 2 or 3; download it again.") from error


def _head(raw: bytes) -> GGUFHead:
    magic, version, num_tensors, num_fields = _HEAD.unpack_from(raw, 0)
    if magic != _MAGIC or version not in _VERSIONS:
        raise ValueError("not GGUF")
    cursor = _Cursor(raw, _HEAD.size)
    fields: dict[str, Field] = {}
    for _ in range(num_fields):
        key = cursor.string()
        fields[key] = cursor.value(int(cursor.scalar(_U32)))
    return GGUFHead(fields, _tensor_table(cursor, num_tensors, fields.get("general.alignment", _DEFAULT_ALIGNMENT)))


def _tensor_table(cursor: _Cursor, num_tensors: int, alignment: Field) -> dict[str, GGUFTensor]:
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError("alignment")
    relative: dict[str, GGUFTensor] = {}
    for _ in range(num_tensors):
        name, num_dims = cursor.string(), int(cursor.scalar(_U32))
        sizes = tuple(int(cursor.scalar(_U64)) for _ in range(num_dims))
        relative[name] = GGUFTensor(sizes, int(cursor.scalar(_U32)), int(cursor.scalar(_U64)))
    begin = -(-cursor.offset // alignment) * alignment
    return {name: GGUFTensor(at.sizes, at.kind, begin + at.offset) for name, at in relative.items()}
