from __future__ import annotations

import pytest

from engine_shim.engine.reference.chat_template import ChatTemplate
from router.contract.errors import BadRequest, ModelUnusable

PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}"
HI = [{"role": "user", "content": "hi"}]


def test_messages_and_generation_prompt_are_rendered():
    assert ChatTemplate(PLAIN, {}).render(HI) == "[user] hi\n>"
    assert ChatTemplate(PLAIN, {}).render(HI, add_generation_prompt=False) == "[user] hi\n"


def test_special_tokens_tools_and_variables_are_seen_and_variables_win():
    template = ChatTemplate("{{ bos_token }}{{ eos_token }}{{ tools | length }}{{ mood }}", {"bos_token": "<s>"})
    text = template.render(HI, tools=[{}, {}], variables={"mood": "calm", "eos_token": "E"})
    assert text == "<s>E2calm"


def test_tojson_escapes_neither_html_nor_unicode_and_keeps_order():
    assert ChatTemplate("{{ tools | tojson }}", {}).render(HI, tools=[{"b": "<é>", "a": 1}]) == '[{"b": "<é>", "a": 1}]'


def test_what_is_nested_too_deeply_is_a_bad_request():
    deep: dict[str, object] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(BadRequest, match="too deeply"):
        ChatTemplate("{{ tools | tojson }}", {}).render(HI, tools=[deep])


def test_strftime_now_formats_a_year():
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(HI).isdigit()


def test_generation_block_renders_its_body():
    assert ChatTemplate("a{% generation %}{{ 1 + 1 }}{% endgeneration %}b", {}).render(HI) == "a2b"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('only user messages') }}", "only user messages"),
        ("{{ messages[0].content + messages[0].nothing.deeper }}", "nothing"),
        ("{{ 'a' + 1 }}", "can only concatenate"),
        ("{{ messages[5].role }}", "no element"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ 1 // 0 }}", "division"),
    ],
)
def test_a_refusal_of_the_template_is_a_bad_request(source, complaint):
    with pytest.raises(BadRequest, match=complaint) as caught:
        ChatTemplate(source, {}).render(HI)
    assert caught.value.param == "messages"


def test_a_template_that_does_not_compile_is_unusable():
    with pytest.raises(ModelUnusable, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_continuing_ends_where_the_last_message_ends():
    messages = [*HI, {"role": "assistant", "content": "Once upon "}]
    assert ChatTemplate(PLAIN, {}).render(messages, continue_final_message=True) == "[user] hi\n[assistant] Once upon "
    trimming = PLAIN.replace("m.content", "m.content | trim")
    assert ChatTemplate(trimming, {}).render(messages, continue_final_message=True).endswith("[assistant] Once upon")
    assert messages[-1]["content"] == "Once upon "


@pytest.mark.parametrize(
    ("source", "content"), [("{{ messages[0].content }}", "x"), (PLAIN, None), (PLAIN, [{"type": "text", "text": "x"}])]
)
def test_what_cannot_be_continued_is_a_bad_request(source, content):
    with pytest.raises(BadRequest, match="continue"):
        ChatTemplate(source, {}).render([*HI, {"role": "assistant", "content": content}], continue_final_message=True)
