from router.contract.instance import Load
from router.core.burden import Burden, Burdens


def test_what_is_taken_is_given_back():
    burden = Burden()
    burden.take(10)
    burden.take(5)
    assert (burden.requests, burden.tokens) == (2, 15)
    burden.give(10)
    burden.give(5)
    assert (burden.requests, burden.tokens) == (0, 0)


def test_an_instance_has_one_burden():
    burdens = Burdens()
    assert burdens.of("a") is burdens.of("a")
    assert burdens.of("a") is not burdens.of("b")


def test_only_the_idle_and_gone_are_forgotten():
    burdens = Burdens()
    gone, busy, here = burdens.of("gone"), burdens.of("busy"), burdens.of("here")
    busy.take(1)
    burdens.keep_only(frozenset({"here"}))
    assert burdens.of("here") is here
    assert burdens.of("busy") is busy
    assert burdens.of("gone") is not gone


def test_growth_since_the_last_news_is_known():
    burden = Burden()
    burden.take(10)
    burden.hear(Load(running_seqs=1))
    assert burden.since_heard == 0
    burden.take(5)
    burden.hear(Load(running_seqs=1))
    assert burden.since_heard == 5, "the same again is no news"
    burden.give(10)
    assert burden.since_heard == 0
    burden.hear(Load(running_seqs=2))
    burden.take(3)
    assert burden.since_heard == 3
