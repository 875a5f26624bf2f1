import pytest

from router.contract.errors import BadSettings
from router.contract.instance import Role
from router.discovery.listings import flagged, listings_of
from router.settings import Settings


def test_a_listed_server_has_the_role_of_its_list():
    roles = {entry.url: entry.role for entry in flagged(("http://p",), ("http://d", "http://p"))}
    assert roles == {"http://p": Role.PREFILL, "http://d": Role.DECODE}


def test_without_prefill_servers_the_others_do_everything():
    assert [entry.role for entry in flagged((), ("http://d", "http://d"))] == [Role.BOTH]


def test_without_any_list_there_is_no_listing():
    assert listings_of(Settings()) == []
    (listing,) = listings_of(Settings(decode=("http://d",)))
    assert [entry.url for entry in listing.entries()] == ["http://d"]


@pytest.mark.parametrize("url", ["x", "http://h:99999", "http://[::1"])
def test_a_flag_that_is_no_url_is_one_sentence(url):
    with pytest.raises(BadSettings, match="engine url must look like http://host:port"):
        listings_of(Settings(decode=(url,)))
