"""A checkpoint's chat template, rendered as Hugging Face renders it.

Templates are programs that came with the weights, so they run in Jinja's immutable sandbox. What they may call beside
plain Jinja: `raise_exception(message)`, `strftime_now(format)`, `tojson` without HTML escapes, and the `generation`
block, which marks text for training and renders its body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.contract.errors import BadRequest, ModelUnusable

_CONTINUE_MARK = "\ue000continue\ue001 "
"""Private-use characters, so that no message contains it; the space at its end shows whether the template trims."""


class _GenerationBlock(Extension):
    tags = {"generation"}  # noqa: RUF012  Jinja reads this class attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled template and the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`. Raises ModelUnusable when it is not a Jinja template."""
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelUnusable(f"The checkpoint's chat template does not compile: {error}.") from error
        self._special_tokens = dict(special_tokens)

    # Any: decoded JSON of the request; the template alone knows what it reads of it.
    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The messages as one prompt; with `continue_final_message` it ends where the last message's content ends.

        Raises:
            BadRequest: the template refuses these messages, or drops the message that is to be continued.
        """
        rendered = [dict(message) for message in messages]
        if continue_final_message:
            last = rendered[-1]
            if not isinstance(last.get("content"), str):
                raise BadRequest("continue_final_message needs a last message with text content.", param="messages")
            last["content"] += _CONTINUE_MARK
        names = {**self._special_tokens, **(variables or {})}
        names |= {"messages": rendered, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._template.render({"documents": None, **names})
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise BadRequest(f"The model's chat template refuses these messages: {error}.", param="messages") from error
        except RecursionError as error:  # what a template shows as JSON
            raise BadRequest("The messages or tools are nested too deeply.", param="messages") from error
        return _cut_at_mark(text) if continue_final_message else text


def _cut_at_mark(text: str) -> str:
    at = text.rfind(_CONTINUE_MARK.strip())
    if at < 0:
        raise BadRequest("The model's chat template does not show the last message; it cannot be continued.")
    kept = text[:at]
    return kept if text.startswith(_CONTINUE_MARK, at) else kept.rstrip()
