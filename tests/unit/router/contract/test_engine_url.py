import pytest

from router.contract.engine_url import EngineUrl, read_engine_url
from router.contract.errors import BadSettings


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h:8000", ("http", "h", 8000, "h:8000")),
        ("http://h:8000/", ("http", "h", 8000, "h:8000")),
        ("https://GPU-1.example.", ("https", "gpu-1.example.", 443, "GPU-1.example.")),
        ("http://[fd00::5]:80", ("http", "fd00::5", 80, "[fd00::5]:80")),
    ],
)
def test_a_good_one_is_read(url, parts):
    assert read_engine_url(url) == EngineUrl(*parts)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:1",
        "ftp://h:1",
        "http://",
        "http://:80",
        "http://h:8000/v1",
        "http://h:99999",
        "http://h:-1",
        "http://h:0",
        "http://h:",
        "http://h\u00fc:1",
        "http://h h:1",
        "http://h:1\r\nx: y",
        "http://u:p@h:1",
        "http://h:1?x",
        "http://h:1#",
        "http://[::1:8000",
        "http://a..b:1",
        "http://" + "a" * 64,
    ],
)
def test_a_bad_one_is_named(url):
    with pytest.raises(BadSettings, match="must look like http://host:port"):
        read_engine_url(url)
