from router.contract.instance import Mode
from router.core.cost import LeastPrefill
from router.placing import build_explanations, build_hints, build_rules, changed_rules
from router.settings import Settings


def test_auto_is_no_fixed_mode_and_the_cost_policies_learn():
    auto = build_rules(Settings(mode="auto", crossover_tokens=9, prefill_policy="cost"))
    assert (auto.mode, auto.crossover_tokens, auto.learns) == (None, 9, True)
    assert isinstance(auto.prefill_policy, LeastPrefill)
    plain = build_rules(Settings(mode="pull"))
    assert (plain.mode, plain.learns, plain.late) == (Mode.PULL, False, None)


def test_a_late_choice_of_decode_learns_by_itself():
    rules = build_rules(Settings(decode_lead_s=0.1))
    assert rules.learns and rules.late is not None and rules.late.after_s(2.0) == 0.9


def test_earlier_turns_are_remembered_where_kv_may_come_back():
    assert build_rules(Settings()).keepers is None
    rules = build_rules(Settings(return_path=True))
    assert rules.keepers is not None
    assert changed_rules(rules, Settings(return_path=True, mode="pull"), frozenset({"mode"})).keepers is rules.keepers
    assert changed_rules(rules, Settings(), frozenset({"return_path"})).keepers is None


def test_hints_are_listened_to_when_one_is_set():
    assert build_hints(Settings()) is None
    hints = build_hints(Settings(session_header="X-Session", mode_header="X-Mode", model_aliases=("a=b",)))
    assert (hints.session_header, hints.mode_header, hints.aliases) == (b"x-session", b"x-mode", {"a": "b"})


def test_choices_are_explained_where_somebody_has_asked():
    assert build_explanations(Settings()) is None
    assert build_explanations(Settings(explain_placements=3)).newest(9) == []
