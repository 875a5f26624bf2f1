"""Seal: marks of a key hold for that key, purpose and message alone."""

import hashlib
import hmac

import pytest

from router.contract.errors import BadSettings
from router.contract.seal import CANCEL, MARK_BYTES, NOTICE, TAG, Seal, check_key

KEY = "k" * 32


def test_a_mark_is_half_of_the_hmac() -> None:
    expected = hmac.new(KEY.encode(), b"noticehello", hashlib.sha256).digest()
    assert Seal(KEY).mark(NOTICE, b"hello") == expected[:MARK_BYTES]
    assert Seal(KEY).header(CANCEL, b"{}") == hmac.new(KEY.encode(), b"cancel{}", hashlib.sha256).hexdigest()


def test_it_holds_for_its_own_key_purpose_and_message_alone() -> None:
    mark = Seal(KEY).mark(NOTICE, b"hello")
    assert Seal(KEY).holds(NOTICE, b"hello", mark)
    assert not Seal("x" * 32).holds(NOTICE, b"hello", mark)
    assert not Seal().holds(NOTICE, b"hello", mark)
    assert not Seal(KEY).holds(TAG, b"hello", mark)
    assert not Seal(KEY).holds(NOTICE, b"hellp", mark)
    assert not Seal(KEY).holds(NOTICE, b"hello", mark[:-1])


@pytest.mark.parametrize("header", ["", "00", "é", "\ud800", "0" * 64])
def test_a_foreign_header_never_holds(header: str) -> None:
    assert not Seal(KEY).header_holds(CANCEL, b"{}", header)
    assert Seal(KEY).header_holds(CANCEL, b"{}", Seal(KEY).header(CANCEL, b"{}"))


def test_the_key_is_not_shown() -> None:
    assert KEY not in repr(Seal(KEY))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_alone_needs_no_key(host: str) -> None:
    check_key("", host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "pod-1.decode.svc"])
def test_others_need_one(host: str) -> None:
    check_key(KEY, host)
    with pytest.raises(BadSettings, match="TANDEM_DEPLOYMENT_KEY"):
        check_key("", host)


def test_a_short_key_is_refused() -> None:
    with pytest.raises(BadSettings, match="at least 16"):
        check_key("secret", "127.0.0.1")
