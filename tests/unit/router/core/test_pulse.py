import pytest

from router.core.pulse import Beat, Pulse, PulseRules

RULES = PulseRules(failures=3, successes=2)
WORDS = {"+": Beat.WELL, "-": Beat.REFUSED, "0": Beat.SILENT}


@pytest.mark.parametrize(
    ("beats", "out"),
    [
        ("", False),
        ("+", False),
        ("-", True),
        ("0", True),
        ("-+", False),
        ("+--", False),
        ("+---", True),
        ("+-0-", True),
        ("+--+--", False),
        ("+---+", True),
        ("+---++", False),
        ("+---+-+", True),
    ],
)
def test_rows_of_beats_decide(beats, out):
    pulse = Pulse(RULES)
    for beat in beats:
        pulse.beat(WORDS[beat])
    assert pulse.out is out


def test_who_answered_last_says_so_itself():
    pulse = Pulse(RULES)
    pulse.beat(Beat.REFUSED)
    assert pulse.says_so
    pulse.beat(Beat.SILENT)
    assert not pulse.says_so
