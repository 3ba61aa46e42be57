"""What each kind of block may hold."""

from __future__ import annotations

import re
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import astuple

from pipeline.rules._shape import Hole
from pipeline.rules.base import Rule, Violation
from pipeline.rules.bedrock_converse import catalogue as rules
from pipeline.rules.bedrock_converse.catalogue import member
from pipeline.rules.bedrock_converse.wire import Block, Document, InResult, Media, Reasoning, ToolResult
from pipeline.rules.models import Converse

LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}").fullmatch
_LEGAL_ID: Final = re.compile(r"[a-zA-Z0-9_.:-]{1,64}").fullmatch
_LONGEST: Final = 64
_IMAGES: Final = ("png", "jpeg", "gif", "webp")


class Place(Protocol):
    """Where the walk stands, as far as blocks need to know."""

    found: list[Violation]
    family: Converse
    index: int
    role: str

    def tell(self, rule: Rule, path: str, takes: bool | None, **values: object) -> None:  # noqa: FBT001 - a fact of a family
        """Report what the family is not known to take."""


def constraint(value: str, pattern: str) -> str:
    """Say which constraint of the service's model a name or an id breaks."""
    if not value:
        return "have length greater than or equal to 1"
    if len(value) > _LONGEST:
        return f"have length less than or equal to {_LONGEST}"
    return f"satisfy regular expression pattern: {pattern}"


def judge_call_id(call: str, path: str) -> Violation:
    """Say what is wrong with the id of a call or a result that is not of the plainest kind."""
    rule = rules.CONSTRAINT if _LEGAL_ID(call) is None else rules.NARROW_ID
    return rule.broken(path, at=member(path), value=call, constraint=constraint(call, "[a-zA-Z0-9_-]+"))


def judge_block(place: Place, block: Block, path: str, at: int) -> None:
    """Judge a block that is more, or less, than a text with words in it."""
    if block.text is not None and not block.text.strip():
        place.tell(rules.BLANK_TEXT, f"{path}.text", place.family.blank_text, at=path)
    _judge_union(place, block, path, "ContentBlock")
    if block.toolUse is not None:
        name = block.toolUse.name
        if LEGAL_NAME(name) is None:
            inner = f"{path}.toolUse.name"
            words = constraint(name, "[a-zA-Z0-9_-]+")
            place.found.append(rules.TOOL_NAME.broken(inner, at=member(inner), value=name, constraint=words))
    elif block.toolResult is not None:
        _judge_result(place, block.toolResult, f"{path}.toolResult", at)
    elif block.reasoningContent is not None:
        _judge_reasoning(place, block.reasoningContent, path)
    else:
        _judge_media(place, block, path)


def is_one(union: Struct) -> bool:
    """Tell whether exactly one field of a union is set."""
    values = astuple(union)
    return values.count(None) == len(values) - 1


def _judge_union(place: Place, union: Struct, path: str, kind: str) -> None:
    if not is_one(union):
        keys = ", ".join(union.__struct_fields__)
        place.found.append(rules.UNION.broken(path, kind=kind, keys=keys))


def _judge_result(place: Place, result: ToolResult, path: str, at: int) -> None:
    if result.status == "error" and not result.content:
        place.found.append(rules.EMPTY_ERROR.broken(f"{path}.content", at=path))
    for number, block in enumerate(result.content):
        # What could not be read was reported; a text with words in it breaks nothing.
        if isinstance(block, Hole) or (block.text and not block.text.isspace() and is_one(block)):
            continue
        inner = f"{path}.content.{number}"
        _judge_union(place, block, inner, "ToolResultContentBlock")
        if block.text is not None and not block.text.strip():
            place.found.append(rules.BLANK_IN_RESULT.broken(f"{inner}.text", at=inner))
        if block.document is not None or block.video is not None:
            place.tell(rules.FILE_IN_RESULT, inner, place.family.files_in_results, n=place.index, p=at)
        _judge_media(place, block, inner)


def _judge_media(place: Place, block: Block | InResult, path: str) -> None:
    if block.image is not None:
        _judge_image(place, block.image, f"{path}.image")
    if block.video is not None:
        place.tell(rules.VIDEO, f"{path}.video", place.family.video)
        _judge_source(place, block.video, f"{path}.video")
    if block.document is not None:
        _judge_source(place, block.document, f"{path}.document")


def _judge_image(place: Place, image: Media, path: str) -> None:
    if image.format not in _IMAGES:
        inner = f"{path}.format"
        place.found.append(rules.IMAGE_FORMAT.broken(inner, at=member(inner), value=image.format))
    if image.source.s3Location is not None:
        place.tell(rules.S3_IMAGE, f"{path}.source.s3Location", place.family.s3_images)
    _judge_source(place, image, path)


def _judge_source(place: Place, media: Media | Document, path: str) -> None:
    kind = "DocumentSource" if isinstance(media, Document) else "Source"
    _judge_union(place, media.source, f"{path}.source", kind)


def _judge_reasoning(place: Place, reasoning: Reasoning, path: str) -> None:
    inner = f"{path}.reasoningContent"
    if place.role != "assistant" or place.family.reasoning is False:
        # Of other families nobody has seen what they say of reasoning among the user's words.
        place.tell(rules.REASONING, inner, False if place.family.reasoning is False else None)
    text = reasoning.reasoningText
    if text is not None and not text.signature and place.family.unsigned_reasoning is False:
        at = f"{path}.thinking.signature"
        place.found.append(rules.SIGNATURE.broken(f"{inner}.reasoningText.signature", "hard", at=at))
