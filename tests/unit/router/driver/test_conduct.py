from router.core.timing import Deadlines
from router.driver.conduct import Conduct


def test_by_default_requests_are_tried_twice_and_nobody_is_hedged():
    conduct = Conduct()
    assert (conduct.attempts, conduct.hedge.share, conduct.breaker.failures) == (2, 0.0, 3)
    assert conduct.deadlines == Deadlines() and conduct.deadlines is not Conduct().deadlines
