"""Values that each framework writes in its own form: media, calls, results, reasoning and its issuer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.history.clean import url_source
from reknit.pipeline.history.frameworks.base import Reading, word
from reknit.pipeline.history.pieces import ANTHROPIC, CONVERSE, GEMINI, RESPONSES, as_json, is_native
from reknit.pipeline.history.readers.fields import (
    EMPTY_OBJECT,
    Fields,
    Notes,
    as_list,
    as_object,
    as_string,
    read_input,
)
from reknit.pipeline.history.readers.rawjson import compact, starts_with
from reknit.pipeline.history.readers.strict import ValidTurns
from reknit.pipeline.history.readers.tolerant import Inner, Placed, inner_only
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Unknown,
)
from reknit.pipeline.providers.openai_responses import reader as openai_responses

# The frameworks' names of providers. Platforms are other issuers than the maker's own API, and keep their names.
_PROVIDERS: Final = {
    "anthropic": ANTHROPIC,
    "openai": RESPONSES,
    "openai-responses": RESPONSES,
    "google": GEMINI,
    "google-gla": GEMINI,
    "google_genai": GEMINI,
    "google-generative-ai": GEMINI,
    "gemini": GEMINI,
    "bedrock": CONVERSE,
    "bedrock_converse": CONVERSE,
    "amazon-bedrock": CONVERSE,
    "aws.bedrock": CONVERSE,
    "gcp.gemini": GEMINI,
    "gcp.gen_ai": GEMINI,
}
UNKNOWN_ISSUER: Final = Issuer(provider="unknown")
"""The issuer of a signature that no part of the history names: no provider takes it."""
# The beginnings of signatures: a protobuf of Anthropic's, and a Fernet token of OpenAI's.
_ANTHROPIC_SIGNATURE: Final = re.compile(r"E[a-zA-Z0-9+/_-]{19}")
_OPENAI_SIGNATURE: Final = "gAAAA"
# The ids by which pydantic-ai marks redacted reasoning.
_REDACTED: Final = frozenset({"redacted_thinking", "redacted_content"})
# The media types of common files, by the beginning of their base64.
_MAGIC: Final = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "JVBERi": "application/pdf",
}
_STANDARD: Final = str.maketrans("-_", "+/")
_SIGNATURE: Final = "thoughtSignature"


def issuer_of(provider: str, model: str | None = None) -> Issuer | None:
    """Return the issuer that a framework names, or None."""
    if not provider:
        return None
    known = _PROVIDERS.get(provider.lower(), provider)
    # Frameworks add the API to the provider's name: ``google.generative-ai``, ``openai.responses``.
    if known == provider and (base := provider.lower().partition(".")[0]) in _PROVIDERS:
        known = _PROVIDERS[base]
    return Issuer(provider=known, model=model or None)


def standard_base64(data: str) -> str:
    """Base64 in the standard alphabet, which the providers take."""
    return data.translate(_STANDARD) if "-" in data or "_" in data else data


def media(
    media_type: str, *, data: str = "", url: str = "", file_id: str = "", title: str | None = None, kind: str = ""
) -> Image | Document | None:
    """An image or a document; None for other media, and for an address that no provider can read.

    Args:
        media_type: the media type, ``""`` if the framework names none.
        data: base64 in either alphabet, or a data URL, or a URL.
        url: a data URL, or a URL on the web.
        file_id: the id of a file that a provider stores.
        title: the file's name.
        kind: ``image`` or ``document``, where the framework says this apart from the media type.
    """
    source: dict[str, str] | None = None
    if data and not data.startswith(("data:", "http://", "https://")):
        data = standard_base64(data)
        media_type = media_type or next((found for start, found in _MAGIC.items() if data.startswith(start)), "")
        source = {"type": "base64", "media_type": media_type, "data": data}
    elif data or url:
        source = url_source(data or url)
        if source is not None and source["type"] == "base64":
            source["data"] = standard_base64(source["data"])
            media_type = media_type if "/" in media_type and "*" not in media_type else source["media_type"]
            source["media_type"] = media_type
    elif file_id:
        source = {"type": "file", "file_id": file_id}
    if source is None:
        return None
    family = media_type.partition("/")[0]
    if family in ("audio", "video") or kind in ("audio", "video"):
        return None
    if family == "image" or (kind == "image" and (not family or "*" in media_type)):
        return Image(source=as_json(source))
    if not family and kind != "document":
        # An address without a type; all other media name their type.
        return Image(source=as_json(source)) if source["type"] == "url" else None
    return Document(source=as_json(source), title=title or UNSET)


def media_or_unknown(block: Image | Document | None, fields: Fields, kind: str) -> Placed:
    """Return a medium, or the whole part if no provider has a block for it."""
    if block is not None:
        return block, fields.path
    return native(fields, kind, is_known=True), fields.path


def native(
    fields: Fields, kind: str, issuer: Issuer | None = None, *, is_raw: bool = False, is_known: bool = False
) -> Unknown:
    """Return a part that only one provider has, kept whole, or a part that no provider has in this form.

    Args:
        fields: the part.
        kind: its type.
        issuer: the provider that the framework names for it.
        is_raw: whether the framework passes on the provider's own parts. In another form no provider takes it back.
        is_known: whether the shape has this type.
    """
    if kind and issuer is None and not (is_raw or is_known):
        fields.notes.unknown.append((kind, fields.path))
    whole = Raw(fields.whole)
    fields.clear()
    if is_raw and (issuer is None or is_native(issuer.provider, kind)):
        return Unknown(kind=kind, raw=whole, issuer=issuer or UNSET)
    if any(is_native(provider, kind) for provider in (ANTHROPIC, CONVERSE, GEMINI, RESPONSES)):
        # Writers know their own types by name, and this is another form of such a type.
        kind = f"framework.{kind}"
    return Unknown(kind=kind, raw=whole, issuer=UNSET if issuer is None else UNKNOWN_ISSUER)


def call(reading: Reading, call_id: str, name: str, arguments: Raw | None, path: str) -> ToolUse:
    """Return a call. Arguments are an object or a string of JSON; an incomplete JSON text makes it incomplete."""
    call_id = call_id or id_made(reading, name)
    if arguments is None or starts_with(arguments, b"n"):
        return ToolUse(id=call_id, name=name, input=EMPTY_OBJECT)
    given, incomplete = read_input(arguments, path, reading.notes, encoded=True)
    return ToolUse(id=call_id, name=name, input=given, incomplete=incomplete)


def cut_call(reading: Reading, call_id: str, name: str, arguments: str) -> ToolUse:
    """Return a call whose arguments were cut, with the text that the model wrote, neither parsed nor closed."""
    written = Raw(msgspec.json.encode(arguments))
    return ToolUse(id=call_id or id_made(reading, name), name=name, input=written, incomplete=True)


def id_made(reading: Reading, name: str) -> str:
    """Return the id for a call without an id, and for its result, which names the tool."""
    reading.ids_made = True
    return made_id(name)


def result(
    call_id: str, content: str | Sequence[Inner], *, is_error: bool = False, is_value: bool = False
) -> ToolResult:
    """Return a result of a text or of blocks. With ``is_value`` the text is the JSON of the tool's value."""
    if is_value and isinstance(content, str) and content.startswith("{"):
        content = [Text(text=content, structured=True)]
    return ToolResult(
        tool_use_id=call_id, content=content if isinstance(content, str) else list(content), is_error=is_error
    )


def value_text(value: Raw | None) -> str:
    """Return the text of a tool's value: a string unchanged, any other value as its JSON."""
    if value is None or starts_with(value, b"n"):
        return ""
    return as_string(value, "") if starts_with(value, b'"') else compact(bytes(value)).decode()


def content_blocks(
    fields: Fields, name: str, read_part: Callable[[Fields], list[Placed]], *, words: Callable[[str], str] = str
) -> list[Placed]:
    """Return the blocks of a member that holds a text, or a list of texts and parts.

    Args:
        fields: the message or part.
        name: the member.
        read_part: reads a part.
        words: changes a text that is the whole member.
    """
    value, path = fields.take(name), fields.at(name)
    if value is None:
        return []
    if not starts_with(value, b"["):
        text = words(value_text(value))
        return [(Text(text=text), path)] if text else []
    placed: list[Placed] = []
    for at, each in enumerate(as_list(value, path)):
        place = f"{path}.{at}"
        if starts_with(each, b"{"):
            placed += read_part(Fields(each, place, fields.notes))
        else:
            placed.append((Text(text=value_text(each)), place))
    return placed


def thinking_blocks(fields: Fields, name: str, issuer: Issuer | None) -> list[Placed]:
    """Return reasoning from a member that lists Anthropic's thinking blocks."""
    placed: list[Placed] = []
    for at, block in enumerate(fields.objects(name)):
        if block is None:
            continue
        place = f"{fields.path}.{name}.{at}"
        if word(block, "type") == "redacted_thinking":
            placed.append((redacted(word(block, "data"), issuer), place))
        else:
            placed.append((thinking(word(block, "thinking"), word(block, "signature"), issuer), place))
    return placed


def inner_blocks(value: Raw, path: str, notes: Notes, read_part: Callable[[Fields], list[Placed]]) -> list[Inner]:
    """Return the blocks of a result's parts; a string is a text."""
    blocks: list[Inner] = []
    for at, each in enumerate(as_list(value, path)):
        place = f"{path}.{at}"
        if starts_with(each, b"{"):
            blocks += inner_only(read_part(Fields(each, place, notes)), notes)
        else:
            blocks.append(Text(text=value_text(each)))
    return blocks


def mcp_blocks(value: Raw, path: str, notes: Notes) -> list[Inner] | None:
    """The blocks of an MCP tool's result, ``{"content": [{"type": …}]}``; None for any other value."""
    if not starts_with(value, b"{"):
        return None
    content = as_object(value, path).get("content")
    if content is None or not starts_with(content, b"["):
        return None
    items = as_list(content, path)
    if not items or not all(starts_with(each, b"{") and b'"type"' in bytes(each) for each in items):
        return None
    return inner_blocks(content, f"{path}.content", notes, mcp_part)


def mcp_part(fields: Fields) -> list[Placed]:
    """A content part of MCP."""
    kind = fields.take_text("type")
    if kind == "text":
        fields.ignore("annotations", "_meta")
        block = Text(text=fields.take_text("text"))
        fields.drop_rest()
        return [(block, fields.path)]
    if kind in ("image", "audio"):
        found = media(fields.take_text("mimeType"), data=fields.take_text("data"), kind=kind)
        fields.ignore("annotations", "_meta", "uri")
        placed = media_or_unknown(found, fields, kind)
        fields.drop_rest()
        return [placed]
    if kind == "resource" and (resource := fields.take_object("resource")) is not None:
        # An embedded file: its text, or its bytes.
        if (text := resource.take_string("text")) is not None:
            return [(Text(text=text), fields.path)]
        held = media(resource.take_text("mimeType"), data=resource.take_text("blob"))
        return [media_or_unknown(held, fields, kind)]
    return [(native(fields, kind, is_known=True), fields.path)]


def thinking(text: str, signature: str, issuer: Issuer | None) -> Thinking:
    """Return reasoning. A signature without an issuer stays only if its form proves the issuer."""
    if not signature:
        return Thinking(thinking=text, issuer=issuer or UNSET)
    if issuer is None and not _ANTHROPIC_SIGNATURE.match(signature):
        issuer = Issuer(provider=RESPONSES) if signature.startswith(_OPENAI_SIGNATURE) else UNKNOWN_ISSUER
    return Thinking(thinking=text, signature=signature, issuer=issuer or UNSET)


def redacted(data: str, issuer: Issuer | None) -> RedactedThinking:
    return RedactedThinking(data=data, issuer=issuer or (UNSET if _ANTHROPIC_SIGNATURE.match(data) else UNKNOWN_ISSUER))


def pydantic_ai_reasoning(text: str, signature: str, named: str, issuer: Issuer | None, path: str) -> list[Placed]:
    """Return the reasoning of a part of pydantic-ai, whose id says that it is redacted, or names a Responses item."""
    provider = None if issuer is None else issuer.provider
    if named in _REDACTED and not text:
        return [(redacted(signature, issuer), path)]
    if issuer is not None and provider == RESPONSES and (signature or named):
        return [(made_reasoning_item(named, [text], signature, issuer.model), path)]
    if provider == GEMINI and signature:
        # Gemini's signature belongs to the part after the thought.
        thought = [(thinking(text, "", issuer), path)] if text else []
        return [*thought, (thinking("", standard_base64(signature), issuer), f"{path}.signature")]
    return [(thinking(text, signature, issuer), path)]


def reasoning_item(item: Raw, model: str | None) -> Block:
    """Return a Responses item with its issuer."""
    issuer = Issuer(provider=RESPONSES, model=model or None)
    found = openai_responses.STRICT.read_message(item, 0)
    if not isinstance(found, ValidTurns):
        return Unknown(kind="reasoning", raw=item, issuer=issuer)
    return replace(found.turns[0].blocks[0], issuer=issuer)


def made_reasoning_item(item_id: str, summaries: Sequence[str], encrypted: str, model: str | None) -> Block:
    """Return a Responses item made from the parts that a framework stores."""
    members: dict[str, object] = {"type": "reasoning"}
    if item_id:
        members["id"] = item_id
    members["summary"] = [{"type": "summary_text", "text": text} for text in summaries if text]
    if encrypted:
        members["encrypted_content"] = encrypted
    return reasoning_item(as_json(members), model)


def sealed(block: Block, signature: str, path: str, model: str | None = None) -> list[Placed]:
    """Return a block after its Gemini signature, in the form of Gemini's reader."""
    if not signature:
        return [(block, path)]
    issuer = Issuer(provider=GEMINI, model=model or None)
    return [
        (Thinking(thinking="", signature=standard_base64(signature), issuer=issuer), f"{path}.{_SIGNATURE}"),
        (block, path),
    ]
