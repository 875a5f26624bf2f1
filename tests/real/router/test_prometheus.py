"""The metrics as Prometheus itself reads them."""

import asyncio
import json
import socket

import httpx
import pytest

from tests.support.routers import BODY, PATH, rig

pytestmark = pytest.mark.needs("promtool")

STREAM = BODY | {"stream": True}
QUERY = "histogram_quantile(0.5, sum by (le) (tandem_tpot_seconds_bucket))"


async def test_promtool_finds_nothing_wrong():
    async with rig() as r:
        await r.client.post(PATH, json=STREAM)
        text = (await r.client.get("/metrics")).content
    checking = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await checking.communicate(text)
    assert (checking.returncode, said.decode()) == (0, "")


async def test_a_prometheus_tells_the_time_per_token(tmp_path):
    async with rig() as r:
        r.behave(r.decode, num_events=5, gap_s=0.007)
        await r.client.post(PATH, json=STREAM)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        scrape = {"job_name": "router", "scrape_interval": "100ms", "static_configs": [{"targets": [r.url[7:]]}]}
        config = tmp_path / "prometheus.yml"
        config.write_text(json.dumps({"scrape_configs": [scrape | {"scrape_timeout": "100ms"}]}), "utf-8")
        prometheus = await asyncio.create_subprocess_exec(
            *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path}"),
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            median_s = await asked(r.client, f"http://127.0.0.1:{port}/api/v1/query")
        finally:
            prometheus.kill()
            await prometheus.wait()
        assert 0.005 < median_s < 0.1


async def asked(client, url: str) -> float:
    """The answer to QUERY, once there is one."""
    async with asyncio.timeout(30):
        while True:
            try:
                found = (await client.get(url, params={"query": QUERY})).json()["data"]["result"]
            except (httpx.HTTPError, ValueError, KeyError):
                found = []
            if found:
                return float(found[0]["value"][1])
            await asyncio.sleep(0.05)
