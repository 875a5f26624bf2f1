"""The command line; what it measures is in `real/`."""

from __future__ import annotations

import sys

import pytest

from engine_shim.bench import experts
from engine_shim.bench.experts import main


def test_all_words_but_the_device_go_to_the_benchmark_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(experts.subprocess, "call", lambda words: called.append(words) or 3)
    assert main(["--tokens", "1,4096", "--device", "cuda", "--ranks", "4", "--num-sms", "24", "--json", "out"]) == 3
    rest = ["--tokens", "1,4096", "--ranks", "4", "--num-sms", "24", "--json", "out"]
    assert called == [[sys.executable, "-m", "engine_shim.bench.experts_nvlink", *rest]]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--tokens x", "'x' is no number from 1 up"),
        ("--routing cold", "must be of uniform, zipf, hot"),
        ("--steps 0", "'0' is no number from 1 up"),
        ("--top-k 64", "--top-k 64 of --experts 32"),
        ("--json /nowhere/out", "no file in a folder that exists"),
        ("--tokenz 1", "unrecognized arguments: --tokenz"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_it_begins(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert says in capsys.readouterr().err


def test_experts_that_cannot_be_shared_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ranks", "3"]) == 2
    assert "32 experts cannot be shared evenly by 3 ranks" in capsys.readouterr().err
