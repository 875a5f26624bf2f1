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
