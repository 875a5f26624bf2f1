"""What the kubelet makes of a container: its command line, environment and files, here under a folder of the test.

Only what our own manifests use: values, fields of the pod, secrets, config maps, and $(NAME) in values and arguments.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.charts import NAMESPACE, Object, Rendered

MOUNTED = "/etc/tandem"
"""Everything that our containers read is below it."""
_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_]*)\))")
PROGRAMS = {
    "tandem": (sys.executable, "-m", "router.cli.main"),
    "python": (sys.executable,),
    "python3": (sys.executable,),
    "vllm": (sys.executable, "-m", "tests.support.vllm_stand_in"),
}


@dataclass
class Cluster:
    """What pods are given."""

    rendered: Rendered
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    """By name and key."""
    names: dict[str, str] = field(default_factory=dict)
    """What stands for addresses that only a cluster knows."""


@dataclass(frozen=True)
class Pod:
    """One pod of a template."""

    name: str
    ip: str
    template: Object
    folder: Path
    """Its files; /etc/tandem of its containers is below it."""

    @property
    def spec(self) -> Any:
        return self.template["spec"]


@dataclass(frozen=True)
class Launch:
    """How a container starts."""

    argv: tuple[str, ...]
    env: dict[str, str]


def expand(text: str, env: dict[str, str]) -> str:
    """$(NAME) of a known name is its value, $$ is $, all else stays."""

    def known(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else env.get(match[2], match[0])

    return _REFERENCE.sub(known, text)


def launch(cluster: Cluster, pod: Pod, container: Object, extra_env: dict[str, str] | None = None) -> Launch:
    """The container's files are written; this is how it starts."""
    _write_files(cluster, pod, container)
    env = dict(extra_env or {})
    for one in container.get("env", ()):
        text = _value(cluster, pod, one)
        env[one["name"]] = pod_path(pod, expand(cluster.names.get(text, text), env))
    words = [*container.get("command", ()), *container.get("args", ())]
    argv = [pod_path(pod, expand(word, env)) for word in words]
    if argv[0] == "/bin/sh":
        env["PATH"] = f"{_programs_of(pod)}:{env.get('PATH', os.defpath)}"
    return Launch((*PROGRAMS.get(argv[0], (argv[0],)), *argv[1:]), env)


def _programs_of(pod: Pod) -> Path:
    """A folder with the image's programs, for its shell."""
    folder = pod.folder / "bin"
    folder.mkdir(exist_ok=True)
    for name, words in PROGRAMS.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        path.chmod(0o755)
    return folder


def hook(pod: Pod, command: list[str], env: dict[str, str]) -> tuple[str, ...]:
    """How a command is carried out in a running container: its arguments are taken as they are."""
    argv = [pod_path(pod, word) for word in command]
    return (*PROGRAMS.get(argv[0], (argv[0],)), *argv[1:])


def pod_path(pod: Pod, text: str) -> str:
    """The same text with paths of this pod's folder; what listens everywhere listens on the pod's own address."""
    return text.replace(MOUNTED, f"{pod.folder}{MOUNTED}").replace("0.0.0.0", pod.ip)


def _value(cluster: Cluster, pod: Pod, one: Object) -> str:
    if "value" in one:
        return str(one["value"])
    source = one["valueFrom"]
    if "secretKeyRef" in source:
        return cluster.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
    facts = {"status.podIP": pod.ip, "metadata.name": pod.name, "metadata.namespace": NAMESPACE}
    return facts[source["fieldRef"]["fieldPath"]]


def _write_files(cluster: Cluster, pod: Pod, container: Object) -> None:
    volumes = {one["name"]: one for one in pod.spec.get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
        volume, where = volumes[mount["name"]], mount["mountPath"]
        if "configMap" in volume:
            files = cluster.rendered.one("ConfigMap", volume["configMap"]["name"])["data"]
        elif "secret" in volume:
            files = cluster.secrets[volume["secret"]["secretName"]]
        else:
            assert "emptyDir" in volume, f"{mount['name']} is neither a file nor empty"
            continue
        assert where.startswith(MOUNTED), f"{where} is not below {MOUNTED}"
        folder = Path(f"{pod.folder}{where}")
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(pod_path(pod, text))
