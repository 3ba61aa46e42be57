"""Values that both kinds of messages of Vercel's AI SDK share: reasoning and files."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from reknit.pipeline.history.pieces import RESPONSES
from reknit.pipeline.history.writers.base import AI_SDK_NAMES, MAKER, Members
from reknit.pipeline.history.writers.values import data_url, source_of
from reknit.pipeline.model import Document, Image, Issuer, RedactedThinking, Thinking

PDF: Final = "application/pdf"


def seal_options(signature: str) -> Members:
    """Return the options of a part that Gemini signed."""
    return {"google": {"thoughtSignature": signature}}


def reasoning_parts(block: Thinking | RedactedThinking, options: str) -> list[Members]:
    """Return the parts of reasoning; ``options`` is the name of the member with the provider's values."""
    provider = block.issuer.provider if isinstance(block.issuer, Issuer) else MAKER
    key = AI_SDK_NAMES.get(provider, provider)
    if block.own is not UNSET:
        return _of_item(block, options)
    if isinstance(block, RedactedThinking):
        return [{"type": "reasoning", "text": "", options: {key: {"redactedData": block.data}}}]
    if not block.signature:
        return [{"type": "reasoning", "text": block.thinking}]
    return [{"type": "reasoning", "text": block.thinking, options: {key: {"signature": block.signature}}}]


def _of_item(block: Thinking | RedactedThinking, options: str) -> list[Members]:
    """Return a part for each summary of a Responses item."""
    own = block.own.members if block.own is not UNSET else {}
    summaries = msgspec.json.decode(own.get("summary", b"[]"), type=list[dict[str, str]])
    values: Members = {"itemId": own["id"], "reasoningEncryptedContent": own.get("encrypted_content")}
    texts = [summary.get("text", "") for summary in summaries] or [""]
    return [{"type": "reasoning", "text": text, options: {AI_SDK_NAMES[RESPONSES]: values}} for text in texts]


def media_type_of(block: Image | Document) -> str:
    """Return a medium's type; an address has none, and the SDK needs one."""
    return str(source_of(block).get("media_type", "image/*" if isinstance(block, Image) else PDF))


def file_url(block: Image | Document) -> Members:
    """Return a file by its address, as messages for the screen have it."""
    titled = {"filename": block.title} if isinstance(block, Document) and block.title else {}
    return {"type": "file", "mediaType": media_type_of(block), "url": data_url(source_of(block)), **titled}
