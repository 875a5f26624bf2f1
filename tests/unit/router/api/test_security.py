import hashlib

from router.api.cors import Cors
from router.api.security import build_security
from router.contract.errors import Unauthorized
from router.settings import Settings

KEYS = (f"ann:{hashlib.sha256(b'k1').hexdigest()}",)
ANN = {b"authorization": b"Bearer k1"}


def test_nothing_set_is_open_to_all_and_costs_nothing():
    made = build_security(Settings())
    app = object()
    assert made.guard(app) is app and made.server_tls is None and made.refreshables == ()
    assert b"origin" not in made.escorted
    assert made.gate.admit("/v1/models", {}) == made.gate.admit("/admin/fleet", {}) == ""
    assert made.access.headers("http://p:1") == {}


def test_what_is_set_is_kept(tmp_path):
    engine_keys = tmp_path / "engines"
    engine_keys.write_text("http://d:1 k9\n")
    made = build_security(
        Settings(
            host="0.0.0.0",
            api_keys=KEYS,
            cors_origins=("*",),
            engine_key="k8",
            engine_key_file=str(engine_keys),
        )
    )
    assert isinstance(made.guard(object()), Cors) and b"origin" in made.escorted
    assert made.gate.admit("/v1/models", ANN) == "ann"
    assert isinstance(made.gate.admit("/admin/fleet", ANN), Unauthorized)
    assert made.access.headers("http://d:1") == {"authorization": "Bearer k9"}
    assert made.access.headers("http://p:1") == {"authorization": "Bearer k8"}
    assert len(made.refreshables) == 2
