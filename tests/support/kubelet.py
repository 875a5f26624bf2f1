"""A cluster of one node on loopback: real processes under the probes, hooks and grace periods of rendered manifests.

Each pod has an address of its own in 127.0.0.0/8. A pod is Ready by its probes; one that is deleted is told to the
API's watchers at once, runs its preStop hook, gets SIGTERM, and SIGKILL when its grace is over. A Service follows Ready
pods with a lag, as kube-proxy and load balancers do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from tests.support.charts import NAMESPACE
from tests.support.kube_server import KubeServer
from tests.support.pods import Cluster, Launch, Pod, hook, launch

SERVICE_LAG_S = 1.0
START_S = 600.0


@dataclass(eq=False)
class Running:
    """A pod's process."""

    pod: Pod
    workload: str
    start: Launch
    process: asyncio.subprocess.Process
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    terminating: bool = False
    ended_s: float = 0.0
    """Seconds from its deletion to its end."""

    @property
    def container(self) -> Any:
        return self.pod.spec["containers"][0]

    @property
    def url(self) -> str:
        return f"http://{self.pod.ip}:{self.container['ports'][0]['containerPort']}"

    def as_object(self) -> dict[str, object]:
        """As the API server writes it."""
        meta = self.pod.template["metadata"]
        made = {"name": self.pod.name, "uid": f"uid-{self.pod.name}"}
        made |= {"labels": meta["labels"], "annotations": meta.get("annotations", {})}
        if self.terminating:
            made["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        ready = "True" if self.ready.is_set() else "False"
        status = {"podIP": self.pod.ip, "conditions": [{"type": "Ready", "status": ready}]}
        return {"kind": "Pod", "metadata": made, "spec": self.pod.spec, "status": status}


@dataclass
class Node:
    """Starts and ends pods; `async with` leaves none behind."""

    cluster: Cluster
    folder: Path
    env: dict[str, str]
    """Of every process, beside what its manifest says."""
    api: KubeServer = field(default_factory=KubeServer)
    pods: list[Running] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    """Pods whose grace was over before they had ended."""
    deaths: list[str] = field(default_factory=list)
    """Pods that ended before they were told to."""
    seen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What each Service holds, by workload: URLs of pods."""
    _addresses: Iterator[int] = field(default_factory=lambda: count(1))
    _groups: Iterator[int] = field(default_factory=lambda: count(0))
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Node:
        self.client = httpx.AsyncClient(timeout=5.0)
        await self.api.start()
        self.env = self.env | {"TANDEM_KUBERNETES_API": self.api.url}
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for one in self.pods:
            if one.process.returncode is None:
                one.process.kill()
            await one.process.wait()
        await self.api.stop()
        await self.client.aclose()

    async def start(self, workload: str, of_group: dict[str, str] | None = None) -> Running:
        """One more pod of a workload, in a group by these variables; it becomes Ready in time, or not."""
        number = next(self._addresses)
        template = self.cluster.rendered.pods()[workload]
        name = f"{workload}-{number}"
        pod = Pod(
            name, f"127.{64 + os.getpid() % 128}.{number // 250}.{number % 250 + 1}", template, self.folder / name
        )
        pod.folder.mkdir(parents=True)
        env = self.env if "router" in workload else _bare(self.env)
        made = launch(self.cluster, pod, pod.spec["containers"][0], env | (of_group or {}))
        log = (pod.folder / "log").open("wb")
        process = await asyncio.create_subprocess_exec(*made.argv, env=made.env, stdout=log, stderr=log)
        log.close()
        one = Running(pod, workload, made, process)
        self.pods.append(one)
        self._keep(self._probe(one))
        return one

    async def start_group(self, workload: str) -> list[Running]:
        """One more group of a LeaderWorkerSet: its pods know who leads and which they are."""
        (found,) = [one for one in self.cluster.rendered.all("LeaderWorkerSet") if one["metadata"]["name"] == workload]
        size = found["spec"]["leaderWorkerTemplate"]["size"]
        leader = f"{workload}-{next(self._groups)}"
        shared = {"LWS_LEADER_ADDRESS": leader, "LWS_GROUP_SIZE": str(size)}
        return [await self.start(workload, shared | {"LWS_WORKER_INDEX": str(index)}) for index in range(size)]

    async def ready(self, *pods: Running) -> None:
        """All of them are Ready."""
        async with asyncio.timeout(START_S):
            for one in pods:
                await one.ready.wait()

    async def retire(self, one: Running) -> None:
        """The pod is deleted and its process has ended."""
        began, grace_s = monotonic(), one.pod.spec["terminationGracePeriodSeconds"]
        one.terminating = True
        self._tell(one)
        try:
            async with asyncio.timeout(grace_s):
                await self._pre_stop(one)
                one.process.terminate()
                await one.process.wait()
        except TimeoutError:
            self.killed.append(one.pod.name)
            one.process.kill()
            await one.process.wait()
        one.ended_s = monotonic() - began
        self.api.remove(f"uid-{one.pod.name}")

    async def roll(self, workload: str) -> None:
        """Every pod is another one; a new one has been Ready for minReadySeconds before an old one is told to go."""
        deployment = self.cluster.rendered.one("Deployment", workload)
        old = [one for one in self.pods if one.workload == workload and not one.terminating]
        leaving = []
        for one in old:
            await self.ready(await self.start(workload))
            await asyncio.sleep(deployment["spec"]["minReadySeconds"])
            leaving.append(asyncio.create_task(self.retire(one)))
        await asyncio.gather(*leaving)

    async def roll_groups(self, workload: str, groups: list[list[Running]]) -> None:
        """Every group is another one: all pods of a new one are Ready before all of an old one are told to go."""
        leaving = []
        for old in groups:
            await self.ready(*await self.start_group(workload))
            leaving += [asyncio.create_task(self.retire(one)) for one in old]
        await asyncio.gather(*leaving)

    async def _pre_stop(self, one: Running) -> None:
        command = one.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if command:
            run = await asyncio.create_subprocess_exec(*hook(one.pod, command, one.start.env), env=one.start.env)
            try:
                assert await run.wait() == 0, f"the preStop hook of {one.pod.name} failed"
            finally:
                if run.returncode is None:
                    run.kill()

    async def _probe(self, one: Running) -> None:
        """Ready says what the startup and the readiness probe say."""
        startup, readiness = one.container["startupProbe"], one.container["readinessProbe"]
        while not await self._asked(one, startup):
            await asyncio.sleep(startup.get("periodSeconds", 10) / 5)
        failures = 0
        while one.process.returncode is None:
            failures = 0 if await self._asked(one, readiness) else failures + 1
            before = one.ready.is_set()
            if not failures:
                one.ready.set()
            elif failures >= readiness.get("failureThreshold", 3):
                one.ready.clear()
            if one.ready.is_set() is not before:
                self._tell(one)
            await asyncio.sleep(readiness.get("periodSeconds", 10))
        one.ready.clear()
        if not one.terminating:
            self.deaths.append(one.pod.name)

    async def _asked(self, one: Running, probe: dict[str, Any]) -> bool:
        ports = {port["name"]: port["containerPort"] for port in one.container["ports"]}
        wanted = probe["httpGet"]
        try:
            answer = await self.client.get(
                f"http://{one.pod.ip}:{ports[wanted['port']]}{wanted['path']}", timeout=probe.get("timeoutSeconds", 1)
            )
        except httpx.HTTPError:
            return False
        return 200 <= answer.status_code < 400

    def _tell(self, one: Running) -> None:
        self.api.put(one.as_object())
        workload = one.workload
        alive = tuple(
            one.url for one in self.pods if one.workload == workload and one.ready.is_set() and not one.terminating
        )
        asyncio.get_running_loop().call_later(SERVICE_LAG_S, self.seen.__setitem__, workload, alive)

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bare(env: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if not name.startswith("TANDEM_")}


def node(cluster: Cluster, folder: Path, selector: str = "") -> Node:
    """A node whose API server answers for `selector`."""
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    return Node(cluster, folder, env, KubeServer(namespace=NAMESPACE, selector=selector))
