"""Which requests can never run, and why."""

from __future__ import annotations

from engine_shim.engine.port import ModelCard, Purpose, SequenceRequest
from router.contract.errors import BadRequest, ContextTooLong, NoSeats
from router.contract.kv import KVLayout


def check(request: SequenceRequest, card: ModelCard, layout: KVLayout) -> None:
    """The request can run on an engine with this card and cache.

    Raises:
        BadRequest: an empty prompt, a token id outside the vocabulary, or options that exclude each other.
        ContextTooLong: the prompt leaves no room for a token of output.
        NoSeats: the whole cache is too small for the prompt and one token.
    """
    _check_token_ids(request, card.vocab_size)
    if request.purpose is Purpose.RECEIVE and request.sampling.prompt_logprobs is not None:
        raise BadRequest(
            "prompt_logprobs needs the prompt to be computed where the output is; ask for it without a hand-over.",
            param="prompt_logprobs",
        )
    num_tokens = len(request.prompt)
    if num_tokens >= card.max_context_tokens:
        raise ContextTooLong(
            f"The prompt has {num_tokens} tokens, but the context holds {card.max_context_tokens} with at least one of "
            "them for the answer; shorten the prompt.",
            param="prompt",
        )
    if layout.blocks_for(num_tokens + 1) > layout.num_blocks:
        raise NoSeats(
            f"The prompt needs {layout.blocks_for(num_tokens + 1)} KV blocks, but this engine has {layout.num_blocks}; "
            "send it to a larger one."
        )


def _check_token_ids(request: SequenceRequest, vocab_size: int) -> None:
    if not request.prompt:
        raise BadRequest("The prompt is empty; send at least one token.", param="prompt")
    for param, token_ids in (
        ("prompt", request.prompt),
        ("stop_token_ids", request.sampling.stop_token_ids),
        ("logit_bias", tuple(token_id for token_id, _ in request.sampling.logit_bias)),
    ):
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise BadRequest(
                f"{param} has a token id outside 0..{vocab_size - 1}; use ids of this model's tokenizer.", param=param
            )
