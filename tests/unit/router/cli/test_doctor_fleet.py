import json
from dataclasses import replace

import httpx
import msgspec
import pytest

from router.cli.doctor_findings import Level, PairVerdict, Report, Run
from router.cli.doctor_fleet import SELF_TEST, PairTrials, check_instance, check_pairs, check_router, compare_views
from router.contract.instance import Role
from router.contract.seal import SEAL_HEADER, Seal
from router.store.codec import encode_instance
from tests.support.fleets import an_instance

SEAL = Seal("k" * 32)
P, D = an_instance("p0"), an_instance("d0", role=Role.DECODE)


def client(answers: dict[str, object]) -> httpx.AsyncClient:
    """Answers by path: an object as JSON, bytes or text as they are, an int as a status; other paths are refused."""

    def answer(request: httpx.Request) -> httpx.Response:
        said = answers.get(request.url.path)
        if said is None:
            raise httpx.ConnectError("refused")
        if callable(said):
            said = said(request)
        if isinstance(said, httpx.Response):
            return said
        if isinstance(said, int):
            return httpx.Response(said)
        return httpx.Response(200, content=said if isinstance(said, bytes | str) else json.dumps(said))

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def told(report: Report, level: Level) -> list[tuple[str, str]]:
    return [(finding.subject, finding.sentence) for finding in report.findings if finding.level is level]


def fleet_of(*instances):
    return {"instances": [{"instance_id": i.instance_id, "epoch": i.epoch, "url": i.url} for i in instances]}


async def test_a_ready_router_tells_whom_it_knows():
    report = Report()
    answers = {"/readyz": {"ready": True, "degraded": False}, "/admin/fleet": fleet_of(P, D)}
    assert await check_router(report, client(answers), "http://r") == {("p0", 7): P.url, ("d0", 7): D.url}
    assert told(report, Level.GOOD) == [("router", "http://r is ready and knows 2 instances.")]


async def test_the_key_of_admin_is_shown_and_a_missing_one_is_named(monkeypatch):
    def answer(request: httpx.Request) -> httpx.Response:
        has_key = request.headers.get("authorization") == "Bearer secret"
        return httpx.Response(200, json=fleet_of(P)) if has_key else httpx.Response(401, json={})

    answers = {"/readyz": {"ready": True, "degraded": False}, "/admin/fleet": answer}
    report = Report()
    assert await check_router(report, client(answers), "http://r") is None
    assert "set TANDEM_ADMIN_KEY" in told(report, Level.FAILURE)[0][1]
    monkeypatch.setenv("TANDEM_ADMIN_KEY", "secret")
    assert await check_router(Report(), client(answers), "http://r") == {("p0", 7): P.url}


@pytest.mark.parametrize(
    ("ready", "level", "words"),
    [
        ({"ready": False, "degraded": False}, Level.FAILURE, "is not ready"),
        ({"ready": True, "degraded": True}, Level.WARNING, "cannot reach the store"),
    ],
)
async def test_a_router_that_is_not_as_it_should_be(ready, level, words):
    report = Report()
    assert await check_router(report, client({"/readyz": ready, "/admin/fleet": fleet_of()}), "http://r") == {}
    ((_, sentence),) = told(report, level)
    assert words in sentence


@pytest.mark.parametrize(
    ("answers", "words"),
    [({}, "does not answer"), ({"/readyz": "<html>"}, "no router of ours"), ({"/readyz": 404}, "no")],
)
async def test_an_address_without_our_router(answers, words):
    report = Report()
    assert await check_router(report, client(answers), "http://r") is None
    ((subject, sentence),) = told(report, Level.FAILURE)
    assert subject == "router"
    assert words in sentence


def test_views_that_differ_are_told_by_who_is_missing():
    report = Report()
    compare_views(report, [("p0", 7), ("lost", 1)], [("p0", 8)])
    assert [sentence.split(",")[0] for _, sentence in told(report, Level.FAILURE)] == ["It does not know p0@8"]
    assert [sentence.split(",")[0] for _, sentence in told(report, Level.WARNING)] == [
        "It knows lost@1",
        "It knows p0@7",
    ]


def test_one_view_alone_is_compared_with_nothing():
    report = Report()
    compare_views(report, None, [("p0", 8)])
    compare_views(report, [("p0", 8)], None)
    assert report.findings == []


def engine(instance, metrics="", ready=200):
    return {"/kv/instance": encode_instance(instance), "/readyz": ready, "/metrics": metrics}


async def test_an_engine_that_is_who_the_fleet_says():
    report = Report()
    assert await check_instance(report, client(engine(P, "# x\n")), ("p0", 7), P.url) == P
    assert [level for level in (f.level for f in report.findings)] == [Level.GOOD]


async def test_another_start_at_the_address_is_a_failure():
    report = Report()
    restarted = replace(P, epoch=8)
    assert await check_instance(report, client(engine(restarted)), ("p0", 7), P.url) is None
    ((_, sentence),) = told(report, Level.FAILURE)
    assert "answers p0@8, not p0@7" in sentence


async def test_an_engine_that_is_away_is_a_failure():
    report = Report()
    assert await check_instance(report, client({}), ("p0", 7), P.url) is None
    assert told(report, Level.FAILURE)[0][0] == "p0"


async def test_an_engine_without_our_shim_is_only_looked_at():
    report = Report()
    assert await check_instance(report, client(engine(P) | {"/kv/instance": b"{}"}), ("p0", 7), P.url) is None
    assert report.is_well


async def test_an_engine_that_takes_no_requests_is_a_failure():
    report = Report()
    assert await check_instance(report, client(engine(P, ready=503)), ("p0", 7), P.url) == P
    assert "takes no requests" in told(report, Level.FAILURE)[0][1]


async def test_counters_that_ask_for_something_are_warnings_and_the_others_are_told():
    report = Report()
    metrics = (
        'tandem_shim_facts_total{fact="notice_forged",instance_id="p0",role="prefill"} 3.0\n'
        'tandem_shim_facts_total{fact="notice_unreadable"} 0.0\n'
        'tandem_shim_facts_total{fact="faults"} 2.0\n'
        'tandem_shim_facts_total{fact="peer_died"} 4.0\n'
        'tandem_shim_facts_total{fact="notice_stale_epoch"} 0.0\n'
        "tandem_shim_orphaned_blocks 0.0\n"
    )
    await check_instance(report, client(engine(P, metrics)), ("p0", 7), P.url)
    assert [sentence.partition(":")[0] for _, sentence in told(report, Level.WARNING)] == [
        "It has counted 3 notice forged",
        "It has counted 2 faults",
    ]
    assert told(report, Level.GOOD)[0][1].endswith("; so far 4 peer died.")


async def test_blocks_that_wait_for_a_lost_peer_are_a_warning():
    report = Report()
    await check_instance(report, client(engine(P, "tandem_shim_orphaned_blocks 12.0\n")), ("p0", 7), P.url)
    assert told(report, Level.WARNING)[0][1].startswith("12 blocks wait for a peer")


async def test_metrics_that_cannot_be_read_are_a_warning():
    report = Report()
    await check_instance(report, client(engine(P, '{"detail": "Not Found"}')), ("p0", 7), P.url)
    assert told(report, Level.WARNING)[0][1].startswith("Its metrics cannot be read")


def self_test(wrong_bytes: int = 0):
    def answer(request: httpx.Request) -> httpx.Response:
        raw, path = request.content, request.url.path.encode()
        assert SEAL.header_holds(SELF_TEST, path + raw, request.headers[SEAL_HEADER])
        assert json.loads(raw) == {"engine_id": "d0@7", "host": "127.0.0.1", "port": 9100, "sizes_bytes": [4096]}
        verdict = PairVerdict(0.002, (Run(4096, 1, 0.0001, wrong_bytes),))
        return httpx.Response(200, content=msgspec.json.encode(verdict))

    return {"/kv/self-test": answer}


async def test_a_pair_that_moves_every_byte_right():
    report = Report()
    await check_pairs(report, PairTrials(client(self_test()), [4096], SEAL), [P, D])
    assert told(report, Level.GOOD) == [("p0 -> d0", "handshake 2.0 ms; 4 KiB 100 us 0.04 GB/s; every byte is right.")]
    assert [(pair.prefill, pair.decode) for pair in report.pairs] == [("p0", "d0")]


async def test_a_pair_whose_bytes_are_wrong_fails():
    report = Report()
    await check_pairs(report, PairTrials(client(self_test(3)), [4096], SEAL), [P, D])
    assert told(report, Level.FAILURE)[0][1].startswith("3 BYTES ARRIVED WRONG")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "does not answer any more"),
        (
            {"/kv/self-test": lambda _: httpx.Response(502, json={"error": {"message": "No such peer."}})},
            "No such peer.",
        ),
        ({"/kv/self-test": 404}, "status 404"),
    ],
)
async def test_a_pair_that_cannot_be_tried_fails(answers, words):
    report = Report()
    await check_pairs(report, PairTrials(client(answers), [4096], SEAL), [P, D])
    assert words in told(report, Level.FAILURE)[0][1]
    assert [pair.verdict for pair in report.pairs] == [None]


async def test_a_shim_that_cannot_do_such_a_test_is_a_warning():
    report = Report()
    refused = {"/kv/self-test": lambda _: httpx.Response(400, json={"error": {"message": "In cuda memory."}})}
    await check_pairs(report, PairTrials(client(refused), [4096], SEAL), [P, D])
    assert told(report, Level.WARNING) == [("p0 -> d0", "In cuda memory.")]


async def test_a_pair_that_never_serves_is_a_warning():
    report = Report()
    other = replace(D, kv=replace(D.kv, compat_hash="other"))
    await check_pairs(report, PairTrials(client({}), [4096], SEAL), [P, other])
    assert "They never serve together" in told(report, Level.WARNING)[0][1]
    assert report.pairs == []


async def test_a_fleet_without_a_pair_fails():
    report = Report()
    await check_pairs(report, PairTrials(client({}), [4096], SEAL), [P])
    assert told(report, Level.FAILURE)[0][0] == "pairs"


async def test_a_pair_slower_than_it_must_be_fails():
    report = Report()
    await check_pairs(report, PairTrials(client(self_test()), [4096], SEAL, least_gb_per_s=0.05), [P, D])
    assert told(report, Level.FAILURE)[0][1].startswith("0.04 GB/s at most, less than 0.05")
