from __future__ import annotations

import threading

from engine_shim.step_gate import StepGate


def test_who_waits_for_a_step_has_the_next_turn_and_no_step_runs_meanwhile():
    gate, order = StepGate(), []
    in_step, may_end, is_between, may_go_on = (threading.Event() for _ in range(4))

    def engine() -> None:
        with gate.step():
            in_step.set()
            may_end.wait(10)
            order.append("step")
        with gate.step():
            order.append("next step")

    def poster() -> None:
        with gate.between():
            is_between.set()
            may_go_on.wait(10)
            order.append("post")

    first, second = threading.Thread(target=engine), threading.Thread(target=poster)
    first.start()
    assert in_step.wait(10)
    second.start()
    while gate._nobody_waits.is_set():
        pass
    may_end.set()
    assert is_between.wait(10)
    assert order == ["step"]
    may_go_on.set()
    first.join(10)
    second.join(10)
    assert order == ["step", "post", "next step"]


def test_a_failure_in_between_lets_steps_go_on():
    gate = StepGate()
    try:
        with gate.between():
            raise ValueError
    except ValueError:
        pass
    with gate.step():
        assert gate._lock.locked()
