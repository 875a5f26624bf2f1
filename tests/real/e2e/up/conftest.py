"""One `tandem up` for all tests of this folder that only talk to it."""

from collections.abc import Iterator

import pytest

from tests.support.up import Up, tandem_up


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TANDEM_MODE_HEADER", "x-tandem-mode")
        patch.setenv("TANDEM_RETURN_PATH", "true")
        with tandem_up(tmp_path_factory.mktemp("up"), "--kv-bytes", "300000000") as running:
            yield running


@pytest.fixture
def quiet_after(up: Up) -> Iterator[Up]:
    """The quiet check runs after the test."""
    yield up
    up.wait_quiet()
