"""A scripted Kubernetes API server: pods of one namespace, lists, and watches over real HTTP or TLS."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


def pod(name: str, port: int, role: str, *, ready: bool = True, uid: str = "", **annotations: str) -> dict[str, object]:
    """As the API server writes it; every pod is at 127.0.0.1."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": uid or f"uid-of-{name}",
            "labels": {"app": "engine", "role": role},
            "annotations": {"tandem/ports": str(port), **{f"tandem/{key}": text for key, text in annotations.items()}},
        },
        "spec": {"containers": [{"name": "main", "image": "x"}], "nodeName": "n"},
        "status": {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
        },
    }


@dataclass(slots=True)
class KubeServer:
    """Answers lists with `pods`, and watches with what `tell` says from then on."""

    pods: dict[str, dict[str, object]] = field(default_factory=dict)
    namespace: str = "ns"
    selector: str = "app=engine"
    """Anything else is not found."""
    token: str = ""
    """Calls without it are refused."""
    list_status: int = 200
    watch_answers: list[bytes | int] = field(default_factory=list)
    """What the next watches get at once, each of them ended: lines of a 200 stream, or a status."""
    lists: int = 0
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    """Of watches."""
    url: str = ""
    _server: asyncio.Server | None = None
    _since_list: list[bytes] = field(default_factory=list)
    """What a watch from the last list's version on begins with."""
    _watchers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def num_watches(self) -> int:
        return len(self._watchers)

    async def start(self, tls: ssl.SSLContext | None = None) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def put(self, made: dict[str, object], *, told: bool = True) -> None:
        """The pod is there, or has changed."""
        uid = made["metadata"]["uid"]  # type: ignore[index]
        kind = "MODIFIED" if uid in self.pods else "ADDED"
        self.pods[uid] = made
        if told:
            self.tell(kind, made)

    def remove(self, uid: str, *, told: bool = True) -> None:
        gone = self.pods.pop(uid)
        if told:
            self.tell("DELETED", gone)

    def tell(self, kind: str, made: dict[str, object]) -> None:
        line = json.dumps({"type": kind, "object": made}).encode() + b"\n"
        chunk = b"%x\r\n%b\r\n" % (len(line), line)
        self._since_list.append(chunk)
        for writer in self._watchers:
            writer.write(chunk)

    def cut(self) -> None:
        """All watches break."""
        for writer in tuple(self._watchers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                parts = urlsplit(head.split(" ")[1])
                query = parse_qs(parts.query)
                if self.token and f"bearer {self.token}" not in head.lower():
                    self._answer(writer, 401, b"{}")
                elif (parts.path, query["labelSelector"]) != (self._path, [self.selector]):
                    self._answer(writer, 404, b"{}")
                elif "watch" in query:
                    await self._watch(reader, writer, query)
                    return
                else:
                    self.lists += 1
                    self._since_list = []
                    listed = {"kind": "PodList", "metadata": {"resourceVersion": str(self.lists)}}
                    self._answer(
                        writer, self.list_status, json.dumps(listed | {"items": [*self.pods.values()]}).encode()
                    )
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # asyncio reports a cancelled connection as an error of its own
        finally:
            self._watchers.discard(writer)
            writer.transport.abort()

    async def _watch(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, query: dict[str, list[str]]
    ) -> None:
        self.queries.append(query)
        if self.watch_answers:
            scripted = self.watch_answers.pop(0)
            if isinstance(scripted, int):
                self._answer(writer, scripted, b"{}")
            else:
                self._answer(writer, 200, scripted)
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"".join(self._since_list))
        self._watchers.add(writer)
        await reader.read()

    def _answer(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
