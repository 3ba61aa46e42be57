"""Gemini's shape: contents of parts, each part named by its member; a signature is on the part that it seals.

The canonical form has signatures on reasoning only. One on any other part becomes a thinking block without words before
that part, whose place in the input (``….thoughtSignature``) shows where it belongs. Calls need no ids here: one without
gets an id made from its function's name, as its response names the function too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.call_ids import made_id
from reknit.pipeline.history.pieces import as_json
from reknit.pipeline.history.readers.canonical import is_flat
from reknit.pipeline.history.readers.fields import (
    EMPTY_OBJECT,
    Fields,
    Notes,
    as_list,
    as_object,
    as_string,
    as_strings,
    read_input,
    unknown_role,
)
from reknit.pipeline.history.readers.rawjson import compact, starts_with
from reknit.pipeline.history.readers.strict import StrictReader, decoded, own_of
from reknit.pipeline.history.readers.tolerant import (
    ContentReader,
    Inner,
    Placed,
    block_or_none,
    inner_only,
    placed_turn,
    reader_of,
)
from reknit.pipeline.model import (
    Block,
    Document,
    Image,
    Issuer,
    Own,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

ISSUER: Final = Issuer(provider="gemini")
UNSIGNED: Final = Issuer(provider="skip_thought_signature_validator")
"""The issuer of a call with the documented placeholder in place of a signature: a model that signs nothing."""

# A string's plain runs and escapes in turn, so that no character is looked at twice.
_TEXT_SAID: Final = re.compile(rb'\{\s*"(result|error)"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*\}')
_RESULT: Final = b'"result"'
_UNDERSCORE: Final = re.compile("_([a-z])")
_CAPITAL: Final = re.compile("[A-Z]")
SIGNATURE: Final = "thoughtSignature"
_ROLES: Final[dict[str, Role]] = {"model": "assistant", "user": "user", "function": "user"}
WRITTEN_ROLES: Final = frozenset({b"null", *(b'"%b"' % role.encode() for role in _ROLES)})
"""The roles of contents, as they are written."""
_SNAKE: Final = re.compile(rb'"\w*_\w*"\s*:')


def repaired_turn(fields: Fields, index: int) -> Turn:
    name = fields.take_string("role") or "user"
    role = _ROLES.get(name)
    if role is None:
        raise unknown_role(name, fields.at("role"), "user, model or function")
    parts = Parts()
    placed = ContentReader[_Part](_Part, parts.valid_blocks, parts.read).read(fields, "parts")
    return placed_turn(role, placed, index, "contents", ids_made=parts.ids_made)


class _Call(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    id: str | None = None
    name: str | None = None
    args: Raw | UnsetType = UNSET


class _Response(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    id: str | None = None
    name: str | None = None
    response: Raw | UnsetType = UNSET
    parts: Raw | UnsetType = UNSET


class _Blob(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    mime_type: str | None = None
    data: str | None = None


class _Part(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """A part: a union, so that one member is set; those that are raw here are kept whole."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Call | None = None
    function_response: _Response | None = None
    inline_data: _Blob | None = None
    file_data: Raw | UnsetType = UNSET
    executable_code: Raw | UnsetType = UNSET
    code_execution_result: Raw | UnsetType = UNSET
    tool_call: Raw | UnsetType = UNSET
    tool_response: Raw | UnsetType = UNSET


class _Said(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A response whose text is its only member."""

    result: str


_RESULTS: Final = msgspec.json.Decoder(list[_Said])


class _Content(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    parts: tuple[_Part, ...]
    role: str | None = None


# The alternative members of a part, in both spellings that the API takes; a text is one of them.
_MEMBERS: Final = {
    spelt: name
    for field, name in zip(_Part.__struct_fields__, _Part.__struct_encode_fields__, strict=True)
    if name not in {"text", "thought", SIGNATURE}
    for spelt in (name, field)
}
_NO_NATIVES: Final = (UNSET,) * 5
# Members of a call, of a response and of a part (notes about its content) that no other provider has. They are kept
# for Gemini. Few parts have any, so only the tolerant reader knows them. They are written in this order. A set, whose
# order differs between processes, would make the bytes of a request differ.
OF_CALLS: Final = ("partialArgs", "willContinue")
OF_RESPONSES: Final = ("scheduling", "willContinue")
NOTES: Final = (
    "audioMetadata", "audioTranscription", "documentMetadata", "mediaProcessing", "mediaResolution", "partMetadata",
    "speechMetadata", "spreadsheetMetadata", "videoMetadata",
)  # fmt: skip
# The members that are kept with all members next to them.
_WHOLE: Final = frozenset(_MEMBERS.values()) - {"functionCall", "functionResponse"}

_read_call, _read_response, _read_blob = reader_of(_Call), reader_of(_Response), reader_of(_Blob)


def _turn_of(content: _Content, index: int) -> Turn | None:
    role = _ROLES.get(content.role or "user")
    parts = Parts([found for part in content.parts if (found := part.function_response) is not None])
    placed: list[Placed] = []
    for at, part in enumerate(content.parts):
        read = parts.valid_blocks(part, f"contents.{index}.parts.{at}")
        if read is None:
            return None
        placed += read
    if role is None:
        return None
    return placed_turn(role, placed, index, "contents", ids_made=parts.ids_made)


def either_spelling(names: Iterable[str]) -> dict[str, str]:
    """Names in both spellings that the API takes, with the one in camel case."""
    snake = {_CAPITAL.sub(lambda found: f"_{found[0].lower()}", name): name for name in names}
    return snake | {name: name for name in snake.values()}


_OF_CALLS, _OF_RESPONSES, _NOTES = either_spelling(OF_CALLS), either_spelling(OF_RESPONSES), either_spelling(NOTES)
STRICT: Final = StrictReader(
    "gemini",
    _Content,
    _turn_of,
    lambda _: True,
    is_flat,
    meant=(*_MEMBERS, "thought_signature", *_OF_CALLS, *_OF_RESPONSES, *_NOTES),
    kept_whole=_WHOLE,
)


def _words(text: str, *, is_thought: bool) -> Text | Thinking:
    return Thinking(thinking=text, issuer=ISSUER) if is_thought else Text(text=text)


def _sealed(block: Block, signature: str, path: str) -> list[Placed]:
    """Return a part's block, after its signature; a part without words is its signature alone."""
    if isinstance(block, ToolUse) and signature == UNSIGNED.provider:
        return [(structs.replace(block, issuer=UNSIGNED), path)]
    if not signature:
        return [(block, path)]
    seal = Thinking(thinking="", signature=signature, issuer=ISSUER)
    if isinstance(block, (Text, Thinking)):
        words = block.text if isinstance(block, Text) else block.thinking
        if not words.strip():
            return [(structs.replace(seal, own=block.own), path)]
    return [(seal, f"{path}.{SIGNATURE}"), (block, path)]


class Parts:
    """The parts of one content. ``ids_made`` says that a call or a response had no id.

    The members of a part are read by their declarations. Which member it has, and whether the members next to it
    require that the part is kept whole, is not part of a declaration.

    Args:
        responses: those whose texts are decoded together.
    """

    def __init__(self, responses: Iterable[_Response] = ()) -> None:
        self.ids_made = False
        given = [bytes(each.response) for each in responses if each.response is not UNSET]
        self._results = _results_in(given) if given else {}
        self._texts: dict[bytes, str] = {}
        if given and not self._results:
            escaped = [said[2] for data in given if b"\\" in data and (said := _TEXT_SAID.fullmatch(data))]
            self._texts = dict(zip(escaped, as_strings(escaped), strict=True)) if escaped else {}

    def valid_blocks(self, part: _Part, path: str) -> list[Placed] | None:
        """Return a valid part as its block, after its signature; None if it needs repair."""
        # The quickest way to see that it is alone.
        if (text := part.text) is not None and part == _Part(text):
            return [(Text(text=text), path)]
        call, response, blob = part.function_call, part.function_response, part.inline_data
        # A call or a response alone, the next most frequent: a call takes 0.42 microseconds, by the checks below 0.94.
        if call is not None and call.args is not UNSET and part == _Part(None, None, None, call):
            if starts_with(call.args, b"{"):
                name = call.name or ""
                return [(ToolUse(id=self._id(call.id, name), name=name, input=call.args), path)]
        elif response is not None and response.parts is UNSET and part == _Part(function_response=response):
            return [(self.response(response, path, Notes()), path)]
        block: Block | None = None
        notes = Notes()
        natives = part.file_data, part.executable_code, part.code_execution_result, part.tool_call, part.tool_response
        if natives != _NO_NATIVES or (call is None) + (response is None) + (blob is None) + (text is None) != 3:
            return _native(part, path)
        if text is not None:
            block = _words(text, is_thought=bool(part.thought))
        elif call is not None:
            block = self.call(call, path, notes)
        elif response is not None and response.parts is UNSET:
            block = self.response(response, path, notes)
        elif blob is not None:
            block = _media(blob)
        return None if block is None or notes.fixes else _sealed(block, part.thought_signature or "", path)

    def read(self, fields: Fields) -> list[Placed]:
        """Return one part as its block, after its signature."""
        members, path = fields.members(), fields.path
        signature = fields.take_string(SIGNATURE) or fields.take_string("thought_signature") or ""
        block = block_or_none(fields, lambda part: self._block(part, signature))
        if block is None:
            # A part without a block in the model, such as a seal without words or a video with offsets, is kept whole.
            kind = next((_MEMBERS[name] for name in members if name in _MEMBERS), "")
            return [(Unknown(kind=kind, raw=_spelt_alike(Raw(fields.whole), members), issuer=ISSUER), path)]
        return _sealed(block, signature, path)

    def _block(self, fields: Fields, signature: str) -> Block | None:
        thought = fields.take_flag("thought")
        name = next((name for name in fields.names() if name == "text" or name in _MEMBERS), None)
        if name is None:
            return None if fields.names() or (thought and signature) else Text(text="")
        if name == "text":
            words = _words(fields.take_text("text"), is_thought=thought)
            return structs.replace(words, own=_taken(fields, _NOTES))
        value = fields.peek(name)
        is_kept = _MEMBERS[name] in _WHOLE and (_MEMBERS[name] != "inlineData" or fields.names() != [name])
        if value is None or is_kept or not starts_with(value, b"{"):
            return None
        inner = Fields(value, fields.at(name), fields.notes)
        block: Block | None = None
        match _MEMBERS[name]:
            case "functionCall":
                own = _taken(inner, _OF_CALLS, fields)
                if call := _read_call(inner):
                    block = structs.replace(self.call(call, inner.path, inner.notes), own=own)
            case "functionResponse":
                own = _taken(inner, _OF_RESPONSES, fields)
                if response := _read_response(inner):
                    block = structs.replace(self.response(response, inner.path, inner.notes), own=own)
            case "inlineData" if (blob := _read_blob(inner)) and not inner.names():
                block = _media(blob)
        if block is not None:
            fields.ignore(name)
            inner.drop_rest()
        return block

    def call(self, call: _Call, path: str, notes: Notes) -> ToolUse:
        name, call_input, incomplete = call.name or "", EMPTY_OBJECT, False
        # A function without parameters is called without arguments.
        if call.args is not UNSET and not starts_with(call.args, b"n"):
            call_input, incomplete = read_input(call.args, f"{path}.args", notes)
        return ToolUse(id=self._id(call.id, name), name=name, input=call_input, incomplete=incomplete)

    def response(self, response: _Response, path: str, notes: Notes) -> ToolResult:
        call_id = self._id(response.id, response.name or "")
        text, is_error, as_given = self._said(response.response)
        content: str | list[Inner] = text
        if response.parts is not UNSET:
            path = f"{path}.parts"
            content = [Text(text=text)] if text else []
            for at, item in enumerate(as_list(response.parts, path)):
                content += inner_only(self.read(Fields(item, f"{path}.{at}", notes)), notes)
        return ToolResult(tool_use_id=call_id, content=content, is_error=is_error, issuer=ISSUER if as_given else UNSET)

    def _said(self, response: Raw | UnsetType) -> tuple[str, bool, bool]:
        """Return a response's text, whether it is an error's, and whether the text is the JSON of the unchanged object.

        A text in an object of one member, ``result`` or ``error``, is this API's form of text.
        """
        if response is UNSET or starts_with(response, b"n"):
            return "", False, False
        data = bytes(response)
        if (result := self._results.get(data)) is not None:
            return result, False, False
        said = _TEXT_SAID.fullmatch(data)
        if said is not None:
            return self._texts.get(said[2]) or as_string(said[2], ""), said[1] == b"error", False
        return compact(bytes(response)).decode(), False, True

    def _id(self, call_id: str | None, name: str) -> str:
        if call_id:
            return call_id
        self.ids_made = True
        return made_id(name)


def _results_in(responses: Sequence[bytes]) -> dict[bytes, str]:
    """The texts of responses that all have a text as ``result`` and nothing else, in one decode; otherwise none.

    For a response of 800 bytes it takes 0.6 microseconds; the pattern, and the decode of what it finds, take 2.7.
    """
    # The decode takes members that come twice, or under an escaped name, and the pattern does not.
    if any(data.count(_RESULT) != 1 for data in responses):
        return {}
    found = decoded(_RESULTS, b"[%b]" % b",".join(responses))
    return {} if found is None else {data: each.result for data, each in zip(responses, found, strict=True)}


def _taken(fields: Fields, names: Mapping[str, str], part: Fields | None = None) -> Own | UnsetType:
    """Take the members of these names, and the notes of the part that holds them, as Gemini's own."""
    taken = {known: fields.take(name) for name, known in names.items() if name in fields}
    if part is not None:
        taken |= {known: part.take(name) for name, known in _NOTES.items() if name in part}
    return own_of(ISSUER.provider, **taken)


def _native(part: _Part, path: str) -> list[Placed] | None:
    """Return a part of a type that only Gemini has, if it has no members next to it."""
    for name, kind in zip(_Part.__struct_fields__, _Part.__struct_encode_fields__, strict=True):
        value = getattr(part, name)
        if type(value) is Raw and part == structs.replace(_Part(), **{name: value}) and starts_with(value, b"{"):
            raw = Raw(b'{"%b":%b}' % (kind.encode(), bytes(value)))
            return None if _SNAKE.search(value) else [(Unknown(kind=kind, raw=raw, issuer=ISSUER), path)]
    return None


def _spelt_alike(part: Raw, keys: dict[str, Raw]) -> Raw:
    """A part with its own names and its members' in the first of the API's two spellings."""
    if not _SNAKE.search(part):
        return part
    inner = {name: as_object(value, "") for name, value in keys.items() if starts_with(value, b"{")}
    if not any("_" in name for name in (*keys, *(name for given in inner.values() for name in given))):
        return part
    spelt: dict[str, object] = {_camel(name): value for name, value in keys.items()}
    spelt |= {_camel(name): {_camel(key): value for key, value in given.items()} for name, given in inner.items()}
    return Raw(msgspec.json.encode(spelt))


def _camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def _media(blob: _Blob) -> Image | Document | None:
    """Inline images, and documents of text and PDF; other data has no canonical form."""
    media_type = blob.mime_type or ""
    if blob.data is None:
        return None
    source = as_json({"type": "base64", "media_type": media_type, "data": blob.data})
    if media_type.startswith("image/"):
        return Image(source=source)
    return Document(source=source) if media_type.startswith("text/") or media_type == "application/pdf" else None
