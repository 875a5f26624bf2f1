"""Chat messages from OpenAI's wire form to what chat templates read.

Templates want text: content parts are joined, absent content is "", and the arguments of tool calls, which OpenAI
carries as a JSON string, become the object that they describe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from router.contract.errors import BadRequest

PARAM = "messages"


# Any: decoded JSON of the request; fields beside role, content and tool_calls reach the template untouched.
def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as a template reads them.

    Raises:
        BadRequest: a role is missing, or content is neither text nor a list of text parts.
    """
    return [_message(index, message) for index, message in enumerate(messages)]


# Any: see template_messages.
def _message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest(f"messages[{index}].role must be a string such as 'user'.", param=PARAM)
    shaped = {name: value for name, value in message.items() if value is not None}
    shaped["content"] = _text(index, message.get("content"))
    if "tool_calls" in shaped:
        shaped["tool_calls"] = _tool_calls(index, shaped["tool_calls"])
    return shaped


def _text(index: int, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"messages[{index}].content must be a string or a list of text parts.", param=PARAM)
    return "\n".join(_part(index, part) for part in content)


def _part(index: int, part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    raise BadRequest(f"messages[{index}].content has a part that is not text; this model reads text only.", param=PARAM)


# Any: see template_messages.
def _tool_calls(index: int, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRequest(f"messages[{index}].tool_calls must be a list of objects.", param=PARAM)
    return [_tool_call(index, call) for call in calls]


# Any: see template_messages.
def _tool_call(index: int, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}")
    except msgspec.DecodeError as error:
        raise BadRequest(
            f"messages[{index}].tool_calls has arguments that are not JSON ({error}).", param=PARAM
        ) from error
    except RecursionError as error:
        raise BadRequest(f"messages[{index}].tool_calls has arguments nested too deeply.", param=PARAM) from error
    return {**call, "function": {**function, "arguments": arguments}}
