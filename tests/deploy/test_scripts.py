"""The scripts that the chart puts into pods: the preStop hook of plain vLLM, and `helm test`."""

import json
import runpy
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from tests.support.charts import CHART, template
from tests.support.pods import PROGRAMS

DRAIN = CHART / "files" / "drain_vllm.py"


@contextmanager
def server(answer, host="127.0.0.1"):
    """`answer(method, path, body) -> (status, body)` over HTTP; yields the port."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, text = answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("content-length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer((host, 0), Answering)
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield listening.server_address[1]
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def metrics(running=0, waiting=0, use=0.0):
    lines = (
        f'vllm:num_requests_running{{engine="0"}} {float(running)}',
        f'vllm:num_requests_waiting{{engine="0"}} {float(waiting)}',
        'vllm:num_requests_waiting_by_reason{engine="0"} 9.0',
        f'vllm:kv_cache_usage_perc{{engine="0"}} {use}',
    )
    return "\n".join(lines) + "\n"


@pytest.fixture
def drain(monkeypatch):
    """Runs the hook; how often it looks is up to the test."""
    script = runpy.run_path(str(DRAIN), run_name="drain_vllm")

    def run(ports, drain_s=30.0):
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
        monkeypatch.setitem(script["main"].__globals__, "LOOK_S", 0.0)
        words = ["drain", "--ports", ports, "--settle-s", "0", "--drain-s", str(drain_s)]
        monkeypatch.setattr(sys, "argv", words)
        script["main"]()

    run.script = script
    return run


@pytest.mark.parametrize("busy", [{"running": 1}, {"waiting": 2}, {"use": 0.01}])
def test_it_waits_while_something_runs_waits_or_is_held(drain, busy):
    looks = []

    def answer(method, path, body):
        looks.append(path)
        return 200, metrics(**busy) if len(looks) < 5 else metrics()

    with server(answer) as port:
        drain(str(port))
    assert looks == ["/metrics"] * 7, "four busy ones, then three idle ones in a row"


def test_a_look_that_finds_it_busy_begins_the_count_anew(drain):
    seen = [metrics(), metrics(), metrics(running=1), metrics(), metrics(), metrics()]
    with server(lambda *_: (200, seen.pop(0))) as port:
        drain(str(port))
    assert seen == []


def test_it_gives_up_when_its_time_is_over(drain):
    with server(lambda *_: (200, metrics(running=1))) as port:
        drain(str(port), drain_s=0.2)


def test_every_rank_of_the_pod_is_waited_for(drain):
    seen = [metrics(running=1)] * 3 + [metrics()] * 3
    with server(lambda *_: (200, metrics())) as idle, server(lambda *_: (200, seen.pop(0))) as busy:
        drain(f"{idle},{busy}")
    assert seen == []


def test_pods_of_a_group_wait_for_each_other(drain, monkeypatch):
    members = drain.script["members"]
    monkeypatch.setenv("LWS_LEADER_ADDRESS", "tandem-decode-0.tandem-decode.llm")
    monkeypatch.setenv("LWS_GROUP_SIZE", "3")
    assert members() == [
        "tandem-decode-0.tandem-decode.llm",
        "tandem-decode-0-1.tandem-decode.llm",
        "tandem-decode-0-2.tandem-decode.llm",
    ]
    monkeypatch.setenv("LWS_GROUP_SIZE", "1")
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "10.0.0.9")
    assert members() == ["10.0.0.9"]


def test_who_refuses_is_gone_and_who_is_late_is_busy(drain, monkeypatch):
    busy = drain.script["busy"]
    with server(lambda *_: (200, metrics())) as port:
        pass
    assert busy(f"http://127.0.0.1:{port}") is False

    def late(*_, **__):
        raise TimeoutError

    monkeypatch.setattr(drain.script["urllib"].request, "urlopen", late)
    assert busy("http://127.0.0.1:1") is True


# helm test


def pod():
    text = template("kind", "--show-only", "templates/tests/completion.yaml")
    return yaml.safe_load(text)


def run_helm_test(url, **env):
    container = pod()["spec"]["containers"][0]
    words = (*PROGRAMS[container["command"][0]], *container["command"][1:], *container["args"])
    return subprocess.run(words, env={"URL": url, "TIMEOUT_S": "1"} | env, capture_output=True, text=True, check=False)


@pytest.mark.needs("chart")
def test_helm_test_asks_for_a_completion_with_the_callers_key():
    asked = []

    def answer(method, path, body):
        asked.append((method, path, json.loads(body or b"{}")))
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": "m"}]})
        return 200, json.dumps({"choices": [{"text": " Paris"}], "usage": {"completion_tokens": 8}})

    with server(answer) as port:
        done = run_helm_test(f"http://127.0.0.1:{port}", API_KEY="k")
    assert (done.returncode, done.stdout) == (0, "m answers ' Paris'\n"), done.stderr
    assert [one[:2] for one in asked] == [("GET", "/v1/models"), ("POST", "/v1/completions")]
    assert asked[1][2]["model"] == "m"


@pytest.mark.needs("chart")
def test_helm_test_says_what_came_instead():
    with server(lambda *_: (503, '{"error": "no_prefill"}')) as port:
        done = run_helm_test(f"http://127.0.0.1:{port}")
    assert done.returncode == 1
    assert "no_prefill" in done.stderr
    assert "kubectl get pods" in done.stderr
