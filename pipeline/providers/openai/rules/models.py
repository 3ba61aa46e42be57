"""Parameters that a model of OpenAI refuses although its API has them: the facts by model, and their judge.

A row holds at OpenAI, and for exact names of models, with or without a date. A name with a maker before it
(``openai/o3``) is a router's: those drop or convert what the model does not take (recorded on ``openai/o4-mini``), so
no row holds for it. A row is hard if its refusal was recorded, or was reported in the API's words, and no recording
contradicts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from reknit.pipeline.providers.openai.rules import listing
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule, Severity


class Row(Struct, frozen=True, kw_only=True):
    """One fact about models.

    Attributes:
        models: their exact names, without a date.
        parameters: the names of Chat Completions, or the place where only the Responses API has the parameter.
        values: the values that are taken; none if the parameter as such is refused.
        efforts: the effective efforts with which the parameter is taken.
        default_only: Chat Completions says that only the default is taken, and not that the parameter is unknown.
        severity: of a breach.
        source: where the refusal was seen, with the number of recordings.
    """

    models: tuple[str, ...]
    parameters: tuple[str, ...]
    values: tuple[Any, ...] = ()
    efforts: tuple[str, ...] = ()
    default_only: bool = False
    severity: Severity = "hard"
    source: str


class Words(Struct, frozen=True, kw_only=True):
    """The words of one API.

    Attributes:
        parameter: the rule of a parameter that a model does not have.
        value: the rule of a value that a model does not take, where the API lists those that it takes.
        default: the rule of a value other than the default; None if the API says the same as for ``parameter``.
        own: the rules of parameters that have words of their own.
        places: the places of parameters that have other names than in Chat Completions.
    """

    parameter: Rule
    value: Rule
    default: Rule | None = None
    own: Mapping[str, Rule] = {}
    places: Mapping[str, str] = {}


PARAMETER: Final = "Unsupported parameter: '{at}' is not supported with this model."
FORMAT: Final = (
    "Invalid parameter: '{at}' of type '{value}' is not supported with this model. Learn more about supported models "
    "at the Structured Outputs guide: https://platform.openai.com/docs/guides/structured-outputs"
)
FORMAT_TYPE: Final = "response_format.type"
MODE: Final = "reasoning.mode"
RESPONSES_ONLY: Final = (MODE,)
CHAT_ONLY: Final = ("frequency_penalty", "logprobs", "presence_penalty", "stop")
"""Parameters that one of the APIs does not have."""

_O: Final = ("o1", "o1-pro", "o3", "o3-mini", "o3-pro", "o4-mini")
_DEEP: Final = ("o3-deep-research", "o4-mini-deep-research")
_GPT_5: Final = ("gpt-5", "gpt-5-mini", "gpt-5-nano")
_CODEX: Final = ("gpt-5-codex", "gpt-5.1-codex", "gpt-5.1-codex-mini")
_CODEX_XHIGH: Final = ("gpt-5.1-codex-max", "gpt-5.2-codex")
_PRO_XHIGH: Final = ("gpt-5.2-pro", "gpt-5.4-pro", "gpt-5.5-pro")
_CHAT: Final = ("gpt-5.1-chat-latest", "gpt-5.2-chat-latest", "gpt-5.3-chat-latest")
_SWITCHED: Final = ("gpt-5.1", "gpt-5.2", "gpt-5.4", "gpt-5.4-mini", "gpt-5.4-nano")
_GPT_5_6: Final = ("gpt-5.6", "gpt-5.6-luna", "gpt-5.6-sol")
_GPT_4: Final = (
    "chatgpt-4o-latest", "gpt-3.5-turbo", "gpt-4", "gpt-4-turbo", "gpt-4.1", "gpt-4.1-mini", "gpt-4.1-nano", "gpt-4o",
    "gpt-4o-mini",
)  # fmt: skip

_NO_SCHEMAS: Final = (
    "gpt-3.5-turbo", "gpt-3.5-turbo-0125", "gpt-3.5-turbo-1106", "gpt-3.5-turbo-16k", "gpt-4", "gpt-4-0613",
    "gpt-4-turbo", "gpt-4o-2024-05-13", "o1-mini", "o1-preview",
)  # fmt: skip

_EFFORT: Final = ("reasoning_effort",)
_SAMPLING: Final = ("temperature",)
_TOP_P: Final = ("top_p",)
_PENALTIES: Final = ("frequency_penalty", "presence_penalty")
_MODE: Final = (MODE,)
_FORUM: Final = "verified with the API at community.openai.com, topic 1371738"
_LATEST: Final = "the API's documentation, Using the latest model: only with effort none"
_NO_SAMPLING: Final = "the API's documentation, Reasoning models"

# fmt: off
# One paragraph a row.
TABLE: Final = (
    Row(models=("o1", "o1-pro", "o3-mini", "o4-mini"), parameters=_EFFORT, values=("low", "medium", "high"),
        source="recorded refused 9 times; the refusal lists what is taken"),
    Row(models=("o3", "o3-pro"), parameters=_EFFORT, values=("low", "medium", "high"),
        source=f"recorded refused once behind a router; anomalyco/opencode#26273; {_FORUM}"),
    Row(models=_DEEP, parameters=_EFFORT, values=("medium",),
        source="anomalyco/opencode#26273; CherryHQ/cherry-studio#10676"),
    Row(models=_GPT_5, parameters=_EFFORT, values=("minimal", "low", "medium", "high"),
        source="recorded refused 4 times; microsoft/vscode#301045; rikkahub/rikkahub#856"),
    Row(models=("gpt-5-pro",), parameters=_EFFORT, values=("high",), source="recorded refused once"),
    Row(models=_CODEX, parameters=_EFFORT, values=("low", "medium", "high"),
        source=f"openai/codex#6647; CherryHQ/cherry-studio#10430; {_FORUM}"),
    Row(models=_CODEX_XHIGH, parameters=_EFFORT, values=("low", "medium", "high", "xhigh"), source=_FORUM),
    Row(models=("gpt-5.3-codex",), parameters=_EFFORT, values=("low", "medium", "high", "xhigh"), severity="soft",
        source="RayBytes/ChatMock#101; recorded accepted with low"),
    Row(models=("gpt-5.1",), parameters=_EFFORT, values=("none", "low", "medium", "high"),
        source="anomalyco/opencode#4451; CortexReach/memory-lancedb-pro#201"),
    Row(models=("gpt-5.2",), parameters=_EFFORT, values=("none", "low", "medium", "high", "xhigh"), source=_FORUM),
    Row(models=("gpt-5.4", "gpt-5.5"), parameters=_EFFORT, values=("none", "low", "medium", "high", "xhigh"),
        source="max refused in SkillfulAgents/SuperAgent#1142; mnfst/modelparams.dev"),
    Row(models=("gpt-5.4-mini", "gpt-5.4-nano"), parameters=_EFFORT, values=("none", "low", "medium", "high", "xhigh"),
        severity="soft", source="the API's documentation; recorded accepted with none and low"),
    Row(models=(*_GPT_5_6, "gpt-5.6-terra"), parameters=_EFFORT,
        values=("none", "low", "medium", "high", "xhigh", "max"), severity="soft",
        source="SkillfulAgents/SuperAgent#1142; the API's documentation"),
    Row(models=("gpt-5.2-pro",), parameters=_EFFORT, values=("medium", "high", "xhigh"),
        source="recorded refused twice"),
    Row(models=("gpt-5.4-pro", "gpt-5.5-pro"), parameters=_EFFORT, values=("medium", "high", "xhigh"), severity="soft",
        source="the API's documentation; mnfst/modelparams.dev"),
    Row(models=("gpt-5.2-chat-latest", "gpt-5.3-chat-latest"), parameters=_EFFORT, values=("medium",),
        source="recorded refused 3 times; egoist/chatwise-releases#1257; Laisky/one-api#285"),
    Row(models=("gpt-5.1-chat-latest",), parameters=_EFFORT, values=("medium",), source=_FORUM),
    Row(models=("gpt-5-chat-latest", *_GPT_4), parameters=_EFFORT,
        source="recorded refused 4 times: gpt-4.1, gpt-4.1-mini, gpt-4o-2024-08-06, gpt-5-chat-latest"),

    Row(models=("o1-pro", "o3-mini", "gpt-5-mini", "gpt-5-pro", "gpt-5.3-chat-latest"), parameters=_SAMPLING,
        values=(1,), source="recorded refused 7 times; ChatGPTNextWeb/NextChat#6120"),
    Row(models=("o1", "o3", "o3-pro", "o4-mini", "gpt-5", "gpt-5-nano"), parameters=_SAMPLING, values=(1,),
        default_only=True,
        source="tmc/langchaingo#1355; QwenLM/qwen-code#921; gpt-5-nano: 1 recorded accepted 4 times"),
    Row(models=("gpt-5.6-terra",), parameters=_SAMPLING, values=(1,), efforts=("none",),
        source="recorded refused once; no effort was named"),
    Row(models=(*_CODEX, *_CODEX_XHIGH, "gpt-5.3-codex", *_PRO_XHIGH, *_CHAT[:2]), parameters=_SAMPLING, values=(1,),
        severity="soft", source=f"OpenHands/software-agent-sdk#1837; {_FORUM}"),
    Row(models=_SWITCHED, parameters=_SAMPLING, values=(1,), efforts=("none",),
        source=f"{_LATEST}; OpenHands/software-agent-sdk#1837; gpt-5.4-nano recorded accepted 8 times with none"),
    Row(models=("gpt-5.5", *_GPT_5_6), parameters=_SAMPLING, values=(1,), efforts=("none",), severity="soft",
        source=_LATEST),
    Row(models=(*_O, *_GPT_5, "gpt-5-pro"), parameters=_TOP_P, values=(1,),
        source="chatboxai/chatbox#2627; QuantaAlpha/RepoMaster#8; openai/openai-python#2072"),
    Row(models=_SWITCHED, parameters=_TOP_P, values=(1,), efforts=("none",), source=_LATEST),
    Row(models=(*_CODEX, *_CODEX_XHIGH, "gpt-5.3-codex", *_PRO_XHIGH, *_CHAT), parameters=_TOP_P, values=(1,),
        severity="soft", source=_FORUM),
    Row(models=("gpt-5.5", *_GPT_5_6, "gpt-5.6-terra"), parameters=_TOP_P, values=(1,), efforts=("none",),
        severity="soft", source=_LATEST),
    Row(models=(*_O, *_GPT_5), parameters=_PENALTIES, values=(0,),
        source=f"nextai-translator/nextai-translator#1781; {_NO_SAMPLING}"),
    Row(models=(*_O, *_GPT_5), parameters=("logprobs",), values=(False,), severity="soft", source=_NO_SAMPLING),
    Row(models=(*_O, *_GPT_5), parameters=("top_logprobs",), values=(0,), severity="soft", source=_NO_SAMPLING),

    Row(models=("o1-mini", "o3", "gpt-5-mini"), parameters=("stop",), source="recorded refused 3 times"),
    Row(models=("o4-mini", "gpt-5", "gpt-5-nano"), parameters=("stop",),
        source="the API's types: not with o3 and o4-mini; as recorded on o3 and gpt-5-mini"),
    Row(models=("o3-mini",), parameters=("parallel_tool_calls",), source="langchain-ai/langchain#29704"),
    Row(models=("o1", "o3", "o4-mini"), parameters=("parallel_tool_calls",), severity="soft",
        source="defog-ai/defog#171"),
    Row(models=("gpt-5.1-codex-max", "gpt-5.2-codex"), parameters=("verbosity",), values=("medium",),
        source="openai/codex#9035, #9055; github/copilot-cli#2476"),
    Row(models=(*_CODEX, *_CHAT, *_GPT_4, *_O), parameters=("verbosity",), values=("medium",), severity="soft",
        source="as reported for gpt-5.1-codex-max; gpt-5.3-codex recorded accepted with low"),
    Row(models=("gpt-5.4-nano", "gpt-5.5"), parameters=_MODE, values=("standard",), source="recorded refused twice"),
    Row(models=(*_O, *_GPT_5, "gpt-5-pro", "gpt-5.1", "gpt-5.2", *_PRO_XHIGH, "gpt-5.3-codex", "gpt-5.4",
                "gpt-5.4-mini", *_CODEX, *_CODEX_XHIGH, *_CHAT),
        parameters=_MODE, values=("standard",), severity="soft", source="as recorded on gpt-5.4-nano and gpt-5.5"),

    Row(models=_NO_SCHEMAS, parameters=(FORMAT_TYPE,), values=("json_object", "text"),
        source="recorded refused 5 times on gpt-4; the API's documentation, Structured outputs: supported models"),
)
# fmt: on

# The effort of a request that names none, where that is not medium.
DEFAULT_EFFORTS: Final[Mapping[str, str]] = {**dict.fromkeys(_SWITCHED, "none"), "gpt-5-pro": "high"}

_DATE: Final = re.compile(r"-\d{4}-\d{2}-\d{2}$")


def _by_model() -> dict[str, tuple[Row, ...]]:
    found: dict[str, list[Row]] = {}
    for row in TABLE:
        for model in row.models:
            found.setdefault(model, []).append(row)
    return {model: tuple(rows) for model, rows in found.items()}


_ROWS: Final = _by_model()


def judge_model(walk: Walk, head: Mapping[str, Any], model: str | None, words: Words) -> None:
    """Report the parameters that a model of OpenAI's refuses."""
    given = (model or "").lower()
    name = _DATE.sub("", given)
    for row in (*_ROWS.get(name, ()), *(_ROWS.get(given, ()) if given != name else ())):
        effort = _member(head, words.places.get("reasoning_effort", "reasoning_effort"))
        if row.efforts and (effort or DEFAULT_EFFORTS.get(name, "medium")) in row.efforts:
            continue
        for parameter, place, value in _given(row, head, words):
            rule = _rule(row, parameter, words)
            supported = listing(row.values) if all(isinstance(taken, str) for taken in row.values) else ""
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            at = place.removesuffix(".type")
            walk.found.append(rule.broken(place, row.severity, at=at, value=text, model=model, supported=supported))


def _given(row: Row, head: Mapping[str, Any], words: Words) -> Iterator[tuple[str, str, Any]]:
    """Yield the parameters of a row that a request gives a value which the model does not take."""
    for parameter in row.parameters:
        place = words.places.get(parameter, parameter)
        value = _member(head, place)
        # A value of another type is a misfit, whatever the model.
        same_type = not row.values or isinstance(value, str) == isinstance(row.values[0], str)
        if value is not None and same_type and value not in row.values:
            yield parameter, place, value


def _rule(row: Row, parameter: str, words: Words) -> Rule:
    if parameter in words.own:
        return words.own[parameter]
    if row.values and isinstance(row.values[0], str):
        return words.value
    return words.default if row.default_only and words.default else words.parameter


def _member(head: Mapping[str, Any], place: str) -> Any:  # noqa: ANN401  any JSON
    value: Any = head
    for name in place.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
