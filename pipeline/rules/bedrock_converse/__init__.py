"""The rules of the Bedrock Converse API: a request's parameters here, messages in ``walk``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pipeline.rules._fold import Fold
from pipeline.rules._json import Misfit, Report, Spot, fit_with_items, without_holes
from pipeline.rules.bedrock_converse import catalogue as rules
from pipeline.rules.bedrock_converse.catalogue import CATALOGUE, Anything, Block, Message, family_of, member
from pipeline.rules.bedrock_converse.walk import LEGAL_NAME, Turns, constraint

__all__ = ["CATALOGUE", "BedrockConverse"]

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
# Stands where a block could not be read and was reported; it breaks no rule of its own.
_UNREAD = Block(cachePoint=Anything())


class BedrockConverse(Fold[Turns, Message]):
    target = "bedrock-converse"
    key = "messages"
    model_key = "modelId"
    not_json = rules.BAD_JSON
    surrogate = rules.HALF_CHARACTER
    items = msgspec.json.Decoder(list[Message])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        walk = Turns(
            family=family_of(model),
            tools=head.get("toolConfig") is not None,
            prompt=bool(head.get("promptVariables")),
        )
        if not model:
            walk.refuse(rules.NO_MODEL, "modelId")
        for name in head:
            if name not in _PARAMETERS:
                walk.refuse(rules.EXTRA, name)
        for name in _OBJECTS:
            if not isinstance(head.get(name), dict | None):
                _refuse_type(walk, name, "dictionary")
        _judge_inference(head.get("inferenceConfig"), walk)
        _judge_system(head.get("system"), walk)
        _judge_tools(head.get("toolConfig"), walk)
        return walk

    def read_items(self, values: Sequence[object], walk: Turns) -> list[Message | None]:
        def report(spot: Spot, misfit: Misfit, words: str) -> None:
            if misfit == "extra":
                walk.refuse(rules.EXTRA, spot.path)
            elif misfit == "missing":
                walk.refuse(rules.MISSING, spot.path, at=member(spot.path))
            elif spot.path.rpartition(".")[2] in ("input", "json"):
                walk.refuse(rules.NOT_OBJECT, spot.path)
            else:
                walk.refuse(rules.SHAPE, spot.path, words=words)

        return [_read(value, f"messages.{at}", report) for at, value in enumerate(values, walk.index)]

    def judge_no_list(self, walk: Turns, body: dict[str, Any]) -> None:
        """Absent messages are none; anything but a list is a misfit."""
        if body.get(self.key) is None:
            walk.judge_end()
        else:
            _refuse_type(walk, "messages", "list")


def _read(value: object, path: str, report: Report) -> Message | None:
    try:
        return msgspec.convert(value, Message)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a lone surrogate
        message, blocks = fit_with_items(value, Message, Spot(path, path), report, field="content", item=Block)
    if not isinstance(message, Message):
        return None
    return message if blocks is None else Message(message.role, without_holes(blocks, Block, _UNREAD))


def _refuse_type(walk: Turns, path: str, wanted: str) -> None:
    walk.refuse(rules.SHAPE, path, words=f"Input should be a valid {wanted}")


def _judge_inference(config: object, walk: Turns) -> None:
    if not isinstance(config, dict):
        return
    bounds = {"maxTokens": (1, None), "temperature": (0, 1), "topP": (0, 1)}
    for name, (least, most) in bounds.items():
        value, path = config.get(name), f"inferenceConfig.{name}"
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if most is None else int | float):
            _refuse_type(walk, path, "number")
        elif value < least:
            walk.refuse(rules.RANGE, path, value=value, bound=f"greater than or equal to {least}")
        elif most is not None and value > most:
            walk.refuse(rules.RANGE, path, value=value, bound=f"less than or equal to {most}")


def _judge_system(system: object, walk: Turns) -> None:
    if system is None:
        return
    if not isinstance(system, list):
        _refuse_type(walk, "system", "list")
        return
    for at, block in enumerate(system):
        path = f"system.{at}"
        if not isinstance(block, dict):
            _refuse_type(walk, path, "dictionary")
        elif len(block) != 1:
            keys = "text, guardContent, cachePoint"
            walk.refuse(rules.UNION, path, kind="SystemContentBlock", keys=keys)
        elif "text" in block and not isinstance(block["text"], str):
            _refuse_type(walk, f"{path}.text", "string")
        elif block.get("text") == "":
            inner = f"{path}.text"
            walk.refuse(rules.EMPTY_STRING, inner, at=member(inner), value="", constraint=constraint("", ""))


def _judge_tools(config: object, walk: Turns) -> None:
    if not isinstance(config, dict):
        return
    tools, path = config.get("tools"), "toolConfig.tools"
    if tools is None:
        walk.refuse(rules.MISSING, path)
    elif not isinstance(tools, list):
        _refuse_type(walk, path, "list")
    elif not tools:
        walk.refuse(rules.RANGE, path, value="[]", bound="of length greater than or equal to 1")
    else:
        for at, tool in enumerate(tools):
            _judge_tool(tool, f"{path}.{at}", walk)


def _judge_tool(tool: object, path: str, walk: Turns) -> None:
    if not isinstance(tool, dict):
        _refuse_type(walk, path, "dictionary")
        return
    if len(tool) != 1:
        walk.refuse(rules.UNION, path, kind="Tool", keys="toolSpec, systemTool, cachePoint")
    spec, path = tool.get("toolSpec"), f"{path}.toolSpec"
    if spec is None:
        return
    if not isinstance(spec, dict):
        _refuse_type(walk, path, "dictionary")
        return
    name, schema = spec.get("name"), spec.get("inputSchema")
    if name is None:
        walk.refuse(rules.MISSING, f"{path}.name", at=member(f"{path}.name"))
    elif not isinstance(name, str):
        _refuse_type(walk, f"{path}.name", "string")
    elif LEGAL_NAME(name) is None:
        words = constraint(name, "[a-zA-Z0-9_-]+")
        walk.refuse(rules.TOOL_NAME, f"{path}.name", at=member(f"{path}.name"), value=name, constraint=words)
    if spec.get("description") == "":
        inner = f"{path}.description"
        words = constraint("", "")
        walk.refuse(rules.EMPTY_STRING, inner, at=member(inner), value="", constraint=words)
    if schema is None:
        walk.refuse(rules.MISSING, f"{path}.inputSchema", at=member(f"{path}.inputSchema"))
    elif not isinstance(schema, dict) or not isinstance(schema.get("json"), dict):
        walk.refuse(rules.NOT_OBJECT, f"{path}.inputSchema.json")
