"""Virtual time, and what being stopped or dead means."""

import random

from engine_shim.simulation.timeline import Process, Timeline


def run(timeline: Timeline) -> None:
    timeline.run(100.0, lambda: False)


def test_things_happen_in_order_of_time() -> None:
    timeline, seen = Timeline(random.Random(0)), []
    for at in (0.3, 0.1, 0.2, 0.1):
        timeline.after(at, None, seen.append, at)
    run(timeline)
    assert seen == [0.1, 0.1, 0.2, 0.3]


def test_a_dead_process_does_nothing_more() -> None:
    timeline, seen, process = Timeline(random.Random(0)), [], Process("p")
    timeline.after(1.0, process, seen.append, 1)
    process.dead = True
    run(timeline)
    assert seen == []


def test_a_stopped_process_does_it_all_when_it_goes_on() -> None:
    orders = set()
    for seed in range(30):
        timeline, seen, process = Timeline(random.Random(seed)), [], Process("p")
        timeline.stop(process)
        timeline.after(1.0, process, seen.append, "message")
        timeline.timer(2.0, process, seen.append, "timer")
        timeline.after(5.0, None, timeline.resume, process)
        timeline.after(4.9, None, lambda seen=seen: seen.append("still"))
        run(timeline)
        orders.add(tuple(seen))
    assert orders == {("still", "message", "timer"), ("still", "timer", "message")}


def test_it_ends_when_a_look_finds_it_over() -> None:
    timeline, seen = Timeline(random.Random(0)), []
    for at in range(10):
        timeline.after(float(at), None, seen.append, at)
    timeline.run(100.0, lambda: len(seen) >= 3)
    assert len(seen) < 10
