"""A request without its messages in OpenAI's form: tools, and the other parameters, as a model takes them.

Another provider's name of a parameter with the same meaning is translated; that is constant and makes no fix. A
parameter without a name in the API is left out with a fix. Differences between models are from reports and recorded
refusals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.pieces import CHAT
from reknit.pipeline.model import Role, Tool
from reknit.pipeline.options import HeadOptions, ModelOptions, Structure
from reknit.pipeline.providers.openai.writer.models import fit_to_model, fit_values
from reknit.pipeline.providers.openai.writer.parts import encode
from reknit.pipeline.providers.openai.writer.settings import (
    JSON_OBJECT,
    compiles_strict,
    efforts_of,
    own_form,
    takes_forms,
    takes_objects,
    write_form,
)
from reknit.pipeline.targets import Setting, legal_name
from reknit.pipeline.targets.facts import Fitting, member
from reknit.pipeline.targets.head import HeadWriter, Params, WrittenHead, members_of, read_choice, sort_params
from reknit.pipeline.targets.schemas import COMBINATORS
from reknit.pipeline.targets.settings import GROUPS, AnswerForm, OwnSettings, Reasoning, Written, mapped, nearest
from reknit.pipeline.targets.strict import openai_compiles

# Parameters that are elsewhere in the request, or are breakpoints, which these APIs set themselves.
_MEMBERS: Final = frozenset({"model", "messages", "input", "system", "tools", "cache_control"})
CHOICE: Final = ("tool_choice", "parallel_tool_calls")
"""The parameters that choose among tools."""
SCHEMA_MEMBERS: Final = COMBINATORS | {"enum", "not"}
"""The members that the top level of a function's schema must not have (OAI-25, RSP-27)."""
_OPENAI_CHAT: Final = "openai-chat"
SAMPLING_BOUNDS: Final = {"temperature": (0, 2), "top_p": (0, 1), "top_logprobs": (0, 20)}
"""The minimum and the maximum of numbers in both of OpenAI's APIs (OAI-19, RSP-20b)."""
_BOUNDS: Final = {
    **SAMPLING_BOUNDS,
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "n": (1, 128),
    "max_tokens": (1, math.inf),  # OAI-19
    "max_completion_tokens": (1, math.inf),
}
_FALSE: Final = Raw(b"false")
_ABSENT: Final = Raw(b"null")
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def openai_params(given: Mapping[str, Raw], limit: str, in_own_words: Callable[[Params], Params]) -> Params:
    """The parameters under OpenAI's names, the limit on tokens under the one name that the model takes it under."""
    newer = next((name for name in _LIMITS if name in given), "max_tokens")
    older = {name for name in _LIMITS if name != newer} if newer in given else set()
    params = sort_params({name: value for name, value in given.items() if name not in older and name not in _MEMBERS})
    params = params.renamed("stop_sequences", "stop").renamed("max_tokens", limit)
    if bytes(given.get("stop", b"")).startswith(b'"'):
        # One text may be given for a list of one.
        params = structs.replace(params, values=params.values | {"stop": given["stop"]})
    user = members_of(params.values.get("metadata", _ABSENT))
    if user is not None and user.keys() == {"user_id"}:
        # Anthropic's only metadata is what OpenAI calls the user.
        params = params.said_as("metadata", {"user": user["user_id"]})
    return in_own_words(params)


def with_choice(params: Params, write: Callable[[Raw], tuple[Any, bool | None]], *, tools: bool) -> Params:
    """The parameters with the tool choice in the API's words; without tools there is nothing to choose (OAI-11c)."""
    values = dict(params.values)
    if not tools:
        for name in CHOICE:
            values.pop(name, None)
    elif "tool_choice" in values:
        choice, parallel = write(values["tool_choice"])
        values["tool_choice"] = Raw(encode(choice))
        if parallel is not None:
            values.setdefault("parallel_tool_calls", Raw(encode(parallel)))
    return structs.replace(params, values=values)


def tool_name(name: str) -> str:
    """A tool's name of at most 64 characters (OAI-04b, RSP-11)."""
    return legal_name(name, 64)


CHOICES: Final[Mapping[str, str]] = MappingProxyType(
    {"auto": "auto", "any": "required", "required": "required", "none": "none"}
)
"""OpenAI's words for a choice among tools."""


class Function(Struct, frozen=True, omit_defaults=True):
    """A client's tool, ready for either API to put into its own form."""

    name: str
    parameters: Raw
    description: str | UnsetType = UNSET
    strict: Raw | UnsetType = UNSET


def write_tools(
    writer: HeadWriter, form: Callable[[Function], Any], own_form: Callable[[Mapping[str, Any]], bool]
) -> list[Any]:
    """Return the tools in an API's form.

    ``own_form`` is True for a client's tools that are in it already; those stay unchanged, with all other members, if
    nothing needs repair.
    """
    compiles = compiles_strict(writer)
    written: list[Any] = []
    for each in writer.declared_tools():
        tool, keys = each.tool, each.given
        unchanged = each.own or (own_form(keys) and each.same and "cache_control" not in keys)
        # A tool that stays in its own form is strict only where that form has the member.
        flat = unchanged and writer.options.target != _OPENAI_CHAT
        strict = keys.get("strict") if flat else each.members.get("strict")
        stays = not compiles or writer.stays_strict(each, strict, openai_compiles)
        if unchanged:
            written.append(tool.raw if stays else _not_strict(keys, flat=flat))
            continue
        writer.note_unread(each, "strict", "cache_control")
        sent = each.members.get("strict", UNSET) if stays else _FALSE
        written.append(form(Function(tool.name, tool.input_schema, tool.description, sent)))
    return written


def _not_strict(keys: Mapping[str, Raw], *, flat: bool) -> dict[str, Any]:
    """Return a tool in an API's own form whose schema is not compiled."""
    function = keys.get("function")
    if flat or function is None:
        return {**keys, "strict": _FALSE}
    return {**keys, "function": {**msgspec.json.decode(function, type=dict[str, Raw]), "strict": _FALSE}}


def write_choice(
    value: Raw, named: Callable[[str], Any], words: Mapping[str, str] = CHOICES
) -> tuple[Any, bool | None]:
    """The tool choice in the API's ``words``, and whether calls may be parallel where the choice said so.

    ``named`` is how the API names one tool. A choice that is OpenAI's own already stays.
    """
    choice = msgspec.json.decode(value)
    if isinstance(choice, str):
        return words.get(choice, choice), None
    if not isinstance(choice, dict):
        return choice, None
    disabled = choice.get("disable_parallel_tool_use")
    parallel = not disabled if isinstance(disabled, bool) else None
    kind = choice.get("type")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    if kind in {"tool", "function"} and isinstance(name, str):
        return named(tool_name(name)), parallel
    return words.get(kind, choice) if isinstance(kind, str) else choice, parallel


# Models of OpenAI's own, which never write readable reasoning, and those of them that reason: they take
# max_completion_tokens only (recorded on gpt-5-mini and gpt-5-nano).
_OPENAI: Final = re.compile(r"(^|/)(gpt-|chatgpt-|o\d(?![\w.])|computer-use-)")
_OPEN_WEIGHTS: Final = re.compile(r"gpt-oss")
_REASONING: Final = re.compile(r"(^|/)(o\d(?![\w.])|gpt-5(?!\w))")
_NO_SYSTEM: Final = re.compile(r"(^|/)o1-(mini|preview)(?!\w)")
# Makers other than OpenAI, whose models know the system, but no developer.
_NO_DEVELOPER: Final = re.compile(
    r"claude|command|deepseek|gemini|gemma|glm|grok|kimi|llama|minimax|ministral|mistral|mixtral|moonshot|nova|phi-|qwen"
)
# Models that want the reasoning of each turn with calls back, be it empty (DSK-01, KIM-01).
_ECHOING: Final = re.compile(r"deepseek-(v3[.-]2|v4|reasoner)|kimi-k2(-thinking|[.-]\d(?!\d))")

# Models with a parameter that says whether they think.
_SWITCHED: Final = re.compile(r"deepseek|kimi|moonshot|glm")


# `Function tools with reasoning_effort are not supported` by these in Chat Completions, which Responses takes.
_NO_EFFORT_WITH_TOOLS: Final = re.compile(r"(^|/)gpt-5\.[4-9](?!\d)")

_SPEECH: Final = frozenset({"input_audio"})
_SPEAKERS: Final[frozenset[Role]] = frozenset({"user", "assistant"})
_ASSISTANT: Final[frozenset[Role]] = frozenset({"assistant"})


def chat_model(model: str | None) -> ModelOptions:
    """Return the options of a model of OpenAI's Chat Completions API, or of another host that is as strict.

    Its structure is that of accepted recorded requests: every call and result is paired directly.
    """
    name = (model or "").lower()
    own = _OPENAI.search(name) is not None and _OPEN_WEIGHTS.search(name) is None
    roles = _roles(name)
    # Moonshot and others refuse a blank user message.
    blank = own or _NO_DEVELOPER.search(name) is None
    return ModelOptions(
        structure=Structure(
            assistant_first=True,
            assistant_last="always",
            neighbours=_SPEAKERS,
            blank=_SPEAKERS if blank else _ASSISTANT,
            ids_again=True,
            own=CHAT,
            system_inside=bool(roles),
            system_first=bool(roles),
        ),
        system_roles=roles,
        reasoning=not own,
        reasoning_required=_ECHOING.search(name) is not None,
        user_blocks=_SPEECH if "audio" in name else frozenset(),
        limit_parameter="max_completion_tokens" if own and _REASONING.search(name) else "",
        thinking_parameter=_SWITCHED.search(name) is not None,
        schema_members=SCHEMA_MEMBERS,
        strict_schemas=own,
        answer_schemas=own and takes_forms(name),
        answer_objects=(own or not name) and takes_objects(name),
        json_word=True,
        efforts=efforts_of(name),
    )


def _roles(name: str) -> frozenset[str]:
    if _NO_SYSTEM.search(name):
        return frozenset()
    return frozenset({"system"} if _NO_DEVELOPER.search(name) else {"system", "developer"})


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


def fit_effort(fitting: Fitting, body: dict[str, Any], nearest: Mapping[str, str]) -> dict[str, Any]:
    """Return a body with an effort that the host takes: ``nearest`` has it for each word that it does not know."""
    effort = member(body, "reasoning_effort")
    near = nearest.get(effort) if isinstance(effort, str) else None
    return body if near is None else fitting.change(body, "reasoning_effort", effort, near)


def with_one_of_both(writer: HeadWriter, params: Params, *, thinks: bool, switchable: bool) -> Params:
    """The parameters without thinking or without a choice that forces a call; no model takes both (DSK-04, KIM-07).

    Args:
        writer: records the fix.
        params: the parameters.
        thinks: the model thinks unless the request switches that off.
        switchable: it can be switched off. It is, unless the request asks for thinking: a caller that forces a call
            cannot use an answer in words.
    """
    choice = read_choice(params.values.get("tool_choice", _ABSENT))
    switch = switched_thinking(params.values)
    if choice is None or choice.kind not in ("any", "tool") or not (switch == "enabled" or (thinks and not switch)):
        return params
    place = params.place("tool_choice")
    if not switch and switchable:
        if not writer.makes("thinking_yields"):
            return params
        writer.note_fix("thinking_yields", place, detail="tool_choice")
        return structs.replace(params, values=params.values | {"thinking": Raw(b'{"type":"disabled"}')})
    if not writer.makes("param_dropped"):
        return params
    writer.note_fix("param_dropped", place, before=params.values["tool_choice"], detail=place.removeprefix("params."))
    others = {name: value for name, value in params.values.items() if name != "tool_choice"}
    return structs.replace(params, values=others)


def switched_thinking(params: Mapping[str, Raw]) -> str:
    """Return ``enabled`` or ``disabled`` as the parameter says, ``""`` where it is absent."""
    given = msgspec.json.decode(params.get("thinking", _ABSENT))
    if not isinstance(given, dict):
        return ""
    return "disabled" if given.get("type") == "disabled" else "enabled"


class ChatHead(Struct, frozen=True, kw_only=True):
    """The parameters that one host with this API takes.

    Attributes:
        parameters: their names.
        bounds: the minimum and the maximum of numbers.
        choices: the words for a choice among tools.
        rewrite: writes other parameters in the host's words, for one model.
        fit: returns a body without the values that the model refuses.
        note: returns a text that the system prompt must have for the parameters, in OpenAI's words; ``""`` for none.
    """

    parameters: frozenset[str] = PARAMETERS
    bounds: Mapping[str, tuple[float, float]] = MappingProxyType({})
    choices: Mapping[str, str] = CHOICES
    rewrite: Callable[[HeadWriter, Params, str | None], Params] = lambda _writer, params, _model: params
    fit: Callable[[Fitting, dict[str, Any]], dict[str, Any]] = lambda _fitting, body: body
    note: Callable[[Mapping[str, Raw]], str] = lambda _params: ""


def write_chat_head(setting: Setting, target: str, host: ChatHead, model: ModelOptions) -> WrittenHead:
    """The head of every request of a session."""
    known = host.parameters

    def is_own(_tool: Tool, keys: Mapping[str, Any]) -> bool:
        return model.custom_tools and _is_custom(keys)

    options = HeadOptions(
        target=target,
        bounds=_BOUNDS if target == _OPENAI_CHAT else host.bounds,
        tool_name=tool_name,
        is_own=is_own,
        schema_members=model.schema_members,
    )
    writer = HeadWriter(options, setting)
    keys: dict[str, Any] = {} if setting.model is None else {"model": setting.model}
    limit = model.limit_parameter or (
        "max_completion_tokens" if "max_completion_tokens" in setting.params else "max_tokens"
    )
    params = mapped(writer, openai_params(setting.params, limit, _in_chat_words), _own_settings(setting, model))
    if model.strict_schemas:
        params = own_form(writer, params)
    note = host.note(params.values)
    params = writer.clamped(host.rewrite(writer, params, setting.model))
    tools = write_tools(writer, _tool, _is_chats)
    if setting.tools and all(_is_older(tool) for tool in setting.tools):
        # The model answers in the words in which it was asked.
        keys["functions"] = [_function_of(tool) for tool in tools]
        known |= {"function_call"}
    elif tools:
        keys["tools"] = tools
    if model.thinking_parameter and "thinking" in params.values:
        known |= {"thinking"}
        params = _with_switch(writer, params)
    params = with_choice(params, lambda value: write_choice(value, _named, host.choices), tools=bool(tools))
    body = writer.placed(params, params.each_of(known))
    fitting = Fitting(writer=writer, params=params)
    openai = target == _OPENAI_CHAT
    body = fit_to_model(writer, params, body, responses=False) if openai else fit_values(fitting, body)
    body = host.fit(fitting, body)
    return WrittenHead(encode(keys | body), writer.fixes, note=note)


def _with_switch(writer: HeadWriter, params: Params) -> Params:
    """Return the parameters with thinking as it is switched here; its other members are a fix."""
    given = params.values["thinking"]
    switch = _switch(given)
    lost = sorted((members_of(given) or {}).keys() - (members_of(switch) or {}).keys())
    if lost and not writer.makes("setting_mapped"):
        return params
    if lost:
        detail = f"without {', '.join(lost)}"
        writer.note_fix("setting_mapped", params.place("thinking"), before=given, after=switch, detail=detail)
    return structs.replace(params, values=params.values | {"thinking": switch})


def _own_settings(setting: Setting, model: ModelOptions) -> OwnSettings:
    efforts = () if setting.tools and _NO_EFFORT_WITH_TOOLS.search(setting.model or "") else model.efforts

    def form(answer: AnswerForm) -> tuple[Written, str] | None:
        if answer.schema is None:
            return ({"response_format": JSON_OBJECT}, "") if model.answer_objects else None
        written = write_form(answer) if model.answer_schemas else None
        if written is None:
            return None
        return {"response_format": {"type": "json_schema", "json_schema": written[0]}}, written[1]

    def reasoning(asked: Reasoning) -> tuple[Written, str] | None:
        if efforts:
            level = nearest(asked.level, efforts)
            return {"reasoning_effort": level}, level
        if not model.thinking_parameter:
            return None
        switch = "disabled" if asked.level == "none" else "enabled"
        return {"thinking": {"type": switch}}, "none" if switch == "disabled" else switch

    return OwnSettings(
        groups=GROUPS,
        answers=frozenset({"response_format"}),
        reasons=frozenset({"reasoning_effort", *(["thinking"] if model.thinking_parameter else [])}),
        form=form,
        reasoning=reasoning,
    )


def _tool(function: Function) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _is_custom(keys: Mapping[str, Any]) -> bool:
    """Return True if a tool is of the one other kind that Chat Completions has, or a search that it accepted too."""
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
    """Return the switch for thinking alone; a budget is Anthropic's."""
    given = msgspec.json.decode(value)
    if not isinstance(given, dict) or "type" not in given:
        return value
    return Raw(encode({"type": "enabled" if given["type"] == "adaptive" else given["type"]}))


def _in_chat_words(params: Params) -> Params:
    """Convert parameters of the Responses API to their chat form."""
    reasoning = members_of(params.values.get("reasoning", _ABSENT))
    if reasoning is not None and reasoning.keys() == {"effort"}:
        params = params.said_as("reasoning", {"reasoning_effort": reasoning["effort"]})
    text = members_of(params.values.get("text", _ABSENT))
    if text is not None and text.keys() <= {"format", "verbosity"}:
        said = {"response_format" if name == "format" else name: value for name, value in text.items()}
        if "response_format" in said:
            said["response_format"] = _format(said["response_format"])
        params = params.said_as("text", said)
    return params


def _format(value: Raw) -> Raw:
    given = msgspec.json.decode(value)
    if not isinstance(given, dict) or given.get("type") != "json_schema" or "json_schema" in given:
        return value
    inner = {key: part for key, part in given.items() if key != "type"}
    return Raw(encode({"type": "json_schema", "json_schema": inner}))
