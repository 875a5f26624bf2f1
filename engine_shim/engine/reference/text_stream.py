"""TextStream: what a client may see of a sequence's tokens, as they are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine_shim.engine.detokenizer import detokenizer_of
from engine_shim.engine.port import SamplingParams
from engine_shim.engine.reference.stop_strings import StopStrings
from engine_shim.engine.reference.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that is settled now."""

    text: str
    stop: str | None = None
    """The stop string that ended the text; the sequence has to end with it."""


class TextStream:
    """The text of one sequence. Half characters, and text that may yet become a stop string, are withheld.

    Without a stop, the deltas up to `finished` join to the decoding of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SamplingParams) -> None:
        """Start with no text; of `sampling` only the stop strings and what is shown of tokens matter."""
        self._detokenizer = detokenizer_of(tokenizer, skip_special_tokens=sampling.skip_special_tokens)
        self._stops = StopStrings(sampling.stop)
        self._include_stop = sampling.include_stop_str_in_output
        self._withheld = ""

    def push(self, token_ids: Sequence[int], *, may_stop: bool, finished: bool) -> TextDelta:
        """Take the next tokens and give the text that they settle.

        Nothing may be pushed after a stop or after `finished`.

        Args:
            token_ids: the new tokens; a stop token whose text is not wanted is left out by the caller.
            may_stop: False while the sequence is below `min_tokens`: a stop string that ends here is plain text.
            finished: True with the sequence's last tokens: all that is withheld comes out.
        """
        piece = self._detokenizer.push(token_ids)
        if finished:
            piece += self._detokenizer.flush()
        match = self._stops.walk(piece, may_stop=may_stop)
        text = self._withheld + piece
        if match is not None:
            end = len(self._withheld) + match.end
            return TextDelta(text[: end if self._include_stop else end - len(match.stop)], match.stop)
        settled = len(text) if finished else len(text) - self._stops.withheld_chars
        self._withheld = text[settled:]
        return TextDelta(text[:settled])
