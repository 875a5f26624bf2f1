"""Is an object one that the API server would take? Core kinds by Kubernetes' own schemas, unknown fields refused.

Schemas of custom resources are in tests/deploy/crds, written from the projects' API references: the fields that a chart
like ours may use, everything else refused. `make chart-crds` asks the projects' own validators beside them.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.support.chart_tools import KUBERNETES, schema_wheel
from tests.support.source_tree import ROOT

CRDS = ROOT / "tests" / "deploy" / "crds"
_INSIDE = f"kubernetes_validate/kubernetes-json-schema/v{KUBERNETES}-local-strict/"


@cache
def _core(name: str) -> Any:
    try:
        return json.loads(schema_wheel().read(_INSIDE + name))
    except KeyError:
        return None


def _retrieve(uri: str) -> Resource[Any]:
    return Resource(contents=_core(uri.rpartition("/")[2]), specification=DRAFT202012)


_REGISTRY: Registry[Any] = Registry(retrieve=_retrieve)


@cache
def _validator(api_version: str, kind: str) -> Draft202012Validator:
    group, _, version = api_version.rpartition("/")
    if group in ("", "apps", "batch", "policy", "autoscaling") or (group.endswith(".k8s.io") and not _is_custom(kind)):
        middle = f"{group.split('.')[0]}-" if group else ""
        schema = _core(f"{kind.lower()}-{middle}{version}.json")
    else:
        schema = yaml.safe_load((CRDS / f"{kind}.yaml").read_text())
    assert schema is not None, f"there is no schema of {api_version} {kind}"
    return Draft202012Validator(schema, registry=_REGISTRY)


def _is_custom(kind: str) -> bool:
    return (CRDS / f"{kind}.yaml").exists()


def fault(thing: dict[str, Any]) -> str | None:
    """What is wrong with an object; None when nothing is."""
    error = best_match(_validator(thing["apiVersion"], thing["kind"]).iter_errors(thing))
    if error is None:
        return None
    return f"{thing['kind']} {thing['metadata']['name']}: {'/'.join(map(str, error.absolute_path))}: {error.message}"
