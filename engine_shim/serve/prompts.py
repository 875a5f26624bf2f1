"""Prompts: from what a body holds, text, messages or ids, to the token ids that the engine computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine_shim.engine.port import ModelCard
from engine_shim.engine.tokenizer import Tokenizer
from engine_shim.serve.chat_messages import template_messages
from engine_shim.serve.intake import Prompt
from engine_shim.serve.openai_body import ChatBody, CompletionBody, TokenizeBody
from router.contract.errors import BadRequest, ContextTooLong, ModelUnknown

_MAX_SHOWN_CHARS = 128
_TEMPLATE_OWN_NAMES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Reads prompts for one model. Pure; any thread."""

    card: ModelCard
    tokenizer: Tokenizer

    def check_model(self, name: str | None) -> None:
        """Raise ModelUnknown for a name that is not served; no name means the served model."""
        if name is not None and name != self.card.name:
            raise ModelUnknown(
                f"The model {name[:_MAX_SHOWN_CHARS]!r} is not served here; see /v1/models.", param="model"
            )

    def chat_prompt(self, body: ChatBody) -> Prompt:
        """The prompt of a chat. Raises BadRequest, ContextTooLong."""
        ids = self.chat_ids(body)
        if not ids:
            raise _empty("messages")
        return Prompt(ids, None)

    def chat_ids(self, body: ChatBody | TokenizeBody) -> tuple[int, ...]:
        """Token ids of the messages in the checkpoint's chat format. Raises BadRequest, ContextTooLong."""
        messages = template_messages(body.messages or [])
        variables = body.chat_template_kwargs or {}
        taken = _TEMPLATE_OWN_NAMES & variables.keys()
        if taken:
            raise BadRequest(
                f"chat_template_kwargs must not set {min(taken)}; use the field of that name.",
                param="chat_template_kwargs",
            )
        go_on = body.continue_final_message is True
        if go_on and body.add_generation_prompt:
            raise BadRequest(
                "add_generation_prompt and continue_final_message exclude each other; set one of them.",
                param="continue_final_message",
            )
        text = self.tokenizer.render_chat(
            messages,
            tools=body.tools or None,
            add_generation_prompt=body.add_generation_prompt is not False and not go_on,
            continue_final_message=go_on,
            variables=variables,
        )
        return self.text_ids(text, add_special_tokens=body.add_special_tokens is True, param="messages")

    def text_ids(self, text: str, *, add_special_tokens: bool, param: str) -> tuple[int, ...]:
        """Token ids of a text. Raises ContextTooLong for a text so long that it need not be encoded."""
        least = self.tokenizer.least_tokens(text)
        if least >= self.card.max_context_tokens:
            raise self._too_long(f"at least {least}", param)
        return tuple(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def completion_prompts(self, body: CompletionBody) -> tuple[Prompt, ...]:
        """The prompts of a completion, one or several, texts or token ids. Raises BadRequest, ContextTooLong."""
        match body.prompt:
            case str() as text:
                return (self._text_prompt(body, text),)
            case []:
                raise _empty("prompt")
            case [str(), *_] as texts if all(isinstance(text, str) for text in texts):
                return tuple(self._text_prompt(body, str(text)) for text in texts)
            case [int(), *_] as ids if all(isinstance(token_id, int) for token_id in ids):
                return (self._ids_prompt(ids),)
            case [list(), *_] as lists if all(isinstance(ids, list) for ids in lists):
                return tuple(self._ids_prompt(ids) for ids in lists if isinstance(ids, list))
        raise BadRequest(
            "prompt mixes kinds; send a string, a list of strings, a list of token ids, or a list of such lists.",
            param="prompt",
        )

    def _text_prompt(self, body: CompletionBody, text: str) -> Prompt:
        ids = self.text_ids(text, add_special_tokens=body.add_special_tokens is not False, param="prompt")
        # A BOS alone would let an empty text pass.
        if not text or not ids:
            raise _empty("prompt")
        return Prompt(ids, text)

    def _ids_prompt(self, ids: Sequence[str | int | list[int]]) -> Prompt:
        token_ids = tuple(token_id for token_id in ids if isinstance(token_id, int))
        if not token_ids:
            raise _empty("prompt")
        if min(token_ids) < 0 or max(token_ids) >= self.card.vocab_size:
            raise BadRequest(f"prompt has token ids outside 0..{self.card.vocab_size - 1}.", param="prompt")
        return Prompt(token_ids, None)

    def room_tokens(self, prompts: tuple[Prompt, ...], param: str) -> int:
        """Tokens that every prompt's answer may have, at least one. Raises ContextTooLong that blames `param`."""
        longest = max(len(prompt.token_ids) for prompt in prompts)
        room = self.card.max_context_tokens - longest
        if room < 1:
            raise self._too_long(str(longest), param)
        return room

    def _too_long(self, num_tokens: str, param: str) -> ContextTooLong:
        return ContextTooLong(
            f"This model's context is {self.card.max_context_tokens} tokens, answer included, and the prompt has "
            f"{num_tokens}; shorten it.",
            param=param,
        )


def _empty(param: str) -> BadRequest:
    return BadRequest(f"{param} is empty; send at least one token.", param=param)
