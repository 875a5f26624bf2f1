import pytest

from router.contract.ids import RequestId
from router.core.trace import ROOT, Sampler, decode_span, prefill_span, span_id

ID = RequestId("req-00112233445566778899aabbccddeeff")
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()


def test_a_client_that_records_is_the_parent_and_both_legs_are_spans_of_their_own():
    headers = {b"traceparent": PARENT, b"tracestate": b"a=1", b"baggage": b"k=v"}
    trace = Sampler(0.0).begin(headers, ID)
    assert (trace.trace_id, trace.parent_id) == (TRACE, SPAN)
    legs = [trace.lines(number) for number in (prefill_span(1), decode_span(1), prefill_span(2), decode_span(2))]
    assert all(leg.startswith(b"traceparent: 00-" + TRACE.encode()) for leg in legs)
    assert all(leg.endswith(b"-01\r\ntracestate: a=1\r\nbaggage: k=v\r\n") for leg in legs)
    spans = {leg[49:65] for leg in legs} | {SPAN.encode(), span_id(ID, ROOT).encode()}
    assert len(spans) == 6


def test_what_is_not_printable_ascii_is_not_passed_on():
    headers = {b"traceparent": PARENT, b"tracestate": b"a=\xff", b"baggage": b"k=v"}
    assert Sampler(0.0).begin(headers, ID).rest == b"baggage: k=v\r\n"
    assert Sampler(1.0).begin({b"baggage": b"k=\x00"}, ID).rest == b""


def test_a_client_that_does_not_record_is_followed():
    assert Sampler(1.0).begin({b"traceparent": PARENT[:-2] + b"00"}, ID) is None


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"00",
        b"ff" + PARENT[2:],
        PARENT.upper(),
        PARENT + b"-more",
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + b"-01",
        PARENT + b"\x00",
    ],
)
def test_what_cannot_be_read_begins_a_new_trace_without_its_state(given):
    trace = Sampler(1.0).begin({b"traceparent": given, b"tracestate": b"a=1", b"baggage": b"k=v"}, ID)
    assert (trace.trace_id, trace.parent_id, trace.rest) == (ID[4:], "", b"baggage: k=v\r\n")


def test_a_later_version_may_say_more():
    assert Sampler(0.0).begin({b"traceparent": b"01" + PARENT[2:] + b"-more"}, ID).trace_id == TRACE


@pytest.mark.parametrize(("share", "traced"), [(0.0, 0), (0.25, 250), (1.0, 1000)])
def test_a_share_of_the_others_is_traced(share, traced):
    sampler = Sampler(share)
    ids = [RequestId(f"req-{'0' * 24}{number * 4294967:08x}") for number in range(1000)]
    assert sum(sampler.begin({}, one) is not None for one in ids) == pytest.approx(traced, abs=2)


def test_no_span_has_an_id_of_zeros():
    first = RequestId("req-" + "f" * 16 + "0" * 16)
    assert span_id(first, 1) == "f" * 16 and span_id(first, 2) == "0" * 15 + "1"
