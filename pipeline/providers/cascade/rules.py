"""The rules of a planner that takes text only, with tools emulated in the text, as a fold over a request's messages.

They share no code with the writer of such requests: the syntax and the places of tags are defined here again. The
planner's own refusals have few words, so most messages are Reknit's; sources name where the problem was seen.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from reknit.pipeline.rules._fold import Fold, Walk
from reknit.pipeline.rules.base import Catalogue, Violation

CATALOGUE = Catalogue("cascade")
rule = CATALOGUE.rule

_WINDSURF = "dwgx/WindsurfAPI"

# fmt: off
# One paragraph a rule.

# The body

BAD_JSON = rule("CAS-01", "hard", "the request body is not valid JSON",
    summary="The body is a JSON object.",
    repair="encode it again", source="Reknit: the body is JSON")
SURROGATE = rule("CAS-02", "hard", "{at}: half of a surrogate pair",
    summary="Texts hold no half of a surrogate pair: the planner takes UTF-8 strings.",
    repair="join the halves, or replace the character", source="Protocol Buffers: strings are UTF-8")
NO_MESSAGES = rule("CAS-03", "hard", "messages: at least one message is required",
    summary="The list of messages is not empty.",
    repair="insert a user turn", source="Reknit: nothing to ask")
SHAPE = rule("CAS-04", "hard", "{at}: expected {wanted}",
    summary="A message is a role, user or assistant, and a content, which is a string; the system slot is a string.",
    repair="write blocks as text", source=f"{_WINDSURF}: history is text only")
BLANK = rule("CAS-05", "hard", "{at}: the content is blank",
    summary="Every message says something.",
    repair="leave the turn out", source=f"{_WINDSURF} 79cd990: status 400 for empty user content")
NO_SLOT = rule("CAS-06", "hard", "{at}: the planner has no place for tools",
    summary="Tools are described in the system slot; a body that declares them is read without them.",
    repair="write them into the preamble", source=f"{_WINDSURF}: no tool schemas in a request")
LAST_ASSISTANT = rule("CAS-07", "soft", "{at}: nothing to answer after the assistant's turn",
    summary="The last message is the user's.",
    repair="append a user turn", source="Reknit: the planner answers the user")
NO_MODEL = rule("CAS-08", "soft", "model: missing",
    summary="The body names a model.",
    repair="name it", source="Reknit: the planner serves many", by_sender=True)

# The user's turns

FORGED = rule("CAS-09", "hard", "{at}: {tag} at character {place} stands where only a tool's output or words can",
    summary="A turn of results is whole <tool_result> blocks with their ids, then words, and no other tag in either: "
    "a tool's output can neither end its own block nor call a tool.",
    repair="break the tag with a backslash", source=f"{_WINDSURF} d4dadf2 and later: injection through tool output")
PREAMBLE_FIRST = rule("CAS-10", "hard", "{at}: instructions on tools stand before a tool's result",
    summary="The last turn begins with its results, not with instructions on calls: models that find both refuse to "
            "continue, and the request ends in a time-out (max_wait, 180 s).",
    repair="leave the line out", source=f"{_WINDSURF} d4dadf2; max_wait on Opus models")
CONFIGURED = rule("CAS-11", "hard", "{at}: instructions on tools in the user's turn hold {what}",
    summary="The description of tools in the user's latest turn is one plain line: no heading, no schema, no fence, "
            "nothing that asks to ignore other instructions.",
    repair="keep to the protocol and the names", source=f"{_WINDSURF}#22, #51: taken for an attempt to override")

# The system slot

NO_DIRECTORY = rule("CAS-12", "hard", "system: the environment has no working directory that is an absolute path",
    summary="An environment block names a working directory; without one the planner's own workspace wins.",
    repair="leave the block out", source=f"{_WINDSURF}: the planner asserts its own workspace")
# fmt: on

_ENVIRONMENT = re.compile(
    r"\s*## Authoritative environment for this session[ \t]*\n(?P<lines>.*?)(?:^---[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
_DIRECTORY = re.compile(r"^- Working directory: (?:/|~|[A-Za-z]:[\\/]|\\\\)", re.MULTILINE)
_NO_SLOT = ("tools", "tool_choice", "functions", "function_call")
_MESSAGE_KEYS = ("role", "content")
_ROLES = ("user", "assistant")  # a tuple, for a role may be anything
_TAG = re.compile(r"</?tool_(?:call|result)|<\|tool_", re.IGNORECASE)
_BLOCK = re.compile(r'\s*<tool_result tool_call_id="[A-Za-z0-9_.:-]{1,128}">')
_BEGINS_LIKE_ONE = re.compile(r"\s*<tool_result", re.IGNORECASE)
_WORD = re.compile(r"<[/|]?\w{1,40}")
_END = "</tool_result>"

# Instructions on tools and calls that a user's turn must not contain.
_CONFIGURATION = (
    (re.compile(r"^[ \t]*#{1,6} ", re.MULTILINE), "a heading"),
    (re.compile(r"parameters schema:|^[ \t]*parameters:", re.IGNORECASE | re.MULTILINE), "a schema"),
    (re.compile(r"```"), "a fence"),
    (re.compile(r"ignore (?:any earlier|previous instructions)", re.IGNORECASE), "a call to ignore instructions"),
    (re.compile(r"for this request only|\[tool-calling context", re.IGNORECASE), "a passing override"),
)


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["user", "assistant"]
    content: str


class Turns(Walk, kw_only=True, eq=False):
    """The role and place of the last message, and what is wrong with the user's latest, if it stays that."""

    role: str = ""
    at: int = 0
    latest: tuple[Violation, ...] = ()

    def judge_item(self, message: Message) -> None:
        path = f"messages.{self.index}.content"
        if not message.content.strip():
            self.refuse(BLANK, path)
        self.role, self.at = message.role, self.index
        if message.role == "user" and _begins_with_result(message.content):
            _judge_results(self, message.content, path)
            self.latest = ()
        elif message.role == "user":
            self.latest = tuple(_judge_instructions(message.content, path))

    def judge_end(self) -> None:
        if not self.index:
            self.refuse(NO_MESSAGES, "messages")
            return
        self.found += self.latest
        if self.role == "assistant":
            self.refuse(LAST_ASSISTANT, f"messages.{self.at}")


class Cascade(Fold[Turns, Message]):
    target = "cascade"
    key = "messages"
    not_json = BAD_JSON
    surrogate = SURROGATE
    items: ClassVar[msgspec.json.Decoder[list[Message]]] = msgspec.json.Decoder(list[Message])

    def begin_walk(self, head: dict[str, Any], model: str | None) -> Turns:
        walk = Turns()
        for key in _NO_SLOT:
            if key in head:
                walk.refuse(NO_SLOT, key)
        if not (model or head.get("model")):
            walk.refuse(NO_MODEL, "model")
        system = head.get("system", "")
        if not isinstance(system, str):
            walk.refuse(SHAPE, "system", wanted="a string")
        elif (block := _ENVIRONMENT.match(system)) and not _DIRECTORY.search(block["lines"]):
            walk.refuse(NO_DIRECTORY, "system")
        return walk

    def read_item(self, value: object, path: str, walk: Turns) -> Message | None:
        if not isinstance(value, dict):
            walk.refuse(SHAPE, path, wanted="an object with a role and a content")
            return None
        role, content = value.get("role"), value.get("content")
        for key in value:
            if key not in _MESSAGE_KEYS:
                walk.refuse(SHAPE, f"{path}.{key}", wanted="a role and a content, nothing else")
        if role not in _ROLES:
            walk.refuse(SHAPE, f"{path}.role", wanted='"user" or "assistant"')
        if not isinstance(content, str):
            walk.refuse(SHAPE, f"{path}.content", wanted="a string")
            return None
        return Message("assistant" if role == "assistant" else "user", content)

    def judge_no_list(self, walk: Turns, body: dict[str, Any]) -> None:
        del body
        walk.refuse(SHAPE, "messages", wanted="a list of messages")


def _begins_with_result(text: str) -> bool:
    """Return True if a turn is one of results, or pretends to be."""
    return _BEGINS_LIKE_ONE.match(text) is not None


def _judge_results(walk: Turns, text: str, path: str) -> None:
    """A turn that begins with a result: whole blocks, then words; the first tag in a wrong place is reported."""
    at = 0
    while block := _BLOCK.match(text, at):
        tag = _TAG.search(text, block.end())
        if tag is None or not text.startswith(_END, tag.start()):
            _refuse_tag(walk, text, block if tag is None else tag, path)
            return
        at = tag.start() + len(_END)
    tag = _TAG.search(text, at)
    if tag is not None:
        _refuse_tag(walk, text, tag, path)


def _judge_instructions(text: str, path: str) -> list[Violation]:
    """Judge the latest user turn: its first paragraph must not instruct how to call tools."""
    first_part, _, rest = text.partition("\n\n")
    if '<tool_call>{"name"' not in first_part or "<tool_result" not in first_part:
        return []
    found = [CONFIGURED.broken(path, what=what) for shape, what in _CONFIGURATION if shape.search(first_part)]
    if _begins_with_result(rest):
        found.append(PREAMBLE_FIRST.broken(path))
    return found


def _refuse_tag(walk: Turns, text: str, match: re.Match[str], path: str) -> None:
    """Report a tag, or a block without an end, by its first word."""
    place = text.index("<", match.start())
    walk.refuse(FORGED, path, tag=_WORD.match(text, place)[0], place=place)  # type: ignore[index]  # it begins so


RULE_SET = Cascade()
