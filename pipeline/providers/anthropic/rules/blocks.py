"""The members and places of each kind of block, and the walk from message to message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET

from reknit.pipeline.providers.anthropic.rules import catalogue as rules
from reknit.pipeline.providers.anthropic.rules.catalogue import rule
from reknit.pipeline.providers.anthropic.rules.signatures import is_of_another_issuer
from reknit.pipeline.providers.anthropic.rules.turns import Turns
from reknit.pipeline.providers.anthropic.rules.wire import (
    BETA_BLOCKS,
    KINDS,
    SEARCHES,
    Base64,
    Compaction,
    Document,
    File,
    Image,
    McpResult,
    McpToolUse,
    Message,
    RedactedThinking,
    ServerResult,
    ServerToolUse,
    Text,
    Thinking,
    ToolAddition,
    ToolReference,
    ToolResult,
    ToolSearchResult,
    ToolUse,
)
from reknit.pipeline.rules._media import CLAUDE, pages_of
from reknit.pipeline.rules._misfits import Unreadable
from reknit.pipeline.rules._pictures import look

IMAGE_BYTES = CLAUDE.image_bytes  # base64 text of one image: the provider counts that, not the decoded bytes

# fmt: off
# One paragraph a rule.
IMAGE_TOO_BIG = rule("ANT-30", "hard", f"{{at}}: image exceeds 5 MB maximum: {{bytes}} bytes > {IMAGE_BYTES} bytes",
    summary="The base64 text of an image has at most 5 MiB.",
    repair="replace it by a stub", source="anthropics/claude-code#2939, #11181; earendil-works/pi#824")
IMAGE_BROKEN = rule("ANT-30c", "hard", "Could not process image",
    summary="An image is base64 and complete, by its header.",
    repair="replace it by a stub", source="anthropics/claude-code#4083")
IMAGE_UNKNOWN = rule("ANT-30d", "soft", "Could not process image",
    summary="An image's first bytes are those of a format that we know.",
    repair="replace it by a stub", source="anthropics/claude-code#4083")
MEDIA_TYPE = rule("ANT-31", "hard", "{at}: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
    summary="The four media types.",
    repair="sniff the bytes, or replace by a stub", source="the API's own schema")
MEDIA_MISMATCH = rule("ANT-31b", "model",
    "{at}: The image was specified using the {declared} media type, but the image appears to be a "
    "{found} image",
    summary="The declared media type is the image's own (Claude 3.5 did not look; recorded).",
    repair="sniff the bytes", source="vybestack/llxprt-code#2130",
    fact="other_media_type")
# fmt: on

_MEDIA_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_IMAGE_TAGS = "'base64', 'url'"
_DOCUMENT_TAGS = "'base64', 'content', 'text', 'url'"


class Messages(Turns):
    def judge_items(self, items: Sequence[Message | None]) -> None:
        """Judge messages; the ids of one step are remembered together."""
        super().judge_items(items)
        if self.new_ids:
            self.ids, self.new_ids = self.ids.plus(self.new_ids), set()

    def judge_item(self, message: Message) -> None:
        index, content = self.index, message.content
        # Only the last message may be hollow, which the one after it shows.
        last = self.last
        if last is not None and not last.content and _is_hollow(last):
            self.refuse(rules.EMPTY_MESSAGE, f"messages.{self.last_at}")
        if message.role != self.role:
            self.enter_run(message, index)
        elif message.role != "system":
            self.refuse(rules.ALTERNATE, f"messages.{index}", role=message.role)
        if type(content) is list and content:
            self.blocks = content
            if self.betas:
                self._judge_betas(content)
            at = 0
            for block in content:
                # Most blocks are text that breaks nothing; the rest goes to its judge.
                if type(block) is Text and block.text and not block.text.isspace() and block.cache_control is None:
                    self.sealed = True
                else:
                    _JUDGES[type(block)](self, block, at)
                at += 1  # noqa: SIM113 - enumerate would make a tuple a block
            if self.calls_here:
                if self.calls_here != len(content) - self.first_call:
                    self.refuse_after_calls()
                self.calls_here = 0
        else:
            self.sealed = True
            if not content or (type(content) is str and content.isspace()):
                _judge_empty(self, message, index)
        self.last, self.last_at = message, index

    def _judge_betas(self, blocks: Sequence[Any]) -> None:
        for at, block in enumerate(blocks):
            if features := BETA_BLOCKS.get(type(block)):
                path = self.path(at)
                self.judge_beta(features, path, path, KINDS[type(block)])


def _is_hollow(message: Message) -> bool:
    """Return True for an assistant message with empty content, which only the last message of a request may have."""
    return message.role == "assistant" and not message.content and message.content is not UNSET


def _judge_empty(walk: Turns, message: Message, index: int) -> None:
    """Judge a message whose content is missing, empty, or a string of whitespace."""
    path = f"messages.{index}"
    if message.content is UNSET:
        if message.role != "system":
            walk.refuse(rules.SHAPE, f"{path}.content", words="Field required")
    elif message.content:
        walk.refuse(rules.BLANK_TEXT, f"{path}.content", where="messages")
    elif message.role != "assistant":
        walk.refuse(rules.EMPTY_MESSAGE, path)


def _text(walk: Turns, block: Text, at: int) -> None:
    """Judge a text block that is blank or cached; the loop itself passes the others."""
    _note(walk, block, at)
    text = block.text
    if not text or text.isspace():
        alone = all(isinstance(other, Text) and not other.text.strip() for other in walk.blocks)
        path = walk.path(at)
        judge_blank(walk, block, path, f"{path}.text", alone=alone)


def judge_blank(walk: Turns, block: Text, path: str, at: str, where: str = "messages", *, alone: bool) -> None:
    """Judge a blank text block: an error if it is ``alone`` in its message, a warning next to others."""
    if block.text:
        walk.refuse(rules.BLANK_TEXT if alone else rules.BLANK_BESIDE, path, where=where)
        return
    walk.refuse(rules.EMPTY_TEXT, path, where=where)
    if block.cache_control is not None:
        walk.refuse(rules.CACHED_EMPTY, path, at=at)


def _tool_use(walk: Turns, block: ToolUse, at: int) -> None:
    walk.tool_blocks = walk.sealed = True
    if block.cache_control is not None:
        walk.mark(block.cache_control.ttl, walk.path(at))
    if not 0 < len(block.name) <= rules.CALL_NAME_LENGTH:
        bound = f"most {rules.CALL_NAME_LENGTH} characters" if block.name else "least 1 character"
        path = walk.path(at)
        walk.refuse(rules.CALL_NAME, f"{path}.name", at=f"{path}.tool_use.name", bound=bound)
    if walk.role == "assistant" or walk.judge_role_of("tool_use", "assistant"):
        if not walk.calls_here:
            walk.first_call = at
        walk.calls_here += 1
        walk.judge_call(block.id, walk.index, at)


def _tool_result(walk: Turns, block: ToolResult, at: int) -> None:
    walk.tool_blocks = True
    if block.cache_control is not None:
        walk.mark(block.cache_control.ttl, walk.path(at))
    if walk.role == "user" or walk.judge_role_of("tool_result", "user"):
        walk.judge_result(block.tool_use_id, walk.index, at)
    content = block.content
    if content and content.__class__ is list:
        _in_result(walk, block, content, at)


def _in_result(walk: Turns, result: ToolResult, blocks: list[Any], at: int) -> None:
    for inner_at, block in enumerate(blocks):
        if block.__class__ is Unreadable:
            continue
        if block.cache_control is not None:
            walk.mark(block.cache_control.ttl, _inner_place(walk, at, inner_at)[0])
        if block.__class__ is Text:
            if block.text and not block.text.isspace():
                continue
            path, provider = _inner_place(walk, at, inner_at)
            judge_blank(walk, block, path, f"{provider}.text", alone=False)
        elif block.__class__ is Image:
            _judge_image(walk, block, *_inner_place(walk, at, inner_at))
        elif block.__class__ is Document:
            _judge_document(walk, block, *_inner_place(walk, at, inner_at))
        elif block.__class__ is ToolReference:
            walk.judge_reference(block.tool_name, _inner_place(walk, at, inner_at)[0])
    if result.is_error and any(block.__class__ is not Text for block in blocks):
        path = walk.path(at)
        walk.refuse(rules.ERROR_RESULT, path, at=f"{path}.tool_result")


def _inner_place(walk: Turns, at: int, inner_at: int) -> tuple[str, str]:
    """Name a block inside a tool result, in our way and in the provider's."""
    path = walk.path(at)
    return f"{path}.content.{inner_at}", f"{path}.tool_result.content.{inner_at}"


def _image(walk: Turns, block: Image, at: int) -> None:
    _note(walk, block, at)
    path = walk.path(at)
    if walk.role == "assistant":
        walk.refuse(rules.ASSISTANT_IMAGE, path)
    _judge_image(walk, block, path, path)


def _judge_image(walk: Turns, image: Image, path: str, at: str) -> None:
    """Judge an image; ``path`` is our place, ``at`` the provider's."""
    source = image.source
    walk.images += 1
    if isinstance(source, File):
        walk.judge_file_source(f"{path}.source", f"{at}.image.source", _IMAGE_TAGS)
    elif isinstance(source, Base64):
        _judge_bytes(walk, source, f"{path}.source", f"{at}.image.source.base64")


def _judge_bytes(walk: Turns, source: Base64, path: str, at: str) -> None:
    data, declared = source.data, source.media_type
    if len(data) > IMAGE_BYTES:
        walk.refuse(IMAGE_TOO_BIG, f"{path}.data", at=at, bytes=len(data))
    if declared not in _MEDIA_TYPES:
        walk.refuse(MEDIA_TYPE, f"{path}.media_type", at=f"{at}.media_type")
    picture = look(data)
    if picture is None:
        walk.refuse(IMAGE_BROKEN, f"{path}.data")
        return
    if picture.media_type is None:
        walk.refuse(IMAGE_UNKNOWN, f"{path}.data")
        return
    if declared in _MEDIA_TYPES and picture.media_type != declared:
        words = {"at": at, "declared": declared, "found": picture.media_type}
        walk.refuse(MEDIA_MISMATCH, f"{path}.media_type", **words)
    longest = max(picture.width, picture.height)
    if longest > CLAUDE.side:
        walk.refuse(rules.IMAGE_TOO_LONG, f"{path}.data", at=f"{at}.data")
    elif longest > CLAUDE.many_side:
        walk.wide += ((f"{path}.data", f"{at}.data"),)


def _judge_document(walk: Turns, document: Document, path: str, at: str) -> None:
    source = document.source
    if isinstance(source, File):
        walk.judge_file_source(f"{path}.source", f"{at}.document.source", _DOCUMENT_TAGS)
    elif isinstance(source, Base64):
        walk.documents += 1
        if walk.family.many_media is False and pages_of(source.data) > CLAUDE.pages:
            walk.refuse(rules.PDF_PAGES, f"{path}.source.data", at=f"{at}.document.source.base64.data")


def _document(walk: Turns, block: Document, at: int) -> None:
    _note(walk, block, at)
    path = walk.path(at)
    _judge_document(walk, block, path, path)


def _thinking(walk: Turns, block: Thinking, at: int) -> None:
    walk.sealed = walk.thought = True
    walk.judge_role_of("thinking", "assistant")
    path = walk.path(at)
    if not block.signature:
        if walk.unsigned:
            return
        walk.refuse(rules.BAD_SIGNATURE, f"{path}.signature", at=path)
    elif not walk.other_vendor and is_of_another_issuer(block.signature):
        walk.refuse(rules.FOREIGN_SIGNATURE, f"{path}.signature", at=path)
    if not block.thinking:
        walk.refuse(rules.EMPTY_THINKING, f"{path}.thinking", at=f"{path}.thinking")


def _redacted(walk: Turns, block: RedactedThinking, at: int) -> None:
    walk.sealed = True
    walk.judge_role_of("redacted_thinking", "assistant")
    path = walk.path(at)
    if not block.data:
        walk.refuse(rules.BAD_REDACTED, f"{path}.data", at=path)
    elif not walk.other_vendor and is_of_another_issuer(block.data):
        walk.refuse(rules.FOREIGN_REDACTED, f"{path}.data", at=path)


def _server_call(walk: Turns, block: ServerToolUse | McpToolUse, _at: int) -> None:
    _note(walk, block, _at)
    kind = KINDS[type(block)]
    if isinstance(block, ServerToolUse) and block.name.startswith(SEARCHES) and not walk.search_tool:
        walk.refuse(rules.NO_SEARCH_TOOL, walk.path(_at), kind=kind)
    if walk.judge_role_of(kind, "assistant"):
        name = "mcp" if isinstance(block, McpToolUse) else block.name
        walk.servers[block.id] = (walk.index, name)


def _server_result(walk: Turns, block: ServerResult | McpResult, at: int) -> None:
    _note(walk, block, at)
    walk.judge_server_result(block.tool_use_id, KINDS[type(block)], walk.path(at))


def _search_result(walk: Turns, block: ToolSearchResult, at: int) -> None:
    path = walk.path(at)
    if not walk.search_tool:
        walk.refuse(rules.NO_SEARCH_TOOL, path, kind=KINDS[type(block)])
    for number, reference in enumerate(block.content.tool_references or ()):
        walk.judge_reference(reference.tool_name, f"{path}.content.tool_references.{number}")
    _note(walk, block, at)
    walk.judge_server_result(block.tool_use_id, KINDS[type(block)], path)


def _addition(walk: Turns, block: ToolAddition, at: int) -> None:
    """Take a tool, which is declared from here on."""
    _note(walk, block, at)
    name = block.tool.name or block.tool.tool_name
    if name is not None and walk.tool_names is not None:
        walk.tool_names |= {name}


def _compaction(walk: Turns, block: Compaction, at: int) -> None:
    _note(walk, block, at)
    if block.tool_changes is not UNSET:
        walk.tool_names = None  # it may have added tools


def _note(walk: Turns, block: Any, at: int) -> None:  # noqa: ANN401 - any kind without rules of its own
    walk.sealed = True
    marker = getattr(block, "cache_control", None)
    if marker is not None:
        walk.mark(marker.ttl, walk.path(at))


# Every kind of block, and what could not be read.
_JUDGES: dict[type, Callable[[Turns, Any, int], None]] = {
    **dict.fromkeys(KINDS, _note),
    **{kind: _server_result for kind in KINDS if issubclass(kind, ServerResult)},
    Unreadable: _note,
    Text: _text,
    Image: _image,
    Document: _document,
    Thinking: _thinking,
    RedactedThinking: _redacted,
    ToolUse: _tool_use,
    ToolResult: _tool_result,
    ServerToolUse: _server_call,
    McpToolUse: _server_call,
    McpResult: _server_result,
    ToolSearchResult: _search_result,
    ToolAddition: _addition,
    Compaction: _compaction,
}
