from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from router.build_router import build_router
from router.contract.errors import BadSettings, Overloaded
from router.contract.instance import Mode
from router.core.admission import WAIT
from router.governor import CHANGEABLE, Again, Governor
from router.settings import Settings
from tests.support.instances import intake

BASE = Settings(decode=("http://d:1",))


class Files:
    def changed(self):
        return False


@pytest.fixture
def governed():
    """(governor, router, whom the watch was told to drain)."""
    router = build_router(BASE)
    router.attach(None, SimpleNamespace(fold=lambda record, gaps: None, count_retry=lambda reason: None))
    drained = []
    governor = Governor(router, SimpleNamespace(drain=drained.append), BASE, None)
    return governor, router, drained


def test_what_can_change_is_a_setting():
    assert {one.name for one in fields(Settings)} >= CHANGEABLE


def test_deadlines_budgets_policies_and_mode_change_while_it_runs(governed):
    governor, router, _ = governed
    owner, policy = router.conduct.owner, router.desk.rules.prefill_policy
    wanted = replace(
        BASE,
        next_token_s=7.0,
        prefill_s=3.0,
        attempts=5,
        prefill_cancel="never",
        max_requests=1,
        mode="pull",
        prefill_policy="round_robin",
        retry_share=0.5,
    )
    governor.change(wanted)
    assert governor.settings == wanted and governor.refused == ()
    assert (router.deadlines.next_token_s, router.shortest_s) == (7.0, 3.0)
    assert (router.conduct.attempts, router.conduct.cancels_prefill, router.conduct.owner) == (5, False, owner)
    assert router.desk.rules.mode is Mode.PULL and router.desk.rules.prefill_policy is not policy
    intake = SimpleNamespace(owner="m", caller="", prompt_tokens=1, priority=0)
    assert not isinstance(router.admission.admit(intake), BadSettings) and router.admission.requests == 1


def test_a_budget_that_has_grown_lets_in_who_waits(governed, monkeypatch):
    governor, router, _ = governed
    let_in = []
    monkeypatch.setattr(router, "_let_in", lambda: let_in.append(router.admission._total.budget.requests))
    governor.change(replace(BASE, max_requests=BASE.max_requests + 1))
    assert let_in and set(let_in) == {BASE.max_requests + 1}


def test_a_crossover_that_changes_makes_a_desk_anew(governed):
    governor, router, _ = governed
    desk = router.desk
    governor.change(replace(BASE, mode="auto"))
    assert router.desk is desk and desk.rules.mode is None
    governor.change(replace(BASE, mode="auto", crossover_tokens=9))
    assert router.desk is not desk


def test_choices_are_explained_from_the_moment_that_somebody_asks(governed):
    governor, router, _ = governed
    governor.change(replace(BASE, explain_placements=5))
    assert router.explanations is not None and governor.refused == ()
    governor.change(replace(BASE, explain_placements=0))
    assert router.explanations is None


def test_what_cannot_change_is_refused_by_name_and_the_rest_is_in_force(governed, caplog):
    governor, router, _ = governed
    governor.change(replace(BASE, port=9, total_s=5.0))
    assert router.deadlines.total_s == 5.0
    assert governor.refused == ("port",) and governor.settings.port == BASE.port
    assert "port cannot change while the router runs" in caplog.text
    governor.change(replace(BASE, total_s=5.0))
    assert governor.refused == ()


def test_settings_that_cannot_be_used_change_nothing(governed, caplog):
    governor, router, _ = governed
    answers = [BadSettings("There is no setting 'x'."), replace(BASE, total_s=4.0)]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    governor.reread()
    governor.again = Again(read, Files())
    governor.reread()
    assert governor.bad and governor.settings == BASE and "stay as they were" in caplog.text
    governor.reread()
    assert not governor.bad and router.deadlines.total_s == 4.0


def test_the_log_is_switched(governed):
    governor, _, _ = governed
    asked = []
    governor.set_log = asked.append
    governor.change(replace(BASE, access_log=False))
    governor.change(BASE)
    assert asked == [False, True]


async def test_orders_come_before_settings(governed):
    governor, router, drained = governed
    await governor.orders.set_mode("local")
    await governor.orders.drain("d0", draining=True)
    assert router.desk.rules.mode is Mode.LOCAL and drained[-1] == {"d0"}
    governor.change(replace(BASE, mode="pull", local_below_bytes=3))
    assert router.desk.rules.mode is Mode.LOCAL and router.desk.rules.local_below_bytes == 3
    await governor.orders.set_mode("auto")
    assert router.desk.rules.mode is None
    await governor.orders.set_mode("")
    assert router.desk.rules.mode is Mode.PULL


def test_a_file_that_is_misread_by_a_bug_changes_nothing(governed, caplog):
    governor, _, _ = governed

    def read():
        raise AttributeError("a bug")

    governor.again = Again(read, Files())
    governor.reread()
    assert governor.bad and governor.settings == BASE and "stay as they were" in caplog.text


def test_a_rule_that_is_not_about_policies_leaves_them_what_they_remember(governed):
    governor, router, _ = governed
    governor.change(replace(BASE, prefill_policy="prefix", decode_policy="session"))
    rules = router.desk.rules
    governor.change(replace(BASE, prefill_policy="prefix", decode_policy="session", local_below_bytes=9, mode="auto"))
    assert router.desk.rules.local_below_bytes == 9 and router.desk.rules.mode is None
    assert router.desk.rules.prefill_policy is rules.prefill_policy
    assert router.desk.rules.decode_policy is rules.decode_policy
    governor.change(replace(BASE, prefill_policy="prefix", decode_policy="prefix", local_below_bytes=9, mode="auto"))
    assert router.desk.rules.prefill_policy is rules.prefill_policy, "it is not its setting that has changed"
    assert router.desk.rules.decode_policy is not rules.decode_policy and router.desk.rules.decode_first


def test_the_line_breakers_hedges_and_aliases_change_while_it_runs(governed):
    governor, router, _ = governed
    told = []
    governor.set_hints = told.append
    one = intake()
    router.health.fail("p0", 1.0, 1.0)
    governor.change(replace(BASE, max_requests=1))
    assert router.admission.admit(one) is None
    assert isinstance(router.admission.admit(one), Overloaded)
    wanted = replace(
        BASE,
        max_requests=1,
        queue_requests=1,
        breaker_failures=2,
        hedge_share=0.5,
        hedge_after_s=3.0,
        model_aliases=("nick=m",),
    )
    governor.change(wanted)
    assert governor.settings == wanted and governor.refused == ()
    assert router.admission.admit(one) is WAIT
    router.health.fail("p0", 1.0, 1.0)
    assert router.health.state_of("p0") == "open", "the second failure counts under the new rules"
    assert router.hedging.late_after_s(1) == 3.0
    assert [settings.model_aliases for settings in told] == [("nick=m",)]
    governor.change(replace(BASE, max_requests=1))
    assert router.hedging is None and isinstance(router.admission.admit(one), Overloaded)


def test_what_the_last_file_wanted_and_did_not_get_is_shown(governed):
    governor, _, _ = governed
    governor.again = Again(lambda: replace(BASE, port=9, total_s=5.0, admin_key="k"), Files())
    governor.reread()
    shown = governor.shown()
    assert (shown["total_s"], shown["port"]) == (5.0, BASE.port)
    assert shown["reload"] == {"refused": ["admin_key", "port"], "error": ""}

    def read():
        raise BadSettings("total_s must be above 0.")

    governor.again = Again(read, Files())
    governor.reread()
    assert governor.shown()["reload"]["error"] == "total_s must be above 0."


def test_an_order_of_a_mode_that_there_is_not_changes_nothing(governed):
    governor, router, drained = governed
    governor.orders._take({"mode": "sideways", "drain p0": "1"})
    assert router.desk.rules.mode == BASE.mode and drained == [frozenset({"p0"})]


def test_whether_decode_is_chosen_late_changes_while_it_runs_and_what_was_learned_stays(governed):
    governor, router, _ = governed
    assert router.desk.rules.late is None and not router.desk.rules.learns
    governor.change(replace(BASE, decode_lead_s=0.1))
    late = router.desk.rules.late
    assert late.after_s(2.0) == 0.9 and router.desk.rules.learns and router.clerk.learn is not None
    governor.change(replace(BASE, decode_lead_s=0.1, local_below_bytes=9))
    assert router.desk.rules.late is late
    governor.change(replace(BASE, decode_lead_s=0.3, local_below_bytes=9))
    assert router.desk.rules.late.after_s(2.0) == 0.7
    governor.change(BASE)
    assert router.desk.rules.late is None and not router.desk.rules.learns
