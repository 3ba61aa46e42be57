"""The parameters that single models of OpenAI refuse, as the writers of both of its APIs know them.

The names are exact, without a date. A name with a maker before it is a router's, and routers convert or drop what a
model does not take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from reknit.pipeline.targets.facts import EFFORTS, Fact, Fitting, member
from reknit.pipeline.targets.head import HeadWriter, Params
from reknit.pipeline.targets.signatures import endpoint_of

_LOW_TO_HIGH: Final = ("low", "medium", "high")
_NONE_TO_XHIGH: Final = ("none", "low", "medium", "high", "xhigh")
_O: Final = r"o1|o1-pro|o3|o3-mini|o3-pro|o4-mini"
_GPT_5: Final = r"gpt-5|gpt-5-mini|gpt-5-nano"
# Models that reason only where they are asked to.
_SWITCHED: Final = r"gpt-5\.1|gpt-5\.2|gpt-5\.4|gpt-5\.4-mini|gpt-5\.4-nano"
_WITHOUT: Final = (
    r"chatgpt-4o-latest|gpt-3\.5-turbo|gpt-4(-turbo)?|gpt-4\.1(-mini|-nano)?|gpt-4o(-mini)?|gpt-5-chat-latest"
)
_FORUM: Final = "community.openai.com, topic 1371738"
_LATEST: Final = "the API's documentation, Using the latest model"

# fmt: off
# One paragraph a row. Effort comes first: other parameters may depend on it.
FACTS: Final = (
    Fact(models=_O, parameter="reasoning_effort", takes=_LOW_TO_HIGH,
         source="recorded refused 9 times; anomalyco/opencode#26273"),
    Fact(models=r"o3-deep-research|o4-mini-deep-research", parameter="reasoning_effort", takes=("medium",),
         source="anomalyco/opencode#26273; CherryHQ/cherry-studio#10676"),
    Fact(models=_GPT_5, parameter="reasoning_effort", takes=("minimal", *_LOW_TO_HIGH),
         source="recorded refused 4 times; rikkahub/rikkahub#856"),
    Fact(models=r"gpt-5-pro", parameter="reasoning_effort", takes=("high",), source="recorded refused once"),
    Fact(models=r"gpt-5-codex|gpt-5\.1-codex|gpt-5\.1-codex-mini", parameter="reasoning_effort", takes=_LOW_TO_HIGH,
         source=f"openai/codex#6647; CherryHQ/cherry-studio#10430; {_FORUM}"),
    Fact(models=r"gpt-5\.1-codex-max|gpt-5\.2-codex", parameter="reasoning_effort", takes=(*_LOW_TO_HIGH, "xhigh"),
         source=_FORUM),
    Fact(models=r"gpt-5\.1", parameter="reasoning_effort", takes=("none", *_LOW_TO_HIGH),
         source="anomalyco/opencode#4451; CortexReach/memory-lancedb-pro#201"),
    Fact(models=r"gpt-5\.2|gpt-5\.4|gpt-5\.5", parameter="reasoning_effort", takes=_NONE_TO_XHIGH,
         source=f"{_FORUM}; SkillfulAgents/SuperAgent#1142"),
    Fact(models=r"gpt-5\.2-pro", parameter="reasoning_effort", takes=("medium", "high", "xhigh"),
         source="recorded refused twice"),
    Fact(models=r"gpt-5\.[123]-chat-latest", parameter="reasoning_effort", takes=("medium",),
         source="recorded refused 3 times; egoist/chatwise-releases#1257"),
    Fact(models=_WITHOUT, parameter="reasoning_effort", source="recorded refused 4 times"),

    Fact(models=rf"{_O}|{_GPT_5}|gpt-5-pro|gpt-5\.3-chat-latest", parameter="temperature", takes=(1,),
         source="recorded refused 7 times; 1 recorded accepted 4 times; tmc/langchaingo#1355"),
    Fact(models=r"gpt-5\.6-terra", parameter="temperature", takes=(1,), efforts=("none",),
         source="recorded refused once, where no effort was named"),
    Fact(models=_SWITCHED, parameter="temperature", takes=(1,), efforts=("none",),
         source=f"{_LATEST}; OpenHands/software-agent-sdk#1837; recorded accepted 8 times with none"),
    Fact(models=rf"{_O}|{_GPT_5}|gpt-5-pro", parameter="top_p", takes=(1,),
         source="chatboxai/chatbox#2627; openai/openai-python#2072"),
    Fact(models=_SWITCHED, parameter="top_p", takes=(1,), efforts=("none",), source=_LATEST),
    Fact(models=rf"{_O}|{_GPT_5}", parameter="presence_penalty", takes=(0,),
         source="nextai-translator/nextai-translator#1781"),
    Fact(models=rf"{_O}|{_GPT_5}", parameter="frequency_penalty", takes=(0,),
         source="nextai-translator/nextai-translator#1781"),
    Fact(models=rf"o1-mini|o3|o4-mini|{_GPT_5}", parameter="stop", source="recorded refused 3 times; the API's types"),
    Fact(models=r"o3-mini", parameter="parallel_tool_calls", source="langchain-ai/langchain#29704"),
    Fact(models=r"gpt-5\.1-codex-max|gpt-5\.2-codex", parameter="verbosity", takes=("medium",),
         source="openai/codex#9035; github/copilot-cli#2476"),
    Fact(models=r"gpt-5\.4-nano|gpt-5\.5", parameter="reasoning.mode", takes=("standard",),
         source="recorded refused twice"),
)
# fmt: on

_DATE: Final = re.compile(r"-\d{4}-\d{2}-\d{2}$")
_IN_RESPONSES: Final[Mapping[str, str]] = {"reasoning_effort": "reasoning.effort", "verbosity": "text.verbosity"}
_SERVED: Final = frozenset({"", "openai"})
_STOPS: Final = 4
_NUMBERS: Final = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
_INTEGERS: Final = (
    "top_logprobs", "n", "seed", "max_tokens", "max_completion_tokens", "max_output_tokens", "max_tool_calls",
)  # fmt: skip
_BOOLEANS: Final = ("parallel_tool_calls", "store", "stream", "background", "logprobs")
# The types of parameters, in which all APIs of this form agree (OAI-13).
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(_NUMBERS, (int, float)),
    **dict.fromkeys(_INTEGERS, (int,)),
    **dict.fromkeys(_BOOLEANS, (bool,)),
    **dict.fromkeys(("reasoning_effort", "user"), (str,)),
    **dict.fromkeys(("logit_bias", "metadata", "response_format", "stream_options", "reasoning", "text"), (dict,)),
}
# The names of the tier ``default`` at Anthropic and at Google.
_DEFAULT_TIERS: Final = ("standard_only", "standard")


def fit_to_model(writer: HeadWriter, params: Params, body: dict[str, Any], *, responses: bool) -> dict[str, Any]:
    """Return the parameters of a request without what its model refuses, at OpenAI or an unknown issuer."""
    if endpoint_of(writer.setting, writer.options.target).issuer not in _SERVED:
        return body
    body = fit_values(Fitting(writer=writer, params=params), body)
    if not responses:
        body = _with_few_stops(writer, params, body)
    name = _DATE.sub("", (writer.setting.model or "").lower())
    facts = [fact for fact in FACTS if fact.holds(name)]
    if not facts:
        return body

    def place(parameter: str) -> str:
        return _IN_RESPONSES.get(parameter, parameter) if responses else parameter

    by_effort = [fact for fact in facts if fact.parameter == "reasoning_effort"]
    body = Fitting(writer=writer, params=params, place=place).fit(body, by_effort)
    effort = member(body, place("reasoning_effort"))
    default = "none" if re.fullmatch(_SWITCHED, name) else "medium"
    fitting = Fitting(writer=writer, params=params, place=place, effort=effort if effort in EFFORTS else default)
    return fitting.fit(body, (fact for fact in facts if fact.parameter != "reasoning_effort"))


def fit_values(fitting: Fitting, body: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request without values that no API of this form takes, whoever serves it.

    Metadata has texts: numbers and booleans become their JSON. The tier ``default`` has another name at other providers
    (OAI-19c, RSP-20c).
    """
    body = fitting.fit_types(body, _TYPES)
    metadata = member(body, "metadata")
    if isinstance(metadata, dict) and not all(isinstance(value, str) for value in metadata.values()):
        texts = {
            key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
            for key, value in metadata.items()
            if isinstance(value, str | int | float)
        }
        body = fitting.change(body, "metadata", metadata, texts or None)
    tier = member(body, "service_tier")
    return fitting.change(body, "service_tier", tier, "default") if tier in _DEFAULT_TIERS else body


def _with_few_stops(writer: HeadWriter, params: Params, body: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with as many stop sequences as the API takes (OAI-19b): the first ones."""
    stops = member(body, "stop")
    if not isinstance(stops, list) or len(stops) <= _STOPS:
        return body
    return Fitting(writer=writer, params=params).change(body, "stop", stops, stops[:_STOPS])
