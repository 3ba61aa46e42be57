"""The rules of OpenAI's Responses API: the walk through the items of ``input``, and the parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct, field, structs

from reknit.pipeline.providers.openai.rules import (
    Misfits,
    bracketed,
    judge_schema,
    kind,
    legal_name,
    listing,
    media_type,
    unsupported_image,
)
from reknit.pipeline.providers.openai.rules.models import judge_model
from reknit.pipeline.providers.openai.rules.strict import is_compiled, judge_strict
from reknit.pipeline.providers.openai.rules.values import judge_bounds, judge_metadata, judge_tier, judge_types
from reknit.pipeline.providers.openai_responses.rules import catalogue as rules
from reknit.pipeline.providers.openai_responses.rules.catalogue import (
    BOUNDS,
    CATALOGUE,
    ITEM,
    KINDS,
    MODEL_WORDS,
    OTHERS,
    PARAMETERS,
    PARTS,
    PREFIXES,
    ROLES,
    TYPES,
    CustomCall,
    CustomOutput,
    FileSearchTool,
    FunctionCall,
    FunctionOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    NamedTool,
    Other,
    OutputText,
    Reasoning,
    Reference,
    Refusal,
)
from reknit.pipeline.rules._fold import Fold, Walk
from reknit.pipeline.rules._misfits import Unreadable
from reknit.pipeline.rules.base import NONE_SEEN, Seen

__all__ = ["CATALOGUE", "RULE_SET", "Items", "OpenAIResponses"]

_TOOLS: dict[type, str] = {
    FunctionCall: "function call",
    FunctionOutput: "function call",
    CustomCall: "custom tool call",
    CustomOutput: "custom tool call",
}
# Calls of the provider's tools that the caller runs, and what answers them.
_CLIENT_TOOLS = (
    ("computer_call", "computer_call_output"),
    ("shell_call", "shell_call_output"),
    ("local_shell_call", "local_shell_call_output"),
    ("apply_patch_call", "apply_patch_call_output"),
    ("tool_search_call", "tool_search_output"),
)
_CLIENT_CALLS: dict[type, str] = {OTHERS[call]: call.replace("_", " ") for call, _ in _CLIENT_TOOLS}
_CLIENT_OUTPUTS: dict[type, str] = {OTHERS[output]: call.replace("_", " ") for call, output in _CLIENT_TOOLS}
_AUDIO_OR_VIDEO = re.compile(
    r"\.(aac|aiff?|avi|flac|m4a|mkv|mov|mp3|mp4|mpe?g|oga|ogg|opus|wav|webm|wmv)$", re.IGNORECASE
)
_RESEARCHES = re.compile(r"o\d(-mini)?-deep-research(-\d{4}-\d{2}-\d{2})?").fullmatch
_OUTPUTS = frozenset(kind for kind, name in KINDS.items() if name.endswith("_output"))


class Items(Walk, kw_only=True, eq=False):
    """The state of calls, ids and reasoning.

    Attributes:
        chained: calls may be in a previous response or a conversation.
        stored: the provider keeps items.
        open: calls without an output: call_id to index and kind of tool.
        answered: call_ids that have an output, up to this step; ``new_answered`` are those of this step.
        ids: the items' ids up to this step; ``new_ids`` are those of this step.
        referred: there was an item reference, which may be a call.
        reasoning: the id and index of the previous item if it was reasoning, otherwise "".
        json_unsaid: the answer must be a JSON object, and no item so far may hold the word.
    """

    chained: bool = False
    stored: bool = True
    open: dict[str, tuple[int, str]] = field(default_factory=dict)
    answered: Seen = NONE_SEEN
    new_answered: set[str] = field(default_factory=set)
    ids: Seen = NONE_SEEN
    new_ids: set[str] = field(default_factory=set)
    referred: bool = False
    reasoning: tuple[str, int] = ("", 0)
    json_unsaid: bool = False

    def fork(self) -> Self:
        return structs.replace(self, found=[], open=dict(self.open), new_answered=set(), new_ids=set())

    def judge_items(self, items: Sequence[Item | None]) -> None:
        """Judge items; the ids of one step are remembered together."""
        super().judge_items(items)
        if self.new_answered:
            self.answered, self.new_answered = self.answered.plus(self.new_answered), set()
        if self.new_ids:
            self.ids, self.new_ids = self.ids.plus(self.new_ids), set()

    def judge_item(self, item: Item) -> None:
        kind = item.__class__
        # Reasoning is bound to the item directly after it; several pieces of it may lead to one.
        if self.reasoning[0] and kind is not Reasoning:
            self._follow(item)
        if item.id is not None:
            self._id(item.id, kind)
        if self.json_unsaid:
            self.json_unsaid = not _may_say_json(item)
        judge = _JUDGES.get(kind)
        if judge is not None:
            judge(self, item, f"input.{self.index}")

    def _follow(self, item: Item) -> None:
        name, at = self.reasoning
        if item.__class__ in _OUTPUTS:
            self.refuse(rules.NO_FOLLOWER, f"input.{at}", id=name)
        elif isinstance(item, Message) and item.role != "assistant":
            self.refuse(rules.USER_FOLLOWS, f"input.{at}", id=name)
        elif isinstance(item, Message) and item.id is None and self.stored:
            self.refuse(rules.NO_FOLLOWER, f"input.{at}", id=name)
        self.reasoning = "", 0

    def _id(self, name: str, kind: type) -> None:
        path = f"input.{self.index}.id"
        if name in self.new_ids or name in self.ids:
            self.refuse(rules.SAME_ID, path, id=name)
        self.new_ids.add(name)
        prefix = PREFIXES.get(kind, "")
        if not name.startswith(prefix):
            self.refuse(rules.ID_PREFIX, path, at=bracketed(path), id=name, prefix=prefix)

    def judge_end(self) -> None:
        name, at = self.reasoning
        if name:
            self.refuse(rules.NO_FOLLOWER, f"input.{at}", id=name)
        for call, (index, tool) in self.open.items():
            self.refuse(rules.UNANSWERED, f"input.{index}", tool=tool, id=call)
        if self.json_unsaid:
            self.refuse(rules.JSON_UNSAID, "input")


def _may_say_json(item: Item) -> bool:
    """Return True if the word "json" may be in an item; one that is stored elsewhere or not read here may hold it."""
    return isinstance(item, Reference | Other) or "json" in repr(item).lower()


def _message(walk: Items, item: Message, path: str) -> None:
    if isinstance(item.content, str):
        return
    for at, part in enumerate(item.content):
        _part(walk, part, f"{path}.content.{at}", mine=item.role == "assistant")


def _part(walk: Items, part: Any, path: str, *, mine: bool) -> None:  # noqa: ANN401 - any part, or a hole
    kind = part.__class__
    if mine:
        if isinstance(part, Struct) and part.__struct_config__.tag and kind not in (OutputText, Refusal):
            walk.refuse(rules.ASSISTANT_PART, f"{path}.type", value=part.__struct_config__.tag)
    elif kind is InputText:
        return
    if kind is InputImage and unsupported_image(part.image_url or ""):
        walk.refuse(rules.IMAGE_TYPE, f"{path}.image_url")
    elif kind is InputFile:
        media = media_type(part.file_data or "")
        if media.startswith(("audio/", "video/")):
            where = f"{path}.file_data"
            walk.refuse(rules.FILE_TYPE, where, at=bracketed(where), value=media)
        _file_url(walk, part.file_url or "", f"{path}.file_url")


def _file_url(walk: Items, url: str, path: str) -> None:
    """Judge a document by its address: how it begins, and the name that it ends in."""
    if url.startswith("data:"):
        walk.refuse(rules.FILE_URL_DATA, path, scheme=url.partition(",")[0][:100])
        return
    name = url.partition("?")[0].partition("#")[0].rpartition("/")[2]
    if _AUDIO_OR_VIDEO.search(name):
        walk.refuse(rules.FILE_URL_TYPE, path, name=name)
    elif "." in name and not name.lower().endswith(".pdf"):
        walk.refuse(rules.FILE_URL_FORMAT, path, name=name)


def _call(walk: Items, item: FunctionCall | CustomCall, path: str) -> None:
    _call_id(walk, item.call_id, path)
    judge_name(walk, item.name, f"{path}.name")
    walk.open[item.call_id] = walk.index, _TOOLS[item.__class__]


def _output(walk: Items, item: FunctionOutput | CustomOutput, path: str) -> None:
    _answer(walk, item.call_id, _TOOLS[item.__class__], path)
    if not isinstance(item.output, str):
        for at, part in enumerate(item.output):
            _part(walk, part, f"{path}.output.{at}", mine=False)


def _answer(walk: Items, call: str, tool: str, path: str) -> None:
    _call_id(walk, call, path)
    asked = walk.open.pop(call, None)
    if asked is not None:
        walk.new_answered.add(call)
        if asked[1] != tool:
            walk.refuse(rules.OTHER_OUTPUT, f"{path}.type", tool=asked[1], id=call)
    elif call in walk.new_answered or call in walk.answered:
        walk.refuse(rules.SECOND_OUTPUT, f"{path}.call_id", at=bracketed(path), id=call)
    elif not (walk.referred or walk.chained):
        walk.refuse(rules.ORPHAN, f"{path}.call_id", tool=tool, id=call)


def _call_id(walk: Items, call: str, path: str) -> None:
    if len(call) > rules.ID_LENGTH:
        where = f"{path}.call_id"
        walk.refuse(rules.CALL_ID_TOO_LONG, where, at=bracketed(where), limit=rules.ID_LENGTH, length=len(call))


def _client_call(walk: Items, item: Other, path: str) -> None:
    if item.call_id is not None and not _is_servers(item):
        _call_id(walk, item.call_id, path)
        walk.open[item.call_id] = walk.index, _CLIENT_CALLS[item.__class__]


def _client_output(walk: Items, item: Other, path: str) -> None:
    call = item.id if item.__class__ is OTHERS["local_shell_call_output"] else item.call_id
    if call is not None and not _is_servers(item):
        _answer(walk, call, _CLIENT_OUTPUTS[item.__class__], path)


def _is_servers(item: Other) -> bool:
    return item.execution == "server"


def _reasoning(walk: Items, item: Reasoning, path: str) -> None:
    walk.reasoning = item.id or "", walk.index
    if item.id and not item.encrypted_content and not walk.stored:
        walk.refuse(rules.NOT_STORED, f"{path}.id", id=item.id)


def _reference(walk: Items, item: Reference, path: str) -> None:
    walk.referred = True
    if not walk.stored:
        walk.refuse(rules.NOT_STORED, f"{path}.id", id=item.id)


_JUDGES: dict[type, Callable[[Items, Any, str], None]] = {
    Message: _message,
    FunctionCall: _call,
    CustomCall: _call,
    FunctionOutput: _output,
    CustomOutput: _output,
    Reasoning: _reasoning,
    Reference: _reference,
    **dict.fromkeys(_CLIENT_CALLS, _client_call),
    **dict.fromkeys(_CLIENT_OUTPUTS, _client_output),
}


def judge_name(walk: Walk, name: str, path: str) -> None:
    if not ((name.isidentifier() and name.isascii()) or legal_name(name)):
        walk.refuse(rules.NAME, path, at=bracketed(path))
    if len(name) > rules.NAME_LENGTH:
        walk.refuse(rules.NAME_TOO_LONG, path, at=bracketed(path), limit=rules.NAME_LENGTH, length=len(name))


# Parameters that lead to items outside the request.
_CHAINS = ("previous_response_id", "conversation")
# Types of items that did not exist when the refusal was read.
_NEWER = frozenset({"configuration_update", "agent_message", "multi_agent_call", "multi_agent_call_output"})
_OUTPUT_PARTS = listing(("input_text", "input_image", "input_file"))
_SUPPORTED = {
    "[]": listing(tuple(name for name in KINDS.values() if name not in _NEWER)),
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
    target = "openai-responses"
    key = "input"
    not_json = rules.BAD_JSON
    surrogate = rules.SURROGATE
    items: ClassVar[msgspec.json.Decoder[list[Item]]] = msgspec.json.Decoder(list[ITEM])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Items:
        walk = Items(chained=any(head.get(name) is not None for name in _CHAINS), stored=head.get("store") is not False)
        if "model" not in head:
            walk.refuse(rules.NO_MODEL, "model")
        else:
            _misfits(walk).fit(head["model"], str, "model")
        limit = head.get("max_output_tokens")
        if type(limit) is int and limit < rules.MIN_OUTPUT_TOKENS:
            walk.refuse(rules.FEW_TOKENS, "max_output_tokens", limit=rules.MIN_OUTPUT_TOKENS, value=limit)
        _judge_tools(head.get("tools"), walk)
        judge_types(walk, head, TYPES, rules.SHAPE)
        judge_bounds(walk, head, BOUNDS, rules.OUT_OF_BOUNDS)
        judge_metadata(walk, head, rules.SHAPE)
        judge_model(walk, head, model, MODEL_WORDS)
        _judge_research(head.get("tools"), model, walk)
        text = head.get("text")
        answer = text.get("format") if isinstance(text, dict) else None
        answer_kind = answer.get("type") if isinstance(answer, dict) else None
        if isinstance(answer, dict) and answer_kind == "json_schema" and answer.get("name") is None:
            walk.refuse(rules.MISSING, "text.format.name")
        if is_compiled(model):
            _judge_strict(head.get("tools"), answer, walk)
            judge_tier(walk, head, rules.TIER)
        # An item that is stored elsewhere may hold the word.
        walk.json_unsaid = answer_kind == "json_object" and not walk.chained and head.get("prompt") is None
        for name in head:
            if name == "response_format":
                walk.refuse(rules.MOVED_FORMAT, name)
            elif name not in PARAMETERS:
                walk.refuse(rules.EXTRA_PARAMETER, name)
        return walk

    def read_item(self, value: object, path: str, walk: Items) -> Item | None:
        # A message or reference without its type comes this way as well: the typed decode needs the type.
        typed = {"type": _kind_of(value), **value} if isinstance(value, dict) and "type" not in value else value
        item = _misfits(walk).fit(typed, ITEM, path)
        return None if isinstance(item, Unreadable) else item  # type: ignore[return-value]  # what was asked for

    def judge_no_list(self, walk: Items, body: dict[str, Any]) -> None:
        given = body.get("input")
        if given is None:
            if not (walk.chained or body.get("prompt") is not None):
                walk.refuse(rules.NO_INPUT, "input")
        elif not isinstance(given, str):
            walk.refuse(rules.SHAPE, "input", wanted="one of an array of objects or string", got=kind(given))
        elif walk.json_unsaid and "json" not in given.lower():
            walk.refuse(rules.JSON_UNSAID, "input")


def _kind_of(item: dict[str, object]) -> str:
    return "message" if "role" in item or "content" in item or "id" not in item else "item_reference"


def _misfits(walk: Items) -> Misfits:
    return Misfits(
        walk=walk,
        rules={"missing": rules.MISSING, "type": rules.SHAPE, "tag": rules.PART, "extra": rules.EXTRA_KEY},
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
                    judge_schema(walk, tool, f"{path}.parameters", rules.NO_OBJECT_SCHEMA, rules.TOP_LEVEL_UNION)


def _judge_strict(tools: object, answer: object, walk: Items) -> None:
    """Judge the schemas that the provider compiles: of strict functions, and of a strict answer."""
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type") in {"function", "custom"} and tool.get("strict") is True:
            whose = {"kind": "function", "name": tool.get("name")}
            judge_strict(walk, rules.STRICT_SCHEMA, f"tools.{at}.parameters", tool.get("parameters"), **whose)
    if isinstance(answer, dict) and answer.get("strict") is True:
        whose = {"kind": "response_format", "name": answer.get("name")}
        judge_strict(walk, rules.STRICT_SCHEMA, "text.format.schema", answer.get("schema"), **whose)


def _judge_research(tools: object, model: str | None, walk: Items) -> None:
    """Judge the tools of a deep research model; a prompt that the provider keeps may hold tools."""
    if _RESEARCHES((model or "").lower()) is None:
        return
    kinds = [tool.get("type") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    if any(kind not in rules.RESEARCH_TOOLS for kind in kinds):
        walk.refuse(rules.NO_RESEARCH_TOOL, "tools")
    elif not any(kind in rules.RESEARCH_SOURCES for kind in kinds):
        walk.refuse(rules.NO_RESEARCH, "tools")


RULE_SET = OpenAIResponses()
