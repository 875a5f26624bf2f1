"""Tracing: finished requests that are traced go to an OpenTelemetry collector, by OTLP over HTTP.

A request costs the event loop one append. A thread builds the spans from Records and exports them; what it cannot get
rid of is dropped and counted, never waited for. The packages of the extra `otel` are imported only when this is used.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from router.contract.errors import MissingDependency
from router.core.record import Record
from router.core.trace import ROOT, span_id
from router.observe.families import counters
from router.observe.spans import SpanFacts, spans_of

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORT_EVERY_S = 1.0
MAX_WAITING = 4096
"""Requests that wait for a slow collector; older ones are dropped."""
MAX_AT_ONCE = 256
EXPORT_TIMEOUT_S = 5.0

Build = Callable[[Record], "list[ReadableSpan]"]


class Tracing:
    """The traces of one process. `tell` belongs to the event loop."""

    def __init__(self, exporter: SpanExporter, build: Build) -> None:
        self._exporter = exporter
        self._build = build
        self._waiting: deque[Record] = deque(maxlen=MAX_WAITING)
        self._stopping = threading.Event()
        self.requests = {"exported": 0, "dropped": 0}
        """Traced requests by what became of their spans."""
        self._thread = threading.Thread(target=self._run, name="tracing", daemon=True)
        self._thread.start()

    def tell(self, record: Record) -> None:
        """The request's spans will be exported, if it is traced."""
        if record.trace_id:
            if len(self._waiting) == MAX_WAITING:
                self.requests["dropped"] += 1
            self._waiting.append(record)

    def metric(self) -> Metric:
        """How many traced requests have been exported, and how many dropped."""
        return counters("tandem_traces", "Traced requests, by what became of them", "result", self.requests)

    def close(self, wait_s: float = 2.0) -> None:
        """Everything has been exported, or the collector has not taken it within `wait_s` seconds."""
        self._stopping.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            stopped = self._stopping.wait(EXPORT_EVERY_S)
            while self._waiting:
                self._export([self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_AT_ONCE))])
        self._exporter.shutdown()

    def _export(self, records: list[Record]) -> None:
        spans = [span for record in records for span in self._build(record)]
        result = self._exporter.export(spans)
        self.requests["exported" if result.name == "SUCCESS" else "dropped"] += len(records)


def build_tracing(url: str, service: str) -> Tracing:
    """Traces go to the collector at `url`, such as http://collector:4318, under this service.instance.id.

    Raises:
        MissingDependency: the packages of the extra `otel` are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk import resources  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency("Traces need OpenTelemetry; install tandem-router[otel] or unset otlp.") from error
    exporter = OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
    resource = resources.Resource.create({"service.name": "tandem-router", "service.instance.id": service})
    return Tracing(exporter, _builder(resource))


def _builder(resource: Resource) -> Build:
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags  # noqa: PLC0415
    from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415

    scope, kinds = InstrumentationScope("tandem"), {kind.name.lower(): kind for kind in SpanKind}

    def build(record: Record) -> list[ReadableSpan]:
        def context(span: str, *, remote: bool = False) -> SpanContext:
            return SpanContext(int(record.trace_id, 16), int(span, 16), remote, TraceFlags(TraceFlags.SAMPLED))

        def at_ns(seconds: float) -> int:
            return round((record.at + seconds) * 1e9)

        def span_of(facts: SpanFacts) -> ReadableSpan:
            parent = None
            if facts.number != ROOT:
                parent = context(span_id(record.request_id, ROOT))
            elif record.parent_id:
                parent = context(record.parent_id, remote=True)
            return ReadableSpan(
                name=facts.name,
                context=context(span_id(record.request_id, facts.number)),
                parent=parent,
                resource=resource,
                attributes=facts.attributes,
                events=[Event(name, timestamp=at_ns(seconds)) for name, seconds in facts.events],
                kind=kinds[facts.kind],
                instrumentation_scope=scope,
                status=Status(StatusCode.ERROR, facts.error) if facts.error else Status(),
                start_time=at_ns(facts.from_s),
                end_time=at_ns(facts.to_s),
            )

        return [span_of(facts) for facts in spans_of(record)]

    return build
