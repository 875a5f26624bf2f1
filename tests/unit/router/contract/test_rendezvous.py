import pytest

from router.contract.rendezvous import JOIN, Arrival, JoinState, join

# HOUSE's sketch of the rule, row by row; repeats and closed states are in tests/property/contract.
RULE = """
EMPTY     Registered    SEATED
EMPTY     Prefilled     FILLED
EMPTY     Abandoned     VOID
SEATED    Prefilled     MATCHED   Write
SEATED    Abandoned     VOID      FreeSeats
FILLED    Registered    MATCHED   Write
FILLED    Abandoned     VOID      FreeKV
MATCHED   WriterDone    LANDED    FreeKV
MATCHED   WriterFailed  VOID      FreeSeats FreeKV
MATCHED   Abandoned     DRAINING  StopWriter
DRAINING  WriterDone    VOID      FreeSeats FreeKV
DRAINING  WriterFailed  VOID      FreeSeats FreeKV
VOID      Registered    VOID      FreeSeats
VOID      Prefilled     VOID      FreeKV
"""
ROWS = [line.split() for line in RULE.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_rule(row: list[str]) -> None:
    before, arrival, after, *effects = row
    assert join(JoinState(before), Arrival(arrival)) == (after, tuple(effects))


def test_every_other_row_changes_nothing_and_orders_nothing() -> None:
    ruled = {(before, arrival) for before, arrival, *_ in ROWS}
    others = {edge: row for edge, row in JOIN.items() if edge not in ruled}
    assert others
    assert all(row == (before, ()) for (before, _), row in others.items())


def test_an_absent_row_is_none() -> None:
    assert join(JoinState.EMPTY, Arrival.WRITER_DONE) is None


def test_only_landed_and_void_are_closed() -> None:
    assert {state for state in JoinState if state.closed} == {JoinState.LANDED, JoinState.VOID}
