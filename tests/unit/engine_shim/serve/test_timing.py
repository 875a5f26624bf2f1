from engine_shim.driver import Stream
from engine_shim.serve.timing import timing_headers


def stream(seated_at: float, kv_ready_at: float) -> Stream:
    made = Stream("decode:x", lambda _: None)
    made.seated_at, made.kv_ready_at = seated_at, kv_ready_at
    return made


def test_two_durations_are_told_in_ms():
    assert timing_headers(stream(10.25, 10.5), 10.0) == ((b"server-timing", b"seats;dur=250.000, kv;dur=250.000"),)


def test_what_was_all_cached_had_no_kv_to_wait_for():
    assert timing_headers(stream(10.25, 0.0), 10.0) == ((b"server-timing", b"seats;dur=250.000, kv;dur=0.000"),)


def test_without_a_hand_over_nothing_is_told():
    assert timing_headers(stream(0.0, 0.0), 10.0) == ()
