"""`tandem doctor` on a real `tandem up` with a tiny checkpoint: healthy, with a stopped engine, at a wrong address."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.tiny_models import write_tiny_llama
from tests.support.up import TANDEM, Up, environ, tandem_up

pytestmark = [pytest.mark.needs("nixl", "redis"), pytest.mark.timeout(180)]
FLAGS = ("--decode", "2", "--block-tokens-decode", "8", "--kv-bytes", "2000000", "--numerics", "invariant")


@dataclass
class Place:
    """A folder in which a set-up runs."""

    folder: Path
    up: Up

    def doctor(self, *flags: str, **more: str) -> tuple[int, str]:
        """Its exit status and what it printed."""
        words = (*TANDEM, "doctor", *flags)
        env = environ() | more
        done = subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=120)
        assert done.stderr == ""
        return done.returncode, done.stdout

    def engine(self, name: str) -> psutil.Process:
        return next(one for one in self.up.process.children() if name in one.cmdline())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "tiny").mkdir()
    write_tiny_llama(folder / "tiny")
    with tandem_up(folder, "--model", "tiny", *FLAGS) as up:
        yield Place(folder, up)


def ask(place: Place, body: dict[str, object]) -> str:
    answer = httpx.post(f"{place.up.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_a_healthy_set_up_moves_every_byte_on_every_pair_and_holds_nothing(place: Place) -> None:
    status, printed = place.doctor("--json", "--sizes", "1K,16K,64K")
    told = json.loads(printed)
    assert (status, told["well"]) == (0, True), printed
    assert {finding["level"] for finding in told["findings"]} == {"ok"}, printed
    assert {(pair["prefill"], pair["decode"]) for pair in told["pairs"]} == {
        ("prefill-0", "decode-0"),
        ("prefill-0", "decode-1"),
    }
    runs = [run for pair in told["pairs"] for run in pair["verdict"]["runs"]]
    assert len(runs) == 6
    assert all(run["wrong_bytes"] == 0 and run["seconds"] > 0 for run in runs)
    assert {run["num_bytes"] // 1024 for run in runs} >= {1, 16, 64}
    place.up.wait_quiet()


def test_it_does_not_disturb_those_who_are_served(place: Place) -> None:
    body = {"model": "tiny", "prompt": [5] * 300, "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    alone = ask(place, body)
    words = (*TANDEM, "doctor")
    beside = subprocess.Popen(words, cwd=place.folder, env=environ(), stdout=subprocess.PIPE, text=True)
    while beside.poll() is None:
        assert ask(place, body) == alone
    assert beside.returncode == 0, beside.communicate()[0]
    place.up.wait_quiet()


def test_an_engine_that_is_stopped_is_named(place: Place) -> None:
    engine = place.engine("decode-0")
    engine.send_signal(signal.SIGSTOP)
    try:
        status, printed = place.doctor()
    finally:
        engine.send_signal(signal.SIGCONT)
    assert status == 1
    (failure,) = [line for line in printed.splitlines() if line.startswith("FAIL")]
    assert failure.split()[1] == "decode-0"
    assert "does not answer" in failure
    assert re.search(r"^ok +prefill-0 -> decode-1 .* every byte is right\.$", printed, re.MULTILINE), printed
    place.up.wait_quiet()


def test_a_wrong_address_says_what_to_correct(place: Place) -> None:
    status, printed = place.doctor("--url", "http://127.0.0.1:1")
    assert status == 1
    assert "correct --url" in next(line for line in printed.splitlines() if line.startswith("FAIL"))


def test_without_the_deployment_key_no_byte_moves(place: Place) -> None:
    status, printed = place.doctor(TANDEM_DEPLOYMENT_KEY="x" * 32)
    assert status == 1
    failures = [line for line in printed.splitlines() if line.startswith("FAIL")]
    assert len(failures) == 2
    assert all("TANDEM_DEPLOYMENT_KEY" in line for line in failures)


def test_a_node_is_examined_without_a_router_or_a_store(place: Place) -> None:
    """As an init container does: it runs in a folder of its own, in which no set-up is."""
    words = (*TANDEM, "doctor", "--preflight", "--json")
    done = subprocess.run(words, cwd=place.folder / "tiny", env=environ(), capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    (trial,) = [one for one in told["findings"] if one["subject"] == "trial UCX"]
    assert (trial["level"], trial["sentence"].endswith("every byte is right.")) == ("ok", True), trial
    assert done.returncode == 0 and told["well"] is True, done.stdout
    assert {one["subject"] for one in told["findings"]} == {"devices", "memlock", "shm", "trial UCX"}
