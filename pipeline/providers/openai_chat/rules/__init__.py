"""The rules of OpenAI's Chat Completions API: the walk through the messages, and the parameters.

Recorded look-alikes (Mistral, DeepSeek, Groq, Ollama) are laxer; the rules are those of api.openai.com.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import msgspec
from msgspec import UNSET, field, structs

from reknit.pipeline.providers.openai.rules import (
    Misfits,
    bracketed,
    judge_schema,
    kind,
    legal_name,
    listing,
    unsupported_image,
)
from reknit.pipeline.providers.openai.rules.models import judge_model
from reknit.pipeline.providers.openai.rules.strict import is_compiled, judge_strict
from reknit.pipeline.providers.openai.rules.values import judge_bounds, judge_metadata, judge_tier, judge_types
from reknit.pipeline.providers.openai_chat.rules import catalogue as rules
from reknit.pipeline.providers.openai_chat.rules.catalogue import (
    BOUNDS,
    CATALOGUE,
    MODEL_WORDS,
    PARAMETERS,
    PARTS,
    ROLES,
    TYPES,
    UNKNOWN,
    Audio,
    Call,
    ChatFamily,
    File,
    FunctionCall,
    FunctionTool,
    Image,
    Message,
    Text,
    family_of,
)
from reknit.pipeline.rules._fold import Fold, Walk
from reknit.pipeline.rules._misfits import Unreadable
from reknit.pipeline.rules.base import Severity

__all__ = ["CATALOGUE", "RULE_SET", "OpenAIChat", "Turns", "chat_message"]

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Turns(Walk, kw_only=True, eq=False):
    """The state of calls and their tool messages.

    Attributes:
        thinking: the ``type`` of the parameter that DeepSeek and Kimi have, "" where it is absent.
        calls: the ids of the last assistant message's calls, unless another message closed them since; otherwise empty.
        asked: the same ids as a set, since a turn may have very many.
        asked_at: that message's index.
        answered: those of ``calls`` that a tool message answered.
        role: that of the current message.
        json_unsaid: the answer must be a JSON object, and no message so far has the word.
    """

    family: ChatFamily = UNKNOWN
    thinking: str = ""
    calls: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()
    asked_at: int = 0
    answered: set[str] = field(default_factory=set)
    role: str = ""
    json_unsaid: bool = False

    def fork(self) -> Self:
        return structs.replace(self, found=[], answered=set(self.answered))

    def judge_item(self, message: Message) -> None:
        content, role = message.content, message.role
        self.role = role
        if self.json_unsaid:
            self.json_unsaid = "json" not in repr(message).lower()
        # Tool messages must follow their calls directly, so any other message closes the turn.
        if role == "tool":
            self._result(message.tool_call_id)
        elif self.calls:
            self._close()
        if role == "assistant":
            if message.tool_calls is not None:
                self._calls(message, message.tool_calls)
        elif role in ("system", "developer"):
            path = f"messages.{self.index}.role"
            self.refuse(rules.SYSTEM, path, at=bracketed(path), role=role)
        if content.__class__ is list:
            self._parts(content)
        elif content is None or content is UNSET:
            self._no_content(message)

    def _close(self) -> None:
        """End the turn of the last calls; report those without a tool message."""
        if len(self.answered) != len(self.calls):
            left = ", ".join(call for call in self.calls if call not in self.answered)
            self.refuse(rules.UNANSWERED, f"messages.{self.asked_at}", ids=left)
        self.calls, self.asked, self.answered = (), frozenset(), set()

    def _result(self, call: str | None) -> None:
        path = f"messages.{self.index}"
        if call is None:
            self.refuse(rules.MISSING, f"{path}.tool_call_id", at=f"{bracketed(path)}.tool_call_id")
        elif not self.calls:
            self.refuse(rules.ORPHAN, f"{path}.role")
        elif call not in self.asked:
            self.refuse(rules.STRANGER, f"{path}.tool_call_id", id=call)
        elif call in self.answered:
            self.refuse(rules.SAME_ID, f"{path}.tool_call_id", id=call, index=self.index)
        else:
            self.answered.add(call)

    def _calls(self, message: Message, calls: Sequence[Call | Unreadable]) -> None:
        path = f"messages.{self.index}"
        if not calls:
            self.refuse(rules.NO_CALLS, f"{path}.tool_calls", at=f"{bracketed(path)}.tool_calls")
            return
        ids: dict[str, None] = {}
        for at, call in enumerate(calls):
            if isinstance(call, Unreadable):  # could not be read, and was reported
                continue
            if call.id in ids:
                self.refuse(rules.SAME_ID, f"{path}.tool_calls.{at}.id", id=call.id, index=self.index)
            ids[call.id] = None
            self._call(call, f"{path}.tool_calls.{at}")
        self.calls, self.asked, self.asked_at = tuple(ids), frozenset(ids), self.index
        if self.family.echo and message.reasoning_content is UNSET:
            self._no_reasoning(path)

    def _call(self, call: Call, path: str) -> None:
        if len(call.id) > rules.ID_LENGTH:
            where = f"{path}.id"
            self.refuse(rules.ID_TOO_LONG, where, at=bracketed(where), limit=rules.ID_LENGTH, length=len(call.id))
        if call.__class__ is FunctionCall:
            judge_name(self, call.function.name, f"{path}.function.name")
            if not is_object(call.function.arguments):
                where = f"{path}.function.arguments"
                self.refuse(rules.ARGUMENTS_JSON, where, at=bracketed(where))

    def _no_reasoning(self, path: str) -> None:
        """Judge a message with calls that has lost its reasoning, at a provider that requires it back."""
        family, thinking = self.family, self.thinking
        if thinking == "disabled":
            return
        severity: Severity = "hard" if thinking == "enabled" or family.thinks else "model"
        self.found.append(rules.CATALOGUE.rules[family.echo].broken(path, severity, index=self.index))

    def _no_content(self, message: Message) -> None:
        if message.role == "assistant" and (
            message.tool_calls
            or message.function_call is not UNSET
            or message.refusal is not UNSET
            or message.audio is not UNSET
        ):
            return
        if message.role != "function":
            self.refuse(rules.NO_CONTENT, f"messages.{self.index}.content")

    def _parts(self, parts: Sequence[Any]) -> None:
        path = f"messages.{self.index}.content"
        if not parts and self.role != "assistant":
            self.refuse(rules.NO_PARTS, path, at=bracketed(path))
        for at, part in enumerate(parts):
            if part.__class__ is not Text:
                judge = _PARTS.get(part.__class__)
                if judge is not None:
                    judge(self, part, f"{path}.{at}")

    def judge_end(self) -> None:
        if self.calls:
            self._close()
        if not self.index:
            self.refuse(rules.NO_MESSAGES, "messages")
        elif self.json_unsaid:
            self.refuse(rules.JSON_UNSAID, "messages")


def _image(walk: Turns, part: Image, path: str) -> None:
    if walk.role != "user":
        message = f"messages[{walk.index}]"
        walk.refuse(rules.IMAGE_ROLE, path, at=message, role=walk.role)
    url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
    if unsupported_image(url):
        walk.refuse(rules.IMAGE_TYPE, f"{path}.image_url")


def _audio(walk: Turns, _part: Audio, path: str) -> None:
    walk.refuse(rules.AUDIO, path, at=f"messages[{walk.index}]")


def _file(walk: Turns, part: File, path: str) -> None:
    data = part.file
    if data.file_id is None and (data.file_data is None or data.filename is None):
        where = f"{path}.file.file_id"
        walk.refuse(rules.MISSING, where, at=bracketed(where))
    elif data.data is not UNSET:
        where = f"{path}.file.data"
        walk.refuse(rules.UNKNOWN_FILE_DATA, where, at=bracketed(where))


_PARTS: dict[type, Callable[[Turns, Any, str], None]] = {Image: _image, Audio: _audio, File: _file}


def judge_name(walk: Turns, name: str, path: str) -> None:
    if len(name) > rules.NAME_LENGTH:
        walk.refuse(rules.NAME_TOO_LONG, path, at=bracketed(path), limit=rules.NAME_LENGTH, length=len(name))
    # Most names are identifiers, which is cheaper to check than the pattern.
    elif not ((name.isidentifier() and name.isascii()) or legal_name(name)):
        walk.refuse(rules.NAME, path, at=bracketed(path))


def is_object(text: str) -> bool:
    """Return True if a call's arguments are the JSON text of an object."""
    try:
        _OBJECT.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


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
        judge_types(walk, head, TYPES, rules.SHAPE)
        judge_bounds(walk, head, BOUNDS, rules.OUT_OF_BOUNDS)
        judge_metadata(walk, head, rules.SHAPE)
        judge_model(walk, head, model, MODEL_WORDS)
        _judge_stop(head.get("stop"), walk)
        _judge_answer(head.get("response_format"), walk)
        _judge_tools(head, walk)
        if is_compiled(model):
            _judge_strict(head, walk)
            judge_tier(walk, head, rules.TIER)
        for name in head:
            if name not in PARAMETERS:
                walk.refuse(rules.EXTRA_PARAMETER, name, name=name)
        return walk

    def read_item(self, value: object, path: str, walk: Turns) -> Message | None:
        return chat_message(value, path, walk, Message)

    def judge_no_list(self, walk: Turns, body: dict[str, Any]) -> None:
        if "messages" in body:
            walk.refuse(rules.SHAPE, "messages", wanted="an array of objects", got=kind(body["messages"]))
        else:
            walk.refuse(rules.MISSING, "messages")


def chat_message(value: object, path: str, walk: Turns, message: type[Message]) -> Message | None:
    """Make a message of a JSON value tolerantly, and report what does not fit; None where it could not be read."""
    read = _misfits(walk).fit(value, message, path)
    return read if isinstance(read, message) else None


def _misfits(walk: Turns) -> Misfits:
    return Misfits(
        walk=walk,
        rules={"missing": rules.MISSING, "type": rules.SHAPE, "tag": rules.KIND},
        supported=_SUPPORTED,
        wanted=_WANTED,
        own={("role", "tag"): rules.ROLE, ("function.function.arguments", "type"): rules.ARGUMENTS},
    )


def _judge_stop(stop: object, walk: Turns) -> None:
    if isinstance(stop, list) and len(stop) > rules.STOPS:
        walk.refuse(rules.TOO_MANY_STOPS, "stop", at="stop", limit=rules.STOPS, length=len(stop))


def _judge_answer(answer: object, walk: Turns) -> None:
    """Judge the form of the answer."""
    form = answer.get("type") if isinstance(answer, dict) else None
    walk.json_unsaid = form == "json_object"
    named = answer.get("json_schema") if isinstance(answer, dict) and form == "json_schema" else None
    if isinstance(named, dict) and named.get("name") is None:
        walk.refuse(rules.MISSING, "response_format.json_schema.name")


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
        if kind_of_tool == "function" and isinstance(read := misfits.fit(tool, FunctionTool, path), FunctionTool):
            judge_name(walk, read.function.name, f"{path}.function.name")
            place = f"{path}.function.parameters"
            judge_schema(walk, tool["function"], place, rules.NO_OBJECT_SCHEMA, rules.TOP_LEVEL_UNION)


def _judge_strict(head: dict[str, Any], walk: Turns) -> None:
    """Judge the schemas that the provider compiles: of strict functions, and of a strict answer."""
    tools = head.get("tools")
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if isinstance(function, dict) and function.get("strict") is True and "parameters" in function:
            whose = {"kind": "function", "name": function.get("name")}
            path = f"tools.{at}.function.parameters"
            judge_strict(walk, rules.STRICT_SCHEMA, path, function["parameters"], **whose)
    answer = head.get("response_format")
    form = answer.get("json_schema") if isinstance(answer, dict) and answer.get("type") == "json_schema" else None
    if isinstance(form, dict) and form.get("strict") is True and "schema" in form:
        whose = {"kind": "response_format", "name": form.get("name")}
        judge_strict(walk, rules.STRICT_SCHEMA, "response_format.json_schema.schema", form["schema"], **whose)


RULE_SET = OpenAIChat()
