import pytest
from msgspec import Raw

from router.core.intake import SPLIT, UNNAMED_TOKENS, Endpoint, Intake


def test_an_estimate_of_the_prompt_grows_with_the_body():
    assert Intake(Endpoint.CHAT, b"", "m", False, "").prompt_tokens == 1
    assert Intake(Endpoint.CHAT, b"x" * 400, "m", False, "").prompt_tokens == 101


def test_endpoints_are_the_paths():
    assert [str(endpoint) for endpoint in Endpoint][:2] == ["/v1/chat/completions", "/v1/completions"]
    assert {Endpoint.CHAT, Endpoint.COMPLETIONS} == SPLIT


@pytest.mark.parametrize(
    ("endpoint", "fields", "max_tokens"),
    [
        (Endpoint.CHAT, {"max_tokens": Raw(b"7")}, 7),
        (Endpoint.CHAT, {"max_tokens": Raw(b"7"), "max_completion_tokens": Raw(b"9")}, 9),
        (Endpoint.CHAT, {"max_tokens": Raw(b"7"), "max_completion_tokens": Raw(b"null")}, 7),
        (Endpoint.RESPONSES, {"max_output_tokens": Raw(b"5")}, 5),
        (Endpoint.CHAT, {"max_tokens": Raw(b"-1")}, UNNAMED_TOKENS),
        (Endpoint.CHAT, {"max_tokens": Raw(b"9" * 5000)}, UNNAMED_TOKENS),
        (Endpoint.COMPLETIONS, {}, UNNAMED_TOKENS),
        (Endpoint.COMPLETIONS, None, UNNAMED_TOKENS),
        (Endpoint.EMBEDDINGS, {}, 0),
    ],
)
def test_how_much_may_be_generated(endpoint, fields, max_tokens):
    assert Intake(endpoint, b"{}", "m", False, "", fields=fields).max_tokens == max_tokens
