import ssl

import pytest

from router.contract.errors import BadSettings
from router.legs.access import EngineAccess, read_engine_keys


def test_an_engines_own_key_goes_before_that_of_all():
    access = EngineAccess("all", {"http://a:1": "own", "http://b:1": ""})
    headers = [access.headers(url).get("authorization") for url in ("http://a:1", "http://b:1", "http://c:1")]
    assert headers == ["Bearer own", None, "Bearer all"]
    assert "all" not in repr(access) and "own" not in repr(access)


def test_a_context_is_the_systems_unless_one_is_given():
    own = ssl.create_default_context()
    assert EngineAccess(tls=lambda: own).context() is own
    assert EngineAccess().context() is EngineAccess().context()


def test_keys_are_read_from_lines(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# prefill\nhttp://a:1/ k1\n\nhttps://b:1\n")
    assert read_engine_keys(str(path)) == {"http://a:1": "k1", "https://b:1": ""}


@pytest.mark.parametrize("text", ["k1", "http://a:1 k1 k2", "a:1 k1"])
def test_other_lines_are_refused_without_being_shown(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(BadSettings, match="Line 1") as caught:
        read_engine_keys(str(path))
    assert "k1" not in caught.value.message
    with pytest.raises(BadSettings, match="cannot be read"):
        read_engine_keys(str(tmp_path / "none"))
