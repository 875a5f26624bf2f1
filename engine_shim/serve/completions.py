"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from engine_shim.engine.detokenizer import detokenizer_of
from engine_shim.engine.port import TokensOut
from engine_shim.engine.tokenizer import Tokenizer
from engine_shim.serve import sse
from engine_shim.serve.answer import Answer, EventUsage, Head, ids_of, text_of
from engine_shim.serve.intake import Intake
from engine_shim.serve.logprobs import (
    CompletionLogprobs,
    CompletionLogprobsWriter,
    PromptLogprobs,
    joined,
    prompt_logprobs,
)
from engine_shim.serve.usage import Usage


class CompletionChoice(msgspec.Struct):
    """One choice, of a whole answer or of an event."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, tag_field="object", tag="text_completion"):
    """A whole answer or one event."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: EventUsage = UNSET
    kv_transfer_params: dict[str, object] | UnsetType = UNSET


class CompletionAnswer(Answer):
    """A completion's answer. An echoed prompt comes with the first text of each of its choices."""

    def __init__(self, intake: Intake, head: Head, tokenizer: Tokenizer) -> None:
        super().__init__(intake, head, tokenizer)
        self._writers: list[CompletionLogprobsWriter] = []
        if intake.wishes.logprobs is not None:
            self._writers = [self._writer() for _ in range(intake.num_choices)]

    def _writer(self) -> CompletionLogprobsWriter:
        skip = self.intake.sampling.skip_special_tokens
        return CompletionLogprobsWriter(self._tokenizer, detokenizer_of(self._tokenizer, skip_special_tokens=skip))

    def _events(self, choice: int, output: TokensOut, first: bool) -> bytes:
        head = self._head
        shaped = self._choice(choice, [output], first)
        return sse.event(Completion(head.id, head.created, head.model, [shaped], self._event_usage()))

    def _usage_event(self, usage: Usage) -> Completion:
        return Completion(self._head.id, self._head.created, self._head.model, [], usage)

    def _whole(
        self, outputs: Sequence[Sequence[TokensOut]], kv_transfer_params: dict[str, object] | UnsetType
    ) -> Completion:
        choices = [self._choice(choice, several, True) for choice, several in enumerate(outputs)]
        head = self._head
        return Completion(head.id, head.created, head.model, choices, self.tally.usage(), kv_transfer_params)

    def _choice(self, choice: int, outputs: Sequence[TokensOut], first: bool) -> CompletionChoice:
        wishes, last = self.intake.wishes, outputs[-1]
        shaped = CompletionChoice(
            index=choice,
            text=text_of(outputs),
            logprobs=self._logprobs(choice, outputs, first),
            finish_reason=None if last.finish_reason is None else str(last.finish_reason),
            stop_reason=last.stop_reason,
        )
        if first and wishes.echo:
            shaped.text = self._prompt_text(choice) + shaped.text
        if first and wishes.prompt_logprobs:
            shaped.prompt_logprobs = prompt_logprobs(self._tokenizer, outputs[0].prompt_logprobs)
        if wishes.token_ids:
            shaped.token_ids = ids_of(outputs)
            if first:
                shaped.prompt_token_ids = list(self.intake.prompt_of(choice).token_ids)
        return shaped

    def _logprobs(self, choice: int, outputs: Sequence[TokensOut], first: bool) -> CompletionLogprobs | None:
        if not self._writers:
            return None
        writer = self._writers[choice]
        prompt = CompletionLogprobs([], [], [], [])
        if first and self.intake.wishes.echo:
            prompt = writer.write(self.intake.prompt_of(choice).token_ids, outputs[0].prompt_logprobs)
        positions = [position for output in outputs for position in output.logprobs]
        return joined(prompt, writer.write([position.token_id for position in positions], positions))

    def _prompt_text(self, choice: int) -> str:
        prompt = self.intake.prompt_of(choice)
        if prompt.text is not None:
            return prompt.text
        skip = self.intake.sampling.skip_special_tokens
        return self._tokenizer.decode(prompt.token_ids, skip_special_tokens=skip)
