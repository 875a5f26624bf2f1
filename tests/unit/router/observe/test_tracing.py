import sys
from types import SimpleNamespace

import pytest

from router.contract.errors import MissingDependency
from router.core.record import Record
from router.observe import tracing as module
from router.observe.tracing import Tracing, build_tracing
from tests.support.collector import collecting


def record(number: int = 0, **fields) -> Record:
    given = {"ended_s": 0.5, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "parent_id": "00f067aa0ba902b7"}
    return Record(100.0, f"req-{number:032x}", "", "m", "/v1/completions", True, **(given | fields))


class Exporter:
    def __init__(self, result="SUCCESS"):
        self.result = SimpleNamespace(name=result)
        self.exported, self.shut = [], False

    def export(self, spans):
        self.exported += spans
        return self.result

    def shutdown(self):
        self.shut = True


@pytest.mark.parametrize(("result", "counted"), [("SUCCESS", "exported"), ("FAILURE", "dropped")])
def test_traced_requests_are_exported_by_the_end_and_counted(result, counted):
    exporter = Exporter(result)
    tracing = Tracing(exporter, lambda record: [record.request_id])
    tracing.tell(record(1))
    tracing.tell(record(2, trace_id=""))
    tracing.close()
    assert exporter.exported == [record(1).request_id] and exporter.shut
    assert tracing.requests[counted] == 1 and sum(tracing.requests.values()) == 1
    (sample,) = [s for s in tracing.metric().samples if s.labels["result"] == counted]
    assert sample.value == 1


def test_a_collector_that_is_slow_costs_spans_and_no_memory(monkeypatch):
    monkeypatch.setattr(module, "EXPORT_EVERY_S", 60.0)
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    exporter = Exporter()
    tracing = Tracing(exporter, lambda record: [record.request_id])
    for number in range(5):
        tracing.tell(record(number))
    tracing.close()
    assert exporter.exported == [record(number).request_id for number in (2, 3, 4)]
    assert tracing.requests == {"exported": 3, "dropped": 2}


def test_without_the_packages_the_operator_hears_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingDependency, match="otel"):
        build_tracing("http://127.0.0.1:1", "r")


@pytest.mark.needs("otel")
def test_a_collector_understands_what_it_gets():
    with collecting() as collector:
        tracing = build_tracing(collector.url + "/", "router-1")
        tracing.tell(record(16, code="leg_broken", status=502))
        tracing.close(10.0)
    root = collector.named("POST /v1/completions")
    assert root.trace_id.hex() == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert root.parent_span_id.hex() == "00f067aa0ba902b7"
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (100_000_000_000, 100_500_000_000)
    assert root.status.message == "leg_broken" and root.kind == root.SPAN_KIND_SERVER
    assert collector.resources[0]["service.name"] == "tandem-router"
    assert collector.resources[0]["service.instance.id"] == "router-1"
