from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from engine_shim.core.fates import Address
from engine_shim.driver.self_test import Target
from engine_shim.driver.self_test_calls import Check, Checked, Lend, Lent, Return, Run, Verdict
from engine_shim.serve.problems import on_problem
from engine_shim.serve.self_test import self_test_routes
from router.cli.doctor_findings import PairVerdict
from router.cli.doctor_fleet import SELF_TEST as DOCTORS_PURPOSE
from router.cli.doctor_fleet import SELF_TEST_PATH
from router.contract.errors import NoSeats, TandemError
from router.contract.ids import EngineId
from router.contract.seal import SEAL_HEADER, SELF_TEST, Seal

SEAL = Seal("k" * 32)
ORDER = {"engine_id": "d0@7", "host": "10.0.0.7", "port": 9100, "sizes_bytes": [4096, 1 << 20]}


class FakeSelfTest:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def run(self, target: Target, sizes_bytes: tuple[int, ...]) -> Verdict:
        self.asked.append((target, sizes_bytes))
        return Verdict(0.25, (Run(4096, 2, 0.5, 0),))

    async def lend(self, wanted: Lend) -> Lent:
        self.asked.append(wanted)
        if wanted.num_tokens > 100:
            raise NoSeats("No seats came free; try again.")
        return Lent((3, 4))

    async def check(self, wanted: Check) -> Checked:
        self.asked.append(wanted)
        return Checked(5)

    def take_return(self, returned: Return) -> None:
        self.asked.append(returned)


@pytest.fixture
def fake() -> FakeSelfTest:
    return FakeSelfTest()


@pytest.fixture
async def client(fake: FakeSelfTest) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(self_test_routes(fake, SEAL))  # type: ignore[arg-type]
    app.add_exception_handler(TandemError, on_problem)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shim") as made:
        yield made


async def call(client: httpx.AsyncClient, path: str, body: object, seal: Seal = SEAL) -> httpx.Response:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {SEAL_HEADER: seal.header(SELF_TEST, path.encode() + raw)}
    return await client.post(path, content=raw, headers=headers)


async def test_a_run_is_what_tandem_doctor_asks_for_and_reads(client: httpx.AsyncClient, fake: FakeSelfTest) -> None:
    assert DOCTORS_PURPOSE == SELF_TEST
    answer = await call(client, SELF_TEST_PATH, ORDER)
    assert fake.asked == [(Target(EngineId("d0@7"), Address("10.0.0.7", 9100)), (4096, 1 << 20))]
    verdict = msgspec.json.decode(answer.content, type=PairVerdict)
    assert (verdict.handshake_s, verdict.runs[0].num_bytes, verdict.runs[0].seconds) == (0.25, 4096, 0.5)


async def test_scratch_is_lent_checked_and_returned(client: httpx.AsyncClient, fake: FakeSelfTest) -> None:
    wanted = [Lend("scratch:p/1", "p0@7", 8), Check("scratch:p/1", 8, 9), Return("scratch:p/1")]
    paths = ("/kv/scratch/lend", "/kv/scratch/check", "/kv/scratch/return")
    answers = [await call(client, path, body) for path, body in zip(paths, wanted, strict=True)]
    assert [answer.json() for answer in answers] == [{"blocks": [3, 4]}, {"wrong_bytes": 5}, {}]
    assert fake.asked == wanted


@pytest.mark.parametrize("path", [SELF_TEST_PATH, "/kv/scratch/lend", "/kv/scratch/check", "/kv/scratch/return"])
async def test_without_the_key_nothing_is_done(client: httpx.AsyncClient, fake: FakeSelfTest, path: str) -> None:
    for answer in (await call(client, path, ORDER, Seal("x" * 32)), await client.post(path, json=ORDER)):
        assert answer.status_code == 401
        assert "TANDEM_DEPLOYMENT_KEY" in answer.json()["error"]["message"]
    assert fake.asked == []


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", ORDER | {"sizes_bytes": []}, ORDER | {"sizes_bytes": [1] * 9}])
async def test_another_body_is_a_bad_request(client: httpx.AsyncClient, fake: FakeSelfTest, body: object) -> None:
    assert (await call(client, SELF_TEST_PATH, body)).status_code == 400
    assert fake.asked == []


async def test_what_cannot_be_done_is_said_in_the_envelope(client: httpx.AsyncClient) -> None:
    answer = await call(client, "/kv/scratch/lend", Lend("scratch:p/1", "p0@7", 101))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "no_seats"
