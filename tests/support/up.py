"""`tandem up` as a child of the tests, and the quiet check over everything that it started."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from router.cli.local_fleet import free_port
from tests.support.tiny_models import write_tiny_llama

ROOT = Path(__file__).parents[2]
TANDEM = (sys.executable, "-m", "router.cli.main")
MODEL = "smollm2-135m"
TINY_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


@dataclass
class Up:
    """A running set-up."""

    url: str
    process: psutil.Popen

    def engines(self) -> dict[str, str]:
        """URL of each engine by its instance id."""
        fleet = httpx.get(f"{self.url}/admin/fleet").json()["instances"]
        return {one["instance_id"]: one["url"] for one in fleet}

    def rss_bytes(self) -> dict[str, int]:
        """Resident bytes of each process, by what it is."""
        sizes = {}
        for child in self.process.children(recursive=True):
            words = " ".join(child.cmdline())
            kind = "engine" if "engine_shim" in words else "router" if "-m router" in words else "store"
            sizes[f"{kind}-{child.pid}"] = child.memory_info().rss
        return sizes

    def held(self) -> dict[str, float]:
        """All that must be zero when nobody asks for anything."""
        facts = {}
        for name, url in self.engines().items():
            metrics = read_metrics(url)
            for what in ("held_blocks", "quarantined_blocks", "live_transfers", "open_tickets", "running_seqs"):
                facts[f"{name} {what}"] = metrics[f"tandem_shim_{what}"]
        router = read_metrics(self.url)
        facts["router requests"] = router["tandem_requests_in_flight"]
        facts["router tickets"] = router["tandem_open_tickets"]
        return facts

    def wait_quiet(self, within_s: float = 20.0) -> None:
        """Nothing is held anywhere, within so many seconds."""
        ends_at = time.monotonic() + within_s
        while any((facts := self.held()).values()):
            assert time.monotonic() < ends_at, f"still held after {within_s} s: {facts}"
            time.sleep(0.1)


def read_metrics(url: str) -> dict[str, float]:
    """Every metric of a /metrics page, summed over its labels."""
    sums: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
    return sums


def environ() -> dict[str, str]:
    """Ours, in which this tree is found from any folder."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def _end_with_us() -> None:
    """In the child: Linux sends it SIGTERM when we are gone, also when fixtures are not torn down any more."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


@contextmanager
def tandem_up(folder: Path, *flags: str) -> Iterator[Up]:
    """`tandem up`, begun in this folder, is ready for the block, and gone after it."""
    words = (*TANDEM, "up", "--port", str(free_port("127.0.0.1")), "--logs", "logs", *flags)
    child = psutil.Popen(words, cwd=folder, env=environ(), stderr=subprocess.PIPE, text=True, preexec_fn=_end_with_us)
    try:
        told = []
        for line in child.stderr:
            told.append(line)
            if ready := re.match(r"Ready in .* s: (http://\S+) serves", line):
                yield Up(ready[1], child)
                break
        else:
            raise AssertionError("".join(told))
    finally:
        with suppress(psutil.NoSuchProcess):  # a test may have ended it
            child.terminate()
        child.wait(60)
        child.stderr.close()


@contextmanager
def tiny_up(folder: Path, *flags: str) -> Iterator[Up]:
    """`tandem_up` with a tiny checkpoint, called `tiny`, that has a chat template; its engines are quick."""
    model = folder / "tiny"
    model.mkdir()
    write_tiny_llama(model)
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TINY_TEMPLATE}))
    with tandem_up(folder, "--model", str(model), "--kv-bytes", "2000000", *flags) as running:
        yield running
