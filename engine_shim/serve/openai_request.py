"""From the bytes of a body to an Intake: everything that can be refused is refused here, before anything is queued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never
from uuid import uuid4

from engine_shim.serve.intake import Endpoint, Intake, Prompt, Wishes
from engine_shim.serve.openai_body import ChatBody, CompletionBody, SamplingBody, decode_body
from engine_shim.serve.prompts import PromptReader
from engine_shim.serve.sampling import sampling_of, wishes_of
from router.contract.errors import BadRequest
from router.contract.wire import DEADLINE_HEADER, MAX_ID_CHARS, REQUEST_ID_HEADER, Handoff, PrefillHandoff, read_handoff

MAX_CHOICES = 1024
"""Sequences of one request: prompts times n."""


@dataclass(frozen=True, slots=True)
class RequestReader:
    """Reads inference requests for one model. Pure but for minted request ids; any thread."""

    prompts: PromptReader
    request_for_s: float
    """Longest life of a request; a header can shorten it, never lengthen it."""

    def read(self, endpoint: Endpoint, raw: bytes, headers: Mapping[str, str]) -> Intake:
        """The Intake of one request.

        Args:
            headers: names in lower case.
        Raises:
            BadRequest: the body or a header is not acceptable.
            ModelUnknown: the model is not the one that is served.
            ContextTooLong: prompt and wanted tokens do not fit the context.
        """
        request_id = request_id_of(headers)
        deadline_for_s = min(self.request_for_s, stated_deadline_for_s(headers))
        body = decode_body(raw, ChatBody) if endpoint is Endpoint.CHAT else decode_body(raw, CompletionBody)
        self.prompts.check_model(body.model)
        handoff = read_handoff(body.kv_transfer_params, request_id)
        wishes = wishes_of(body)
        prompts, source = self._prompts(body)
        n = _num_choices(body, len(prompts))
        if handoff is not None:
            _check_handoff(handoff, wishes, n, len(prompts))
        room_tokens = self.prompts.room_tokens(prompts, source)
        sampling = sampling_of(body, wishes, room_tokens=room_tokens, vocab_size=self.prompts.card.vocab_size)
        return Intake(endpoint, request_id, prompts, n, sampling, wishes, handoff, deadline_for_s)

    def _prompts(self, body: ChatBody | CompletionBody) -> tuple[tuple[Prompt, ...], str]:
        """The prompts, and the field that they come from."""
        match body:
            case ChatBody():
                return (self.prompts.chat_prompt(body),), "messages"
            case CompletionBody():
                return self.prompts.completion_prompts(body), "prompt"
            case _:
                assert_never(body)


def request_id_of(headers: Mapping[str, str]) -> str:
    """The stated X-Request-Id, or a fresh one. Raises BadRequest."""
    stated = headers.get(REQUEST_ID_HEADER.lower())
    if not stated:
        return uuid4().hex
    if len(stated) > MAX_ID_CHARS or not stated.isprintable():
        raise BadRequest(
            f"{REQUEST_ID_HEADER} must be at most {MAX_ID_CHARS} printable characters.", param=REQUEST_ID_HEADER
        )
    return stated


def stated_deadline_for_s(headers: Mapping[str, str]) -> float:
    """Seconds that the router has left, or infinity. Raises BadRequest."""
    stated = headers.get(DEADLINE_HEADER.lower())
    if stated is None:
        return float("inf")
    if not (stated.isascii() and stated.isdigit() and len(stated) < 16 and int(stated) > 0):
        raise BadRequest(f"{DEADLINE_HEADER} must be a positive number of milliseconds.", param=DEADLINE_HEADER)
    return int(stated) / 1000


def _num_choices(body: SamplingBody, num_prompts: int) -> int:
    n = body.n or 1
    if body.best_of is not None and body.best_of != n:
        raise BadRequest("best_of other than n is not supported by this engine.", param="best_of")
    if n * num_prompts > MAX_CHOICES:
        raise BadRequest(f"A request may have at most {MAX_CHOICES} choices, prompts times n.", param="n")
    return n


def _check_handoff(handoff: Handoff, wishes: Wishes, n: int, num_prompts: int) -> None:
    """A hand-over moves the KV cache of one sequence, and prefill answers once."""
    if n > 1:
        raise BadRequest("A request whose KV cache is handed over must have n = 1.", param="n")
    if num_prompts > 1:
        raise BadRequest("A request whose KV cache is handed over must have one prompt.", param="prompt")
    if wishes.prompt_logprobs or (wishes.echo and wishes.logprobs is not None):
        raise BadRequest(
            "Log probabilities of the prompt need the whole prompt here; send the request without a hand-over.",
            param="prompt_logprobs",
        )
    if wishes.stream and isinstance(handoff, PrefillHandoff):
        raise BadRequest("A prefill leg has nothing to stream; set stream to false.", param="stream")
