"""Params has the fields of its C++ twin, in the same order; the sizes of both are compared when a library is loaded."""

from __future__ import annotations

import re

from engine_shim.experts.nvlink import region
from engine_shim.experts.nvlink.library import SOURCE_FOLDER
from engine_shim.experts.nvlink.params import Params

HEADER = (SOURCE_FOLDER / "params.cuh").read_text()


def test_the_fields_are_those_of_the_header() -> None:
    body = HEADER.split("struct Params {")[1].split("};")[0]
    declared = []
    for line in re.sub(r"//.*|\[.*?\]", "", body).split(";"):
        names = re.sub(r"^\s*(const\s+)?\w+(\s*\*)?\s+", "", line.strip())
        declared += [name.strip() for name in names.split(",") if name.strip()]
    assert [name for name, *_ in Params._fields_] == declared


def test_the_limits_are_those_of_the_header() -> None:
    for name in ("MAX_RANKS", "MAX_EXPERTS"):
        assert f"constexpr int {name} = {getattr(region, name)};" in HEADER
    assert f"constexpr int MAX_TOPK = {region.MAX_TOP_K};" in HEADER
    assert f"constexpr int MAX_SCALES = {region.MAX_HIDDEN_FP8 // 128};" in HEADER
