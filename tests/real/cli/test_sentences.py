"""What goes wrong before anything runs ends as one sentence that says what to do, and as exit status 2."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from router.cli.local_fleet import free_port

TANDEM = (sys.executable, "-m", "router.cli.main")
ROOT = Path(__file__).parents[3]


def run(*words, cwd, without=()):
    """Run `tandem words...` where the modules `without` cannot be imported."""
    blocker = cwd / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({list(without)!r}))\n")
    env = {**os.environ, "PYTHONPATH": f"{blocker}{os.pathsep}{ROOT}"}
    return subprocess.run([*TANDEM, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


def assert_sentence(done, *parts):
    assert done.returncode == 2, done.stderr
    (sentence,) = done.stderr.splitlines()
    for part in parts:
        assert part in sentence
    assert done.stdout == ""


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.fixture
def free():
    return str(free_port("127.0.0.1"))


@pytest.mark.needs("model", "nixl", "redis")
def test_up_on_a_taken_port(tmp_path, taken):
    done = run("up", "--port", taken, cwd=tmp_path)
    assert_sentence(done, f"Port {taken} on 127.0.0.1 is taken", "choose another with --port")
    assert not (tmp_path / ".tandem").exists()


def test_up_with_a_wrong_model_path(tmp_path, free):
    done = run("up", "--port", free, "--model", "no/such/model", cwd=tmp_path)
    assert_sentence(done, "There is no model at no/such/model", "give smollm2-135m")


@pytest.mark.needs("model", "redis")
def test_up_without_nixl(tmp_path, free):
    done = run("up", "--port", free, cwd=tmp_path, without=["nixl_cu12", "nixl_cu13"])
    assert_sentence(done, "nixl_cu12 is not installed", "pip install nixl-cu12==1.5.1", "--both 1")


@pytest.mark.needs("model")
def test_up_without_torch(tmp_path, free):
    done = run("up", "--port", free, cwd=tmp_path, without=["torch"])
    assert_sentence(done, "torch is not installed", "pip install torch")


@pytest.mark.needs("model", "nixl")
def test_up_with_a_store_that_is_not_there(tmp_path, free):
    done = run("up", "--port", free, "--store", f"redis://127.0.0.1:{free}", cwd=tmp_path)
    assert_sentence(done, f"The store at 127.0.0.1:{free} cannot be reached (Connection refused)", "correct --store")


def test_up_with_engines_that_cannot_serve(tmp_path, free):
    assert_sentence(run("up", "--port", free, "--decode", "0", cwd=tmp_path), "--prefill 1 --decode 1, or --both 1")


def test_shim_without_torch(tmp_path):
    assert_sentence(run("shim", cwd=tmp_path, without=["torch"]), "'torch' is not installed", "tandem-router[shim]")


def test_shim_on_a_taken_port(tmp_path, taken):
    assert_sentence(run("shim", "--port", taken, cwd=tmp_path), taken, "choose another --port")


def test_shim_with_a_wrong_model_path(tmp_path):
    assert_sentence(run("shim", "--model", "no/such/model", cwd=tmp_path), "no/such/model")


@pytest.mark.needs("model")
def test_shim_without_nixl(tmp_path):
    done = run("shim", cwd=tmp_path, without=["nixl", "nixl_cu12"])
    assert_sentence(done, "nixl")


def test_router_on_a_taken_port(tmp_path, taken):
    done = run(
        "router", "--port", taken, "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2", cwd=tmp_path
    )
    assert_sentence(done, taken)


def test_story_without_a_store(tmp_path):
    assert_sentence(run("story", "req-1", cwd=tmp_path), "No store is known", "--store")


def test_bench_without_a_server_is_status_1(tmp_path, free):
    done = run("bench", "serve", "--url", f"http://127.0.0.1:{free}", cwd=tmp_path)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert "does not answer" in sentence


def test_an_unknown_command_is_status_2(tmp_path):
    done = run("upp", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no command 'upp'" in done.stderr
