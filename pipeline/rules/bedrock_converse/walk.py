"""One pass over decoded messages: their order, and what each kind of block may hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple

from pipeline.rules._fold import Walk
from pipeline.rules._json import Hole
from pipeline.rules.base import NONE_SEEN, Seen
from pipeline.rules.bedrock_converse import catalogue as rules
from pipeline.rules.bedrock_converse.catalogue import (
    Block,
    Converse,
    Document,
    InResult,
    Media,
    Message,
    Reasoning,
    ToolResult,
    ToolUse,
    member,
)

LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}").fullmatch
_LEGAL_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}").fullmatch
_LONGEST: Final = 64
_IMAGES: Final = ("png", "jpeg", "gif", "webp")
_ROLES: Final = frozenset({"user", "assistant"})


class Turns(Walk, kw_only=True, eq=False):
    """Where the conversation stands. Neighbours of one role make a run.

    Attributes:
        tools: the request has a toolConfig.
        prompt: the request fills a prompt of the service's own, and may be without messages.
        role: whose run it is; "" before the first message.
        run_at: the first message of the run.
        calls: the ids called in the last assistant run.
        results: the ids answered in the user run after it, in order.
        ids: all ids called before that assistant run.
        documents: the names of all documents.
        tool_blocks: there was a call or a result.
    """

    family: Converse
    tools: bool = False
    prompt: bool = False
    role: str = ""
    run_at: int = 0
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    ids: Seen = NONE_SEEN
    documents: Seen = NONE_SEEN
    tool_blocks: bool = False

    def judge_items(self, items: Sequence[Message | None]) -> None:
        """Judge messages, the plain beginning of a request in one pass, which says the same as one by one."""
        if not self.index:
            pass_plain(self, items)
            items = items[self.index :]
        super().judge_items(items)

    def judge_item(self, message: Message) -> None:
        role = message.role
        if role not in _ROLES:
            path = f"messages.{self.index}.role"
            rule = rules.SYSTEM_ROLE if role == "system" else rules.ROLE
            self.refuse(rule, path, at=member(path), value=role)
        if role != self.role:
            self._enter(role)
        else:
            self.refuse(rules.ALTERNATE, f"messages.{self.index}")
        if not message.content:
            path = f"messages.{self.index}"
            self.refuse(rules.EMPTY_MESSAGE, f"{path}.content", at=path)
        calls: list[str] = []
        results: list[str] = []
        documents = False
        at = 0
        for block in message.content:
            text = block.text
            # Most blocks are text that breaks nothing; the rest is looked at.
            if not text or text.isspace() or not _is_one(block):
                self._block(message, at, calls, results)
                documents = documents or block.document is not None
            at += 1  # noqa: SIM113 - enumerate would make a tuple a block
        if calls:
            self._calls(calls)
        if results:
            self._results(results, message)
        if documents:
            self._documents(message)

    def _enter(self, role: str) -> None:
        """Begin a run of ``role``; the one before is complete."""
        if not self.role and role == "assistant":
            self.refuse(rules.FIRST_USER, "messages.0")
        if role == "assistant":
            self._judge_pairs()
            # Only now: two calls of one run under one id break another rule than an id that comes again.
            if self.calls:
                self.ids = self.ids.plus(self.calls)
            self.calls = self.results = ()
        self.role, self.run_at = role, self.index

    def _judge_pairs(self) -> None:
        """Compare the calls of an assistant run with the results of the user run after it."""
        if self.role == "assistant" or not (self.calls or self.results):
            return
        if self.results == self.calls and len(set(self.calls)) == len(self.calls):
            return
        path = f"messages.{self.run_at}.content"
        answered = set(self.results)
        left = [call for call in dict.fromkeys(self.calls) if call not in answered]
        if left:
            self.refuse(rules.UNANSWERED, path, ids=", ".join(left))
        if len(self.results) > len(self.calls):
            self.refuse(rules.TOO_MANY_RESULTS, path)
        if repeated := _repeated(self.results):
            self.refuse(rules.SAME_RESULT, path, ids=repeated)

    def _block(self, message: Message, at: int, calls: list[str], results: list[str]) -> None:
        path, block = f"messages.{self.index}.content.{at}", message.content[at]
        if block.toolUse is not None:
            self._call(block.toolUse, path, calls)
        elif block.toolResult is not None:
            self._result(block.toolResult, path, results)
        if block.text is not None and not block.text.strip():
            self._blank(block.text, message, path)
        _judge_block(self, block, path, at)

    def _blank(self, text: str, message: Message, path: str) -> None:
        """Judge a blank text: whitespace beside a block that says something is only warned about."""
        if text and any(map(_says_something, message.content)):
            if not self.family.blank_text:
                self.refuse(rules.BLANK_BESIDE, f"{path}.text", at=path)
        else:
            self.refuse(rules.BLANK_TEXT, f"{path}.text", at=path)

    def _call(self, call: ToolUse, path: str, calls: list[str]) -> None:
        self.tool_blocks = True
        if LEGAL_NAME(call.toolUseId) is None:
            _refuse_id(self, call.toolUseId, f"{path}.toolUse.toolUseId")
        if call.type == "server_tool_use":
            return  # the service runs it, and answers it in the same turn
        if self.role != "assistant":
            self._misplaced("tool_use", "assistant")
            return
        calls.append(call.toolUseId)
        if call.toolUseId in self.ids and not self.family.unlike_anthropic:
            self.refuse(rules.REUSED_ID, path)

    def _result(self, result: ToolResult, path: str, results: list[str]) -> None:
        self.tool_blocks = True
        if LEGAL_NAME(result.toolUseId) is None:
            _refuse_id(self, result.toolUseId, f"{path}.toolResult.toolUseId")
        if self.role == "user":
            results.append(result.toolUseId)
        elif result.type is None:
            self._misplaced("tool_result", "user")

    def _misplaced(self, kind: str, role: str) -> None:
        self.refuse(rules.BLOCK_ROLE, f"messages.{self.index}", kind=kind, role=role)

    def _calls(self, calls: list[str]) -> None:
        self.calls += tuple(calls)
        if repeated := _repeated(self.calls):
            self.refuse(rules.SAME_CALL, f"messages.{self.index}.content", ids=repeated)

    def _results(self, results: list[str], message: Message) -> None:
        self.results += tuple(results)
        if any(block.toolResult is None and block.cachePoint is None for block in message.content):
            self.refuse(rules.MIXED_RESULTS, f"messages.{self.index}.content")

    def _documents(self, message: Message) -> None:
        names = [(at, block.document.name) for at, block in enumerate(message.content) if block.document is not None]
        path = f"messages.{self.index}.content"
        if all(block.text is None for block in message.content):
            self.refuse(rules.LONE_DOCUMENT, path)
        for at, name in names:
            if name in self.documents:
                self.refuse(rules.SAME_DOCUMENT, f"{path}.{at}.document.name")
            self.documents = self.documents.plus([name])

    def judge_end(self) -> None:
        self._judge_pairs()
        if not self.index and not self.prompt:
            self.refuse(rules.NO_MESSAGES, "messages")
        if self.tool_blocks and not self.tools:
            self.refuse(rules.NO_TOOLS, "toolConfig")
        if self.role == "assistant":
            path = f"messages.{self.index - 1}"
            self.refuse_where_known(rules.PREFILL, path)
            if self.tools and self.family.prefill is not False:
                self.refuse_where_known(rules.PREFILL_TOOLS, path)
            if self.calls:
                ids = ", ".join(dict.fromkeys(self.calls))
                self.refuse(rules.OPEN_END, f"{path}.content", at=f"messages.{self.index}.content", ids=ids)


def _repeated(ids: Collection[str]) -> str:
    if len(set(ids)) == len(ids):
        return ""
    return ", ".join(each for each, count in Counter(ids).items() if count > 1)


def constraint(value: str, pattern: str) -> str:
    """Say which constraint of the service's model a name or an id breaks."""
    if not value:
        return "have length greater than or equal to 1"
    if len(value) > _LONGEST:
        return f"have length less than or equal to {_LONGEST}"
    return f"satisfy regular expression pattern: {pattern}"


def _refuse_id(walk: Turns, call: str, path: str) -> None:
    """Report the id of a call or a result that is not of the plainest kind."""
    rule = rules.CONSTRAINT if _LEGAL_ID(call) is None else rules.NARROW_ID
    walk.refuse(rule, path, at=member(path), value=call, constraint=constraint(call, "[a-zA-Z0-9_-]+"))


def _judge_block(walk: Turns, block: Block, path: str, at: int) -> None:
    """Judge a block that is more, or less, than a text with words in it."""
    _judge_union(walk, block, path, "ContentBlock")
    if block.toolUse is not None:
        name = block.toolUse.name
        if LEGAL_NAME(name) is None:
            inner = f"{path}.toolUse.name"
            words = constraint(name, "[a-zA-Z0-9_-]+")
            walk.refuse(rules.TOOL_NAME, inner, at=member(inner), value=name, constraint=words)
    elif block.toolResult is not None:
        _judge_result(walk, block.toolResult, f"{path}.toolResult", at)
    elif block.reasoningContent is not None:
        _judge_reasoning(walk, block.reasoningContent, path)
    else:
        _judge_media(walk, block, path)


def _says_something(block: Block) -> bool:
    return block.cachePoint is None and (block.text is None or bool(block.text.strip()))


def _is_one(union: Struct) -> bool:
    """Tell whether exactly one field of a union is set."""
    values = astuple(union)
    return values.count(None) == len(values) - 1


def _judge_union(walk: Turns, union: Struct, path: str, kind: str) -> None:
    if not _is_one(union):
        keys = ", ".join(union.__struct_fields__)
        walk.refuse(rules.UNION, path, kind=kind, keys=keys)


def _judge_result(walk: Turns, result: ToolResult, path: str, at: int) -> None:
    if result.status == "error" and not result.content:
        walk.refuse(rules.EMPTY_ERROR, f"{path}.content", at=path)
    for number, block in enumerate(result.content):
        # What could not be read was reported; a text with words in it breaks nothing.
        if isinstance(block, Hole) or (block.text and not block.text.isspace() and _is_one(block)):
            continue
        inner = f"{path}.content.{number}"
        _judge_union(walk, block, inner, "ToolResultContentBlock")
        if block.text is not None and not block.text.strip():
            walk.refuse(rules.BLANK_IN_RESULT, f"{inner}.text", at=inner)
        if block.document is not None or block.video is not None:
            walk.refuse(rules.FILE_IN_RESULT, inner, n=walk.index, p=at)
        _judge_media(walk, block, inner)


def _judge_media(walk: Turns, block: Block | InResult, path: str) -> None:
    if block.image is not None:
        _judge_image(walk, block.image, f"{path}.image")
    if block.video is not None:
        walk.refuse(rules.VIDEO, f"{path}.video")
        _judge_source(walk, block.video, f"{path}.video")
    if block.document is not None:
        _judge_source(walk, block.document, f"{path}.document")


def _judge_image(walk: Turns, image: Media, path: str) -> None:
    if image.format not in _IMAGES:
        inner = f"{path}.format"
        walk.refuse(rules.IMAGE_FORMAT, inner, at=member(inner), value=image.format)
    if image.source.s3Location is not None:
        walk.refuse(rules.S3_IMAGE, f"{path}.source.s3Location")
    _judge_source(walk, image, path)


def _judge_source(walk: Turns, media: Media | Document, path: str) -> None:
    kind = "DocumentSource" if isinstance(media, Document) else "Source"
    _judge_union(walk, media.source, f"{path}.source", kind)


def _judge_reasoning(walk: Turns, reasoning: Reasoning, path: str) -> None:
    inner = f"{path}.reasoningContent"
    if walk.family.reasoning is False:
        walk.refuse(rules.REASONING, inner)
    elif walk.role != "assistant":
        # Of other families nobody has seen what they say of reasoning among the user's words.
        walk.found.append(rules.REASONING.broken(inner, "model"))
    text = reasoning.reasoningText
    if text is not None and not text.signature and walk.family.unsigned_reasoning is False:
        at = f"{path}.thinking.signature"
        walk.refuse(rules.SIGNATURE, f"{inner}.reasoningText.signature", at=at)


# Most requests break nothing: users and assistants take turns, and each call is answered at once, in order, by texts.
# So much is told here by a few comparisons a block. What comes behind it is judged message by message.


def pass_plain(walk: Turns, messages: Sequence[Message | None]) -> None:
    """Take a walk that has not begun past as many pairs of a user's and an assistant's message as break nothing."""
    known: set[str] = set()
    calls: list[str] = []
    count, tool_blocks = 0, False
    for user, assistant in zip(messages[::2], messages[1::2], strict=False):
        if user is None or assistant is None or user.role != "user" or assistant.role != "assistant":
            break
        # What was not decoded but read tolerantly may be no list.
        if type(user.content) is not list or type(assistant.content) is not list or not _answers(user.content, calls):
            break
        asked = _asks(assistant.content)
        known.update(calls)
        if asked is None or len(set(asked)) < len(asked) or not known.isdisjoint(asked):
            known.difference_update(calls)
            break
        tool_blocks = tool_blocks or bool(asked)
        calls = asked
        count += 2
    if count:
        walk.index, walk.run_at, walk.role = count, count - 1, "assistant"
        walk.calls, walk.ids, walk.tool_blocks = tuple(calls), walk.ids.plus(known), tool_blocks


def _answers(blocks: Sequence[Block], calls: Sequence[str]) -> bool:
    """Whether a user's message is the results of these calls in their order, or, without calls, plain text."""
    if not calls:
        return bool(blocks) and all(_says(block) for block in blocks)
    if len(blocks) != len(calls):
        return False
    for block, call in zip(blocks, calls, strict=True):
        result = block.toolResult
        if type(result) is not ToolResult or result.toolUseId != call or block != Block(toolResult=result):
            return False
        if result.type is not None or type(result.content) is not list or not result.content:
            return False
        for part in result.content:
            # Equal to one with this text alone: the quickest way to see that it is alone.
            if type(part) is not InResult or not (text := part.text) or text.isspace() or part != InResult(text):
                return False
    return True


def _asks(blocks: Sequence[Block]) -> list[str] | None:
    """The calls of an assistant's message that is plain text and calls; None if it is anything else."""
    calls: list[str] = []
    for block in blocks:
        call = block.toolUse
        if call is None:
            if not _says(block):
                return None
        elif type(call) is ToolUse and call.type is None and block == Block(toolUse=call):
            if not (_is_plain_name(call.toolUseId) and _is_plain_name(call.name)):
                return None
            calls.append(call.toolUseId)
        else:
            return None
    return calls if blocks else None


def _says(block: Block) -> bool:
    text = block.text
    return type(text) is str and bool(text) and not text.isspace() and block == Block(text)


def _is_plain_name(name: object) -> bool:
    """Whether an id or a name is an identifier, as most are (tooluse_7, read_file); the service takes a few more."""
    return type(name) is str and len(name) <= _LONGEST and name.isascii() and name.isidentifier()
