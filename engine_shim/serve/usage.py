"""Usage: how many tokens a request took."""

from __future__ import annotations

import msgspec

from engine_shim.engine.port import TokensOut
from engine_shim.serve.intake import Intake


class PromptDetails(msgspec.Struct):
    """`prompt_tokens_details`."""

    cached_tokens: int
    """Prompt tokens that were not computed here."""


class Usage(msgspec.Struct):
    """`usage`, in OpenAI's fields."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Tally:
    """Counts a request's tokens while they come. A prompt counts once, whatever its number of choices."""

    def __init__(self, intake: Intake) -> None:
        """Count from nothing."""
        self.prompt_tokens = sum(len(prompt.token_ids) for prompt in intake.prompts)
        self.completion_tokens = 0
        self._n = intake.n
        self._cached_tokens = [0] * len(intake.prompts)

    def take(self, choice: int, output: TokensOut) -> None:
        """Count one output. Of a prompt's choices the first one's cache hits count."""
        self.completion_tokens += len(output.token_ids)
        if output.num_cached_tokens and choice % self._n == 0:
            self._cached_tokens[choice // self._n] = output.num_cached_tokens

    def usage(self) -> Usage:
        """The counts so far."""
        total = self.prompt_tokens + self.completion_tokens
        return Usage(self.prompt_tokens, self.completion_tokens, total, PromptDetails(sum(self._cached_tokens)))
