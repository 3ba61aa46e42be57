"""The shape and the content of a message and of each kind of block.

Fields are those of the service's own model. A block is a union: exactly one of its fields is set.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import astuple

from reknit.pipeline.providers.anthropic.rules.signatures import is_of_another_issuer, is_of_vertex
from reknit.pipeline.providers.bedrock_converse.rules import catalogue as rules
from reknit.pipeline.providers.bedrock_converse.rules.catalogue import Converse, member
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules._media import CONVERSE
from reknit.pipeline.rules._misfits import Anything, Report, Spot, Unreadable, fit_with_items, without_unreadable
from reknit.pipeline.rules._pictures import look
from reknit.pipeline.rules.base import Rule


class Source(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The location of an image, a video or a sound; bytes are base64."""

    bytes: str | None = None
    s3Location: Anything | None = None


class Media(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    format: str
    source: Source
    error: Raw | UnsetType = UNSET


class DocumentSource(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    bytes: str | None = None
    s3Location: Anything | None = None
    text: str | None = None
    content: list[Anything] | None = None


class Document(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A document; its name is unique in the request."""

    name: str
    source: DocumentSource
    format: str | None = None
    context: str | None = None
    citations: Raw | UnsetType = UNSET


class ToolUse(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A call; its type distinguishes the service's own tools (``server_tool_use``) from the caller's."""

    toolUseId: str
    name: str
    input: Anything
    type: str | None = None


class InResult(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    text: str | None = None
    json: Anything | None = None
    image: Media | None = None
    document: Document | None = None
    video: Media | None = None
    searchResult: Anything | None = None


class ToolResult(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    toolUseId: str
    content: list[InResult]
    status: str | None = None
    type: str | None = None


class ReasoningText(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    text: str
    signature: str | None = None


class Reasoning(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    reasoningText: ReasoningText | None = None
    redactedContent: str | None = None


class Block(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    text: str | None = None
    toolUse: ToolUse | None = None
    toolResult: ToolResult | None = None
    reasoningContent: Reasoning | None = None
    image: Media | None = None
    document: Document | None = None
    video: Media | None = None
    audio: Media | None = None
    cachePoint: Anything | None = None
    guardContent: Anything | None = None
    citationsContent: Anything | None = None
    searchResult: Anything | None = None
    toolAddition: Anything | None = None
    toolRemoval: Anything | None = None


class Message(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    role: str
    content: list[Block]


class MediaWalk(Walk, kw_only=True, eq=False):
    """The state of a request's media.

    Attributes:
        images: the number of images.
        files: the number of documents.
        wide: the places of the images that are too large among many.
    """

    images: int = 0
    files: int = 0
    wide: tuple[str, ...] = ()

    def judge_media(self) -> None:
        """Judge the number of images and documents, and the images that are too large among so many."""
        if self.images > CONVERSE.many:
            for path in self.wide:
                self.refuse(rules.IMAGE_TOO_WIDE, path)
        if self.images + self.files > CONVERSE.media_of_some:
            self.refuse(rules.TOO_MANY_MEDIA, "", images=self.images, documents=self.files)
        if self.size > CONVERSE.body_bytes:
            self.refuse(rules.TOO_LARGE, "")


# Replaces a block that could not be read and was reported; it violates no rule of its own.
UNREAD = Block(cachePoint=Anything())

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}").fullmatch
_LEGAL_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}").fullmatch
_LONGEST: Final = 64
_IMAGES: Final = ("png", "jpeg", "gif", "webp")


def read_message(value: object, path: str, report: Report) -> Message | None:
    """Read a message tolerantly; None where nothing can be made of it."""
    try:
        return msgspec.convert(value, Message)
    except (msgspec.ValidationError, UnicodeEncodeError):  # a lone surrogate
        message, blocks = fit_with_items(value, Message, Spot(path, path), report, field="content", item=Block)
    if not isinstance(message, Message):
        return None
    return message if blocks is None else Message(message.role, without_unreadable(blocks, Block, UNREAD))


def refuse_constraint(walk: Walk, rule: Rule, value: str, path: str) -> None:
    """Report an empty text, or a name or an id that breaks a constraint of the service's model."""
    words = "satisfy regular expression pattern: [a-zA-Z0-9_-]+"
    if not value:
        words = "have length greater than or equal to 1"
    elif len(value) > _LONGEST:
        words = f"have length less than or equal to {_LONGEST}"
    walk.refuse(rule, path, at=member(path), value=value, constraint=words)


def judge_id(walk: Walk, call: str, path: str) -> None:
    """Judge the id of a call or a result; one that only newer models of the service take is warned about."""
    if _LEGAL_NAME(call) is None:
        refuse_constraint(walk, rules.CONSTRAINT if _LEGAL_ID(call) is None else rules.NARROW_ID, call, path)


def judge_name(walk: Walk, name: str, path: str) -> None:
    """Judge the name of a tool, in a call or where it is declared."""
    if _LEGAL_NAME(name) is None:
        refuse_constraint(walk, rules.TOOL_NAME, name, path)


def judge_block(walk: MediaWalk, block: Block, path: str, at: int, role: str) -> None:
    """Judge a block that is more, or less, than a text with words in it, in a message of this role."""
    _judge_union(walk, block, path, "ContentBlock")
    if block.toolUse is not None:
        judge_name(walk, block.toolUse.name, f"{path}.toolUse.name")
    elif block.toolResult is not None:
        _judge_result(walk, block.toolResult, f"{path}.toolResult", at)
    elif block.reasoningContent is not None:
        _judge_reasoning(walk, block.reasoningContent, path, role)
    else:
        _judge_media(walk, block, path)


def says_something(block: Block) -> bool:
    return block.cachePoint is None and (block.text is None or bool(block.text.strip()))


def is_one(union: Struct) -> bool:
    """Return True if exactly one field of a union is set."""
    values = astuple(union)
    return values.count(None) == len(values) - 1


def _judge_union(walk: Walk, union: Struct, path: str, kind: str) -> None:
    if not is_one(union):
        keys = ", ".join(union.__struct_fields__)
        walk.refuse(rules.UNION, path, kind=kind, keys=keys)


def _judge_result(walk: MediaWalk, result: ToolResult, path: str, at: int) -> None:
    if result.status == "error" and not result.content:
        walk.refuse(rules.EMPTY_ERROR, f"{path}.content", at=path)
    for number, block in enumerate(result.content):
        # A block that could not be read was reported; a text with words is valid.
        if isinstance(block, Unreadable) or (block.text and not block.text.isspace() and is_one(block)):
            continue
        inner = f"{path}.content.{number}"
        _judge_union(walk, block, inner, "ToolResultContentBlock")
        if block.text is not None and not block.text.strip():
            walk.refuse(rules.BLANK_IN_RESULT, f"{inner}.text", at=inner)
        if block.document is not None or block.video is not None:
            walk.refuse(rules.FILE_IN_RESULT, inner, n=walk.index, p=at)
        _judge_media(walk, block, inner)


def _judge_media(walk: MediaWalk, block: Block | InResult, path: str) -> None:
    if block.image is not None:
        _judge_image(walk, block.image, f"{path}.image")
    if block.video is not None:
        walk.refuse(rules.VIDEO, f"{path}.video")
        _judge_source(walk, block.video, f"{path}.video")
    if block.document is not None:
        _judge_source(walk, block.document, f"{path}.document")
        walk.files += 1


def _judge_image(walk: MediaWalk, image: Media, path: str) -> None:
    if image.format not in _IMAGES:
        inner = f"{path}.format"
        walk.refuse(rules.IMAGE_FORMAT, inner, at=member(inner), value=image.format)
    if image.source.s3Location is not None:
        walk.refuse(rules.S3_IMAGE, f"{path}.source.s3Location")
    _judge_source(walk, image, path)
    walk.images += 1
    data = image.source.bytes
    if data is not None:
        _judge_size(walk, data, f"{path}.source.bytes")


def _judge_size(walk: MediaWalk, data: str, path: str) -> None:
    if len(data) > CONVERSE.image_bytes:
        walk.refuse(rules.IMAGE_TOO_BIG, path, bytes=len(data))
    picture = look(data)
    longest = max(picture.width, picture.height) if picture is not None else 0
    if longest > CONVERSE.side:
        walk.refuse(rules.IMAGE_TOO_LONG, path)
    elif longest > CONVERSE.many_side:
        walk.wide += (path,)


def _judge_source(walk: Walk, media: Media | Document, path: str) -> None:
    kind = "DocumentSource" if isinstance(media, Document) else "Source"
    _judge_union(walk, media.source, f"{path}.source", kind)


def _judge_reasoning(walk: Walk, reasoning: Reasoning, path: str, role: str) -> None:
    inner = f"{path}.reasoningContent"
    if walk.family.reasoning is False:
        walk.refuse(rules.REASONING, inner)
    elif role != "assistant":
        # The reaction of other families to reasoning in a user message is unknown.
        walk.found.append(rules.REASONING.broken(inner, "model"))
    text = reasoning.reasoningText
    if text is not None and not text.signature and walk.family.unsigned_reasoning is False:
        at = f"{path}.thinking.signature"
        walk.refuse(rules.SIGNATURE, f"{inner}.reasoningText.signature", at=at)
    if text is not None and text.signature and (is_of_another_issuer(text.signature) or is_of_vertex(text.signature)):
        walk.refuse_where_known(rules.FOREIGN_SIGNATURE, f"{inner}.reasoningText.signature", at=path)


# A look that most blocks pass: plain texts, and calls that are answered in their order by plain texts.


def are_plain_answers(blocks: Sequence[Block], calls: Sequence[str]) -> bool:
    """Return True if a user's message is the results of these calls in their order, or, without calls, plain text."""
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


def plain_calls(blocks: Sequence[Block], family: Converse) -> list[str] | None:
    """The calls of an assistant's message that is plain text, reasoning and calls; None if it is anything else."""
    calls: list[str] = []
    for block in blocks:
        call = block.toolUse
        if call is None:
            if not _says(block) and not _is_plain_reasoning(block, family):
                return None
        elif type(call) is ToolUse and call.type is None and block == Block(toolUse=call):
            if not (is_plain_name(call.toolUseId) and is_plain_name(call.name)):
                return None
            calls.append(call.toolUseId)
        else:
            return None
    return calls if blocks else None


def _is_plain_reasoning(block: Block, family: Converse) -> bool:
    """Return True if a block is signed reasoning that a family may take."""
    reasoning = block.reasoningContent
    if type(reasoning) is not Reasoning or block != Block(reasoningContent=reasoning) or family.reasoning is False:
        return False
    text = reasoning.reasoningText
    signature = text.signature if type(text) is ReasoningText else None
    if type(signature) is not str or not signature:
        return False
    return not (is_of_another_issuer(signature) or is_of_vertex(signature))


def _says(block: Block) -> bool:
    text = block.text
    return type(text) is str and bool(text) and not text.isspace() and block == Block(text)


def is_plain_name(name: object) -> bool:
    """True if an id or a name is an identifier, as most are (tooluse_7, read_file); the service takes a few more."""
    return type(name) is str and len(name) <= _LONGEST and name.isascii() and name.isidentifier()
