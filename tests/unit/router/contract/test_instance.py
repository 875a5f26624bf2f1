import pytest

from router.contract.instance import Load, Role


@pytest.mark.parametrize(
    ("role", "prefills", "decodes"),
    [(Role.PREFILL, True, False), (Role.DECODE, False, True), (Role.BOTH, True, True)],
)
def test_a_role_says_which_legs_an_instance_takes(role: Role, prefills: bool, decodes: bool) -> None:
    assert (role.prefills, role.decodes) == (prefills, decodes)


def test_an_idle_instance_has_a_load_of_nothing() -> None:
    load = Load()
    assert {getattr(load, name) for name in Load.__slots__} == {0}
