from dataclasses import replace

import pytest

from router.contract.errors import BadSettings
from router.limits import check_division, share
from router.settings import Settings


@pytest.mark.parametrize(("requests", "tokens", "size"), [(10, 7, 3), (3, 2, 3), (4096, 0, 7)])
def test_workers_share_the_limits_without_a_rest(requests, tokens, size):
    whole = Settings(max_requests=requests, max_tokens=tokens, decode=("http://d:1",))
    shares = [share(whole, slot, size) for slot in range(size)]
    assert sum(one.max_requests for one in shares) == requests
    assert sum(one.max_tokens for one in shares) <= max(tokens, size)
    assert all((one.max_tokens > 0) == (tokens > 0) for one in shares)


def test_a_limit_that_workers_cannot_divide_is_refused():
    small = Settings(caller_max_requests=3, decode=("http://d:1",))
    check_division(small, 3)
    check_division(replace(small, shared_budgets=True), 4)
    with pytest.raises(BadSettings, match="caller_max_requests is 3, which 4 workers"):
        check_division(small, 4)
