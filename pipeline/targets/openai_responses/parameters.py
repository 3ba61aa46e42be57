"""A Responses request without its input: model, instructions, tools and the other parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from pipeline.model import Tool
from pipeline.targets._openai.parameters import (
    Function,
    openai_params,
    tool_name,
    with_choice,
    write_choice,
    write_tools,
)
from pipeline.targets._openai.parts import encode
from pipeline.targets.base import Setting
from pipeline.targets.head import HeadShape, HeadWriter, Params, WrittenHead, prompt_as_text
from pipeline.targets.openai_responses.items import FunctionTool

NAME: Final = "openai-responses"
PARAMETERS: Final = frozenset(
    {
        "background", "client_metadata", "context_management", "conversation", "include", "max_output_tokens",
        "max_tool_calls", "metadata", "moderation", "parallel_tool_calls", "previous_response_id", "prompt",
        "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier",
        "service_tier", "store", "stream", "stream_options", "temperature", "text", "tool_choice", "top_logprobs",
        "top_p", "truncation", "user",
    }
)  # fmt: skip
"""The parameters that the API's documentation names."""

# The tools that the provider runs or defines itself, by type.
_OWN_TOOLS: Final = frozenset(
    {
        "apply_patch", "code_interpreter", "computer", "computer_use_preview", "custom", "file_search",
        "image_generation", "local_shell", "mcp", "namespace", "shell", "tool_search", "web_search",
        "web_search_preview", "web_search_preview_2025_03_11",
    }
)  # fmt: skip
# Parameters that lead to items outside of the request.
CHAINS: Final = ("previous_response_id", "conversation")
_NO: Final = Raw(b"false")


def write_head(setting: Setting) -> WrittenHead:
    writer = HeadWriter(_SHAPE, setting)
    params = writer.clamped(openai_params(setting.params, "max_output_tokens", _in_own_words))
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    given = params.values.get("instructions")
    first = [] if given is None else [msgspec.json.decode(given, type=str)]
    prompt = "\n\n".join(text for text in [*first, prompt_as_text(setting.system, NAME, writer.fixes)] if text)
    if prompt:
        keys["instructions"] = prompt
    tools = write_tools(writer, _tool, _is_responses)
    if tools:
        keys["tools"] = tools
    params = with_choice(params, lambda value: write_choice(value, _named), tools=bool(tools))
    return WrittenHead(encode(keys | writer.placed(params, params.each_of(PARAMETERS))), writer.fixes)


def _tool(function: Function) -> FunctionTool:
    strict = _NO if function.strict is UNSET else Raw(encode(function.strict))
    return FunctionTool(function.name, function.parameters, strict, function.description)


def _is_own(_tool: Tool, keys: Mapping[str, Any]) -> bool:
    kind = msgspec.json.decode(keys["type"]) if "type" in keys else None
    # A client's tool has a name and a schema, whatever type it says it is of.
    is_clients = "input_schema" in keys or keys.keys() >= {"name", "parameters"}
    return isinstance(kind, str) and kind in _OWN_TOOLS and not is_clients


def _is_responses(keys: Mapping[str, Any]) -> bool:
    return "name" in keys and bytes(keys.get("type", b"")) == b'"function"'


def _named(name: str) -> dict[str, str]:
    return {"type": "function", "name": name}


def _in_own_words(params: Params) -> Params:
    """What Chat Completions says in other words."""
    values = params.values
    if "reasoning_effort" in values:
        params = params.said_as("reasoning_effort", {"reasoning": Raw(encode({"effort": values["reasoning_effort"]}))})
    text = {"format": _format(values["response_format"])} if "response_format" in values else {}
    text |= {"verbosity": values["verbosity"]} if "verbosity" in values else {}
    if text:
        first, *rest = (name for name in ("response_format", "verbosity") if name in values)
        params = params.said_as(first, {"text": Raw(encode(text))})
        for name in rest:
            params = params.said_as(name, {})
    return params


def _format(value: Raw) -> Any:  # noqa: ANN401  any JSON
    given = msgspec.json.decode(value)
    inner = given.get("json_schema") if isinstance(given, dict) else None
    return {"type": "json_schema", **inner} if isinstance(inner, dict) else given


_SHAPE: Final = HeadShape(
    target=NAME,
    elsewhere=frozenset({"instructions"}),
    bounds={"max_output_tokens": (16, math.inf)},  # RSP-20
    tool_name=tool_name,
    is_own=_is_own,
)
