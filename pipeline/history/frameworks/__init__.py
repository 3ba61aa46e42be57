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

# No message or document decides a framework's shape without one of these members or types.
_MARKS: Final = re.compile(
    rb'"(?:lc|additional_kwargs|response_metadata|tool_call_id|data|channel_values|values|kind|part_kind|info|time|'
    rb"invocationId|invocation_id|events|parts|gen_ai\.[a-z_.]+|toolCalls|toolCallId|encryptedValue|activityType|"
    rb"mimeType|activity|reasoning|threadId|toolName|approvalId|providerOptions|image|mediaType|source|projectID|"
    rb"blocks|store|meta|_role|content_type|llm_context|conversation|created|message_type|parentId|cwd|jsonrpc|"
    rb"sessionUpdate|provider_data|__fake_id__|events|modelInfo|condenseParent|condenseId|truncationParent|"
    rb'truncationId|isTruncationMarker|isSummary|ts)"'
)


def may_be_framework(text: bytes) -> bool:
    """Whether JSON has a word without which no framework's shape is recognised."""
    return _MARKS.search(text) is not None


def framework_of(members: Members) -> Framework | None:
    """The shape that a message's own keys decide, or None."""
    return next((each for each in FRAMEWORKS.values() if each.decides(members)), None)


def framed(members: Members) -> tuple[Framework, Framed] | None:
    """The messages of a document in a framework's frame, or None."""
    for each in FRAMEWORKS.values():
        found = each.frame(members)
        if found is not None:
            return each, found
    return None


def decided_among(items: Sequence[Raw]) -> tuple[Framework, int] | None:
    """The shape that the first message with deciding keys decides, and its index.

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
