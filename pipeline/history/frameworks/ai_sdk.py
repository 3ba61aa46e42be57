"""Values that all messages of Vercel's AI SDK share: provider options, files and tool outputs."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import Members, finish, word
from reknit.pipeline.history.readers.fields import Fields, Notes, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.readers.tolerant import Inner, Placed, inner_only
from reknit.pipeline.model import Text, ToolResult

DENIED: Final = "Tool call execution denied."
"""The SDK's words for a denied call whose denial has no reason."""
_OPTIONS: Final = ("providerOptions", "providerMetadata", "callProviderMetadata", "experimental_providerMetadata",
                   "metadata")  # fmt: skip
_RESULT_OPTIONS: Final = "resultProviderMetadata"
_OPENAI: Final = frozenset({"openai", "azure"})
_GOOGLE: Final = frozenset({"google", "gemini", "googleGenerativeAI"})
_BYTES: Final = msgspec.json.Decoder(dict[str, int])
_BUFFER: Final = msgspec.json.Decoder(dict[str, Raw])


def options(fields: Fields) -> dict[str, Members]:
    """Take the options of a part, by provider."""
    found: dict[str, Members] = {}
    for name in _OPTIONS:
        value = fields.peek(name)
        if value is None or not starts_with(value, b"{"):
            continue
        fields.ignore(name)
        members = as_object(value, fields.at(name))
        found |= {key: as_object(each, "") for key, each in members.items() if starts_with(each, b"{")}
    fields.ignore(_RESULT_OPTIONS)
    return found


def signature_of_gemini(given: dict[str, Members]) -> str:
    """Return the thought signature of a part. A signature of another platform is not used."""
    return next((found for key in _GOOGLE if (found := word(given.get(key, {}), "thoughtSignature"))), "")


class Reasoning:
    """Reads reasoning parts. The parts of one Responses item are its summaries, and become one block.

    Args:
        model: the model that wrote them, if the shape names it.
        provider: the provider, for parts that name none.

    Attributes:
        issuers: the providers whose signatures the parts have.
    """

    def __init__(self, model: str | None = None, provider: str = "") -> None:
        self._model = model
        self._provider = provider
        self._items: dict[str, tuple[int, list[str], str]] = {}
        self.issuers: set[str] = set()

    def add(self, placed: list[Placed], text: str, given: dict[str, Members], path: str) -> None:
        """Add a block for a reasoning part, or add the part to its item."""
        if (own := given.get("pydantic_ai")) is not None:
            self._add_by_pydantic_ai(placed, text, own, path)
            return
        for key, members in given.items():
            if key in _OPENAI and (item_id := word(members, "itemId")):
                self._add_to_item(placed, item_id, text, word(members, "reasoningEncryptedContent"), path)
                return
            if data := word(members, "redactedData"):
                self._note(key)
                placed.append((parts.redacted(data, parts.issuer_of(key, self._model)), path))
                return
            signature = word(members, "signature") or word(members, "thoughtSignature")
            if signature:
                self._note(key)
                placed.append((parts.thinking(text, signature, parts.issuer_of(key, self._model)), path))
                return
        if text:
            placed.append((parts.thinking(text, "", parts.issuer_of(self._provider, self._model)), path))

    def _note(self, key: str) -> None:
        issuer = parts.issuer_of(key)
        if issuer is not None:
            self.issuers.add(issuer.provider)

    def _add_by_pydantic_ai(self, placed: list[Placed], text: str, own: Members, path: str) -> None:
        issuer, signature = parts.issuer_of(word(own, "provider_name"), self._model), word(own, "signature")
        if text or signature:
            placed += parts.pydantic_ai_reasoning(text, signature, word(own, "id"), issuer, path)

    def _add_to_item(self, placed: list[Placed], item_id: str, text: str, encrypted: str, path: str) -> None:
        at, texts, known = self._items.get(item_id, (len(placed), [], ""))
        texts, known = [*texts, text], encrypted or known
        self._items[item_id] = at, texts, known
        block = parts.made_reasoning_item(item_id, texts, known, self._model)
        if at == len(placed):
            placed.append((block, path))
        else:
            placed[at] = block, placed[at][1]


def file_part(fields: Fields) -> list[Placed]:
    """Read a file: ``data`` or ``url``, or in version 7 an object that names the form."""
    kind, members = word(fields.members(), "type"), fields.members()
    media_type = word(members, "mediaType") or word(members, "mimeType") or word(members, "mime")
    data, url, file_id = "", word(members, "url") or word(members, "uri"), ""
    for name in ("data", "image"):
        value = fields.peek(name)
        if value is None:
            continue
        if starts_with(value, b"{"):
            held = as_object(value, fields.at(name))
            form = word(held, "type")
            if form == "text":
                text = word(held, "text")
                fields.clear()
                return [(Text(text=text), fields.path)]
            data = word(held, "data") or _bytes_of(value)
            url = url or word(held, "url")
            file_id = word(held, "reference")
        elif starts_with(value, b"["):
            data = _encoded(value)
        else:
            data = parts.value_text(value)
    block = parts.media(
        media_type,
        data=data,
        url=url,
        file_id=file_id or word(members, "fileId"),
        title=word(members, "filename") or word(members, "name") or None,
        kind="image" if kind.startswith("image") else "",
    )
    options(fields)
    placed = parts.media_or_unknown(block, fields, kind)
    finish(fields, "type", "data", "image", "url", "uri", "mediaType", "mimeType", "mime", "filename", "name",
           "providerReference", "fileId", "id")  # fmt: skip
    return [placed]


def _bytes_of(value: Raw) -> str:
    """Return base64 for bytes that an app wrote as the JSON of a buffer or of a typed array."""
    found = decoded(_BUFFER, value)
    if found is not None and word(found, "type") == "Buffer" and "data" in found:
        return _encoded(found["data"])
    listed = decoded(_BYTES, value)
    if not listed or not all(0 <= each <= 255 for each in listed.values()):
        return ""
    return msgspec.json.encode(bytes(listed.values())).decode().strip('"')


def _encoded(value: Raw) -> str:
    try:
        return msgspec.json.encode(bytes(msgspec.json.decode(value, type=list[int]))).decode().strip('"')
    except (msgspec.MsgspecError, ValueError):
        return ""


def output_part(fields: Fields) -> list[Placed]:
    """A part of a tool's output."""
    kind = word(fields.members(), "type")
    if kind == "text":
        block = Text(text=parts.value_text(fields.take("text")))
        options(fields)
        finish(fields, "type")
        return [(block, fields.path)]
    if kind in (
        "media",
        "file",
        "image",
        "image-data",
        "file-data",
        "image-url",
        "file-url",
        "file-id",
        "image-file-id",
    ):
        return file_part(fields)
    return [(parts.native(fields, kind, is_known=True), fields.path)]


def output_result(call_id: str, output: Raw | None, path: str, notes: Notes) -> ToolResult:
    """Return the result of a model message's ``output``, whose type names the form of its value."""
    if output is None or not starts_with(output, b"{"):
        return value_result(call_id, output, path, notes)
    fields = Fields(output, path, notes)
    kind, value = fields.take_text("type"), fields.take("value")
    reason = parts.value_text(fields.take("reason"))
    options(fields)
    fields.drop_rest()
    if kind == "execution-denied":
        return parts.result(call_id, reason or DENIED)
    if kind == "content" and value is not None and starts_with(value, b"["):
        blocks: list[Inner] = []
        for at, each in enumerate(as_list(value, path)):
            blocks += inner_only(output_part(Fields(each, f"{path}.value.{at}", notes)), notes)
        return parts.result(call_id, blocks)
    is_error = kind in ("error-text", "error-json")
    return parts.result(call_id, parts.value_text(value), is_error=is_error, is_value=kind.endswith("json"))


def value_result(call_id: str, value: Raw | None, path: str, notes: Notes, *, is_error: bool = False) -> ToolResult:
    """Return the result of a tool's own value: MCP's content as blocks, any other value as its text or its JSON."""
    if value is not None and (blocks := parts.mcp_blocks(value, path, notes)) is not None:
        flag = as_object(value, path).get("isError")
        return parts.result(call_id, blocks, is_error=is_error or (flag is not None and bytes(flag) == b"true"))
    return parts.result(call_id, parts.value_text(value), is_error=is_error, is_value=True)
