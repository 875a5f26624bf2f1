import pytest

from router.cli import trial
from router.cli.doctor_findings import Run
from router.cli.trial import try_fabric

BAD = "tests.support.bad_trial"


@pytest.fixture(autouse=True)
def _nixl_is_here(monkeypatch):
    monkeypatch.setattr(trial, "NIXL", ("json",))


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("crashes", "died of SIGSEGV (fi_domain: cannot open)"),
        ("babbles", "ended without an answer (it said nothing)"),
        ("refuses", "NIXL has no backend here. Look at what NIXL and UCX say"),
    ],
)
def test_however_it_ends_there_is_a_sentence(backend, words):
    tried = try_fabric(backend, "cpu", BAD)
    assert tried.runs == () and words in tried.error


def test_one_that_hangs_is_ended():
    assert "has not ended within 0.2 s" in try_fabric("hangs", "cpu", BAD, within_s=0.2).error


def test_one_that_works_is_told_whatever_else_was_printed():
    assert try_fabric("works", "cpu", BAD).runs == (Run(8, 1, 0.5, 0),)


def test_without_nixl_there_is_none(monkeypatch):
    monkeypatch.setattr(trial, "NIXL", ("no_such_package",))
    assert try_fabric("UCX", "cpu").missing
