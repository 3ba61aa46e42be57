"""The rules of OpenAI's Responses API: a request's parameters here, the items of its ``input`` in ``walk``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from pipeline.rules._fold import Fold
from pipeline.rules._json import Hole
from pipeline.rules._openai import Misfits, kind, listing
from pipeline.rules.openai_responses import catalogue as rules
from pipeline.rules.openai_responses.catalogue import CATALOGUE
from pipeline.rules.openai_responses.walk import Items, judge_name
from pipeline.rules.openai_responses.wire import ITEM, KINDS, PARAMETERS, PARTS, ROLES, FileSearchTool, Item, NamedTool

__all__ = ["CATALOGUE", "Items", "OpenAIResponses"]

# Parameters that lead to items outside the request.
_CHAINS = ("previous_response_id", "conversation")
_OUTPUT_PARTS = listing(("input_text", "input_image", "input_file"))
_SUPPORTED = {
    # The refusal was read before there were updates of the configuration.
    "[]": listing(tuple(name for name in KINDS.values() if name != "configuration_update")),
    "message.role": listing(ROLES),
    "message.content[]": listing(PARTS),
    "function_call_output.output[]": _OUTPUT_PARTS,
    "custom_tool_call_output.output[]": _OUTPUT_PARTS,
}
_CONTENT = "one of an array of objects or string"
_WANTED = {
    "message.content": _CONTENT,
    "function_call_output.output": _CONTENT,
    "custom_tool_call_output.output": _CONTENT,
}


class OpenAIResponses(Fold[Items, Item]):
    """The rule set of the target ``openai-responses``; its messages are the items of ``input``."""

    target = "openai-responses"
    key = "input"
    not_json = rules.BAD_JSON
    surrogate = rules.SURROGATE
    items: ClassVar[msgspec.json.Decoder[list[Item]]] = msgspec.json.Decoder(list[ITEM])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Items:
        del model
        walk = Items(chained=any(head.get(name) is not None for name in _CHAINS), stored=head.get("store") is not False)
        if "model" not in head:
            walk.refuse(rules.NO_MODEL, "model")
        else:
            _misfits(walk).fit(head["model"], str, "model")
        limit = head.get("max_output_tokens")
        if type(limit) is int and limit < rules.MIN_OUTPUT_TOKENS:
            walk.refuse(rules.FEW_TOKENS, "max_output_tokens", limit=rules.MIN_OUTPUT_TOKENS, value=limit)
        _judge_tools(head.get("tools"), walk)
        text = head.get("text")
        answer = text.get("format") if isinstance(text, dict) else None
        answer_kind = answer.get("type") if isinstance(answer, dict) else None
        if isinstance(answer, dict) and answer_kind == "json_schema" and answer.get("name") is None:
            walk.refuse(rules.MISSING, "text.format.name")
        # What is kept elsewhere may hold the word.
        walk.json_unsaid = answer_kind == "json_object" and not walk.chained and head.get("prompt") is None
        for name in head:
            if name == "response_format":
                walk.refuse(rules.MOVED_FORMAT, name)
            elif name not in PARAMETERS:
                walk.refuse(rules.EXTRA_PARAMETER, name)
        return walk

    def read_items(self, values: Sequence[object], walk: Items) -> list[Item | None]:
        """Make items of JSON values tolerantly.

        A message without its ``type`` comes this way as well: the decode cannot tell it from the other items.
        """
        misfits = _misfits(walk)
        fitted = []
        for at, value in enumerate(values, walk.index):
            typed = {"type": "message", **value} if isinstance(value, dict) and "type" not in value else value
            fitted.append(misfits.fit(typed, ITEM, f"input.{at}"))
        return [None if isinstance(item, Hole) else item for item in fitted]  # type: ignore[misc]  # what was asked for

    def judge_no_list(self, walk: Items, body: dict[str, Any]) -> None:
        given = body.get("input")
        if given is None:
            if not (walk.chained or body.get("prompt") is not None):
                walk.refuse(rules.NO_INPUT, "input")
        elif not isinstance(given, str):
            walk.refuse(rules.SHAPE, "input", wanted="one of an array of objects or string", got=kind(given))
        elif walk.json_unsaid and "json" not in given.lower():
            walk.refuse(rules.JSON_UNSAID, "input")


def _misfits(walk: Items) -> Misfits:
    return Misfits(
        walk,
        missing=rules.MISSING,
        wrong_type=rules.SHAPE,
        unsupported=rules.PART,
        extra=rules.EXTRA_KEY,
        supported=_SUPPORTED,
        wanted=_WANTED,
        own={("message.role", "tag"): rules.ROLE, ("[]", "tag"): rules.KIND},
    )


def _judge_tools(tools: object, walk: Items) -> None:
    if tools is None:
        return
    if not isinstance(tools, list):
        walk.refuse(rules.SHAPE, "tools", wanted="an array of objects", got=kind(tools))
        return
    misfits = _misfits(walk)
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        match misfits.kind_of(tool, path):
            case "file_search":
                misfits.fit(tool, FileSearchTool, path)
            # The provider's own tools change too often to be judged.
            case "function" | "custom":
                if isinstance(named := misfits.fit(tool, NamedTool, path), NamedTool):
                    judge_name(walk, named.name, f"{path}.name")
