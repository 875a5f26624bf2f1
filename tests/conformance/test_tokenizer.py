"""Our Tokenizer and transformers' AutoTokenizer agree on a real checkpoint, as GGUF file and as directory.

transformers reads a GGUF file without its `tokenizer.ggml.pre`, so it does not split digits as SmolLM2's own
`tokenizer.json` does. The two differ only where a digit follows a run of white space or is not ASCII; the oracle that
is asked about all texts therefore gets the pre-tokenizer that SmolLM2 was published with.
"""

from __future__ import annotations

import re

import pytest
from tokenizers import pre_tokenizers

from engine_shim.engine.reference.tokenizer import Tokenizer
from tests.support.checkpoints import SMOLLM2_FILE, smollm2_gguf
from tests.support.texts import awkward_texts

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.needs("model")

TEXTS = awkward_texts(300)
CHATS = [
    [{"role": "user", "content": "What is 1 + 1?"}],
    [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Hi"}],
    [
        {"role": "user", "content": "é 🎉\n  code()"},
        {"role": "assistant", "content": " Sure "},
        {"role": "user", "content": "<|im_end|> again"},
    ],
    [{"role": "user", "content": ""}],
]
TEMPLATE = """
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- for message in messages %}
    {%- if message.role not in ["user", "assistant", "tool"] %}{{ raise_exception("role " + message.role) }}{% endif %}
    {%- if loop.index > 9 %}{% break %}{% endif %}
    {{- bos_token + message.role + ": " }}
    {%- if message.role == "assistant" %}{% generation %}{{ message.content | trim }}{{ eos_token }}{% endgeneration %}
    {%- else %}{{ message.content }}{% endif %}
{% endfor %}
{%- if thinking is defined and thinking %}<think>{% endif %}
{%- if add_generation_prompt %}assistant: {% endif %}"""


@pytest.fixture(scope="module")
def as_read():
    path = smollm2_gguf()
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=SMOLLM2_FILE)


@pytest.fixture(scope="module")
def published(as_read, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    as_read.save_pretrained(folder)
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    oracle.save_pretrained(folder)
    oracle.folder = folder
    return oracle


@pytest.fixture(scope="module", params=["gguf", "directory"])
def ours(request, published):
    return Tokenizer.load(smollm2_gguf() if request.param == "gguf" else published.folder)


def test_encode_equals_the_published_tokenizer(ours, published):
    differing = [text for text in TEXTS if ours.encode(text, add_special_tokens=True) != published(text)["input_ids"]]
    assert differing == []


def test_encode_equals_the_gguf_as_transformers_reads_it_but_for_digits(as_read):
    ours = Tokenizer.load(smollm2_gguf())
    texts = [
        text
        for text in TEXTS
        if not re.search(r"\s\s\d", text) and not any(char.isnumeric() and not char.isascii() for char in text)
    ]
    assert len(texts) > 200
    differing = [text for text in texts if ours.encode(text, add_special_tokens=True) != as_read(text)["input_ids"]]
    assert differing == []


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_decode_equals(ours, published, skip_special_tokens):
    for text in TEXTS:
        ids = published(text)["input_ids"]
        expected = published.decode(ids, skip_special_tokens=skip_special_tokens)
        assert ours.decode(ids, skip_special_tokens=skip_special_tokens) == expected
        # A cut that leaves half characters at both ends.
        assert ours.decode(ids[1:-1], skip_special_tokens=skip_special_tokens) == published.decode(
            ids[1:-1], skip_special_tokens=skip_special_tokens
        )


def test_vocabulary_equals(ours, published):
    assert ours.vocab_size == len(published)
    assert ours.eos_token_ids == (published.eos_token_id,)
    assert {i for i in range(ours.vocab_size) if ours.is_special(i)} >= set(published.all_special_ids)
    for token_id in range(0, ours.vocab_size, 97):
        assert ours.token_text(token_id) == published.decode([token_id], skip_special_tokens=False)


def chat(tokenizer, messages, *, add_generation_prompt=False, continue_final_message=False, tools=None, **variables):
    """Token ids of the chat as its template writes it."""
    text = tokenizer.render_chat(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        variables=variables,
    )
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("messages", CHATS)
def test_chat_equals(ours, published, messages, add_generation_prompt):
    expected = published.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, return_dict=False)
    assert chat(ours, messages, add_generation_prompt=add_generation_prompt) == expected


@pytest.mark.parametrize("content", ["Once upon", "Once upon  ", "  Once"])
def test_continued_chat_equals(ours, published, content):
    messages = [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": content}]
    expected = published.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    assert chat(ours, messages, continue_final_message=True) == expected


@pytest.fixture(scope="module")
def rich(published):
    """Both tokenizers with a template that uses all that Hugging Face offers to templates."""
    folder = published.folder.parent / "rich"
    published.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("options", [{}, {"thinking": True}, {"tools": [{"type": "function", "x": "<é>"}]}])
def test_rich_template_equals(rich, options):
    ours, oracle = rich
    messages = [{"role": "user", "content": "a <b> 'c'"}, {"role": "assistant", "content": " d "}]
    expected = oracle.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **options)
    assert chat(ours, messages, add_generation_prompt=True, **options) == expected


@pytest.mark.parametrize("content", ["trimmed  ", "plain"])
def test_rich_template_continues_a_message_that_it_trims(rich, content):
    ours, oracle = rich
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": content}]
    expected = oracle.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    assert chat(ours, messages, continue_final_message=True) == expected
