import json

from router.api.sse import error_event
from router.contract.errors import Blame, LegBroken


def test_an_error_is_one_event_and_ends_the_one_before():
    raw = error_event(LegBroken("It broke.", side=Blame.DECODE))
    assert raw.startswith(b"\n\ndata: ") and raw.endswith(b"\n\n")
    (event,) = [part for part in raw.split(b"\n\n") if part]
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "leg_broken"
