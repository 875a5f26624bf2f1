"""Bodies of the inference routes, as they lie on the wire.

The bounds stand in the types, so that decoding is validating. `null` means "not given" everywhere, unknown fields are
ignored, and fields that this engine cannot honour are named here so that they can be refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from router.contract.errors import BadRequest

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16

_Ge0 = Annotated[int, Meta(ge=0)]
_Ge1 = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Penalty = Annotated[float, Meta(ge=-2, le=2)]
_Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
_StopString = Annotated[str, Meta(min_length=1)]
_Prompt = str | list[str | int | list[int]]
# Any: JSON that only the chat template understands.
_Objects = list[dict[str, Any]]
# Any: fields that are refused whatever they hold.
_Refused = Any

_FIELD_ERROR = re.compile(r"(?P<complaint>.*) - at `\$\.(?P<name>\w+).*`")
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`.*")


class StreamOptions(Struct, frozen=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(Struct, frozen=True):
    """`response_format`; only its type matters here."""

    type: str


class SamplingBody(Struct, frozen=True, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    max_tokens: _Ge1 | None = None
    min_tokens: _Ge0 | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: _Ge1 | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: _Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    stop: str | Annotated[list[_StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: list[_Ge0] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: _Logprobs | None = None
    return_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    # Any: read_handoff checks it.
    kv_transfer_params: Any = None

    allowed_token_ids: _Refused = None
    bad_words: _Refused = None
    guided_choice: _Refused = None
    guided_grammar: _Refused = None
    guided_json: _Refused = None
    guided_regex: _Refused = None
    structured_outputs: _Refused = None
    truncate_prompt_tokens: _Refused = None
    use_beam_search: _Refused = None


class CompletionBody(SamplingBody, frozen=True, kw_only=True):
    """Body of /v1/completions."""

    prompt: _Prompt
    echo: bool | None = None
    logprobs: _Logprobs | None = None

    prompt_embeds: _Refused = None
    suffix: _Refused = None


class ChatBody(SamplingBody, frozen=True, kw_only=True):
    """Body of /v1/chat/completions."""

    messages: Annotated[_Objects, Meta(min_length=1)]
    max_completion_tokens: _Ge1 | None = None
    logprobs: bool | None = None
    top_logprobs: _Logprobs | None = None
    tools: _Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    chat_template: _Refused = None


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """Body of /tokenize: either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[_Objects, Meta(min_length=1)] | None = None
    tools: _Objects | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    """Body of /detokenize."""

    model: str | None = None
    tokens: list[_Ge0]


REFUSED_FIELDS = (
    "allowed_token_ids",
    "bad_words",
    "chat_template",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "prompt_embeds",
    "structured_outputs",
    "suffix",
    "truncate_prompt_tokens",
    "use_beam_search",
)
"""Fields that would change the answer and that this engine does not have; `false` and empty values ask for nothing."""

Body = TypeVar("Body", CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)


def decode_body(raw: bytes, kind: type[Body]) -> Body:
    """The body, with every field of its type and within its bounds.

    Raises:
        BadRequest: no JSON, or a field that is missing, of a wrong type or out of bounds; `param` names the field.
    """
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _bad_field(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not acceptable JSON ({error}); send one JSON object in UTF-8.") from error
    for name in REFUSED_FIELDS:
        if getattr(body, name, None):
            raise BadRequest(f"{name} is not supported by this engine; leave it out.", param=name)
    return body


def _bad_field(complaint: str) -> BadRequest:
    missing = _MISSING.fullmatch(complaint)
    if missing:
        return BadRequest(f"{missing['name']} is missing; add it.", param=missing["name"])
    known = _FIELD_ERROR.fullmatch(complaint)
    if known:
        return BadRequest(f"{known['name']} is not acceptable: {known['complaint']}.", param=known["name"])
    return BadRequest(f"The body is not acceptable: {complaint}.")
