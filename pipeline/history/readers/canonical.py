"""The canonical shape: its message, its blocks, and the parts of OpenAI's two shapes.

This module decides which blocks can stay as written. The content parts of OpenAI's shapes are declared with them: one
list of blocks may hold both, and each is read strictly or tolerantly by its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.clean import url_source
from reknit.pipeline.history.pieces import ANTHROPIC, CHAT, RESPONSES, SETTINGS, as_json
from reknit.pipeline.history.readers.fields import Fields, Notes, as_list, read_input
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import CANONICAL, StrictReader, is_harmless, own_of, unless
from reknit.pipeline.history.readers.tolerant import (
    INNER,
    ContentReader,
    Inner,
    Placed,
    Taker,
    block_reader,
    placed_turn,
    reader_of,
    tag_of,
    typed_reader,
)
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

_SYSTEM: Final = Raw(b'"system"')
_USER: Final = Raw(b'"user"')
_ASSISTANT: Final = Raw(b'"assistant"')
_ISSUER: Final = msgspec.json.Decoder(Issuer)
_OF_CHAT: Final = ("tool_calls", "tool_call_id", "function_call")

Typed: TypeAlias = Text | Image | Document | Thinking | RedactedThinking | ToolUse | ToolResult
"""The blocks that the model knows; that a block calls itself unknown is not for the wire to say."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message.

    ``synthetic`` marks a user's that an agent program wrote, ``incomplete`` an assistant's whose last text was cut off.
    """

    # Members are taken in this order, and whether a mark is one depends on the role, which is still there then.
    synthetic: bool = False
    incomplete: bool = False
    role: Role
    content: str | tuple[Typed, ...]
    id: str | None = None
    type: Literal["message"] = "message"


# The members of each kind that are raw.
_FREE_FORM: Final[dict[type[Struct], tuple[str, ...]]] = {
    kind: tuple(field.name for field in structs.fields(kind) if field.type in (Raw, Raw | UnsetType))
    for kind in (Text, Image, Document, Thinking, RedactedThinking, ToolUse, ToolResult, Unknown)
}


def _turn_of(message: Message, index: int) -> Turn | None:
    content = message.content
    if (message.synthetic and message.role != "user") or (message.incomplete and message.role != "assistant"):
        return None
    if type(content) is tuple:
        turn = Turn(role=message.role, blocks=content, index=index, id=message.id)
    else:
        turn = string_turn(message.role, str(content), index, message.id)
    return _marked(turn, message) if message.synthetic or message.incomplete else turn


def _marked(turn: Turn, message: Message) -> Turn:
    """Return the turn with the message's marks; a role has one kind."""
    if message.synthetic:
        return structs.replace(turn, synthetic=True)
    return structs.replace(turn, incomplete=True) if message.incomplete else turn


def string_turn(role: Role, text: str, index: int, turn_id: str | None) -> Turn:
    paths = (f"messages.{index}.content",)
    return Turn(role=role, blocks=(Text(text=text),), index=index, id=turn_id, paths=paths)


def is_sound(block: Block) -> bool:
    """Return True if a decoded block can stay: its free-form JSON has the right type and is not nested too deeply.

    Provider-specific members that only readers set must not be in the input.
    """
    if isinstance(block, Unknown) or block.own is not UNSET:
        return False
    if isinstance(block, ToolUse):
        if not (starts_with(block.input, b"{") or block.incomplete):
            return False
    elif isinstance(block, ToolResult):
        if type(block.content) is list and not all(map(is_sound, block.content)):
            return False
        return block.cache_control is UNSET or is_harmless(block.cache_control)
    elif isinstance(block, Text) and block.structured:
        return False
    return _is_flat_inside(block)


def is_flat(block: Block) -> bool:
    """Return True if the free-form JSON in a block is UTF-8, and can be no deeper than allowed."""
    own = UNSET if isinstance(block, Unknown) else block.own
    if own is not UNSET and not all(map(is_harmless, own.members.values())):
        return False
    if isinstance(block, ToolResult) and type(block.content) is list and not all(map(is_flat, block.content)):
        return False
    return _is_flat_inside(block)


def _is_flat_inside(block: Block) -> bool:
    for name in _FREE_FORM[type(block)]:
        value = getattr(block, name)
        if value is not UNSET and not is_harmless(value):
            return False
    return True


# Members of blocks that one provider's library defines and no other provider has. Each is kept for its own provider.
# Few messages have any, so only the tolerant reader knows them.
_OF_PROVIDERS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "text": {CHAT: ("prompt_cache_breakpoint",)},
    "image": {ANTHROPIC: ("transformations",)},
    "tool_use": {ANTHROPIC: ("toolset_name",)},
    "tool_result": {ANTHROPIC: ("toolset_name",)},
}
_OF_SYSTEMS: Final = ("clear_at", SETTINGS)
OF_BLOCKS: Final = frozenset(name for members in _OF_PROVIDERS.values() for names in members.values() for name in names)


def _decides(message: Message) -> bool:
    """Return True if a message holds a call or a result, which only this shape has as a block of a type."""
    content = message.content
    return type(content) is tuple and any(type(block) in (ToolUse, ToolResult) for block in content)


STRICT: Final = StrictReader(
    CANONICAL,
    Message,
    _turn_of,
    lambda _: False,
    is_sound,
    decides=_decides,
    meant=("object", "message_id", *_OF_CHAT, *_OF_SYSTEMS, *OF_BLOCKS),
)


def repaired_turn(fields: Fields, index: int) -> Turn:
    for key in _OF_CHAT:
        if key in fields:
            complaint = f"{key} belongs to the openai-chat shape, not to anthropic"
            raise InputError("wrong_shape", complaint, path=fields.at(key))
    # Members of an API response besides its content: they describe the response, not the history.
    fields.ignore("type", "object")
    own: dict[str, Raw] = {}
    if fields.peek("role") == _SYSTEM:
        own = {name: value for name in _OF_SYSTEMS if (value := fields.take(name)) is not None}
    message: Any = _read_message(fields)
    content = message.content
    if SETTINGS in own and bytes(own[SETTINGS]) != b"{}" and not content:
        # Without a content, this is what the message says.
        block = Unknown(kind=SETTINGS, raw=as_json(own), issuer=Issuer(provider=ANTHROPIC))
        content, own = [(block, fields.at(SETTINGS))], {}
    return _marked(placed_turn(message.role, content, index, own=own_of(ANTHROPIC, **own)), message)


def _call_input(fields: Fields, name: str) -> Raw:
    """A call's input; that it is incomplete is left for the member that says so."""
    marked, value = fields.take_flag("incomplete"), fields.take(name)
    if marked and value is not None:
        call_input, incomplete = value, True
    else:
        call_input, incomplete = read_input(value, fields.at(name), fields.notes)
    if incomplete:
        fields.put("incomplete", Raw(b"true"))
    return call_input


def _content(fields: Fields, name: str) -> str | list[Inner] | UnsetType:
    return CONTENT.read_result(fields, name)


def _issuer(fields: Fields, name: str) -> Issuer | None:
    value = fields.take(name)
    try:
        return None if value is None else _ISSUER.decode(value)
    except msgspec.ValidationError as error:
        raise InputError("wrong_type", f"not an issuer: {error}", path=fields.at(name)) from None


_SPECIAL: Final[dict[str, Taker]] = {
    "input": _call_input,
    "content": _content,
    "issuer": _issuer,
}


def _reader_with_own(kind: type[Struct]) -> Callable[[Fields], Any]:
    """The reader of one kind of block, which also keeps the members that only its provider has."""
    # Members that only readers set are not read.
    read_one = reader_of(kind, _SPECIAL, ("own", "structured"))
    providers = _OF_PROVIDERS.get(tag_of(kind), {})

    def read_own(fields: Fields) -> Any:  # noqa: ANN401  a block of the kind
        for provider, names in providers.items():
            own = own_of(provider, **{name: fields.take(name) for name in names})
            if own is not UNSET:
                block = read_one(fields)
                return None if block is None else structs.replace(block, own=own)
        return read_one(fields)

    return read_own if providers else read_one


READERS: Final[dict[str, Callable[[Fields], Any]]] = {tag_of(kind): _reader_with_own(kind) for kind in get_args(Typed)}
CONTENT: Final = ContentReader[Typed](
    Typed, lambda block, path: [(block, path)] if is_sound(block) else None, typed_reader(READERS)
)
_MEMBERS: Final[dict[str, Taker]] = {
    "synthetic": lambda fields, name: fields.take_flag(name) if fields.peek("role") == _USER else None,
    "incomplete": lambda fields, name: fields.take_flag(name) if fields.peek("role") == _ASSISTANT else None,
    "role": Fields.take_string,
    "content": CONTENT.read,
}
_read_message: Final = reader_of(Message, _MEMBERS, ("id", "type"))


# The content parts of OpenAI's two shapes.

CHAT_ISSUER: Final = Issuer(provider=CHAT)


class _Part(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", kw_only=True, gc=False):
    """A content part that the canonical shape has in another form."""


class _InputText(_Part, frozen=True, tag="input_text", gc=False):
    text: str
    annotations: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET
    prompt_cache_breakpoint: Raw | UnsetType = UNSET


class _OutputText(_InputText, frozen=True, tag="output_text", gc=False):
    pass


class _Refusal(_Part, frozen=True, tag="refusal", gc=False):
    refusal: str


class _Address(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    url: str | None = None
    detail: Raw | UnsetType = UNSET


class _Image(_Part, frozen=True, gc=False):
    file_id: str | None = None
    detail: Raw | UnsetType = UNSET
    cache_control: Raw | UnsetType = UNSET
    prompt_cache_breakpoint: Raw | UnsetType = UNSET


class _ImageUrl(_Image, frozen=True, tag="image_url", gc=False):
    image_url: _Address | None = None


class _InputImage(_Image, frozen=True, tag="input_image", gc=False):
    image_url: str | _Address | None = None


class _Upload(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _File(_Part, frozen=True, tag="file", gc=False):
    file: _Upload
    prompt_cache_breakpoint: Raw | UnsetType = UNSET


class _DocumentUrl(_Part, frozen=True, tag="document_url", gc=False):
    """Mistral's document: its address, or itself as a data URL."""

    document_url: str
    document_name: str | None = None


class InputFile(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="input_file", gc=False):
    """A file, which only Responses has in this form."""

    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None
    detail: Raw | UnsetType = UNSET
    prompt_cache_breakpoint: Raw | UnsetType = UNSET


ChatPart: TypeAlias = Typed | _InputText | _OutputText | _Refusal | _ImageUrl | _InputImage | _File | _DocumentUrl
ResponsesPart: TypeAlias = ChatPart | InputFile


def _text(part: _InputText) -> Text:
    if part.annotations is part.logprobs is part.prompt_cache_breakpoint is UNSET:
        return Text(text=part.text)
    own = own_of(
        RESPONSES,
        annotations=unless(b"[]", part.annotations),
        logprobs=unless(b"[]", part.logprobs),
        prompt_cache_breakpoint=unless(b"[]", part.prompt_cache_breakpoint),
    )
    return Text(text=part.text, own=own)


def _refusal(part: _Refusal) -> Text:
    return Text(text=part.refusal, refusal=True)


def _image(part: _ImageUrl | _InputImage) -> Image | None:
    """``image_url`` is an object with a url, or in Responses the url itself; a file's id is a source too."""
    given = part.image_url
    address, inner = (given.url or "", given.detail) if isinstance(given, _Address) else (given, UNSET)
    source: dict[str, str] | None = None
    if address is not None:
        source = url_source(address)
    elif part.file_id is not None:
        source = {"type": "file", "file_id": part.file_id}
    if source is None:
        return None
    if inner is part.detail is part.cache_control is part.prompt_cache_breakpoint is UNSET:
        return Image(source=as_json(source))
    detail = unless(b'"auto"', inner) or unless(b'"auto"', part.detail)
    provider = RESPONSES if isinstance(part, _InputImage) else CHAT
    own = own_of(provider, detail=detail, prompt_cache_breakpoint=part.prompt_cache_breakpoint)
    return Image(source=as_json(source), cache_control=unless(b"", part.cache_control) or UNSET, own=own)


def _file(part: _File) -> Document | None:
    upload = part.file
    source: dict[str, str] | None = url_source(upload.file_data or "")
    return _document(source, upload, CHAT, prompt_cache_breakpoint=part.prompt_cache_breakpoint)


def _document_url(part: _DocumentUrl) -> Document | None:
    source = url_source(part.document_url)
    title = UNSET if part.document_name is None else part.document_name
    return None if source is None else Document(source=as_json(source), title=title)


def _input_file(part: InputFile) -> Document | None:
    source: dict[str, str] | None = url_source(part.file_data or "")
    if source is None and part.file_url:
        source = {"type": "url", "url": part.file_url}
    return _document(source, part, RESPONSES, detail=part.detail, prompt_cache_breakpoint=part.prompt_cache_breakpoint)


def _document(
    source: dict[str, str] | None, given: _Upload | InputFile, provider: str, **members: Raw | UnsetType
) -> Document | None:
    """A document of a source, or of an upload's id; None where there is neither."""
    if source is None and given.file_id:
        source = {"type": "file", "file_id": given.file_id}
    if source is None:
        return None
    title = UNSET if given.filename is None else given.filename
    return Document(source=as_json(source), title=title, own=own_of(provider, **members))


# How a part becomes a block; None where it is nothing that the model knows.
_BLOCK_OF: Final[dict[type[Struct], Callable[[Any], Text | Image | Document | None]]] = {
    _InputText: _text,
    _OutputText: _text,
    _Refusal: _refusal,
    _ImageUrl: _image,
    _InputImage: _image,
    _File: _file,
    _DocumentUrl: _document_url,
    InputFile: _input_file,
}


def blocks_of(parts: Iterable[Any]) -> list[Any] | None:
    """Return the blocks of valid parts, or None if any needs repair."""
    blocks: list[Any] = []
    for part in parts:
        converted = _BLOCK_OF.get(type(part))
        block = part if converted is None else converted(part)
        if block is None or not (
            is_sound(block) if block is part else block.own is block.cache_control is UNSET or is_flat(block)
        ):
            return None
        blocks.append(block)
    return blocks


def _placed(part: Any, path: str) -> list[Placed] | None:  # noqa: ANN401  a part of either shape
    blocks = blocks_of((part,))
    return None if blocks is None else [(blocks[0], path)]


def inner_of(content: str | tuple[Any, ...]) -> str | list[Inner] | None:
    """A valid result's content, or None."""
    if isinstance(content, str):
        return content
    blocks = blocks_of(content)
    return blocks if blocks is not None and all(isinstance(block, INNER) for block in blocks) else None


def has_chats_parts(content: object) -> bool:
    """Return True if a valid content has parts that Responses writes in another form."""
    return isinstance(content, tuple) and any(isinstance(part, (_ImageUrl, _File, _DocumentUrl)) for part in content)


def has_parts(content: object) -> bool:
    """Return True if a valid content has parts that only chat or Responses has."""
    return isinstance(content, tuple) and any(type(part) in _BLOCK_OF for part in content)


def screenshot(value: Raw) -> Image | None:
    """A computer tool's output as an image."""
    block = _READERS["input_image"](Fields(value, "", Notes())) if starts_with(value, b"{") else None
    return block if isinstance(block, Image) else None


def _image_url(fields: Fields) -> Block | None:
    """Some write Responses' address, which is a string, into chat's part."""
    value = fields.peek("image_url")
    if value is not None and starts_with(value, b'"'):
        fields.notes.add_fix("content_wrapped", fields.at("image_url"))
        fields.put("image_url", Raw(b'{"url":%b}' % bytes(value)))
    return _read_image_url(fields)


def _thinking(fields: Fields) -> Block | None:
    """Mistral's thinking is a list of text parts; the canonical one, of the same type, is a text, and may be signed."""
    fields.ignore("closed")
    value = fields.peek("thinking")
    if value is None or not starts_with(value, b"["):
        thinking: Block | None = READERS["thinking"](fields)
        return thinking
    fields.ignore("thinking")
    parts = [Fields(item, fields.at("thinking"), fields.notes) for item in as_list(value, fields.at("thinking"))]
    return Thinking(thinking="".join(part.take_text("text") for part in parts), issuer=CHAT_ISSUER)


_read_image_url: Final = block_reader(_ImageUrl, _image)
_READERS: Final[dict[str, Callable[[Fields], Block | None]]] = {
    **READERS,
    **{tag_of(kind): block_reader(kind, block_of) for kind, block_of in _BLOCK_OF.items()},
    "thinking": _thinking,
    "image_url": _image_url,
}
_READERS_OF_CHAT: Final = {kind: reader for kind, reader in _READERS.items() if kind != tag_of(InputFile)}
CHAT_CONTENT: Final = ContentReader[Any](ChatPart, _placed, typed_reader(_READERS_OF_CHAT))
PART: Final = typed_reader(_READERS)
"""Reads one content part of the canonical shape or of OpenAI's two shapes."""
RESPONSES_CONTENT: Final = ContentReader[Any](ResponsesPart, _placed, PART)
PART_KINDS: Final = _READERS_OF_CHAT.keys() - READERS.keys() | {"input_audio"}
"""Types of content parts by which a message is known for chat."""
CHATS_PART_KINDS: Final = frozenset({tag_of(_ImageUrl), tag_of(_File), tag_of(_DocumentUrl), "input_audio"})
"""Those of them that Responses writes in another form."""
