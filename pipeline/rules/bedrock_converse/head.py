"""Everything of a request but its messages: parameters, system, tools."""

from __future__ import annotations

from typing import Any

from pipeline.rules.base import Violation
from pipeline.rules.bedrock_converse import catalogue as rules
from pipeline.rules.bedrock_converse.blocks import LEGAL_NAME, constraint
from pipeline.rules.bedrock_converse.catalogue import member, rule
from pipeline.rules.bedrock_converse.state import State
from pipeline.rules.models import converse_family

# fmt: off
# One paragraph a rule.
NO_MODEL = rule(
    "BED-26", "soft", "1 validation error detected: Value null at 'modelId' failed to satisfy constraint: Member must "
    "not be null",
    summary="Somebody names the model: the body, or the URL that the sender makes.",
    repair="set the model", source="the service's own URL", by_sender=True,
)
RANGE = rule(
    "BED-34", "hard",
    "1 validation error detected: Value '{value}' at '{at}' failed to satisfy constraint: Member must have value "
    "{bound}",
    summary="maxTokens is at least 1; temperature and topP lie between 0 and 1.",
    repair="clamp it", source="the service's own model",
)
EMPTY_STRING = rule(
    "BED-35", "hard", rules.CONSTRAINT.message,
    summary="No system text and no description of a tool is empty.",
    repair="drop it", source="the service's own model",
)
# fmt: on

_PARAMETERS = frozenset(
    {
        "modelId", "system", "inferenceConfig", "toolConfig", "guardrailConfig", "additionalModelRequestFields",
        "promptVariables", "additionalModelResponseFieldPaths", "requestMetadata", "performanceConfig", "serviceTier",
        "outputConfig",
    }
)  # fmt: skip
_OBJECTS = (
    "inferenceConfig", "toolConfig", "guardrailConfig", "promptVariables", "requestMetadata", "performanceConfig",
    "serviceTier", "outputConfig",
)  # fmt: skip


def judge_head(head: dict[str, Any], model: str | None) -> tuple[State, list[Violation]]:
    """Judge the parameters and make the state before the first message."""
    named = head.get("modelId")
    model = model if model is not None else named if isinstance(named, str) else None
    found = [] if model else [NO_MODEL.broken("modelId")]
    found += [rules.EXTRA.broken(name) for name in head if name not in _PARAMETERS]
    found += [_not_object(name) for name in _OBJECTS if not isinstance(head.get(name), dict | None)]
    _judge_inference(head.get("inferenceConfig"), found)
    _judge_system(head.get("system"), found)
    _judge_tools(head.get("toolConfig"), found)
    tools, prompt = head.get("toolConfig") is not None, bool(head.get("promptVariables"))
    return State(converse_family(model), tools=tools, prompt=prompt), found


def _not_object(path: str) -> Violation:
    return rules.SHAPE.broken(path, words="Input should be a valid dictionary")


def _not_list(path: str) -> Violation:
    return rules.SHAPE.broken(path, words="Input should be a valid list")


def _judge_inference(config: object, found: list[Violation]) -> None:
    if not isinstance(config, dict):
        return
    bounds = {"maxTokens": (1, None), "temperature": (0, 1), "topP": (0, 1)}
    for name, (least, most) in bounds.items():
        value, path = config.get(name), f"inferenceConfig.{name}"
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if most is None else int | float):
            found.append(rules.SHAPE.broken(path, words="Input should be a valid number"))
        elif value < least:
            found.append(RANGE.broken(path, value=value, bound=f"greater than or equal to {least}"))
        elif most is not None and value > most:
            found.append(RANGE.broken(path, value=value, bound=f"less than or equal to {most}"))


def _judge_system(system: object, found: list[Violation]) -> None:
    if system is None:
        return
    if not isinstance(system, list):
        found.append(_not_list("system"))
        return
    for at, block in enumerate(system):
        path = f"system.{at}"
        if not isinstance(block, dict):
            found.append(_not_object(path))
        elif len(block) != 1:
            keys = "text, guardContent, cachePoint"
            found.append(rules.UNION.broken(path, kind="SystemContentBlock", keys=keys))
        elif "text" in block and not isinstance(block["text"], str):
            found.append(rules.SHAPE.broken(f"{path}.text", words="Input should be a valid string"))
        elif block.get("text") == "":
            inner = f"{path}.text"
            found.append(EMPTY_STRING.broken(inner, at=member(inner), value="", constraint=constraint("", "")))


def _judge_tools(config: object, found: list[Violation]) -> None:
    if not isinstance(config, dict):
        return
    tools, path = config.get("tools"), "toolConfig.tools"
    if tools is None:
        found.append(rules.MISSING.broken(path))
    elif not isinstance(tools, list):
        found.append(_not_list(path))
    elif not tools:
        found.append(RANGE.broken(path, value="[]", bound="of length greater than or equal to 1"))
    else:
        for at, tool in enumerate(tools):
            _judge_tool(tool, f"{path}.{at}", found)


def _judge_tool(tool: object, path: str, found: list[Violation]) -> None:
    if not isinstance(tool, dict):
        found.append(_not_object(path))
        return
    if len(tool) != 1:
        found.append(rules.UNION.broken(path, kind="Tool", keys="toolSpec, systemTool, cachePoint"))
    spec, path = tool.get("toolSpec"), f"{path}.toolSpec"
    if spec is None:
        return
    if not isinstance(spec, dict):
        found.append(_not_object(path))
        return
    name, schema = spec.get("name"), spec.get("inputSchema")
    if name is None:
        found.append(rules.MISSING.broken(f"{path}.name", at=member(f"{path}.name")))
    elif not isinstance(name, str):
        found.append(rules.SHAPE.broken(f"{path}.name", words="Input should be a valid string"))
    elif LEGAL_NAME(name) is None:
        words = constraint(name, "[a-zA-Z0-9_-]+")
        found.append(rules.TOOL_NAME.broken(f"{path}.name", at=member(f"{path}.name"), value=name, constraint=words))
    if spec.get("description") == "":
        inner = f"{path}.description"
        words = constraint("", "")
        found.append(EMPTY_STRING.broken(inner, at=member(inner), value="", constraint=words))
    if schema is None:
        found.append(rules.MISSING.broken(f"{path}.inputSchema", at=member(f"{path}.inputSchema")))
    elif not isinstance(schema, dict) or not isinstance(schema.get("json"), dict):
        found.append(rules.NOT_OBJECT.broken(f"{path}.inputSchema.json"))
