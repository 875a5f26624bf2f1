"""Prints all objects of deploy/manifests and deploy/eks as JSON, for `make chart-crds`."""

from __future__ import annotations

import json

import yaml

from tests.support.source_tree import ROOT

if __name__ == "__main__":
    paths = (*(ROOT / "deploy/manifests").glob("*.yaml"), ROOT / "deploy/eks/karpenter.yaml")
    print(json.dumps([one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]))
