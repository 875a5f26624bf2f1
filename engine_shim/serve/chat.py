"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from engine_shim.engine.port import TokensOut
from engine_shim.serve import sse
from engine_shim.serve.answer import Answer, EventUsage, ids_of, text_of
from engine_shim.serve.logprobs import ChatLogprobs, PromptLogprobs, chat_logprobs, prompt_logprobs
from engine_shim.serve.usage import Usage


class Message(msgspec.Struct):
    """`choices[].message`."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One choice of a whole answer."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatWhole(msgspec.Struct, tag_field="object", tag="chat.completion"):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: dict[str, object] | UnsetType = UNSET


class Delta(msgspec.Struct):
    """What an event adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatEventChoice(msgspec.Struct):
    """The one choice of an event."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatEvent(msgspec.Struct, tag_field="object", tag="chat.completion.chunk"):
    """One event."""

    id: str
    created: int
    model: str
    choices: list[ChatEventChoice]
    usage: EventUsage = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(Answer):
    """A chat's answer. Streamed, each choice begins with an event that carries the role, directly before its text."""

    def _events(self, choice: int, output: TokensOut, first: bool) -> bytes:
        wishes = self.intake.wishes
        reason, stop = output.finish_reason, output.stop_reason
        event = self._event(
            ChatEventChoice(
                index=choice,
                delta=Delta(content=output.text),
                logprobs=None if wishes.logprobs is None else chat_logprobs(self._tokenizer, output.logprobs),
                finish_reason=None if reason is None else str(reason),
                stop_reason=UNSET if stop is None else stop,
                token_ids=list(output.token_ids) if wishes.token_ids else UNSET,
            )
        )
        return self._role_event(choice) + sse.event(event) if first else sse.event(event)

    def _role_event(self, choice: int) -> bytes:
        event = self._event(ChatEventChoice(choice, Delta("assistant", "")))
        if self.intake.wishes.token_ids:
            event.prompt_token_ids = list(self.intake.prompt_of(choice).token_ids)
        return sse.event(event)

    def _event(self, choice: ChatEventChoice) -> ChatEvent:
        head = self._head
        return ChatEvent(head.id, head.created, head.model, [choice], self._event_usage())

    def _usage_event(self, usage: Usage) -> ChatEvent:
        return ChatEvent(self._head.id, self._head.created, self._head.model, [], usage)

    def _whole(
        self, outputs: Sequence[Sequence[TokensOut]], kv_transfer_params: dict[str, object] | UnsetType
    ) -> ChatWhole:
        wishes, first = self.intake.wishes, outputs[0][0]
        return ChatWhole(
            id=self._head.id,
            created=self._head.created,
            model=self._head.model,
            choices=[self._choice(choice, several) for choice, several in enumerate(outputs)],
            usage=self.tally.usage(),
            prompt_logprobs=(
                prompt_logprobs(self._tokenizer, first.prompt_logprobs) if wishes.prompt_logprobs else UNSET
            ),
            prompt_token_ids=list(self.intake.prompts[0].token_ids) if wishes.token_ids else UNSET,
            kv_transfer_params=kv_transfer_params,
        )

    def _choice(self, choice: int, outputs: Sequence[TokensOut]) -> ChatChoice:
        wishes, last = self.intake.wishes, outputs[-1]
        positions = [position for output in outputs for position in output.logprobs]
        return ChatChoice(
            index=choice,
            message=Message(text_of(outputs)),
            logprobs=None if wishes.logprobs is None else chat_logprobs(self._tokenizer, positions),
            finish_reason=None if last.finish_reason is None else str(last.finish_reason),
            stop_reason=last.stop_reason,
            token_ids=ids_of(outputs) if wishes.token_ids else UNSET,
        )
