import os
import re
import signal
import subprocess

import pytest

from router.cli import up
from router.cli.local_fleet import free_port
from router.cli.running import find_running
from router.contract.errors import EngineDown, MissingDependency
from tests.support.stand_in_programs import engine, stand_in


@pytest.fixture
def flags(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(up.preflight, "check", lambda setup: None)
    return ["--port", str(free_port("127.0.0.1"))]


def on_ready(monkeypatch, act):
    """Call `act(pid of the first engine)` as soon as all is ready."""
    ready_text = up._ready_text

    def hooked(fleet, *rest):
        act(fleet.children.running[0].process.pid)
        return ready_text(fleet, *rest)

    monkeypatch.setattr(up, "_ready_text", hooked)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_with_status_0(monkeypatch, flags, capsys, number):
    stand_in(monkeypatch, engine("prefill-0"), engine("decode-0"))
    seen = []
    on_ready(monkeypatch, lambda pid: (seen.append(pid), os.kill(os.getpid(), number)))
    assert up.main(flags) == 0
    told = capsys.readouterr().err
    assert re.search(
        r"Ready in \d+\.\d s: http://127\.0\.0\.1:\d+ serves stand-in \(1 prefill \+ 1 decode, mode push\)", told
    )
    assert f"curl -N http://127.0.0.1:{flags[1]}/v1/chat/completions" in told
    assert not os.path.exists(f"/proc/{seen[0]}")
    assert find_running() is None


def test_a_second_signal_ends_the_patience_with_a_child_that_stays(monkeypatch, flags):
    stubborn = (
        "import json, os, signal, threading\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))\n"
        "print(json.dumps({'ready': True, 'url': 'http://engine'}), flush=True)\n"
        "while True:\n"
        "    threading.Event().wait(0.05)\n"
    )
    stand_in(monkeypatch, engine("prefill-0", stubborn))
    seen = []
    on_ready(monkeypatch, lambda pid: (seen.append(pid), os.kill(os.getpid(), signal.SIGINT)))
    assert up.main(flags) == 0
    assert not os.path.exists(f"/proc/{seen[0]}")


def test_the_curl_example_is_a_valid_command(monkeypatch, flags, capsys):
    stand_in(monkeypatch, engine("prefill-0"))
    on_ready(monkeypatch, lambda pid: os.kill(os.getpid(), signal.SIGINT))
    up.main(flags)
    example = re.search(r"curl (.*\\\n.*)\n", capsys.readouterr().err)[1]
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {example}"], capture_output=True, text=True, check=True
    ).stdout
    assert '{"model": "stand-in", "stream": true, "messages": [' in words


def test_an_engine_that_dies_ends_all_with_its_last_lines(monkeypatch, flags):
    stand_in(monkeypatch, engine("prefill-0"), engine("decode-0"))
    on_ready(monkeypatch, lambda pid: os.kill(pid, signal.SIGKILL))
    with pytest.raises(EngineDown, match="prefill-0 was ended by SIGKILL"):
        up.main(flags)


def test_nothing_starts_when_the_preflight_fails(monkeypatch, flags):
    def refuse(setup):
        raise MissingDependency("The package nixl_cu12 is not installed.")

    monkeypatch.setattr(up.preflight, "check", refuse)
    monkeypatch.setattr(up, "LocalFleet", None)
    with pytest.raises(MissingDependency):
        up.main(flags)


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ([], (1, 1, 0)),
        (["--both", "2"], (0, 0, 2)),
        (["--prefill", "2", "--decode", "3"], (2, 3, 0)),
        (["--both", "1", "--prefill", "1", "--decode", "1"], (1, 1, 1)),
    ],
)
def test_counts_of_engines(words, counts):
    setup = up._setup_of(up._parser().parse_args(words))
    assert (setup.prefill, setup.decode, setup.both) == counts
