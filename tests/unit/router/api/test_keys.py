import hashlib
import os

import pytest

from router.api.keys import Keyring, read_key
from router.contract.errors import BadSettings


def entry(name: str, key: str) -> str:
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}"


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({b"authorization": b"Bearer k1"}, b"k1"),
        ({b"authorization": b"bearer  k1 "}, b"k1"),
        ({b"authorization": b"Basic k1"}, b""),
        ({b"authorization": b"k1"}, b""),
        ({b"x-api-key": b"k2"}, b"k2"),
        ({b"authorization": b"Bearer k1", b"x-api-key": b"k2"}, b"k1"),
        ({}, b""),
    ],
)
def test_a_key_is_read_from_either_header(headers, key):
    assert read_key(headers) == key


def test_keys_have_names_and_others_have_none(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"# who may call\n{entry('bob', 'k2')}  # since May\n\n{entry('a:b', 'k3')}\n")
    ring = Keyring([entry("ann", "k1"), entry("ann", "k1b")], path)
    named = {key: ring.name_of(key.encode()) for key in ("k1", "k1b", "k2", "k3", "k4", "", "K1")}
    assert named == {"k1": "ann", "k1b": "ann", "k2": "bob", "k3": "a:b", "k4": None, "": None, "K1": None}


@pytest.mark.parametrize("value", [b"Bearer k1", b"bearer k1", b"Bearer  k1"])
def test_a_caller_is_named_however_it_writes_the_header(value):
    ring = Keyring([entry("ann", "k1")], None)
    assert ring.caller({b"authorization": value}) == "ann"
    assert ring.caller({b"x-api-key": b"k1"}) == "ann"
    assert ring.caller({b"authorization": value + b"x"}) is ring.caller({}) is None


def test_two_digests_with_one_beginning_are_told_apart(monkeypatch):
    one, other = b"\1" * 8 + b"\2" * 24, b"\1" * 8 + b"\3" * 24
    ring = Keyring([f"one:{one.hex()}", f"other:{other.hex()}"], None)
    for digest, name in ((one, "one"), (other, "other"), (b"\1" * 8 + b"\4" * 24, None)):
        monkeypatch.setattr("router.api.keys.sha256", lambda key, d=digest: type("H", (), {"digest": lambda s: d})())
        assert ring.name_of(b"any") == name


def test_a_changed_file_is_in_force_and_a_broken_one_changes_nothing(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_text(entry("bob", "k1"))
    ring = Keyring([], path)
    ring.refresh()
    assert ring.name_of(b"k1") == "bob"
    other = tmp_path / "new"
    other.write_text(entry("eve", "k2"))
    os.replace(other, path)
    ring.refresh()
    assert (ring.name_of(b"k1"), ring.name_of(b"k2")) == (None, "eve")
    path.write_text("sk-secret-in-clear")
    ring.refresh()
    assert ring.name_of(b"k2") == "eve"
    path.unlink()
    ring.refresh()
    assert ring.name_of(b"k2") == "eve"
    assert "stay as they were" in caplog.text and "sk-secret" not in caplog.text


@pytest.mark.parametrize("line", ["sk-secret", "name:abc", ":" + "0" * 64, "name:" + "g" * 64])
def test_what_is_no_entry_is_refused_without_being_shown(line):
    with pytest.raises(BadSettings) as caught:
        Keyring([line], None)
    assert "secret" not in caught.value.message and "name:digest" in caught.value.message


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadSettings, match="cannot be read"):
        Keyring([], tmp_path / "none")
