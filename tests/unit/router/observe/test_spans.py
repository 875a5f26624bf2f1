from router.contract.ledger import Outcome
from router.core.record import Earlier, Record
from router.core.trace import ROOT, decode_span, prefill_span
from router.observe.spans import spans_of


def record(**fields) -> Record:
    given = {"mode": "push", "prefill": "p0", "decode": "d0", "attempts": 1, "door_s": 0.001, "sent_s": 0.002}
    given |= {"prefilled_s": 0.1, "seats_s": 0.02, "kv_s": 0.1, "first_byte_s": 0.13, "content_s": 0.14}
    given |= {"last_byte_s": 0.5, "ended_s": 0.51, "status": 200, "outcome": Outcome.SERVED}
    return Record(1.0, "req-1", "", "m", "/v1/completions", True, **(given | fields))


def by_name(spans):
    return {span.name: span for span in spans}


def test_each_room_is_a_span():
    spans = by_name(spans_of(record(queued_s=0.0)))
    assert set(spans) == {
        "POST /v1/completions",
        "door",
        "place",
        "prefill leg",
        "decode leg",
        "rendezvous",
        "transfer",
        "relay",
    }
    root = spans["POST /v1/completions"]
    assert (root.number, root.kind, root.from_s, root.to_s, root.error) == (ROOT, "server", 0.0, 0.51, "")
    assert root.attributes["http.response.status_code"] == 200 and root.attributes["tandem.mode"] == "push"
    assert (spans["prefill leg"].from_s, spans["prefill leg"].to_s) == (0.002, 0.1)
    assert (spans["relay"].from_s, spans["relay"].to_s) == (0.14, 0.5)
    assert (spans["prefill leg"].number, spans["decode leg"].number) == (prefill_span(1), decode_span(1))
    assert (spans["rendezvous"].from_s, spans["rendezvous"].to_s) == (0.002, 0.1)
    assert (spans["transfer"].from_s, round(spans["transfer"].to_s, 6)) == (0.1, 0.122)
    events = [(name, round(at, 6)) for name, at in spans["decode leg"].events]
    assert events == [("registered", 0.022), ("rendezvous", 0.1), ("kv_whole", 0.122), ("first_token", 0.14)]


def test_a_lost_attempt_keeps_its_legs():
    lost = Earlier(1, "p1", "d0", 0.002, 0.05, "leg_broken")
    spans = spans_of(record(attempts=2, sent_s=0.051, earlier=(lost,)))
    legs = [(span.number, span.attributes["tandem.instance_id"], span.error) for span in spans if span.kind == "client"]
    assert legs == [(2, "p1", "leg_broken"), (3, "d0", "leg_broken"), (4, "p0", ""), (5, "d0", "")]
    assert by_name(spans)["place"].to_s == 0.002
    assert len({span.number for span in spans}) == len(spans)


def test_what_failed_says_so_and_what_was_never_placed_has_no_legs():
    refused = spans_of(record(attempts=0, mode="", prefill="", decode="", sent_s=0.0, first_byte_s=0.0, content_s=0.0))
    assert [span.name for span in refused] == ["POST /v1/completions", "door"]
    failed = by_name(spans_of(record(outcome=Outcome.FAILED, code="leg_broken")))
    assert failed["POST /v1/completions"].error == failed["decode leg"].error == "leg_broken"


def test_pulled_and_local_requests_have_their_own_legs():
    pulled = by_name(spans_of(record(mode="pull")))
    assert pulled["decode leg"].from_s == pulled["rendezvous"].from_s == 0.1
    local = by_name(spans_of(record(mode="local", prefill="", prefilled_s=0.0, seats_s=0.0, kv_s=0.0, queued_s=0.5)))
    assert not {"prefill leg", "rendezvous", "transfer"} & local.keys() and local["queue"].to_s == 0.501
    assert [name for name, _ in local["decode leg"].events] == ["first_token"]
