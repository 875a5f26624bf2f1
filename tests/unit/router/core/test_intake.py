from router.core.intake import SPLIT, Endpoint, Intake


def test_an_estimate_of_the_prompt_grows_with_the_body():
    assert Intake(Endpoint.CHAT, b"", "m", False, "").prompt_tokens == 1
    assert Intake(Endpoint.CHAT, b"x" * 400, "m", False, "").prompt_tokens == 101


def test_endpoints_are_the_paths():
    assert [str(endpoint) for endpoint in Endpoint][:2] == ["/v1/chat/completions", "/v1/completions"]
    assert {Endpoint.CHAT, Endpoint.COMPLETIONS} == SPLIT
