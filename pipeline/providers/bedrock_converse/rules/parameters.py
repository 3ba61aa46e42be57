"""Parameters that Converse passes on to a Claude model, which refuses them in its own words.

Converse has some of them under names of its own (``inferenceConfig.topP``); the others are the model's, in
``additionalModelRequestFields``. The facts are those of Anthropic's API.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from reknit.pipeline.providers.anthropic.rules import parameters as claude
from reknit.pipeline.providers.anthropic.rules.catalogue import version_of
from reknit.pipeline.providers.anthropic.rules.models import Fact, judge_claude
from reknit.pipeline.providers.anthropic.rules.strict import schema_fault
from reknit.pipeline.providers.bedrock_converse.rules.catalogue import MODEL_ERRORS, rule
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules.base import Rule

# fmt: off
# One paragraph a rule.
SAMPLING = rule("BED-36", "hard", MODEL_ERRORS + claude.SAMPLING.message,
    summary="ANT-42, of Claude models.",
    repair="drop the parameter",
    source="Boise-State-Development/agentcore-public-stack#201; aws-samples/bedrock-chat#1102")
SAMPLERS = rule("BED-36b", "hard", MODEL_ERRORS + claude.SAMPLERS.message,
    summary="ANT-42b, of Claude models.",
    repair="drop topP", source="aws-samples/bedrock-chat#943, #979")
ENABLED = rule("BED-36c", "hard", MODEL_ERRORS + claude.ENABLED.message,
    summary="ANT-43, of Claude models.",
    repair="make it adaptive", source="openclaw/openclaw#117871")
ADAPTIVE = rule("BED-36d", "hard", MODEL_ERRORS + claude.ADAPTIVE.message,
    summary="ANT-43b, of Claude models.",
    repair="give it a budget", source="pensarai/apex#890")
EFFORT = rule("BED-36e", "hard", MODEL_ERRORS + claude.EFFORT.message,
    summary="ANT-44, of Claude models.",
    repair="drop the parameter", source="anthropics/claude-code#30760")
LEVEL = rule("BED-36f", "hard", MODEL_ERRORS + claude.LEVEL.message,
    summary="ANT-44b, of Claude models.",
    repair="take the nearest one", source="as ANT-44b")
BLANK_STOP = rule("BED-36g", "soft", MODEL_ERRORS + claude.BLANK_STOP.message,
    summary="ANT-46, of Claude models (not reported of the service itself).",
    repair="drop it", source="as ANT-46")
STRICT_SCHEMA = rule("BED-37", "hard", MODEL_ERRORS + claude.STRICT_SCHEMA.message,
    summary="ANT-47, of Claude models: the schemas of strict tools, and of the format of an answer.",
    repair="leave the keyword out, close the object, or drop strict", source="recorded on Sonnet 4.5")
# fmt: on

_BY_MODEL: Final[Mapping[Fact, Rule]] = {
    "sampling": SAMPLING,
    "samplers": SAMPLERS,
    "enabled": ENABLED,
    "adaptive": ADAPTIVE,
    "effort": EFFORT,
    "level": LEVEL,
}
# The first version with schemas that are compiled; older models were recorded to take any.
_COMPILES: Final = (4, 5)
# Anthropic's names of what Converse has itself.
_OWN: Final[Mapping[str, str]] = {"temperature": "inferenceConfig.temperature", "top_p": "inferenceConfig.topP"}


def judge_claude_parameters(head: Mapping[str, Any], model: str | None, walk: Walk) -> None:
    """Judge the parameters of a Claude model."""
    if "claude" not in (model or "").lower():
        return
    given = head.get("additionalModelRequestFields")
    request: dict[str, Any] = dict(given) if isinstance(given, dict) else {}
    for name, path in _OWN.items():
        group, _, own = path.partition(".")
        members = head.get(group)
        value = members.get(own) if isinstance(members, dict) else None
        if value is not None:
            request[name] = value

    def place(name: str) -> str:
        return _OWN.get(name, f"additionalModelRequestFields.{name}")

    judge_claude(walk, request, model, _BY_MODEL, place)
    _judge_stops(_inner(head, "inferenceConfig", "stopSequences"), walk)
    named = version_of(model)
    if named is None or named[1] < _COMPILES:
        return
    for path, at, schema in _strict_schemas(head, request):
        if words := schema_fault(schema):
            walk.refuse(STRICT_SCHEMA, path, at=at, words=words)


def _judge_stops(stops: object, walk: Walk) -> None:
    """Report blank stop sequences; the service itself refuses empty ones."""
    for at, stop in enumerate(stops if isinstance(stops, list) else ()):
        if isinstance(stop, str) and stop and not stop.strip():
            walk.refuse(BLANK_STOP, f"inferenceConfig.stopSequences.{at}")


def _strict_schemas(head: Mapping[str, Any], request: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    """Yield the schemas that are compiled, with their places: in the body, and in what the model gets."""
    tools = _inner(head, "toolConfig", "tools")
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        spec = tool.get("toolSpec") if isinstance(tool, dict) else None
        if isinstance(spec, dict) and spec.get("strict") is True:
            path = f"toolConfig.tools.{at}.toolSpec.inputSchema.json"
            yield path, f"tools.{at}.custom", _inner(spec, "inputSchema", "json")
    answer = "output_config.format.schema"
    text = _inner(head, "outputConfig", "textFormat", "structure", "jsonSchema", "schema")
    if isinstance(text, str):
        yield "outputConfig.textFormat.structure.jsonSchema.schema", answer, _decoded(text)
    schema = _inner(request, "output_config", "format", "schema")
    if schema is not None:
        yield f"additionalModelRequestFields.{answer}", answer, schema


def _inner(value: Any, *names: str) -> Any:  # noqa: ANN401  any JSON
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
