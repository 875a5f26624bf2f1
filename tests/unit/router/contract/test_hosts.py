import pytest

from router.contract.hosts import Reach, authority, reach_of


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


@pytest.mark.parametrize(
    ("host", "stands"), [("10.0.0.7", "10.0.0.7:80"), ("fe80::1", "[fe80::1]:80"), ("a.b", "a.b:80")]
)
def test_ipv6_addresses_stand_in_brackets(host: str, stands: str) -> None:
    assert authority(host, 80) == authority(host, "80") == stands
