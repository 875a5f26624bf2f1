from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.core.line import LEAST_HEAP, Line


def drain(line: Line[str]) -> list[str]:
    order = []
    while (entry := line.first()) is not None:
        line.pop()
        order.append(entry)
    return order


def test_one_caller_is_served_in_the_order_of_arrival():
    line: Line[str] = Line()
    for number in range(5):
        line.put(f"a{number}", "a", 10 * (5 - number), 0)
    assert len(line) == 5
    assert drain(line) == ["a0", "a1", "a2", "a3", "a4"] and len(line) == 0


def test_a_caller_with_many_requests_delays_another_by_one():
    line: Line[str] = Line()
    for number in range(100):
        line.put(f"a{number}", "a", 100, 0)
    line.put("b0", "b", 100, 0)
    line.put("b1", "b", 100, 0)
    assert drain(line)[:4] == ["a0", "b0", "a1", "b1"]


def test_who_comes_later_does_not_catch_up_on_what_others_had_before():
    line: Line[str] = Line()
    for number in range(100):
        line.put(f"a{number}", "a", 100, 0)
    for _ in range(50):
        line.pop()
    for number in range(50):
        line.put(f"b{number}", "b", 100, 0)
    served = Counter(entry[0] for entry in drain(line)[:40])
    assert abs(served["a"] - served["b"]) <= 1


def test_shares_are_of_tokens_not_of_requests():
    line: Line[str] = Line()
    for number in range(40):
        line.put(f"a{number}", "a", 400, 0)
        line.put(f"b{number}", "b", 100, 0)
    served = Counter(entry[0] for entry in drain(line)[:25])
    assert served == {"a": 5, "b": 20}


def test_a_smaller_priority_goes_first_and_the_largest_is_last():
    line: Line[str] = Line()
    for entry, priority in (("low", 5), ("plain", 0), ("high", -1), ("low2", 5)):
        line.put(entry, "a", 1, priority)
    assert line.last() == (5, "low2")
    assert drain(line) == ["high", "plain", "low", "low2"]
    assert line.last() is None and line.first() is None


def test_who_leaves_is_passed_over():
    line: Line[str] = Line()
    for entry in ("a", "b", "c"):
        line.put(entry, "x", 1, 0)
    assert line.remove("a") and not line.remove("a") and not line.remove("z")
    assert (len(line), line.first()) == (2, "b")
    line.pop()
    line.remove("c")
    assert line.first() is None
    line.pop()
    assert line._ends == {} and line._heap == [], "nothing is kept of callers who have gone"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 1000), st.integers(-2, 2)), max_size=60))
def test_everyone_comes_once_by_priority_and_each_callers_in_order(requests):
    line: Line[tuple] = Line()
    for number, (caller, tokens, priority) in enumerate(requests):
        line.put((number, caller, priority), caller, tokens, priority)
    order = drain(line)
    assert sorted(order) == [(n, c, p) for n, (c, _, p) in enumerate(requests)]
    assert [p for _, _, p in order] == sorted(p for _, _, p in order)
    for caller in "abc":
        for priority in range(-2, 3):
            mine = [n for n, c, p in order if (c, p) == (caller, priority)]
            assert mine == sorted(mine)


def test_who_has_left_behind_better_priorities_leaves_nothing():
    line: Line[str] = Line()
    line.put("first", "a", 1, 0)
    for number in range(5000):
        line.put(f"b{number}", "b", 1, 9)
        if number % 100:
            assert line.remove(f"b{number}")
    assert len(line._heap) <= 2 * len(line) + LEAST_HEAP
    assert drain(line) == ["first", *(f"b{number}" for number in range(0, 5000, 100))]
