"""The Dockerfile, as far as it can be judged without a Docker daemon.

Its router environment is made by the script that `real/install/test_router_only.py` runs in a clean place.
"""

import fnmatch
import re
import subprocess

import pytest

from tests.support.chart_tools import HADOLINT
from tests.support.source_tree import ROOT

DOCKERFILE = ROOT / "Dockerfile"
TEXT = re.sub(r"\\\n", " ", DOCKERFILE.read_text())


def stages():
    """Instructions by the stage's name."""
    found, name = {}, ""
    for line in TEXT.splitlines():
        if start := re.match(r"FROM \S+ AS (\S+)", line):
            name = start[1]
        if name and re.match(r"[A-Z]+ ", line):
            found.setdefault(name, []).append(line)
    return found


@pytest.mark.needs("chart")
def test_hadolint_finds_nothing():
    done = subprocess.run((str(HADOLINT), str(DOCKERFILE)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("target", ["router", "shim"])
def test_images_run_as_nobody_and_start_the_command(target):
    lines = stages()[target]
    assert "USER 65532:65532" in lines
    assert 'ENTRYPOINT ["tandem"]' in lines
    assert "STOPSIGNAL SIGTERM" in lines


def test_the_router_takes_nothing_but_its_environment_into_its_image():
    copied = [line for line in stages()["router"] if line.startswith("COPY")]
    assert copied == ["COPY --from=router-environment /opt/tandem /opt/tandem"]
    assert not any("torch" in line or "nixl" in line for line in stages()["router-environment"])


def test_everything_that_is_copied_is_there_and_sent_to_the_builder():
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for line in TEXT.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for path in line.split()[1:-1]:
                assert (ROOT / path).exists()
                assert any(path == one or fnmatch.fnmatch(path, f"{one}/*") for one in sent), path


def test_scripts_get_the_arguments_that_they_read():
    for script in ("install_router.sh", "install_shim.sh"):
        called = re.search(rf"sh /dist/{script} ([^&\n]*)", TEXT)
        assert called is not None
        read = set(re.findall(r"\$(\d)", (ROOT / "deploy/image" / script).read_text()))
        assert len(called[1].split()) == len(read)


def test_versions_are_those_of_the_project():
    shim = (ROOT / "deploy/image/install_shim.sh").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"ARG TORCH=(\S+)", TEXT)[1] == re.search(r"TORCH_VERSION := (\S+)", makefile)[1]
    assert re.search(r"MODEL_PACKAGE := (\S+)", makefile)[1] in shim
