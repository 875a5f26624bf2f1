from router.core.budgets import MAX_IDLE, Account, Accounts, Budget


def test_an_account_is_bounded_in_both_and_lets_a_lone_giant_in():
    account = Account(Budget(2, 100))
    assert account.fits(1000)
    account.take(1000)
    assert not account.fits(1)
    account.give(1000)
    account.take(60)
    assert account.fits(40) and not account.fits(41)
    account.take(1)
    assert not account.fits(1), "two requests"


def test_a_budget_of_no_requests_lets_nothing_in():
    assert not Account(Budget(0)).fits(1)


def test_what_fits_can_be_taken_in_one():
    account = Account(Budget(2, 100))
    assert [account.take_within(tokens) for tokens in (60, 41, 40, 1)] == [True, False, True, False]
    assert (account.requests, account.tokens) == (2, 100)


def test_a_lone_giant_does_not_fit_a_share_while_others_hold_the_rest():
    account = Account(Budget(2, 100, alone=False))
    assert not account.fits(101) and not account.take_within(101)
    assert account.take_within(100)


def test_names_have_accounts_of_their_own():
    accounts = Accounts(Budget(1))
    assert accounts.counting
    accounts.of("a").take(5)
    assert not accounts.of("a").fits(1) and accounts.of("b").fits(1)
    accounts.of("a").give(5)
    assert accounts.of("a").fits(1)


def test_idle_accounts_are_forgotten_when_there_are_many():
    accounts = Accounts(Budget(1))
    accounts.of("a").take(5)
    for number in range(3 * MAX_IDLE):
        accounts.of(f"idle{number}")
    assert len(accounts._of) <= MAX_IDLE and not accounts.of("a").fits(1)


def test_nothing_is_counted_until_there_is_a_limit():
    accounts = Accounts(Budget())
    assert not accounts.counting
    accounts.set_budget("a", Budget(1))
    assert accounts.counting and not _full(accounts, "b") and _full(accounts, "a")


def test_budgets_change_under_way():
    accounts = Accounts(Budget(5))
    accounts.of("a").take(1)
    accounts.of("b").take(1)
    accounts.set_budget("a", Budget(3))
    accounts.set_budget("", Budget(1))
    assert accounts.of("a").fits(1) and not accounts.of("b").fits(1)


def _full(accounts: Accounts, name: str) -> bool:
    accounts.of(name).take(1)
    return not accounts.of(name).fits(1)
