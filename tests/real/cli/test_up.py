"""`tandem up` with real engines: an answer whose KV cache was pushed, and nothing left behind however it ends."""

import json
import os
import resource
import select
import signal
import subprocess

import httpx
import pytest

from router.process.descriptors import ROOM
from tests.support.descriptors import size_of_table
from tests.support.up import TANDEM, environ, tandem_up

pytestmark = [pytest.mark.needs("model", "nixl", "redis"), pytest.mark.timeout(240)]


def ask(url):
    body = {
        "model": "smollm2-135m",
        "stream": True,
        "max_tokens": 8,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    text = "".join(c["delta"].get("content") or "" for event in events for c in json.loads(event)["choices"])
    return text, answer.headers["x-request-id"]


def story_with(folder, request_id, stage):
    """The lines of the request's Story once one of them tells of `stage`: writers put them down a little later."""
    words = (*TANDEM, "story", request_id, "--json")
    for _ in range(50):
        done = subprocess.run(words, cwd=folder, env=environ(), capture_output=True, check=False)
        lines = json.loads(done.stdout)["story"]
        if any(line["stage"] == stage for line in lines):
            break
    return lines


def wait_gone(processes):
    for process in processes:
        process.wait(30)


def test_an_answer_whose_kv_cache_was_pushed_then_a_clean_end(tmp_path):
    with tandem_up(tmp_path) as up:
        children = up.process.children(recursive=True)
        names = [" ".join(child.cmdline()) for child in children]
        assert sum("engine_shim" in name for name in names) == 2
        assert len(children) == 4
        servers = [child.pid for child, name in zip(children, names, strict=True) if "valkey" not in name]
        room = min(ROOM, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        assert len(servers) == 3 and all(size_of_table(pid) >= room for pid in servers)
        text, request_id = ask(up.url)
        assert len(text.split()) > 3
        moves = {line["stage"] for line in story_with(tmp_path, request_id, "WriterDone")}
        assert {"Registered", "Prefilled", "WriterDone"} <= moves
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 0
        wait_gone(children)
    assert not (tmp_path / ".tandem/up.json").exists()


def test_killed_outright_it_takes_everything_along(tmp_path):
    with tandem_up(tmp_path, "--both", "1") as up:
        children = up.process.children(recursive=True)
        assert len(children) == 3
        text, _ = ask(up.url)
        assert len(text.split()) > 3
        descriptors = [os.pidfd_open(child.pid) for child in children]
        up.process.kill()
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 30)[0]
            os.close(descriptor)
