"""SamplingParams and Wishes: what a body asks of the engine, and of the answer."""

from __future__ import annotations

from engine_shim.engine.port import SamplingParams
from engine_shim.serve.intake import Wishes
from engine_shim.serve.openai_body import ChatBody, CompletionBody, SamplingBody
from router.contract.errors import BadRequest, ContextTooLong

DEFAULT_COMPLETION_TOKENS = 16

Body = ChatBody | CompletionBody


def wishes_of(body: Body) -> Wishes:
    """What the answer shall contain.

    Raises:
        BadRequest: two fields contradict each other, or one asks for what this engine cannot do.
    """
    stream, options = body.stream is True, body.stream_options
    if options is not None and not stream:
        raise BadRequest("stream_options needs stream to be true.", param="stream_options")
    if stream and body.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs cannot be streamed; set stream to false.", param="prompt_logprobs")
    if body.response_format is not None and body.response_format.type != "text":
        raise BadRequest("response_format other than text is not supported by this engine.", param="response_format")
    return Wishes(
        stream=stream,
        include_usage=options is not None and options.include_usage is True,
        continuous_usage=options is not None and options.continuous_usage_stats is True,
        echo=isinstance(body, CompletionBody) and body.echo is True,
        logprobs=_logprobs(body),
        prompt_logprobs=body.prompt_logprobs is not None,
        token_ids=body.return_token_ids is True,
    )


def sampling_of(body: Body, wishes: Wishes, *, room_tokens: int, vocab_size: int) -> SamplingParams:
    """How to choose tokens.

    Args:
        room_tokens: what the prompt leaves of the context.
    Raises:
        ContextTooLong: more tokens are wanted than there is room for.
        BadRequest: a token id is outside the vocabulary, or two fields contradict each other.
    """
    max_tokens = _max_tokens(body, room_tokens)
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise BadRequest(f"min_tokens must not be above max_tokens ({max_tokens}).", param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_or(body.temperature, 1.0),
        top_p=_or(body.top_p, 1.0),
        top_k=max(body.top_k or 0, 0),
        min_p=_or(body.min_p, 0.0),
        seed=body.seed,
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias=_logit_bias(body, vocab_size),
        stop=_stop(body),
        stop_token_ids=_stop_token_ids(body, vocab_size),
        include_stop_str_in_output=body.include_stop_str_in_output is True,
        ignore_eos=body.ignore_eos is True,
        skip_special_tokens=body.skip_special_tokens is not False,
        logprobs=wishes.logprobs,
        prompt_logprobs=_prompt_logprobs(body, wishes),
    )


def _max_tokens(body: Body, room_tokens: int) -> int:
    wanted, param, default = body.max_tokens, "max_tokens", DEFAULT_COMPLETION_TOKENS
    if isinstance(body, ChatBody):
        default = room_tokens
        if body.max_completion_tokens is not None:
            wanted, param = body.max_completion_tokens, "max_completion_tokens"
    if wanted is None:
        return min(default, room_tokens)
    if wanted > room_tokens:
        raise ContextTooLong(
            f"{param} is {wanted}, but the prompt leaves room for {room_tokens} tokens in this model's context; "
            "lower it or shorten the prompt.",
            param=param,
        )
    return wanted


def _logit_bias(body: SamplingBody, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, bias in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocab_size):
            raise BadRequest(f"logit_bias has a key that is no token id in 0..{vocab_size - 1}.", param="logit_bias")
        pairs.append((int(key), bias))
    return tuple(pairs)


def _stop_token_ids(body: SamplingBody, vocab_size: int) -> tuple[int, ...]:
    ids = tuple(body.stop_token_ids or ())
    if ids and max(ids) >= vocab_size:
        raise BadRequest(f"stop_token_ids has ids outside 0..{vocab_size - 1}.", param="stop_token_ids")
    return ids


def _logprobs(body: ChatBody | CompletionBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    if isinstance(body.tool_choice, dict) or body.tool_choice not in (None, "auto", "none"):
        raise BadRequest("tool_choice other than auto or none is not supported by this engine.", param="tool_choice")
    if body.logprobs is not True:
        if body.top_logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        return None
    return body.top_logprobs or 0


def _prompt_logprobs(body: ChatBody | CompletionBody, wishes: Wishes) -> int | None:
    """An echoed prompt has log probabilities like the answer that follows it."""
    echoed = wishes.logprobs if wishes.echo else None
    stated = [count for count in (body.prompt_logprobs, echoed) if count is not None]
    return max(stated, default=None)


def _stop(body: SamplingBody) -> tuple[str, ...]:
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if "" in stops:
        raise BadRequest("stop must not contain an empty string.", param="stop")
    return stops


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
