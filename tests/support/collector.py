"""An OpenTelemetry collector: an HTTP server that decodes what it is sent, and keeps the spans."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Collector:
    """What has arrived."""

    url: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    status: int = 200
    """What the next exports are answered with."""

    def named(self, name: str) -> Any:
        """The one span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector listens; it has ended afterwards."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    collector = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if collector.status == 200:
                for one in ExportTraceServiceRequest.FromString(body).resource_spans:
                    facts = {attribute.key: attribute.value.string_value for attribute in one.resource.attributes}
                    collector.resources.append(facts)
                    collector.spans += [span for scope in one.scope_spans for span in scope.spans]
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
