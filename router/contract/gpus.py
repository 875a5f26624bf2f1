"""GPUs as operators name them: numbers, by commas."""

from __future__ import annotations

from router.contract.errors import BadSettings


def gpu_numbers(text: str) -> tuple[int, ...]:
    """The GPUs of `--devices`, in the order of `text`, such as `0,1`; none of an empty text.

    Raises:
        BadSettings: something else than numbers, or one of them twice.
    """
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isascii() and word.isdigit() for word in words):
        raise BadSettings(f"--devices must be numbers of GPUs by commas, such as 0,1, not {text!r}.")
    numbers = tuple(map(int, words))
    if len(set(numbers)) < len(numbers):
        raise BadSettings(f"--devices names a GPU twice ({text}); name each once.")
    return numbers
