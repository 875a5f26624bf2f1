"""schemathesis on the OpenAPI document of a router before mock engines: `python -m tests.support.fuzz_schema`.

schemathesis has an environment of its own (`make fuzz` makes it); its checks are the ones of `CHECKS`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from router.core.intake import SPLIT, Endpoint
from tests.support.router_process import router_process

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
)
NOT_ASKED = "^/admin/(mode|drain|undrain|config)"
"""What would change the router under test."""


def _name_the_model(schema: Any) -> None:
    """Requests ask for the model that there is; other names are refused before anything interesting happens."""
    for operation in (operation for path in schema["paths"].values() for operation in path.values()):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        if "model" in body.get("properties", {}):
            body["properties"]["model"] = {"type": "string", "enum": ["m"]}


async def _run(program: str, seconds: int, folder: Path, more: list[str]) -> int:
    engines = [MockEngine(role, role.value, records=False) for role in (Role.PREFILL, Role.DECODE)]
    for engine in engines:
        engine.endpoints = tuple(sorted(set(Endpoint) - SPLIT))
    urls = [await engine.start() for engine in engines]
    try:
        async with router_process("--prefill", urls[0], "--decode", urls[1]) as router:
            schema = (await router.client.get("/openapi.json")).json()
            _name_the_model(schema)
            path = folder / "openapi.json"
            path.write_text(json.dumps(schema))
            words = [program, "run", str(path), "--url", str(router.client.base_url), "--max-time", str(seconds)]
            words += ["--checks", CHECKS, "--exclude-path-regex", NOT_ASKED, "--generation-database", "none"]
            child = await asyncio.create_subprocess_exec(*words, *more)
            status = await child.wait()
            held = {name: await router.gauge(f"tandem_{name}") for name in ("requests_in_flight", "open_tickets")}
    finally:
        for engine in engines:
            await engine.stop()
    print(f"left on their way: {held}")
    return status or int(any(held.values()))


def main() -> int:
    """schemathesis' own status, or 1 when something is still on its way afterwards."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz_schema", description=__doc__)
    parser.add_argument("--program", default=".tandem/fuzz/bin/schemathesis", help="schemathesis' command")
    parser.add_argument("--seconds", type=int, default=600)
    given, more = parser.parse_known_args()
    with TemporaryDirectory() as folder:
        return asyncio.run(_run(given.program, given.seconds, Path(folder), more))


if __name__ == "__main__":
    sys.exit(main())
