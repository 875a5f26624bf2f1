import hashlib

import pytest

from router.api.gate import Gate
from router.api.keys import Keyring
from router.contract.errors import Unauthorized

KEYRING = Keyring([f"ann:{hashlib.sha256(b'k1').hexdigest()}"], None)
K1, ADMIN, NOBODY = ({b"authorization": b"Bearer " + key} for key in (b"k1", b"root", b"k9"))
OPEN = ["/", "/healthz", "/health", "/readyz", "/ready", "/metrics", "/docs", "/openapi.json", "/ui", "/ui/app.js"]


def test_without_keys_everybody_is_let_in():
    gate = Gate()
    assert gate.caller({}) == gate.admit("/v1/models", {}) == gate.admit("/admin/fleet", NOBODY) == ""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/nothing", "/uix", "/healthz/x"])
def test_with_keys_a_path_wants_one(path):
    gate = Gate(KEYRING, "root")
    assert gate.admit(path, K1) == "ann"
    for headers in ({}, NOBODY, ADMIN):
        assert isinstance(gate.admit(path, headers), Unauthorized)
    assert (gate.caller(K1), gate.caller({}), gate.caller(ADMIN)) == ("ann", None, None)


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_documentation_want_none(path):
    assert Gate(KEYRING, "root").admit(path, {}) == ""


@pytest.mark.parametrize("path", ["/admin", "/admin/fleet"])
def test_admin_wants_its_own_key(path):
    gate = Gate(KEYRING, "root")
    assert gate.admit(path, ADMIN) == ""
    assert isinstance(gate.admit(path, K1), Unauthorized)
    assert gate.admit("/administer", K1) == "ann"


def test_admin_without_a_key_is_for_this_machine():
    assert Gate(KEYRING, admin_open=True).admit("/admin/fleet", {}) == ""
    closed = Gate(admin_open=False).admit("/admin/fleet", ADMIN)
    assert isinstance(closed, Unauthorized) and "admin_key" in closed.message
