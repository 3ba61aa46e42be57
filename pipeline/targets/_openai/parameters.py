"""A request without its messages in OpenAI's words: tools, and the other parameters.

A parameter that another provider has under another name, with the same meaning, is translated; that is constant and
makes no fix. What the API has no name for is left out, and recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from pipeline.fixes import Fix
from pipeline.model import Tool
from pipeline.targets._openai.families import Chat
from pipeline.targets._openai.rows import encode
from pipeline.targets.base import Setting, WrittenHead
from pipeline.targets.names import Params, declared_tools, legal_name, sort_params
from pipeline.text.flatten import prompt_texts

# They stand elsewhere in the request, or say something of breakpoints, which these APIs set themselves.
_BESIDE: Final = frozenset({"model", "messages", "input", "system", "tools", "cache_control"})
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def openai_params(given: Mapping[str, Raw], limit: str, in_own_words: Callable[[Params], Params]) -> Params:
    """The parameters under OpenAI's names, the limit on tokens under the one name that the model takes it under."""
    newer = next((name for name in _LIMITS if name in given), "max_tokens")
    older = {name for name in _LIMITS if name != newer} if newer in given else set()
    params = sort_params({name: value for name, value in given.items() if name not in older and name not in _BESIDE})
    params = params.renamed("stop_sequences", "stop").renamed("max_tokens", limit)
    user = as_object(params.values.get("metadata"))
    if user is not None and user.keys() == {"user_id"}:
        # Anthropic's only metadata is what OpenAI calls the user.
        params = params.said_as("metadata", {"user": user["user_id"]})
    return in_own_words(params)


def kept(
    params: Params, known: Collection[str], target: str, fixes: list[Fix], elsewhere: Collection[str] = ()
) -> dict[str, Any]:
    """The parameters that the API knows; each of the others has its fix, but for what stands ``elsewhere``."""
    return params.at_places({name: name for name in params.values if name in known}, target, fixes, elsewhere)


def with_choice(params: Params, write: Callable[[Raw], tuple[Any, bool | None]], *, tools: bool) -> Params:
    """The parameters with the tool choice in the API's words; without tools there is nothing to choose (OAI-11c)."""
    values = dict(params.values)
    if not tools:
        for name in ("tool_choice", "parallel_tool_calls"):
            values.pop(name, None)
    elif "tool_choice" in values:
        choice, parallel = write(values["tool_choice"])
        values["tool_choice"] = Raw(encode(choice))
        if parallel is not None:
            values.setdefault("parallel_tool_calls", Raw(encode(parallel)))
    return structs.replace(params, values=values)


def as_object(value: Raw | None) -> dict[str, Raw] | None:
    try:
        return None if value is None else msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None


def system_text(given: str | Raw | None, target: str, fixes: list[Fix]) -> str:
    """The system prompt as one text, ``""`` where there is none."""
    return "\n\n".join(each.text for each in prompt_texts(given, target, fixes) if each.text.strip())


LONGEST_NAME: Final = 64  # characters (OAI-04b, RSP-11)
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
    for each in declared_tools(
        tools, target, lambda name: legal_name(name, LONGEST_NAME), lambda _tool, keys: own_tool(keys), fixes
    ):
        tool, keys = each.tool, each.given
        if each.own or (own_form(keys) and each.same and "cache_control" not in keys):
            written.append(tool.raw)
            continue
        each.note_unread(target, fixes, "strict", "cache_control")
        strict = each.members.get("strict", UNSET)
        written.append(form(Function(tool.name, tool.input_schema, tool.description, strict)))
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
    limit = model.limit or ("max_completion_tokens" if "max_completion_tokens" in setting.params else "max_tokens")
    params = openai_params(setting.params, limit, _in_chat_words)

    def stays(keys: Mapping[str, Any]) -> bool:
        return model.other_tools and _is_custom(keys)

    tools = write_tools(setting.tools, target, _tool, stays, _is_chats, fixes=fixes)
    if setting.tools and all(_is_older(tool) for tool in setting.tools):
        # The model answers in the words in which it was asked.
        keys["functions"] = [_function_of(tool) for tool in tools]
        known |= {"function_call"}
    elif tools:
        keys["tools"] = tools
    if model.switch and "thinking" in params.values:
        known |= {"thinking"}
        switched = {"thinking": _switch(params.values["thinking"])}
        params = structs.replace(params, values=params.values | switched)
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


def _in_chat_words(params: Params) -> Params:
    """What the Responses API says in other words."""
    reasoning = as_object(params.values.get("reasoning"))
    if reasoning is not None and reasoning.keys() == {"effort"}:
        params = params.said_as("reasoning", {"reasoning_effort": reasoning["effort"]})
    text = as_object(params.values.get("text"))
    if text is not None and text.keys() <= {"format", "verbosity"}:
        said = {"response_format" if name == "format" else name: value for name, value in text.items()}
        if "response_format" in said:
            said["response_format"] = _format(said["response_format"])
        params = params.said_as("text", said)
    return params


def _format(value: Raw) -> Raw:
    given = msgspec.json.decode(value, type=dict[str, Any])
    if given.get("type") != "json_schema" or "json_schema" in given:
        return value
    inner = {key: part for key, part in given.items() if key != "type"}
    return Raw(encode({"type": "json_schema", "json_schema": inner}))
