"""What the router's image has in it: the wheel with its `router` extra, no torch, no nixl, in a fresh environment."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from router.cli.local_fleet import free_port

ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 60


def run(*words, cwd):
    quick = os.environ | {"PIP_NO_COMPILE": "1"}
    done = subprocess.run(words, cwd=cwd, env=quick, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The bin folder of an environment that has the built wheel with its router extra, and nothing else."""
    folder = tmp_path_factory.mktemp("router_only")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT), cwd=folder)
    (wheel,) = folder.glob("tandem_router-*.whl")
    script = ROOT / "deploy/image/install_router.sh"  # as in the Dockerfile
    run("sh", str(script), str(folder / "venv"), str(wheel), str(ROOT / "constraints.txt"), cwd=folder)
    return folder / "venv/bin"


@pytest.mark.timeout(600)
def test_neither_torch_nor_nixl_is_installed(environment, tmp_path):
    code = (
        "from importlib.util import find_spec as f; print([n for n in ('torch', 'nixl', 'nixl_cu12', 'gguf') if f(n)])"
    )
    assert run(str(environment / "python"), "-c", code, cwd=tmp_path) == "[]\n"


def test_the_image_stays_small(environment, tmp_path):
    """Of 200 MB, the base image (python:3.12-slim) is published with about 125 MB."""
    kilobytes = int(run("du", "-sk", str(environment.parent), cwd=tmp_path).split()[0])
    assert kilobytes < 75_000


def test_the_scripts_of_the_store_are_in_the_wheel(environment, tmp_path):
    code = "import router.store.fleet, router.store.ledger; print('read')"
    assert run(str(environment / "python"), "-c", code, cwd=tmp_path) == "read\n"


def test_commands_explain_themselves(environment, tmp_path):
    assert "bench serve" in run(str(environment / "tandem"), "--help", cwd=tmp_path)
    assert "--store" in run(str(environment / "python"), "-m", "router", "--help", cwd=tmp_path)
    assert "--rate" in run(str(environment / "tandem"), "bench", "serve", "--help", cwd=tmp_path)
    assert run(str(environment / "tandem"), "--version", cwd=tmp_path).startswith("tandem 0.")


def test_the_shim_says_what_it_lacks(environment, tmp_path):
    words = [str(environment / "tandem"), "shim"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pip install 'tandem-router[shim]'" in done.stderr


def test_the_router_starts_answers_and_stops(environment, tmp_path):
    port = free_port("127.0.0.1")
    words = ("--port", str(port), "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:1")
    log = (tmp_path / "router.log").open("w+")
    router = subprocess.Popen(
        [str(environment / "python"), "-m", "router", *words], cwd=tmp_path, stdout=log, stderr=log
    )
    try:
        status, _ = ask_until_answered(f"http://127.0.0.1:{port}/healthz", router)
        assert status == 200
        status, _ = ask_until_answered(f"http://127.0.0.1:{port}/readyz", router)
        assert status == 503
        status, body = ask_until_answered(f"http://127.0.0.1:{port}/nothing", router)
        assert status == 404
        assert json.loads(body)["error"]["code"] == "not_found"
        router.send_signal(signal.SIGTERM)
        assert router.wait(30) in (0, -signal.SIGTERM)  # uvicorn ends by the signal that it was asked to end by
    finally:
        router.kill()
        router.wait()
        log.close()


def ask_until_answered(url, process):
    """Return status and body of the first answer; a process that ends before is a failure."""
    deadline = os.times().elapsed + START_TIMEOUT_S
    while os.times().elapsed < deadline:
        assert process.poll() is None, f"the router ended with status {process.returncode}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (urllib.error.URLError, ConnectionError):
            continue
    raise AssertionError(f"{url} did not answer within {START_TIMEOUT_S} s")
