"""The rules of OpenAI's Chat Completions API: a request's parameters here, messages in ``walk``.

Recorded look-alikes (Mistral, DeepSeek, Groq, Ollama) are laxer; the rules are those of api.openai.com.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from pipeline.rules._fold import Fold
from pipeline.rules._openai import Misfits, kind, listing
from pipeline.rules.openai_chat import catalogue as rules
from pipeline.rules.openai_chat.catalogue import CATALOGUE, family_of
from pipeline.rules.openai_chat.walk import Turns, judge_name
from pipeline.rules.openai_chat.wire import PARAMETERS, PARTS, ROLES, FunctionTool, Message

__all__ = ["CATALOGUE", "OpenAIChat", "Turns"]

_SUPPORTED = {
    "role": listing(ROLES),
    "content[]": listing(PARTS),
    "tool_calls[]": listing(("function", "custom")),
}
_WANTED = {
    "content": "one of a string or array of objects",
    "image_url.image_url.url": "a base64-encoded data URL",
}


class OpenAIChat(Fold[Turns, Message]):
    target = "openai-chat"
    key = "messages"
    not_json = rules.BAD_JSON
    surrogate = rules.SURROGATE
    items: ClassVar[msgspec.json.Decoder[list[Message]]] = msgspec.json.Decoder(list[Message])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        thinking = head.get("thinking")
        switch = thinking.get("type") if isinstance(thinking, dict) else None
        walk = Turns(family=family_of(model), thinking=switch if isinstance(switch, str) else "")
        if "model" not in head:
            walk.refuse(rules.NO_MODEL, "model")
        else:
            _misfits(walk).fit(head["model"], str, "model")
        if head.get("max_tokens") is not None:
            if head.get("max_completion_tokens") is not None:
                walk.refuse(rules.BOTH_LIMITS, "max_tokens")
            else:
                walk.refuse(rules.MAX_TOKENS, "max_tokens")
        _judge_temperature(head.get("temperature"), walk)
        answer = head.get("response_format")
        if isinstance(answer, dict) and answer.get("type") == "json_schema":
            named = answer.get("json_schema")
            if isinstance(named, dict) and named.get("name") is None:
                walk.refuse(rules.MISSING, "response_format.json_schema.name")
        _judge_tools(head, walk)
        for name in head:
            if name not in PARAMETERS:
                walk.refuse(rules.EXTRA_PARAMETER, name, name=name)
        return walk

    def read_items(self, values: Sequence[object], walk: Turns) -> list[Message | None]:
        misfits = _misfits(walk)
        fitted = (misfits.fit(value, Message, f"messages.{at}") for at, value in enumerate(values, walk.index))
        return [message if isinstance(message, Message) else None for message in fitted]

    def judge_no_list(self, walk: Turns, body: dict[str, Any]) -> None:
        if "messages" in body:
            walk.refuse(rules.SHAPE, "messages", wanted="an array of objects", got=kind(body["messages"]))
        else:
            walk.refuse(rules.MISSING, "messages")


def _misfits(walk: Turns) -> Misfits:
    return Misfits(
        walk,
        missing=rules.MISSING,
        wrong_type=rules.SHAPE,
        unsupported=rules.KIND,
        extra=None,
        supported=_SUPPORTED,
        wanted=_WANTED,
        own={("role", "tag"): rules.ROLE, ("function.function.arguments", "type"): rules.ARGUMENTS},
    )


def _judge_temperature(value: object, walk: Turns) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or 0 <= value <= rules.TEMPERATURE:
        return
    high = value > rules.TEMPERATURE
    bound, limit = ("above maximum", f"<= {rules.TEMPERATURE}") if high else ("below minimum", ">= 0")
    number = "integer" if isinstance(value, int) else "decimal"
    walk.refuse(rules.TEMPERATURE_RANGE, "temperature", kind=number, bound=bound, limit=limit, value=value)


def _judge_tools(head: dict[str, Any], walk: Turns) -> None:
    tools = head.get("tools")
    if tools is None:
        for name in ("tool_choice", "parallel_tool_calls"):
            if head.get(name) is not None:
                walk.refuse(rules.CHOICE, name, name=name)
        return
    if not isinstance(tools, list):
        walk.refuse(rules.SHAPE, "tools", at="tools", wanted="an array of objects", got=kind(tools))
        return
    if not tools:
        walk.refuse(rules.NO_TOOLS, "tools")
    if len(tools) > rules.TOOLS:
        walk.refuse(rules.TOO_MANY_TOOLS, "tools", limit=rules.TOOLS, length=len(tools))
    misfits = _misfits(walk)
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        kind_of_tool = misfits.kind_of(tool, path)
        # The provider's own tools change too often to be judged.
        if kind_of_tool == "function" and isinstance(tool := misfits.fit(tool, FunctionTool, path), FunctionTool):
            judge_name(walk, tool.function.name, f"{path}.function.name")
