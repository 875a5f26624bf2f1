"""Every trace of the Lifecycle, whatever the order of facts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.contract.instance import Mode
from router.core.lifecycle import NODES, START, Client, Edge, Effect, LegState

ENDS = (Effect.SERVE, Effect.DELIVER, Effect.ANSWER, Effect.BREAK)
SENDS = {Effect.SEND_PREFILL: "prefill", Effect.SEND_DECODE: "decode"}
STOPS = {
    Effect.CANCEL_PREFILL: "prefill",
    Effect.LEAVE_PREFILL: "prefill",
    Effect.CANCEL_DECODE: "decode",
}
LEG_ENDS = {
    Edge.PREFILL_DONE: "prefill",
    Edge.PREFILL_FAILED: "prefill",
    Edge.PREFILL_LOST: "prefill",
    Edge.DECODE_DONE: "decode",
    Edge.DECODE_WHOLE: "decode",
    Edge.DECODE_FAILED: "decode",
    Edge.DECODE_LOST: "decode",
}


@given(st.sampled_from(Mode), st.lists(st.sampled_from(Edge), max_size=40))
def test_a_request_has_one_outcome_and_leaves_no_leg(mode, edges):
    node, effects, running = START[mode], [], set()
    for edge in edges:
        step = node.steps[edge]
        if step is None:
            continue
        assert not node.stand.closed, "nothing happens after the end"
        running.discard(LEG_ENDS.get(edge))
        node, ordered = step
        for effect in ordered:
            if effect in SENDS:
                assert SENDS[effect] not in running, "a leg is sent once per attempt"
                running.add(SENDS[effect])
            if effect in STOPS:
                assert STOPS[effect] in running, "only a running leg is stopped"
                running.remove(STOPS[effect])
            if effect is Effect.RETRY:
                assert not running, "the old attempt is over before a new one begins"
        effects += ordered
        live = {"prefill": node.stand.prefill is LegState.SENT, "decode": node.stand.decode.live}
        assert running == {leg for leg, is_live in live.items() if is_live}
    counts = Counter(effects)
    told = sum(counts[effect] for effect in ENDS)
    assert told <= 1
    assert counts[Effect.COMMIT] <= 1
    assert counts[Effect.CLOSE] == int(node.stand.closed) == int(node.stand.client.over)
    if node.stand.closed:
        assert effects[-1] is Effect.CLOSE
        assert not running
        assert told == int(node.stand.client is not Client.GONE)


def test_every_open_stand_can_still_end():
    for node in NODES.values():
        if not node.stand.closed:
            gone = node.steps[Edge.CLIENT_GONE]
            timed_out = node.steps[Edge.TIMED_OUT]
            assert gone is not None and gone[0].stand.closed
            assert timed_out is not None and timed_out[0].stand.closed


def test_a_closed_stand_has_no_rows():
    for node in NODES.values():
        if node.stand.closed:
            assert not any(node.steps)
