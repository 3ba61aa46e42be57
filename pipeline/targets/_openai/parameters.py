"""A request without its messages in OpenAI's words: tools, and the other parameters.

A parameter that another provider has under another name, with the same meaning, is translated; that is constant and
makes no fix. What the API has no name for is left out, and recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.fixes import Fix, make
from pipeline.model import Tool
from pipeline.targets._openai.families import Chat
from pipeline.targets._openai.rows import encode
from pipeline.targets.base import Setting, WrittenHead
from pipeline.targets.names import ToolNames, legal_name, unread_keys
from pipeline.text.flatten import prompt_texts

# Where other providers keep their sampling parameters together.
_GROUPS: Final = ("inferenceConfig", "generationConfig")
# The same under other names: Anthropic's, Converse's and Gemini's, each with what it is called here.
_SAME: Final[Mapping[str, str]] = MappingProxyType(
    {
        "stop_sequences": "stop",
        "stopSequences": "stop",
        "topP": "top_p",
        "topK": "top_k",
        "frequencyPenalty": "frequency_penalty",
        "presencePenalty": "presence_penalty",
        "maxTokens": "max_tokens",
        "maxOutputTokens": "max_tokens",
        "max_output_tokens": "max_tokens",
    }
)
# They stand elsewhere in the request, or say something of breakpoints, which these APIs set themselves.
_BESIDE: Final = frozenset({"model", "messages", "input", "system", "tools", "cache_control"})


def flattened(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The parameters one by one, those of other providers under the names that they have here."""
    found: dict[str, Raw] = {}
    for key, value in params.items():
        if key in _BESIDE:
            continue
        inner = _object(value) if key in _GROUPS else None
        for name, given in ({key: value} if inner is None else inner).items():
            found.setdefault(_SAME.get(name, name), given)
    user = _object(found.get("metadata"))
    if user is not None and user.keys() == {"user_id"}:
        # Anthropic's only metadata is what OpenAI calls the user.
        found.setdefault("user", user["user_id"])
        del found["metadata"]
    return found


def limited(params: dict[str, Raw], name: str) -> None:
    """Put the limit on tokens under the one ``name`` that the model takes it under; the newer one counts."""
    limits = [params.pop(key) for key in ("max_completion_tokens", "max_tokens") if key in params]
    if limits:
        params[name] = limits[0]


def kept(params: Mapping[str, Raw], known: frozenset[str], target: str, fixes: list[Fix]) -> dict[str, Raw]:
    """The parameters that the API knows; each of the others has its fix."""
    for key, value in params.items():
        if key not in known:
            fixes.append(make("param_dropped", f"params.{key}", before=value, target=target, detail=key))
    return {key: value for key, value in params.items() if key in known}


def with_choice(
    params: dict[str, Raw], write: Callable[[Raw], tuple[Any, bool | None]], *, tools: bool
) -> dict[str, Raw]:
    """The parameters with the tool choice in the API's words; without tools there is nothing to choose (OAI-11c)."""
    if not tools:
        return {key: value for key, value in params.items() if key not in {"tool_choice", "parallel_tool_calls"}}
    if "tool_choice" in params:
        choice, parallel = write(params["tool_choice"])
        params["tool_choice"] = Raw(encode(choice))
        if parallel is not None:
            params.setdefault("parallel_tool_calls", Raw(encode(parallel)))
    return params


def _object(value: Raw | None) -> dict[str, Raw] | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None


def system_text(given: str | Raw | None, target: str, fixes: list[Fix]) -> str:
    """The system prompt as one text, ``""`` where there is none."""
    return "\n\n".join(each.text for each in prompt_texts(given, target, fixes) if each.text.strip())


LONGEST_NAME: Final = 64  # characters (OAI-04b, RSP-11)
_NULL: Final = b"null"
_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "any": "required", "required": "required", "none": "none"}


class Function(Struct, frozen=True, omit_defaults=True):
    """A client's tool, ready for either API to put into its own form."""

    name: str
    parameters: Raw
    description: str | UnsetType = UNSET
    strict: Raw | UnsetType = UNSET


def write_tools(
    tools: Sequence[Tool],
    target: str,
    form: Callable[[Function], Any],
    own_tool: Callable[[Mapping[str, Any]], bool],
    own_form: Callable[[Mapping[str, Any]], bool],
    *,
    fixes: list[Fix],
) -> list[Any]:
    """The tools in an API's form.

    ``own_tool`` tells the provider's own, which go as they are, and ``own_form`` the client's that are in the API's
    form already; those stay so, with whatever else they say, if there is nothing to mend.
    """
    written: list[Any] = []
    names = ToolNames(target, lambda name: legal_name(name, LONGEST_NAME), fixes)
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        keys: dict[str, Any] = {} if tool.raw is UNSET else msgspec.json.decode(tool.raw, type=dict[str, Raw])
        if keys and own_tool(keys):
            written.append(tool.raw)
            continue
        if bytes(tool.input_schema) == _NULL:
            fixes.append(make("tool_foreign", path, before=keys or tool, target=target))
            continue
        declared = names.declare(tool, keys, path)
        if declared is None:
            continue
        if (
            own_form(keys)
            and "cache_control" not in keys
            and (declared.name, declared.input_schema) == (tool.name, tool.input_schema)
        ):
            written.append(tool.raw)
            continue
        inner = _inner(keys)
        extras = unread_keys(keys, "strict", "cache_control")
        if extras:
            fixes.append(make("field_dropped", path, before=keys, target=target, detail=extras))
        strict = inner.get("strict", keys.get("strict", UNSET))
        written.append(form(Function(declared.name, declared.input_schema, tool.description, strict)))
    return written


def write_choice(value: Raw, named: Callable[[str], Any]) -> tuple[Any, bool | None]:
    """The tool choice in OpenAI's words, and whether calls may be parallel where the choice said so.

    ``named`` is how the API names one tool. A choice that is OpenAI's own already stays.
    """
    choice = msgspec.json.decode(value)
    if isinstance(choice, str):
        return _CHOICES.get(choice, choice), None
    if not isinstance(choice, dict):
        return choice, None
    disabled = choice.get("disable_parallel_tool_use")
    parallel = not disabled if isinstance(disabled, bool) else None
    kind = choice.get("type")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    if kind in {"tool", "function"} and isinstance(name, str):
        return named(legal_name(name, LONGEST_NAME)), parallel
    return _CHOICES.get(kind, choice) if isinstance(kind, str) else choice, parallel


def _inner(keys: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("function", "toolSpec", "custom", "functions"):
        if key in keys:
            return msgspec.json.decode(keys[key], type=dict[str, Any])
    return {}


PARAMETERS: Final = frozenset(
    {
        "audio", "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata",
        "modalities", "moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key",
        "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "response_format", "safety_identifier",
        "seed", "service_tier", "stop", "store", "stream", "stream_options", "temperature", "tool_choice",
        "top_logprobs", "top_p", "user", "verbosity", "web_search_options",
    }
)  # fmt: skip
"""The parameters that the API's documentation names."""


def write_chat_head(setting: Setting, target: str, known: frozenset[str], model: Chat) -> WrittenHead:
    """The head of every request of a session; ``known`` are the parameters that the target takes."""
    fixes: list[Fix] = []
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    params = _in_chat_words(flattened(setting.params))
    tools = write_tools(setting.tools, target, _tool, _is_custom, _is_chats, fixes=fixes)
    if setting.tools and all(_is_older(tool) for tool in setting.tools):
        # The model answers in the words in which it was asked.
        keys["functions"] = [_function_of(tool) for tool in tools]
        known |= {"function_call"}
    elif tools:
        keys["tools"] = tools
    limited(params, model.limit or ("max_completion_tokens" if "max_completion_tokens" in params else "max_tokens"))
    if model.switch and "thinking" in params:
        known |= {"thinking"}
        params["thinking"] = _switch(params["thinking"])
    params = with_choice(params, lambda value: write_choice(value, _named), tools=bool(tools))
    return WrittenHead(encode(keys | kept(params, known, target, fixes)), fixes)


def _tool(function: Function) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _is_custom(keys: Mapping[str, Any]) -> bool:
    """Whether a tool is of the one kind beside functions that Chat Completions has, or a search that it took too."""
    return "custom" in keys or bytes(keys.get("type", b"")) == b'"web_search_preview"'


def _is_chats(keys: Mapping[str, Any]) -> bool:
    return "function" in keys and bytes(keys.get("type", b"")) == b'"function"'


def _is_older(tool: Tool) -> bool:
    return tool.raw is not UNSET and "functions" in msgspec.json.decode(tool.raw, type=dict[str, Raw])


def _function_of(tool: Mapping[str, Any]) -> Function:
    function: Function = tool["function"]
    return function


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
