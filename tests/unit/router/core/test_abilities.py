from dataclasses import replace

import pytest

from router.contract.errors import BadRequest, RouteUnknown
from router.core.abilities import PARAMS, able, unable
from router.core.roster import Roster
from tests.support.instances import decode, fleet


def member(**changes):
    (made,) = fleet(decode()).members
    return replace(made, instance=replace(made.instance, **changes))


def test_all_can_do_an_option_that_they_do_not_say_they_lack():
    one, other = member(), member(lacks=("n",))
    members = Roster((one, other))
    assert able(members, "n") == (one,)
    assert able(members, "best_of") is members


def test_an_endpoint_is_had_by_those_that_say_so():
    one, other = member(), member(endpoints=("/tokenize",))
    assert able(Roster((one, other)), "/tokenize") == (other,)
    assert able(Roster((one, other)), "/v1/embeddings") == ()


@pytest.mark.parametrize(("whole", "param"), PARAMS.items())
def test_a_refusal_names_the_field(whole, param):
    error = unable("m", whole)
    assert isinstance(error, BadRequest) and error.param == param and "'m'" in error.message


def test_an_endpoint_that_nobody_has_is_not_there():
    assert isinstance(unable("m", "/v1/score"), RouteUnknown)
