import pytest

from router.contract.hosts import Reach, reach_of


@pytest.mark.parametrize(
    ("host", "reach"),
    [
        ("127.0.0.1", Reach.HERE),
        ("127.8.9.1", Reach.HERE),
        ("::1", Reach.HERE),
        ("localhost", Reach.HERE),
        ("0.0.0.0", Reach.EVERYWHERE),
        ("::", Reach.EVERYWHERE),
        ("10.0.0.7", Reach.THERE),
        ("fe80::1", Reach.THERE),
        ("pod-1.decode.svc", Reach.THERE),
    ],
)
def test_who_can_call_an_address(host: str, reach: Reach) -> None:
    assert reach_of(host) is reach
