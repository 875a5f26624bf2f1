"""The chart, rendered by the real Helm: its examples, their objects, and the files that are made of it.

`python -m tests.support.charts` (`make chart`) writes values.schema.json and deploy/manifests: each example as plain
manifests. A test compares, so both are golden files as well.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.chart_schema import values_schema
from tests.support.chart_tools import HELM, KUBERNETES
from tests.support.source_tree import ROOT

CHART = ROOT / "helm" / "tandem"
MANIFESTS = ROOT / "deploy" / "manifests"
EXAMPLES = tuple(sorted(path.stem for path in (CHART / "examples").glob("*.yaml")))
RELEASE, NAMESPACE = "tandem", "llm"

Object = dict[str, Any]


class Refused(Exception):
    """Helm has rendered nothing, and says why."""


@dataclass(frozen=True)
class Rendered:
    """The objects of one release."""

    objects: tuple[Object, ...]

    def all(self, kind: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        found = [one for one in self.all(kind) if one["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} objects {kind} {name}"
        return found[0]

    def pods(self) -> dict[str, Object]:
        """Pod templates of all workloads, by the workload's name."""
        made = {one["metadata"]["name"]: one["spec"]["template"] for one in self.all("Deployment")}
        for one in self.all("LeaderWorkerSet"):
            made[one["metadata"]["name"]] = one["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        return made


def helm(*arguments: str, stdin: str | None = None) -> str:
    """What Helm prints.

    Raises:
        Refused: it ends with an error.
    """
    ended = subprocess.run((str(HELM), *arguments), capture_output=True, text=True, input=stdin, check=False)
    if ended.returncode:
        raise Refused(ended.stderr.strip())
    return ended.stdout


@cache
def template(example: str, *arguments: str) -> str:
    """The manifests of an example, or of the default values where it is ""."""
    files = ("--values", str(CHART / "examples" / f"{example}.yaml")) if example else ()
    given = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, *files, *arguments)
    return helm("template", RELEASE, str(CHART), *given)


def render(example: str, *arguments: str, values: Object | None = None) -> Rendered:
    """The objects of an example with more arguments and values. Raises Refused."""
    if values is None:
        text = template(example, *arguments)
    else:
        files = ("--values", str(CHART / "examples" / f"{example}.yaml")) if example else ()
        given = ("--namespace", NAMESPACE, "--kube-version", KUBERNETES, *files, "--values", "-", *arguments)
        text = helm("template", RELEASE, str(CHART), *given, stdin=json.dumps(values))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return Rendered(tuple(one for one in yaml.load_all(text, loader) if one))


def plain(example: str) -> str:
    """An example as manifests for `kubectl apply`, without what is Helm's own."""
    kept = [
        line.rstrip()
        for line in template(example, "--skip-tests").splitlines()
        if line.strip() and not line.lstrip().startswith(("helm.sh/chart:", "app.kubernetes.io/managed-by: Helm"))
    ]
    head = f"# Of helm/tandem/examples/{example}.yaml for the namespace {NAMESPACE}, by `make chart`; change that."
    return "\n".join([head, *kept]) + "\n"


def schema_text() -> str:
    """values.schema.json as it must be."""
    return json.dumps(values_schema(), indent=1) + "\n"


def write() -> None:
    """Schema and manifests are those of the chart."""
    (CHART / "values.schema.json").write_text(schema_text())
    texts = {manifest_path(example): plain(example) for example in EXAMPLES}
    MANIFESTS.mkdir(parents=True, exist_ok=True)
    for old in set(MANIFESTS.glob("*.yaml")) - texts.keys():
        old.unlink()
    for path, text in texts.items():
        path.write_text(text)


def manifest_path(example: str) -> Path:
    """Where an example's manifests lie."""
    return MANIFESTS / f"{example}.yaml"


if __name__ == "__main__":
    write()
