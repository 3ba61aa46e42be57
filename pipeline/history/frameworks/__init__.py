"""Histories as agent frameworks store them: a list of shapes, and the recognition of each by its keys.

No framework is a target. A shape is described once (`Framework`), and `reknit.pipeline.history.readers.shapes` reads
it wherever a history or a message is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import (
    acp,
    adk,
    ag_ui,
    agentcore,
    ai_sdk_model,
    ai_sdk_ui,
    autogen,
    cline,
    copilot,
    goose,
    haystack,
    langchain,
    letta,
    llama_index,
    mastra,
    openai_agents,
    opencode,
    otel,
    pi,
    pydantic_ai,
    semantic_kernel,
)
from reknit.pipeline.history.frameworks.base import Framed, Framework, Item, Members, Reading, ReadOther
from reknit.pipeline.history.readers.fields import Fields, Notes, as_object
from reknit.pipeline.history.readers.rawjson import check_nesting, starts_with, wrong_type

FRAMEWORKS: Final[Mapping[str, Framework]] = MappingProxyType(
    {
        module.FRAMEWORK.name: module.FRAMEWORK
        for module in (
            langchain,
            pydantic_ai,
            opencode,
            pi,
            copilot,
            acp,
            letta,
            semantic_kernel,
            autogen,
            mastra,
            goose,
            haystack,
            llama_index,
            openai_agents,
            agentcore,
            adk,
            cline,
            otel,
            ai_sdk_ui,
            ag_ui,
            ai_sdk_model,
        )
    }
)
"""All shapes of frameworks by name; of two that a message could decide, the first one is meant."""

# Members and types without which no message or document is of a framework's shape, as they are written. Words that
# occur in messages of providers are left out, or include their neighbours, so that those messages are not decoded.
_MARKS: Final = re.compile(
    rb'"(?:lc|additional_kwargs|response_metadata|channel_values|values|part_kind|sessionID|projectID|parentId|cwd|'
    rb"jsonrpc|sessionUpdate|message_type|content_type|threadId|agentVisible|toolRequest|toolResponse|"
    rb"toolConfirmationRequest|frontendToolRequest|actionRequired|redactedThinking|systemNotification|conversation|meta|"
    rb"_role|block_type|store|provider_data|__fake_id__|eventId|schema_version|invocationId|invocation_id|modelInfo|"
    rb"condenseId|condenseParent|truncationId|truncationParent|isTruncationMarker|isSummary|toolCalls|toolCallId|"
    rb"encryptedValue|activityType|llm_context|tool-call|tool-result|tool-approval-request|tool-approval-response|"
    rb"reasoning-file|providerOptions|mediaType|binary|gen_ai\.[a-z_.]+"
    rb')"|"type"\s*:\s*"(?:human|ai|chat|remove|developer|(?!message)\w+(?:Message|Chunk|Event))"'
    rb'|"type"\s*:\s*"reasoning"\s*,\s*"text"'
    rb'|"kind"\s*:\s*"re(?:quest|sponse)"|"(?:time|data)"\s*:\s*\{|"format"\s*:\s*2|"ts"\s*:|"value"\s*:'
    rb'|"role"\s*:\s*"(?:reasoning|activity)"|"image"\s*:\s*(?:"|\{\s*"(?:type|0)")'
)
# Gemini's contents have parts too, without types.
_PARTS: Final = b'"parts"'
_TYPE: Final = b'"type"'


def may_be_framework(text: bytes) -> bool:
    """Return True if JSON has a word without which no framework's shape is recognised."""
    return _MARKS.search(text) is not None or (_PARTS in text and _TYPE in text)


def framework_of(members: Members) -> Framework | None:
    """Return the shape that a message's own keys decide, or None."""
    return next((each for each in FRAMEWORKS.values() if each.decides(members)), None)


def framed(members: Members) -> tuple[Framework, Framed] | None:
    """Return the messages of a document in a framework's frame, or None."""
    for each in FRAMEWORKS.values():
        found = each.frame(members)
        if found is not None:
            return each, found
    return None


def decided_among(items: Sequence[Raw]) -> tuple[Framework, int] | None:
    """Return the shape that the first message with deciding keys decides, and the index of that message.

    Raises:
        InputError: two messages decide for different shapes.
    """
    first: tuple[Framework, int] | None = None
    for index, item in enumerate(items):
        if not starts_with(item, b"{") or not may_be_framework(bytes(item)):
            continue
        found = framework_of(as_object(item, f"messages.{index}"))
        if found is None:
            continue
        if first is None:
            first = found, index
        elif found.name != first[0].name:
            told = (
                f"messages.{first[1]} is a message of {first[0].name} and messages.{index} one of {found.name}: "
                "name the shape, or give the messages of one shape"
            )
            raise InputError("unknown_shape", told, path=f"messages.{index}")
    return first


def read_items(
    framework: Framework,
    items: Sequence[Raw],
    notes: Notes,
    read_other: ReadOther,
    *,
    first: int = 0,
    frame: Framed | None = None,
) -> Reading:
    """Read messages of a framework's shape.

    Args:
        framework: the shape.
        items: the messages.
        notes: receives the fixes.
        read_other: reads a message of a provider's shape.
        first: the index of the first of them.
        frame: the document that they are in, if the messages are a whole history.

    Raises:
        InputError: an item that is no message of this shape, or nests too deeply.
    """
    given = Framed(messages=[]) if frame is None else frame
    reading = Reading(notes, read_other, provider=given.provider, model=given.model, whole=frame is not None)
    read: list[Item] = []
    for index, item in enumerate(items, first):
        path = f"messages.{index}"
        check_nesting(item, path)
        if not starts_with(item, b"{"):
            raise wrong_type(path, "a message", item)
        read.append(Item(Fields(item, path, notes), index))
    framework.read(reading, read)
    return reading
