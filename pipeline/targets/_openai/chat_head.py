"""A chat request without its messages: model, tools and the other parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from pipeline.fixes import Fix
from pipeline.targets._openai.chat import ChatHead
from pipeline.targets._openai.families import Chat
from pipeline.targets._openai.params import flattened, kept, limited, with_choice
from pipeline.targets._openai.rows import encode
from pipeline.targets._openai.tools import Function, write_choice, write_tools
from pipeline.targets.base import Setting

PARAMETERS: Final = frozenset(
    {
        "audio", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata",
        "modalities", "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
        "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier",
        "stop", "store", "stream", "stream_options", "temperature", "tool_choice", "top_logprobs", "top_p", "user",
        "verbosity", "web_search_options",
    }
)  # fmt: skip
"""The parameters that the API's documentation names."""


def write_chat_head(setting: Setting, target: str, known: frozenset[str], model: Chat) -> ChatHead:
    """The head of every request of a session; ``known`` are the parameters that the target takes."""
    fixes: list[Fix] = []
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    tools = write_tools(setting.tools, target, _tool, _is_custom, fixes)
    if tools:
        keys["tools"] = tools
    params = _in_chat_words(flattened(setting.params))
    limited(params, model.limit or ("max_completion_tokens" if "max_completion_tokens" in params else "max_tokens"))
    if model.switch and "thinking" in params:
        known |= {"thinking"}
        params["thinking"] = _switch(params["thinking"])
    params = with_choice(params, lambda value: write_choice(value, _named), tools=bool(tools))
    return ChatHead(encode(keys | kept(params, known, target, fixes)), fixes)


def _tool(function: Function) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _is_custom(keys: Mapping[str, Any]) -> bool:
    """Whether a tool is of the one kind beside functions that Chat Completions has."""
    return "custom" in keys


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _switch(value: Raw) -> Raw:
    """Whether the model thinks; the budget is Anthropic's."""
    given = msgspec.json.decode(value)
    return Raw(encode({"type": given["type"]})) if isinstance(given, dict) and "type" in given else value


def _in_chat_words(params: dict[str, Raw]) -> dict[str, Raw]:
    """What the Responses API says in other words."""
    reasoning = _object(params.get("reasoning"))
    if reasoning is not None and reasoning.keys() == {"effort"}:
        params.setdefault("reasoning_effort", reasoning["effort"])
        del params["reasoning"]
    text = _object(params.get("text"))
    if text is not None and text.keys() <= {"format", "verbosity"}:
        del params["text"]
        if "verbosity" in text:
            params.setdefault("verbosity", text["verbosity"])
        if "format" in text:
            params.setdefault("response_format", _format(text["format"]))
    return params


def _format(value: Raw) -> Raw:
    given = msgspec.json.decode(value, type=dict[str, Any])
    if given.get("type") != "json_schema" or "json_schema" in given:
        return value
    inner = {key: part for key, part in given.items() if key != "type"}
    return Raw(encode({"type": "json_schema", "json_schema": inner}))


def _object(value: Raw | None) -> dict[str, Raw] | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None
