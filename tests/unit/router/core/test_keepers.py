from router.core.keepers import Keepers
from tests.support.instances import decode, fleet, intake, prefill

PROMPT = b'"' + b"x" * 2000


def test_of_several_that_keep_the_same_the_idlest_is_named():
    first, second, source = fleet(decode("d0"), decode("d1"), prefill("p0")).members
    keepers, request = Keepers(), intake(prompt=PROMPT)
    decodes = fleet(decode("d0"), decode("d1")).pools["m"].solos
    assert keepers.find(request, source, decodes) is None
    keepers.remember(request, first)
    keepers.remember(request, second)
    first.burden.take(10)
    found = keepers.find(request, source, type(decodes)((first, second)))
    assert found is second


def test_a_prompt_without_marks_is_kept_by_nobody():
    source, member = fleet(prefill("p0"), decode("d0")).members[::-1]
    keepers, short = Keepers(), intake(prompt=b'"hi"')
    keepers.remember(short, member)
    assert keepers.find(short, source, fleet(decode("d0")).pools["m"].solos) is None
