"""The rules of single parameters of the Messages API: their types and values, and those that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from reknit.pipeline.providers.anthropic.rules import catalogue as rules
from reknit.pipeline.providers.anthropic.rules.catalogue import rule
from reknit.pipeline.providers.anthropic.rules.models import LEVELS, Fact, judge_claude
from reknit.pipeline.providers.anthropic.rules.strict import (
    MOST_OPTIONAL,
    MOST_TOOLS,
    MOST_UNIONS,
    optional,
    schema_fault,
    unions,
)
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule

_DOCUMENTED: Final = (
    "when thinking is enabled or in adaptive mode. Please consult our documentation at "
    "https://platform.claude.com/docs/en/build-with-claude/extended-thinking"
)

# fmt: off
# One paragraph a rule.
SAMPLING = rule("ANT-42", "hard", "`{name}` is deprecated for this model.",
    summary="No temperature, top_p and top_k from Opus 4.7 and the fifth generation on; temperature 1 is taken.",
    repair="drop the parameter", source="mnfst/modelparams.dev#238; UKGovernmentBEIS/inspect_ai#3721")
SAMPLERS = rule("ANT-42b", "hard",
    "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
    summary="Temperature or top_p, not both (Opus 4.1, 4.5 and 4.6).",
    repair="drop top_p", source="SalesforceAIResearch/MCP-Universe#49; langfuse/langfuse#9882")
THINKING_TEMPERATURE = rule("ANT-42c", "hard", f"`temperature` may only be set to 1 {_DOCUMENTED}",
    summary="With thinking, the temperature is 1.",
    repair="drop the temperature", source="mnfst/modelparams.dev#214; never recorded accepted")
THINKING_TOP_P = rule("ANT-42d", "hard", f"`top_p` must be greater than or equal to 0.95 or unset {_DOCUMENTED}",
    summary="With thinking, top_p is at least 0.95.",
    repair="drop top_p", source="the API's documentation; 0.95 recorded accepted")
THINKING_TOP_K = rule("ANT-42e", "hard", f"`top_k` must be unset {_DOCUMENTED}",
    summary="With thinking, there is no top_k.",
    repair="drop top_k", source="quarkiverse/quarkus-langchain4j#1812; never recorded accepted")
ENABLED = rule("ANT-43", "hard",
    '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive" and "output_config.effort" '
    "to control thinking behavior.",
    summary="Thinking is adaptive from Opus 4.7 and the fifth generation on.",
    repair="make it adaptive", source="earendil-works/pi#3297; handochan/aelix-ai#258")
ADAPTIVE = rule("ANT-43b", "hard", "adaptive thinking is not supported on this model",
    summary="Thinking is adaptive with Opus 4.6, Sonnet 4.6 and later models only.",
    repair="give it a budget", source="pensarai/apex#890")
EFFORT = rule("ANT-44", "hard", "This model does not support the effort parameter.",
    summary="Haiku and Sonnet up to 4.5 and Opus before 4.5 have no level of effort.",
    repair="drop the parameter", source="Oaklight/llm-rosetta#289; anthropics/claude-code#30760")
LEVEL = rule("ANT-44b", "hard", "This model does not support effort level '{value}'. Supported levels: {levels}.",
    summary="Each model has its levels of effort.",
    repair="take the nearest one", source="recorded on claude-opus-4-6")
OUTPUT = rule("ANT-45", "hard",
    "max_tokens: {value} > {most}, which is the maximum allowed number of output tokens for {model}",
    summary="max_tokens is at most what the model can write.",
    repair="lower it", source="the API's documentation, Models overview")
FORCED = rule("ANT-40b", "soft", 'tool_choice: type "tool" and "any" are not supported for this model.',
    summary="Fable 5.1 cannot be made to call a tool.",
    repair="choose auto", source="langchain-ai/langchain-aws#1273; anthropics/claude-cookbooks#854")
BLANK_STOP = rule("ANT-46", "hard", "stop_sequences: each stop sequence must contain non-whitespace",
    summary="No stop sequence is blank.",
    repair="drop it", source="BerriAI/litellm#3286")
STRICT_SCHEMA = rule("ANT-47", "hard", "{at}: {words}",
    summary="The schema of a strict tool or of the answer's format is in the subset that can be compiled.",
    repair="leave the keyword out, close the object, or drop strict",
    source="recorded; agentjido/req_llm#302; veryfront/veryfront-code#3921")
STRICT_TOOLS = rule("ANT-47b", "hard",
    f"Too many strict tools ({{count}}). The maximum number of strict tools supported is {MOST_TOOLS}. Try reducing "
    "the number of tools marked as strict.",
    summary=f"At most {MOST_TOOLS} tools are strict.",
    repair="drop strict", source="recorded")
STRICT_UNIONS = rule("ANT-47c", "hard",
    "Schemas contains too many parameters with union types ({count} parameters with type arrays or anyOf). This causes "
    "exponential compilation cost. Reduce the number of nullable or union-typed parameters (limit: "
    f"{MOST_UNIONS} parameters with unions).",
    summary=f"The schemas of strict tools have at most {MOST_UNIONS} parameters of several types.",
    repair="drop strict", source="recorded")
STRICT_SIZE = rule("ANT-47d", "soft",
    "Schema is too complex for compilation. Try reducing the number of tools or simplifying tool schemas.",
    summary=f"A strict schema has at most {MOST_OPTIONAL} optional properties; the real limit is not documented.",
    repair="drop strict", source="recorded with 24 in one schema")
# fmt: on

_BY_MODEL: Final[Mapping[Fact, Rule]] = {
    "sampling": SAMPLING,
    "samplers": SAMPLERS,
    "enabled": ENABLED,
    "adaptive": ADAPTIVE,
    "effort": EFFORT,
    "level": LEVEL,
    "output": OUTPUT,
    "forced": FORCED,
}
_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "temperature": ((int, float), "number"),
    "top_p": ((int, float), "number"),
    "top_k": ((int,), "integer"),
    "stream": ((bool,), "boolean"),
    "stop_sequences": ((list,), "list"),
    "metadata": ((dict,), "dictionary"),
}
_TIERS: Final = ("auto", "standard_only")
_USER_ID: Final = 256
_LEAST_BUDGET: Final = 1024
_LEAST_TOP_P: Final = 0.95


def judge_values(head: dict[str, Any], model: str | None, walk: Walk) -> None:
    """Judge the parameters of a request, each by itself and by its model."""
    for name, (types, wanted) in _TYPES.items():
        value = head.get(name)
        if value is not None and (not isinstance(value, types) or isinstance(value, bool) is not (bool in types)):
            walk.refuse(rules.SHAPE, name, at=name, words=f"Input should be a valid {wanted}")
    _judge_stops(head.get("stop_sequences"), walk)
    _judge_metadata(head.get("metadata"), walk)
    tier = head.get("service_tier")
    if tier is not None and tier not in _TIERS:
        walk.refuse(rules.SHAPE, "service_tier", at="service_tier", words=_one_of(_TIERS))
    config = head.get("output_config")
    level = config.get("effort") if isinstance(config, dict) else None
    if level is not None and level not in LEVELS:
        at = "output_config.effort"
        walk.refuse(rules.SHAPE, at, at=at, words=_one_of(LEVELS))
    _judge_with_thinking(head, walk)
    judge_claude(walk, head, model, _BY_MODEL)
    _judge_strict(head, walk)


def _one_of(values: Sequence[str]) -> str:
    quoted = [f"'{value}'" for value in values]
    return f"Input should be {', '.join(quoted[:-1])} or {quoted[-1]}"


def _judge_stops(stops: object, walk: Walk) -> None:
    if isinstance(stops, list):
        for at, stop in enumerate(stops):
            path = f"stop_sequences.{at}"
            if not isinstance(stop, str):
                walk.refuse(rules.SHAPE, path, at=path, words="Input should be a valid string")
            elif not stop.strip():
                walk.refuse(BLANK_STOP, path)


def _judge_metadata(metadata: object, walk: Walk) -> None:
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        at = f"metadata.{name}"
        if name != "user_id":
            walk.refuse(rules.EXTRA_KEY, at, at=at, words="Extra inputs are not permitted")
        elif value is not None and not isinstance(value, str):
            walk.refuse(rules.SHAPE, at, at=at, words="Input should be a valid string")
        elif value is not None and len(value) > _USER_ID:
            walk.refuse(rules.SHAPE, at, at=at, words=f"String should have at most {_USER_ID} characters")


def _judge_with_thinking(head: dict[str, Any], walk: Walk) -> None:
    thinking = head.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(kind, str) or kind not in {"enabled", "adaptive"}:
        return
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if kind == "enabled" and type(budget) is int and budget < _LEAST_BUDGET:
        words = f"Input should be greater than or equal to {_LEAST_BUDGET}"
        walk.refuse(rules.SHAPE, "thinking.budget_tokens", at="thinking.enabled.budget_tokens", words=words)
    temperature, top_p = head.get("temperature"), head.get("top_p")
    if isinstance(temperature, int | float) and temperature != 1:
        walk.refuse(THINKING_TEMPERATURE, "temperature")
    if isinstance(top_p, int | float) and top_p < _LEAST_TOP_P:
        walk.refuse(THINKING_TOP_P, "top_p")
    if head.get("top_k") is not None:
        walk.refuse(THINKING_TOP_K, "top_k")


def _judge_strict(head: dict[str, Any], walk: Walk) -> None:
    schemas = list(_strict_schemas(head))
    tools = sum(path.startswith("tools.") for path, _, _ in schemas)
    if tools > MOST_TOOLS:
        walk.refuse(STRICT_TOOLS, "tools", count=tools)
    several = sum(unions(schema) for _, _, schema in schemas)
    if several > MOST_UNIONS:
        walk.refuse(STRICT_UNIONS, "tools", count=several)
    for path, at, schema in schemas:
        if words := schema_fault(schema):
            walk.refuse(STRICT_SCHEMA, path, at=at, words=words)
        elif optional(schema) > MOST_OPTIONAL:
            walk.refuse(STRICT_SIZE, path)


def _strict_schemas(head: dict[str, Any]) -> Iterator[tuple[str, str, object]]:
    """Yield the schemas that are compiled, with their places, Reknit's and the provider's."""
    tools = head.get("tools")
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("strict") is True:
            yield f"tools.{at}.input_schema", f"tools.{at}.custom", tool.get("input_schema")
    config = head.get("output_config")
    places = (
        ("output_config.format", config.get("format") if isinstance(config, dict) else None),
        ("output_format", head.get("output_format")),
    )
    for place, answer in places:
        if isinstance(answer, dict) and "schema" in answer:
            yield f"{place}.schema", f"{place}.schema", answer["schema"]
