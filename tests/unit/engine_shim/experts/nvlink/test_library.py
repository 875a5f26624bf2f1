"""A library that is none of ours, or of other sources, is refused; so is a compiler that is missing or fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine_shim.experts.nvlink import library
from router.contract.errors import MissingDependency


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"no ELF")
    with pytest.raises(MissingDependency, match="build it again"):
        library.load_library(tmp_path / "x.so")


def test_the_digest_depends_on_every_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {library.sources_digest()}
    for file in library.SOURCE_FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(library, "SOURCE_FOLDER", tmp_path)
    assert library.sources_digest() in digests
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes() + b"\n")
        digests.add(library.sources_digest())
    assert len(digests) == 1 + len([*tmp_path.iterdir()])


def test_a_gpu_that_is_too_old_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.torch.cuda, "get_device_capability", lambda: (8, 6))
    with pytest.raises(MissingDependency, match=r"9\.0 or later, and this one has 8\.6; use --expert-transport nixl"):
        library._build_by_torch()


def test_building_without_a_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="install the CUDA toolkit"):
        library.build_ahead(tmp_path / "x.so")


def test_what_the_compiler_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(MissingDependency, match=r"arch=compute_90a,code=sm_90a.*x\.so.*combine_recv\.cu"):
        library.build_ahead(tmp_path / "x.so", ("sm_90a",))
