from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from router.contract.errors import Draining, Overloaded, QuotaExceeded
from router.core.admission import WAIT, Admission, Limits
from router.core.budgets import Budget, Scope
from router.core.intake import BYTES_PER_TOKEN, Endpoint, Intake


@dataclass(eq=False)
class Waiter:
    intake: Intake


def intake(tokens=1, model="m", caller="", priority=0) -> Intake:
    body = b" " * (tokens - 1) * BYTES_PER_TOKEN
    return Intake(Endpoint.CHAT, body, model, False, "", caller=caller, priority=priority, owner=model)


def stand(admission: Admission, **fields) -> Waiter:
    """Someone who waits."""
    waiter = Waiter(intake(**fields))
    assert admission.admit(waiter.intake) is WAIT
    assert admission.wait(waiter) is None
    return waiter


def test_requests_are_admitted_up_to_the_limit_and_again_after_release():
    admission = Admission(2, 0)
    assert admission.admit(intake(1)) is None
    assert admission.admit(intake(10**6)) is None
    assert isinstance(admission.admit(intake(1)), Overloaded)
    admission.release(intake(1))
    assert admission.admit(intake(5)) is None
    admission.release(intake(5))
    admission.release(intake(10**6))
    assert (admission.requests, admission.tokens) == (0, 0)


def test_tokens_are_bounded_but_a_lone_giant_is_admitted():
    admission = Admission(10, 100)
    assert admission.admit(intake(1000)) is None
    assert isinstance(admission.admit(intake(1)), Overloaded)
    admission.release(intake(1000))
    assert admission.admit(intake(60)) is None
    assert isinstance(admission.admit(intake(41)), Overloaded)
    assert admission.admit(intake(40)) is None
    assert admission.used(Scope.TOTAL, "") == (2, 100)


def test_a_refusal_takes_nothing():
    admission = Admission(1, 0, Limits(model=Budget(5), caller=Budget(5)))
    admission.admit(intake(caller="a"))
    admission.admit(intake(caller="b"))
    assert admission.requests == 1 and admission.used(Scope.CALLER, "b") == (0, 0)


def test_a_draining_router_admits_nobody():
    admission = Admission(10, 0)
    admission.draining = True
    assert isinstance(admission.admit(intake()), Draining)


def test_a_callers_own_limit_is_its_own_fault_and_others_go_on():
    admission = Admission(10, 0, Limits(caller=Budget(2, 100), waiting_requests=9))
    assert admission.admit(intake(60, caller="a")) is None
    assert isinstance(admission.admit(intake(41, caller="a")), QuotaExceeded)
    assert admission.admit(intake(40, caller="a")) is None
    assert isinstance(admission.admit(intake(1, caller="a")), QuotaExceeded)
    assert admission.admit(intake(60, caller="b")) is None
    assert admission.admit(intake(60)) is None, "who has no name has no limit of its own"
    admission.release(intake(60, caller="a"))
    assert admission.admit(intake(1, caller="a")) is None


def test_a_models_limit_holds_others_up_not():
    admission = Admission(10, 0, Limits(model=Budget(1)))
    assert admission.admit(intake(model="x")) is None
    assert isinstance(admission.admit(intake(model="x")), Overloaded)
    assert admission.admit(intake(model="y")) is None
    admission.release(intake(model="x"))
    assert admission.admit(intake(model="x")) is None


def test_who_waits_comes_in_when_there_is_room_and_nobody_overtakes():
    admission = Admission(1, 0, Limits(waiting_requests=2))
    admission.admit(intake(7))
    first, second = stand(admission, tokens=3), stand(admission, tokens=2)
    assert (admission.waiting, admission.waiting_tokens) == (2, 5)
    assert isinstance(admission.admit(intake()), Overloaded), "the line is full"
    assert admission.next() is None
    admission.release(intake(7))
    assert admission.admit(intake()) is not None, "who comes now is behind them"
    assert admission.next() is first and admission.next() is None
    admission.release(first.intake)
    assert admission.next() is second
    admission.release(second.intake)
    assert (admission.requests, admission.tokens, admission.waiting, admission.waiting_tokens) == (0, 0, 0, 0)


def test_tokens_that_wait_are_bounded_but_a_lone_giant_waits():
    admission = Admission(1, 0, Limits(waiting_requests=9, waiting_tokens=10))
    admission.admit(intake())
    giant = stand(admission, tokens=1000)
    assert isinstance(admission.admit(intake(1)), Overloaded)
    admission.leave(giant)
    stand(admission, tokens=10)
    assert isinstance(admission.admit(intake(1)), Overloaded)


def test_who_leaves_makes_room_in_the_line_and_in_its_callers_quota():
    admission = Admission(1, 0, Limits(caller=Budget(2), waiting_requests=2))
    admission.admit(intake())
    one, other = stand(admission, caller="a"), stand(admission, caller="a")
    assert isinstance(admission.admit(intake(caller="a")), QuotaExceeded), "what waits counts"
    admission.leave(one)
    assert admission.used(Scope.CALLER, "a") == (1, 1) and admission.waiting == 1
    admission.release(intake())
    assert admission.next() is other


def test_in_a_full_line_a_better_priority_takes_the_last_place():
    admission = Admission(1, 0, Limits(waiting_requests=2, caller=Budget(9)))
    admission.admit(intake())
    stand(admission, priority=0)
    last = stand(admission, priority=5, model="other", caller="a")
    assert isinstance(admission.admit(intake(priority=5)), Overloaded), "an equal one does not"
    better = Waiter(intake(priority=1))
    assert admission.admit(better.intake) is WAIT
    assert admission.wait(better) is last
    admission.leave(last)
    assert admission.waiting == 2 and admission.used(Scope.CALLER, "a") == (0, 0)


def test_models_take_turns_and_one_that_is_full_holds_up_nobody():
    admission = Admission(2, 0, Limits(model=Budget(1), waiting_requests=9))
    assert admission.admit(intake(model="x")) is None
    x1, x2, y1, z1 = (stand(admission, model=model) for model in "xxyz")
    assert admission.next() is y1, "x is full"
    admission.release(intake(model="x"))
    assert admission.next() is x1
    admission.release(x1.intake)
    assert admission.next() is z1, "x had its turn"
    admission.release(y1.intake)
    assert admission.next() is x2


def test_a_large_one_is_waited_for():
    admission = Admission(9, 100, Limits(waiting_requests=9))
    admission.admit(intake(60))
    large, small = stand(admission, tokens=90), stand(admission, tokens=1, model="other")
    assert admission.next() is None
    admission.release(intake(60))
    assert admission.next() is large and admission.next() is small


def test_budgets_change_at_run_time_and_count_what_is_under_way():
    admission = Admission(5, 0)
    running = [intake(model="x", caller="a"), intake(model="x", caller="b")]
    for one in running:
        admission.admit(one)
    admission.set_budget(Scope.CALLER, "a", Budget(1), running)
    assert isinstance(admission.admit(intake(caller="a")), QuotaExceeded)
    admission.set_budget(Scope.MODEL, "", Budget(2), running)
    assert isinstance(admission.admit(intake(model="x")), Overloaded)
    admission.set_budget(Scope.TOTAL, "", Budget(0))
    assert isinstance(admission.admit(intake(model="y")), Overloaded)
    for one in running:
        admission.release(one)
    assert [admission.used(scope, name)[0] for scope, name in zip(Scope, ("", "x", "a"), strict=True)] == [0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.sampled_from("xy"), st.integers(1, 60))))
def test_whatever_comes_and_goes_the_books_are_right(events):
    admission = Admission(3, 100, Limits(Budget(2, 80), Budget(4, 90), 3, 70))
    inside, waiting = [], []
    for kind, caller, model, tokens in events:
        if kind < 2:
            waiter = Waiter(intake(tokens, model, caller, kind))
            answer = admission.admit(waiter.intake)
            if answer is None:
                inside.append(waiter)
            elif answer is WAIT:
                lost = admission.wait(waiter)
                waiting.append(waiter)
                if lost is not None:
                    waiting.remove(lost)
                    admission.leave(lost)
        elif kind == 2 and waiting:
            admission.leave(waiting.pop(tokens % len(waiting)))
        elif inside:
            admission.release(inside.pop(tokens % len(inside)).intake)
        while (entered := admission.next()) is not None:
            waiting.remove(entered)
            inside.append(entered)
        total = sum(one.intake.prompt_tokens for one in inside)
        assert (admission.requests, admission.tokens, admission.waiting) == (len(inside), total, len(waiting))
        assert admission.waiting_tokens == sum(one.intake.prompt_tokens for one in waiting)
        for name in "ab":
            mine = [one for one in (*inside, *waiting) if one.intake.caller == name]
            assert admission.used(Scope.CALLER, name)[0] == len(mine) <= 4
        for name in "xy":
            assert admission.used(Scope.MODEL, name)[0] == sum(one.intake.model == name for one in inside) <= 2
