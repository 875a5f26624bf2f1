from router.contract.errors import Draining, Overloaded
from router.core.admission import Admission


def test_requests_are_admitted_up_to_the_limit_and_again_after_release():
    admission = Admission(2, 0)
    assert admission.admit(1) is None
    assert admission.admit(10**9) is None
    assert isinstance(admission.admit(1), Overloaded)
    admission.release(1)
    assert admission.admit(5) is None
    admission.release(5)
    admission.release(10**9)
    assert (admission.requests, admission.tokens) == (0, 0)


def test_tokens_are_bounded_but_a_lone_giant_is_admitted():
    admission = Admission(10, 100)
    assert admission.admit(1000) is None
    assert isinstance(admission.admit(1), Overloaded)
    admission.release(1000)
    assert admission.admit(60) is None
    assert isinstance(admission.admit(41), Overloaded)
    assert admission.admit(40) is None
    assert admission.tokens == 100


def test_a_refusal_takes_nothing():
    admission = Admission(1, 0)
    admission.admit(1)
    admission.admit(1)
    assert admission.requests == 1


def test_a_draining_router_admits_nobody():
    admission = Admission(10, 0)
    admission.draining = True
    assert isinstance(admission.admit(1), Draining)
