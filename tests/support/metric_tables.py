"""The tables of metrics in the READMEs: what routers and shims promise to tell."""

from __future__ import annotations

import re
from collections.abc import Iterable

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.support.source_tree import ROOT

ROW = re.compile(r"^\| `(tandem_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
TABLES = ("router/observe/README.md", "engine_shim/serve/README.md")
OF_SHIMS = frozenset({"instance_id", "role"})


def promised() -> dict[str, frozenset[str]]:
    """Labels by the name of each sample, from the tables."""
    found = {"up": frozenset()}
    for table in TABLES:
        for name, kind, words in ROW.findall((ROOT / table).read_text("utf-8")):
            labels = frozenset(words.replace(" ", "").split(",")) - {""}
            labels |= OF_SHIMS if name.startswith("tandem_shim_") else frozenset()
            if kind == "histogram":
                found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
            elif kind == "summary":
                found |= {f"{name}_sum": labels, f"{name}_count": labels}
            else:
                found[name] = labels
    return found


def scraped(urls: Iterable[str]) -> dict[str, frozenset[str]]:
    """Labels of every sample that these processes tell, by its name."""
    found: dict[str, frozenset[str]] = {}
    for url in urls:
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, frozenset()) | sample.labels.keys()
    return found
