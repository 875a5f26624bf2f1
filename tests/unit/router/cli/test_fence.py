import httpx
import pytest

from router.cli import fence
from router.contract.errors import DeploymentError, Unauthorized
from router.contract.seal import FENCE, SEAL_HEADER, Seal

KEY = "k" * 32
INSTANCES = [
    {"instance_id": name, "epoch": 7, "url": f"http://{name}"}
    for name in ("decode-0", "decode-1", "prefill-0", "vllm-0")
]


@pytest.fixture
def answers(monkeypatch, tmp_path):
    """What each engine answers; requests go nowhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TANDEM_DEPLOYMENT_KEY", KEY)
    monkeypatch.delenv("TANDEM_ADMIN_KEY", raising=False)
    by_host: dict[str, object] = {"router": {"instances": INSTANCES}}

    def answer(request: httpx.Request) -> httpx.Response:
        said = by_host.get(request.url.host)
        if said is None:
            raise httpx.ConnectError("refused")
        if request.url.path == "/kv/fence":
            assert Seal(KEY).header_holds(FENCE, request.content, request.headers[SEAL_HEADER])
        return httpx.Response(said) if isinstance(said, int) else httpx.Response(200, json=said)

    client = httpx.AsyncClient
    monkeypatch.setattr(
        fence.httpx, "AsyncClient", lambda **changes: client(transport=httpx.MockTransport(answer), timeout=1)
    )
    return by_host


def test_everybody_but_the_lost_engine_is_told(answers, capsys):
    answers |= {"decode-0": {"fenced": ["prefill-0@7"]}, "decode-1": {"fenced": []}, "vllm-0": 404}
    assert fence.main(["prefill-0", "--url", "http://router"]) == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "decode-0 waits no longer for prefill-0@7",
        "decode-1 has not waited for it",
        "vllm-0 keeps no KV cache for others (status 404)",
    ]


def test_one_that_does_not_answer_is_status_1_and_is_named(answers, capsys):
    answers |= {"decode-0": {"fenced": ["prefill-0@7"]}, "vllm-0": 404}
    assert fence.main(["prefill-0@7", "--url", "http://router"]) == 1
    assert "decode-1             does not answer (ConnectError); tell it again later" in capsys.readouterr().out


def test_a_name_that_nobody_has_waited_for_is_status_1(answers):
    answers |= {one["instance_id"]: {"fenced": []} for one in INSTANCES}
    assert fence.main(["prefil-0", "--url", "http://router"]) == 1


def test_another_key_is_named(answers, capsys):
    answers |= dict.fromkeys(("decode-0", "decode-1", "vllm-0"), 401)
    assert fence.main(["prefill-0", "--url", "http://router"]) == 1
    assert "TANDEM_DEPLOYMENT_KEY" in capsys.readouterr().out


def test_a_router_that_is_not_there_or_wants_a_key_says_so(answers):
    with pytest.raises(DeploymentError, match="correct --url"):
        fence.main(["prefill-0", "--url", "http://nobody"])
    answers["router"] = 401
    with pytest.raises(Unauthorized, match="TANDEM_ADMIN_KEY"):
        fence.main(["prefill-0", "--url", "http://router"])
