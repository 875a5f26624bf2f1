import pytest

from router.contract import errors
from router.contract.errors import (
    BadRequest,
    Blame,
    ClientError,
    DeploymentError,
    LegBroken,
    LegTimeout,
    LegUnreachable,
    StoreDown,
    TandemError,
)


def tree(root: type[TandemError] = TandemError) -> list[type[TandemError]]:
    return [root, *(error for child in root.__subclasses__() for error in tree(child))]


def leaves() -> list[type[TandemError]]:
    return [error for error in tree() if error.__module__ == errors.__name__ and not error.__subclasses__()]


def test_an_error_keeps_its_sentence_and_parameter() -> None:
    error = BadRequest("No.", param="stop")
    assert (str(error), error.message, error.param) == ("No.", "No.", "stop")
    assert StoreDown("Down.").param is None


def test_blame_follows_the_branch() -> None:
    assert {error.blame for error in leaves() if issubclass(error, ClientError)} == {Blame.CLIENT}
    assert {error.blame for error in leaves() if issubclass(error, DeploymentError)} == {Blame.DEPLOYMENT}
    assert StoreDown.blame is Blame.STORE


def test_client_errors_are_4xx_and_never_retried_and_all_others_5xx() -> None:
    for error in leaves():
        if issubclass(error, ClientError):
            assert 400 <= error.http_status < 500, error
            assert not error.retryable, error
        else:
            assert error.http_status >= 500, error


def test_codes_are_machine_readable() -> None:
    assert all(error.code.replace("_", "").isalpha() and error.code.islower() for error in tree())


@pytest.mark.parametrize("error", [LegUnreachable, LegBroken])
@pytest.mark.parametrize("side", [Blame.PREFILL, Blame.DECODE])
def test_a_leg_error_names_its_side(error: type[errors.LegError], side: Blame) -> None:
    raised = error("Gone.", side=side)
    assert (raised.side, raised.retryable) == (side, True)


def test_a_leg_timeout_is_named_after_its_phase() -> None:
    assert LegTimeout("Late.", side=Blame.DECODE, phase="first_token").code == "first_token_timeout"
    assert LegTimeout("Late.", side=Blame.DECODE).code == "leg_timeout"
