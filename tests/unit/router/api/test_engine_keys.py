import logging
import os
from pathlib import Path

import pytest

from router.api.engine_keys import EngineKeyFile
from router.contract.errors import BadSettings
from router.legs.access import EngineAccess


def write(path: Path, text: str) -> None:
    """As secrets are replaced: another file takes its name."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_a_file_that_changes_is_in_force_and_a_bad_one_changes_nothing(tmp_path, caplog):
    path = tmp_path / "keys"
    path.write_text("http://a:1 first\n")
    access = EngineAccess("all")
    keys = EngineKeyFile(access, str(path))
    assert access.headers("http://a:1") == {"authorization": "Bearer first"}
    keys.refresh()
    write(path, "http://a:1 second\nhttp://b:1\n")
    keys.refresh()
    assert access.headers("http://a:1") == {"authorization": "Bearer second"}
    assert access.headers("http://b:1") == {}
    with caplog.at_level(logging.WARNING):
        write(path, "nonsense")
        keys.refresh()
    assert access.headers("http://a:1") == {"authorization": "Bearer second"}
    assert "stay as they were" in caplog.text and "nonsense" not in caplog.text
    write(path, "# nobody\n")
    keys.refresh()
    assert access.headers("http://b:1") == access.headers("http://a:1") == {"authorization": "Bearer all"}


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadSettings):
        EngineKeyFile(EngineAccess(), str(tmp_path / "none"))
