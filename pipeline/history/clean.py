"""Repairs that need only one turn: blank blocks, blocks in the wrong role, inputs that are not objects.

``clean`` turns one input turn into runs of pieces, each of one role. A turn that is valid as is gives one run. The data
of images and documents, in any encoding that clients use, becomes the base64 that providers accept.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.exchanges import is_reasoning
from reknit.pipeline.history.pieces import STRIPPED, FixLog, Speaker, TrackedBlock, block_path, changes_tools, is_blank
from reknit.pipeline.history.wrapped_inputs import object_input
from reknit.pipeline.model import (
    Document,
    Image,
    Own,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
    on_the_wire,
)
from reknit.pipeline.options import Structure
from reknit.pipeline.policy import Policy

SpeakerRun: TypeAlias = tuple[Speaker, list[TrackedBlock]]

# Marks a system message inside the history, which becomes user text.
SYSTEM_MARK = "[System message]\n"

# Appended to a text that was cut off.
CUT_MARK = "\n[The rest of this text was cut off.]"

# A call without a name is called this.
UNNAMED = "tool"

_OPEN_BRACE = ord("{")

# The role of a block, where it is not the turn's own role.
_ROLES: dict[type, Speaker] = {
    ToolUse: "assistant",
    ToolResult: "user",
    Image: "user",
    Document: "user",
}


def structure_under(policy: Policy, structure: Structure) -> Structure:
    """Return the structure that a target takes under a policy."""
    if policy.cut_text != "auto":
        structure = structs.replace(structure, cut_text=policy.cut_text)
    if policy.strip_tools:
        # The filter joins neighbours, blank ones too, and begins with the user, whatever the target.
        return structs.replace(
            structure, neighbours=frozenset(), blank=frozenset(), assistant_first=False, observed=frozenset()
        )
    if structure.observed:
        # A repair that the policy never makes for a call without a result cannot be observed.
        other = "call_unanswered" if policy.missing_result == "synthesise" else "result_synthesised"
        return structs.replace(structure, observed=structure.observed - {other})
    return structure


def clean(turn: Turn, policy: Policy, structure: Structure, book: FixLog, changed: set[int]) -> list[SpeakerRun]:
    """Return the turn's pieces in runs of one role.

    Removed blocks are in the book, turns that lose blocks in ``changed``.
    """
    if not turn.blocks:
        book.note_fix("turn_empty", turn.place)
        return []
    speaker: Speaker = "assistant" if turn.role == "assistant" else "user"
    runs: list[SpeakerRun] = []
    removed = 0
    blank_stays = turn.role in structure.blank and all(
        is_blank(TrackedBlock(block, turn.index, "")) for block in turn.blocks
    )
    cut_at = _cut_place(turn) if turn.incomplete and structure.cut_text != "keep" else -1
    for at, block in enumerate(turn.blocks):
        came = TrackedBlock(block, turn.index, block_path(turn, at))
        stays = blank_stays and is_blank(came)
        if policy.reasoning == "strip" and structure.flat and speaker == "assistant" and is_reasoning(came):
            # The target removes it together with the blocks that depend on it.
            came.code, stays = STRIPPED, True
        piece = came if stays else _CLEANERS[type(block)](came, speaker, policy, book)
        if piece is not None and at == cut_at:
            piece = _without_end(piece, structure, book)
            removed += piece is None
        elif piece is None:
            removed += not isinstance(block, Text)
        if piece is None:
            continue
        if isinstance(block, ToolResult) and not structure.blank_results:
            piece = _without_blanks(piece, book)
        may_stay = structure.assistant_media and isinstance(piece.block, (Image, Document))
        role = speaker if may_stay else _ROLES.get(type(piece.block), speaker)
        if role != speaker:
            piece = book.change("block_moved", piece)
        if runs and runs[-1][0] == role:
            runs[-1][1].append(piece)
        else:
            runs.append((role, [piece]))
    # A blank text is no part of what a model said; anything else that goes leaves the turn no longer verbatim.
    if removed or len(runs) > 1:
        changed.add(turn.index)
    if turn.own is not UNSET and runs:
        runs[0][1][0].own = turn.own
    if turn.synthetic:
        return [(role, [structs.replace(piece, synthetic=True) for piece in pieces]) for role, pieces in runs]
    return runs


def _cut_place(turn: Turn) -> int:
    """Return the index of the turn's last block with content, the text that was cut off; -1 if there is none."""
    places = (at for at in reversed(range(len(turn.blocks))) if isinstance(turn.blocks[at], Text))
    return next((at for at in places if not is_blank(TrackedBlock(turn.blocks[at], turn.index, ""))), -1)


def _without_end(piece: TrackedBlock, structure: Structure, book: FixLog) -> TrackedBlock | None:
    """A text that was cut off, as the structure has it: marked, or left out."""
    text = piece.block
    assert isinstance(text, Text)  # noqa: S101  the caller knows
    if structure.cut_text == "drop":
        book.drop("cut_text_dropped", piece)
        return None
    return book.change("cut_text_marked", piece, structs.replace(text, text=text.text + CUT_MARK))


def system_pieces(turn: Turn, structure: Structure, book: FixLog, *, leading: bool) -> list[TrackedBlock]:
    """A system message's blocks: texts as they are for the system slot, marked for a place inside the history.

    Media inside the history stay as the user's; what no system prompt and no user can say is shown as its JSON. Where
    a system message may stay inside the history, its texts and the blocks that it may hold do; so do the texts of one
    that holds such a block. A change of the tools is left out where the target does not take it.
    """
    if not turn.blocks:
        book.note_fix("turn_empty", turn.place)
    pieces = []
    taken = {block.kind for block in turn.blocks if isinstance(block, Unknown)} & structure.system_blocks
    stays = not leading and (structure.system_inside or bool(taken))
    for at, block in enumerate(turn.blocks):
        piece = TrackedBlock(block, turn.index, block_path(turn, at), system=True)
        if is_blank(piece) and book.makes("blank_dropped"):
            book.drop("blank_dropped", piece)
        elif stays and isinstance(block, Text):
            pieces.append(_unrefused(piece, book) if block.refusal else piece)
        elif stays and isinstance(block, Unknown) and block.kind in taken:
            pieces.append(piece)
        elif leading and isinstance(block, Text):
            pieces.append(_unrefused(piece, book) if block.refusal else piece)
        elif structure.system_media and isinstance(block, (Image, Document)):
            pieces.append(_with_plain_source(piece, book))
        elif leading:
            book.drop("system_media_dropped", piece)
        elif isinstance(block, (Image, Document)):
            pieces.append(structs.replace(book.change("block_moved", piece), system=False))
        elif (shown := inlined(piece, book)) is not None:
            pieces.append(shown)
    if turn.own is not UNSET and pieces:
        # Media that were moved to the user begin a message of the user's.
        is_system = (leading or stays) and pieces[0].system
        pieces[0].own = turn.own if is_system else _own_of_user(turn.own)
    return pieces


def inlined(piece: TrackedBlock, book: FixLog) -> TrackedBlock | None:
    """Return a piece of a system message as marked text of the user's; None if it is a change of the tools."""
    block = piece.block
    if isinstance(block, Unknown) and changes_tools(block):
        book.drop("native_dropped", piece, detail=block.kind)
        return None
    if isinstance(block, Text):
        piece = _unrefused(piece, book) if block.refusal else piece
        marked = structs.replace(block, text=SYSTEM_MARK + block.text, refusal=False)
        return book.change("system_inlined", piece, marked)
    shown = msgspec.json.encode(on_the_wire(block)).decode()
    return book.change("system_block_as_text", piece, Text(text=SYSTEM_MARK + shown))


def _own_of_user(own: Own) -> Own | UnsetType:
    """Return the provider-specific members of a system message that a user message can have; the role is not one."""
    members = {name: value for name, value in own.members.items() if name != "role"}
    return structs.replace(own, members=members) if members else UNSET


def _text(piece: TrackedBlock, speaker: Speaker, _policy: Policy, book: FixLog) -> TrackedBlock | None:
    block = piece.block
    assert isinstance(block, Text)  # noqa: S101  the table dispatches on the type
    if (block.text and not block.text.isspace()) or not book.makes("blank_dropped"):
        # Only the model refuses.
        return piece if not block.refusal or speaker == "assistant" else _unrefused(piece, book)
    book.drop("blank_dropped", piece)
    return None


def _unrefused(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    return book.change("refusal_as_text", piece, structs.replace(piece.block, refusal=False))


def _reasoning(piece: TrackedBlock, speaker: Speaker, policy: Policy, book: FixLog) -> TrackedBlock | None:
    if speaker == "user" and book.makes("thinking_misplaced"):
        book.drop("thinking_misplaced", piece)
        return None
    if policy.reasoning == "strip":
        book.drop(STRIPPED, piece)
        return None
    return piece


def _call(piece: TrackedBlock, _speaker: Speaker, policy: Policy, book: FixLog) -> TrackedBlock | None:
    call = piece.block
    assert isinstance(call, ToolUse)  # noqa: S101  the table dispatches on the type
    if policy.strip_tools:
        book.drop("tools_stripped", piece)
        return None
    if call.incomplete:
        return _incomplete(piece, call, policy, book)
    if not call.name.strip():
        piece = book.change("call_unnamed", piece, structs.replace(call, name=UNNAMED))
    return _object_input(piece, book)


def _incomplete(piece: TrackedBlock, call: ToolUse, policy: Policy, book: FixLog) -> TrackedBlock | None:
    raw = _as_it_came(call.input)
    if policy.incomplete_call == "drop":
        book.drop("call_incomplete", piece, detail=raw)
        return None
    text = Text(text=f"[Incomplete tool call: {call.name}({raw})]")
    return book.change("call_incomplete_text", piece, text, detail=raw)


def _as_it_came(cut: Raw) -> str:
    """Return the original text of an input, which a reader keeps as a JSON string."""
    text = bytes(cut).decode("utf-8", "replace")
    if not text.startswith('"'):
        return text
    try:
        return msgspec.json.decode(cut, type=str)
    except msgspec.DecodeError:
        return text


def _object_input(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """Tool inputs are objects: a JSON text of one is parsed, null is an empty one, anything else is put into one."""
    call = piece.block
    assert isinstance(call, ToolUse)  # noqa: S101  the caller knows
    view = memoryview(call.input)
    if view and view[0] == _OPEN_BRACE:
        return piece
    raw = bytes(call.input).strip()
    if raw[:1] == b"{":
        return piece
    value = msgspec.json.decode(raw) if raw else None
    if isinstance(value, str):
        inner = _object_in(value)
        if inner is not None:
            return book.change("input_parsed", piece, structs.replace(call, input=inner))
    return book.change("input_wrapped", piece, structs.replace(call, input=object_input(raw)))


def _object_in(text: str) -> Raw | None:
    try:
        return Raw(text.encode()) if isinstance(msgspec.json.decode(text), dict) else None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None


def _result(piece: TrackedBlock, _speaker: Speaker, policy: Policy, book: FixLog) -> TrackedBlock | None:
    result = piece.block
    assert isinstance(result, ToolResult)  # noqa: S101  the table dispatches on the type
    if policy.strip_tools:
        book.drop("tools_stripped", piece)
        return None
    if isinstance(result.content, list):
        if any(isinstance(part, Text) and part.refusal for part in result.content):
            # Only the model refuses.
            said = [structs.replace(part, refusal=False) if isinstance(part, Text) else part for part in result.content]
            piece = book.change("refusal_as_text", piece, structs.replace(result, content=said))
        piece = _with_plain_media(piece, book)
    return piece


def _without_blanks(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """A result without its texts that say nothing."""
    result = piece.block
    if not isinstance(result, ToolResult) or not isinstance(result.content, list):
        return piece
    kept = [part for part in result.content if not (isinstance(part, Text) and not part.text.strip())]
    if len(kept) == len(result.content):
        return piece
    return book.change("blank_in_result", piece, structs.replace(result, content=kept or UNSET))


def _with_plain_media(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    """A result whose images and documents hold plain base64."""
    result = piece.block
    assert isinstance(result, ToolResult)  # noqa: S101  the caller knows
    content = result.content if isinstance(result.content, list) else []
    mended = {
        at: structs.replace(part, source=source)
        for at, part in enumerate(content)
        if isinstance(part, (Image, Document)) and (source := with_plain_data(part.source)) is not None
    }
    if not mended:
        return piece
    parts = [mended.get(at, part) for at, part in enumerate(content)]
    places = ", ".join(f"content.{at}" for at in mended)
    return book.change("media_data_mended", piece, structs.replace(result, content=parts), detail=places)


def _unknown(piece: TrackedBlock, speaker: Speaker, policy: Policy, book: FixLog) -> TrackedBlock | None:
    return _reasoning(piece, speaker, policy, book) if is_reasoning(piece) else piece


def _medium(piece: TrackedBlock, _speaker: Speaker, _policy: Policy, book: FixLog) -> TrackedBlock | None:
    return _with_plain_source(piece, book)


def _with_plain_source(piece: TrackedBlock, book: FixLog) -> TrackedBlock:
    medium = piece.block
    assert isinstance(medium, (Image, Document))  # noqa: S101  the table dispatches on the type
    source = with_plain_data(medium.source)
    return piece if source is None else book.change("media_data_mended", piece, structs.replace(medium, source=source))


_Cleaner: TypeAlias = Callable[[TrackedBlock, Speaker, Policy, FixLog], TrackedBlock | None]

_CLEANERS: dict[type[Any], _Cleaner] = {
    Text: _text,
    Thinking: _reasoning,
    RedactedThinking: _reasoning,
    ToolUse: _call,
    ToolResult: _result,
    Image: _medium,
    Document: _medium,
    Unknown: _unknown,
}


_DATA_URL: Final = re.compile(r"data:(?P<media_type>[^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)
_INLINE: Final = re.compile(r"data:([^;,]+);base64,(.+)", re.DOTALL)
_BLANKS: Final = " \t\r\n"
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_PLAIN: Final = str.maketrans("-_", "+/")


class _Source(Struct, frozen=True, tag_field="type", tag="base64"):
    data: str
    media_type: str | None = None


_SOURCE: Final = msgspec.json.Decoder(_Source)


def with_plain_data(source: Raw) -> Raw | None:
    """Return a source in plain base64 if it has line breaks, a ``data:`` prefix, the URL-safe alphabet or no padding.

    The bytes stay the same. None if there is nothing to repair, or it cannot be repaired.
    """
    try:
        found = _SOURCE.decode(source)
    except msgspec.DecodeError:
        return None
    data, media_type = found.data, found.media_type
    prefix = _DATA_URL.match(data)
    if prefix is not None:
        data, media_type = data[prefix.end() :], media_type or prefix["media_type"]
    if any(blank in data for blank in _BLANKS):
        data = _SPACE.sub("", data)
    if "-" in data or "_" in data:
        data = data.translate(_PLAIN)
    if len(data) % 4 > 1:
        data += "=" * (4 - len(data) % 4)
    if data == found.data or not _decodes(data):
        return None
    keys = msgspec.json.decode(source, type=dict[str, Raw]) | {"data": Raw(msgspec.json.encode(data))}
    if media_type:
        keys["media_type"] = Raw(msgspec.json.encode(media_type))
    return Raw(msgspec.json.encode(keys))


def _decodes(data: str) -> bool:
    try:
        binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return False
    return True


def url_source(url: str) -> dict[str, str] | None:
    """The source of a data URL or of one on the web; None for any other."""
    data = _INLINE.fullmatch(url)
    if data is not None:
        return {"type": "base64", "media_type": data[1], "data": data[2]}
    return {"type": "url", "url": url} if url.startswith(("http://", "https://")) else None
