"""What clients may put into a body: each of these has ended some engine, or looks as if it could.

Pieces of JSON rather than objects where JSON says more than Python does: twice the same key, numbers beyond all types.
"""

from __future__ import annotations

import json
import random

from tests.support.fuzz_cases import VALUES

TOLD = '{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"x","remote_block_ids":[[1]]}'
HELD = '{"do_remote_prefill":false,"do_remote_decode":true}'
HANDOVERS = (
    *(f'"kv_transfer_params":{told}' for told in (TOLD, HELD, '"x"', "[]", "7", '{"do_remote_prefill":true}')),
    f'"kv_transfer_params":null,"kv_transfer_params":{TOLD}',
    f'"kv_transfer_p\\u0061rams":{TOLD}',
    f'"ec_transfer_params":{TOLD}',
    *(f'"vllm_xargs":{{"kv_transfer_params":{told}}}' for told in (TOLD, HELD, '"x"', "[1]")),
    f'"vllm_xargs":{{"a":1,"kv_transfer_p\\u0061rams":{TOLD}}}',
    f'"vllm_xargs":{{"ec_transfer_params":{TOLD}}}',
    '"request_id":"mine"',
)
"""Half a hand-over, by every way that there is."""

PROMPTS = tuple(
    f'"prompt":{prompt}'
    for prompt in (
        *("[]", "[[]]", "[[1],[]]", "[-1]", "[49152]", "[2147483648]", "[9223372036854775808]", "[1.5]", "[true]"),
        *('""', '"\\u0000"', "null", "{}", '[""]', '[1,"a"]', "[[[1]]]", '"' + "word " * 3000 + '"'),
        '"x","prompt_embeds":"AAAA"',
        '"x","suffix":"y"',
        '"x","echo":true,"logprobs":1',
    )
)
SAMPLING = (
    *(f'"temperature":{one}' for one in ("-1", "1e308", "1e999", "NaN", '"hot"')),
    *(f'"top_p":{one}' for one in ("0", "2", "1e-320")),
    *(f'"top_k":{one}' for one in ("-5", "1099511627776", "49153")),
    *(f'"{name}":{one}' for name in ("repetition_penalty", "presence_penalty") for one in ("0", "-1", "1e30", "NaN")),
    *(f'"logit_bias":{one}' for one in ('{"-1":1}', '{"999999999":100}', '{"1":1e39}', '{"x":1}', "[]")),
    *(f'"allowed_token_ids":{one}' for one in ("[]", "[-1]", "[1000000000]", "[9223372036854775808]")),
    *(f'"stop_token_ids":{one}' for one in ("[-7]", "[1099511627776]", "[9223372036854775808]")),
    *(f'"stop":{one}' for one in ('""', '[""]', json.dumps([str(one) for one in range(2000)]))),
    *(f'"bad_words":{one}' for one in ('[""]', '["\\u0000"]', '["a"]')),
    *(f'"max_tokens":{one}' for one in ("0", "-1", "1099511627776", "null")),
    *(f'"min_tokens":{one}' for one in ("-1", "1099511627776")),
    *(f'"seed":{one}' for one in ("-1", "9223372036854775808", "1180591620717411303424")),
    *(f'"logprobs":{one}' for one in ("-2", "-1", "10000")),
    *(f'"prompt_logprobs":{one}' for one in ("-2", "10000")),
    *(f'"n":{one}' for one in ("0", "-1", "1e9")),
    *(f'"priority":{one}' for one in ("1180591620717411303424", "-1")),
    *(f'"truncate_prompt_tokens":{one}' for one in ("-5", "0", "1000000000")),
    *(f'"cache_salt":{one}' for one in ('""', "5", '"\\u0000"')),
    *(f'"vllm_xargs":{one}' for one in ("[]", '{"":1}', '{"a":[1]}', '{"a":{"b":1}}', '"x"')),
    '"use_beam_search":true,"n":2,"length_penalty":1e30',
    '"stream":true,"stream_options":{"include_usage":7}',
    '"thinking_token_budget":-1',
    '"data_parallel_rank":7',
    '"lora_request":{"lora_name":"x"}',
)
GRAMMARS = (
    *(
        f'"structured_outputs":{one}'
        for one in (
            *('{"regex":"("}', '{"regex":"["}', '{"grammar":"x"}', '{"grammar":""}', '{"choice":[]}', '{"json":"{"}'),
            *('{"json":{"type":"nope"}}', '{"json":{"$ref":"#"}}', '{"json":{"pattern":"(","type":"string"}}', "{}"),
            '{"json":{"type":"object"},"regex":"a"}',
            '{"structural_tag":"{"}',
            '{"json_object":7}',
        )
    ),
    '"response_format":{"type":"json_schema"}',
    '"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"nope"}}}',
    '"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"$ref":"#/$defs/x"}}}',
    '"response_format":{"type":"structural_tag","format":{}}',
    '"response_format":{"type":"nope"}',
)
CHATS = (
    '"messages":[]',
    '"messages":[{"role":"nobody","content":"x"}]',
    '"messages":[{"role":"user","content":null}]',
    '"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]',
    '"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"x","format":"wav"}}]}]',
    '"messages":[{"role":"tool","content":"x"}]',
    '"messages":[{"role":"user","content":"x"}],"chat_template":"{{ 1/0 }}"',
    '"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"messages":7}',
    '"messages":[{"role":"user","content":"x"}],"add_generation_prompt":true,"continue_final_message":true',
    '"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":""}}]',
    '"messages":[{"role":"user","content":"x"}],"tools":[],"tool_choice":"required"',
    '"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":10000',
)
FUZZED = (
    *("prompt", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "bad_words", "logit_bias"),
    *(
        "logprobs",
        "prompt_logprobs",
        "echo",
        "n",
        "best_of",
        "suffix",
        "user",
        "stream",
        "stream_options",
        "ignore_eos",
    ),
    *("min_tokens", "allowed_token_ids", "truncate_prompt_tokens", "structured_outputs", "response_format", "priority"),
    *(
        "ignore_eos",
        "skip_special_tokens",
        "add_special_tokens",
        "cache_salt",
        "request_id",
        "kv_transfer_params",
        "vllm_xargs",
    ),
    *("ec_transfer_params", "prompt_embeds", "return_token_ids", "frequency_penalty", "repetition_penalty"),
)


def odd_texts() -> list[bytes]:
    """Bodies of text completions."""
    return [_body(f'"prompt":"hello",{piece}') for piece in (*HANDOVERS, *PROMPTS, *SAMPLING, *GRAMMARS)]


def odd_chats() -> list[bytes]:
    """Bodies of chats."""
    plain = '"messages":[{"role":"user","content":"hello"}]'
    return [_body(piece) for piece in (*CHATS, *(f"{plain},{piece}" for piece in HANDOVERS))]


def fuzzed_texts(num_bodies: int, seed: int) -> list[bytes]:
    """Bodies of text completions with one to three fields of any kind; the same for the same seed."""
    dice = random.Random(seed)
    bodies = []
    for number in range(num_bodies):
        fields: dict[str, object] = {"model": "tiny", "prompt": f"hello {number}", "max_tokens": 2}
        fields |= {name: dice.choice(VALUES) for name in dice.sample(FUZZED, dice.choice((1, 1, 2, 3)))}
        bodies.append(json.dumps(fields).encode())
    return bodies


def _body(pieces: str) -> bytes:
    return f'{{"model":"tiny","max_tokens":2,{pieces}}}'.encode()
