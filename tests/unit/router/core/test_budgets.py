from router.core.budgets import Account, Accounts, Budget


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


def test_names_have_accounts_while_something_is_taken():
    accounts = Accounts(Budget(1))
    assert accounts.counting
    accounts.take("a", 5)
    assert not accounts.of("a").fits(1) and accounts.of("b").fits(1)
    assert list(accounts._of) == ["a"], "asking costs nothing"
    accounts.give("a", 5)
    assert accounts._of == {}


def test_nothing_is_counted_until_there_is_a_limit():
    accounts = Accounts(Budget())
    assert not accounts.counting
    accounts.set_budget("a", Budget(1))
    assert accounts.counting and not _full(accounts, "b") and _full(accounts, "a")


def test_budgets_change_under_way():
    accounts = Accounts(Budget(5))
    accounts.take("a", 1)
    accounts.take("b", 1)
    accounts.set_budget("a", Budget(3))
    accounts.set_budget("", Budget(1))
    assert accounts.of("a").fits(1) and not accounts.of("b").fits(1)


def _full(accounts: Accounts, name: str) -> bool:
    accounts.take(name, 1)
    return not accounts.of(name).fits(1)
