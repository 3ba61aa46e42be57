"""Readers: histories of any shape in, canonical turns out. They change the shape and never the structure.

A valid history is read by one typed decode. A message that this refuses is read a second time, tolerantly, and
alone: whatever could be understood is taken, and each thing that had to change has a fix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final, TypeAlias, TypeVar, cast, get_args

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from reknit.pipeline.errors import InputError, UnknownTargetError, expected_one_of
from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.frameworks import (
    FRAMEWORKS,
    decided_among,
    framed,
    framework_of,
    may_be_framework,
    read_items,
)
from reknit.pipeline.history.frameworks.base import Framed, Framework, ReadOther
from reknit.pipeline.history.readers import canonical
from reknit.pipeline.history.readers.extended import without_extended
from reknit.pipeline.history.readers.fields import Notes, as_list, as_object, with_ids
from reknit.pipeline.history.readers.head import DocumentHead, read_head
from reknit.pipeline.history.readers.lines import from_items, utf8_lines
from reknit.pipeline.history.readers.message import (
    ROOTS,
    STRICT,
    UNDECIDED,
    Decided,
    decided_by,
    read_tolerantly,
    shape_of_head,
    valid_message,
)
from reknit.pipeline.history.readers.rawjson import (
    Mask,
    compact,
    deep_place,
    find_mask,
    is_utf8,
    nesting_error,
    starts_with,
    to_bytes,
    to_utf8,
    wrong_type,
)
from reknit.pipeline.history.readers.strict import (
    CANONICAL,
    FrameworkShape,
    Misfit,
    Shape,
    StrictReader,
    ValidTurns,
    decoded,
)
from reknit.pipeline.history.readers.unknown import check_blocks, check_known, unknown_shape
from reknit.pipeline.history.valid_runs import ValidRun, find_valid_runs, turns_with_media
from reknit.pipeline.model import Block, Conversation, Text, ToolResult, Turn, media_in
from reknit.pipeline.providers.bedrock_converse import reader as converse
from reknit.pipeline.providers.claude_cli import reader as claude_code
from reknit.pipeline.providers.codex_cli import reader as codex_rollout
from reknit.pipeline.providers.gemini_cli import reader as gemini_chat
from reknit.pipeline.providers.openai_chat import reader as openai_chat

SHAPES: Final[tuple[str, ...]] = (*get_args(Shape), *get_args(FrameworkShape))
"""The shapes that ``source`` may name, besides ``auto``."""
TRANSCRIPTS: Final[frozenset[str]] = frozenset({"claude-code", "codex-rollout", "gemini-chat"})
"""Those of them that are lines of a program's file."""


class ReadResult(Struct, frozen=True, kw_only=True):
    """The result of reading a history.

    ``shape`` is the shape that was named or detected; ``skipped`` counts what is outside the conversation, by type: the
    lines of transcripts, and messages and parts that a framework does not send. ``valid_runs`` are known to need no
    repair. ``received`` is the number of messages, where some of them may have no turn. ``reader`` could read all
    messages as valid ones.
    """

    conversation: Conversation
    fixes: tuple[Fix, ...]
    shape: str
    skipped: dict[str, int] = {}
    valid_runs: Sequence[ValidRun] = ()
    received: int = 0
    reader: StrictReader[Any] | None = None


_BLOCK: Final[msgspec.json.Decoder[Block]] = msgspec.json.Decoder(Block)
_Part = TypeVar("_Part")
_SHAPES_BY_ROOT: Final[dict[str, Shape]] = {"input": "openai-responses", "contents": "gemini"}
_ROOTS: Final = ("messages", *_SHAPES_BY_ROOT)
_IN_MESSAGES: Final[list[StrictReader[Any]]] = [canonical.STRICT, openai_chat.STRICT, converse.STRICT]
# Reads the lines of a transcript: the turns, the model, and the skipped lines by type.
_LinesReader: TypeAlias = Callable[[bytes, Notes], tuple[list[Turn], str | None, dict[str, int]]]
# At most this many items of a list are read to detect the lines of a transcript.
_LINES_SEEN: Final = 50
_VALUE: Final = b'"value"'
_SOURCE: Final = b'"source"'
# A single line is a document.
_FEWEST_ROWS: Final = 2
_ANY: Final = msgspec.json.Decoder(Raw)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])


def read(data: bytes | str | list[Any] | dict[str, Any], source: str = "auto") -> ReadResult:
    """Read a whole history.

    Args:
        data: ``{"messages": [...], "system"?, "tools"?, "model"?, "params"?}``, a bare list of messages or a single
            one, as JSON or as Python objects, or the lines of a transcript of Claude Code, Codex or the
            Gemini CLI.
        source: one of `SHAPES`, or ``auto``: then the first message that only one shape can have decides the shape of
            those that several can have, and each other message is of its own shape.

    Raises:
        InputError: the input is not JSON, nests deeper than 500, or something in it has no meaning as a history.
        UnknownTargetError: no such source.
    """
    framework, shape = FRAMEWORKS.get(source), _named(source)
    text = to_bytes(data)
    try:
        return _read(text, shape) if framework is None else _read_named(text, framework)
    except RecursionError:
        raise nesting_error(deep_place(text, ROOTS.get(shape or "", "messages"))) from None


def is_transcript(text: bytes) -> bool:
    """Return True if a text is the lines of a program's file."""
    return gemini_chat.is_chat(text) or codex_rollout.is_rollout(text) or claude_code.is_transcript(text)


def read_message(
    data: bytes | str | dict[str, Any], *, index: int, source: str = "auto"
) -> tuple[list[Turn], list[Fix]]:
    """Read the message at ``index`` of a history; return its turns and its fixes.

    A message has one turn, except for those of frameworks: what a framework does not send has none, and a message with
    calls and their results has several.

    Raises:
        InputError: as `read`.
        UnknownTargetError: the source does not exist.
    """
    turns, fixes, _ = read_next(data, index=index, source=source)
    return turns, fixes


def read_next(
    data: bytes | str | dict[str, Any], *, index: int, source: str = "auto", decided: Decided = UNDECIDED
) -> tuple[list[Turn], list[Fix], Decided]:
    """As `read_message`, after messages that have ``decided`` a shape, or not; and what is decided then.

    Raises:
        InputError: as `read`.
        UnknownTargetError: no such source.
    """
    framework, shape = FRAMEWORKS.get(source), _named(source)
    text = to_bytes(data, f"messages.{index}")
    try:
        if framework is not None:
            # A message whose shape is named decides nothing.
            return *_read_framework_message(text, index, framework), decided
        misfit: Misfit | None = None
        is_disguised = shape is None and _may_be_disguised(text)
        if not _has_line_breaks(text) and not (is_disguised and _framework_of_message(text, decided)):
            valid = _valid_message(text, index, shape, decided)
            if isinstance(valid, ValidTurns):
                return valid.turns, [], _decided(valid, index, shape, decided)
            misfit = valid
        if shape is None and (framework := _framework_of_message(text, decided)) is not None:
            return *_read_framework_message(text, index, framework), decided.after(framework.name, index)
        if (
            misfit is not None
            and is_utf8(text)
            and (repaired := _repaired_message(text, index, shape, decided, misfit)) is not None
        ):
            return repaired
        text, mask = _parsable(text)
        notes = _notes(mask)
        turn, _, decided = _read_one(text, index, shape, mask, notes, decided=decided)
    except RecursionError:
        raise nesting_error(f"messages.{index}") from None
    return [turn], with_ids(notes.fixes, [turn]), decided


def read_added(message: bytes, index: int, reader: StrictReader[Any]) -> list[Turn] | None:
    """Read a message that was added to a document; None where the whole document must be read again.

    Args:
        message: valid JSON.
        index: of the message.
        reader: has read all messages before it.
    """
    if _has_line_breaks(message) or _VALUE in message or _SOURCE in message:
        return None
    found = reader.read_message(message, index)
    return found.turns if isinstance(found, ValidTurns) else None


def may_grow(text: bytes) -> bool:
    """Return True if messages that are added to a document are read as `read_added` reads them."""
    return not _has_line_breaks(text) and not _may_be_disguised(text)


def grows(source: str, decided: Decided) -> bool:
    """Return True if messages of the shape that is named, or else decided, come again while an answer arrives."""
    framework = FRAMEWORKS.get(decided.shape if source == "auto" else source)
    return framework is not None and framework.grows


def decided_in(data: bytes | str | list[Any] | dict[str, Any]) -> Decided:
    """The shape that the messages of a readable list or document decide for a message that is read after them."""
    text = to_bytes(data)
    if (rows := _rows(text)) is not None and (of_rows := decided_among(rows)) is not None:
        return Decided(of_rows[0].name, of_rows[1])
    text, _ = _parsable(text)
    found = _found_framework(text)
    if found is not None:
        framework, _, since, _ = found
        return Decided(framework.name, since)
    if starts_with(text, b"["):
        return decided_by(as_list(text, ""))
    keys = as_object(text, "")
    root = next((root for root in _ROOTS if root in keys), "")
    if root in _SHAPES_BY_ROOT:
        return Decided(_SHAPES_BY_ROOT[root])
    return decided_by(as_list(keys[root], root) if root else [Raw(text)])


def read_setting(given: dict[str, Any]) -> DocumentHead:
    """Read the members of a document without messages, as Python objects.

    Raises:
        InputError: a value has no JSON form, nests too deeply, or is of the wrong type.
    """
    try:
        text = msgspec.json.encode(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("wrong_type", f"not JSON: {error}") from None
    try:
        return _read_setting(text)
    except RecursionError:
        raise nesting_error(deep_place(text, "")) from None


def _read_setting(text: bytes) -> DocumentHead:
    """Read encoded members. Raw JSON among them may have line breaks and lone surrogates, as in a document."""
    try:
        keys = None if _has_line_breaks(text) else msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        keys = None
    if keys is not None:
        return read_head({key: Raw(to_utf8(bytes(value))) for key, value in keys.items()}, Notes())
    text, mask = _parsable(text)
    notes, keys = _notes(mask), as_object(text, "")
    if mask is not None:
        keys = {key: Raw(_unmask_json(bytes(value), key, mask, notes)) for key, value in keys.items()}
    return read_head(keys, notes)


def _named(source: str) -> Shape | None:
    if source == "auto" or source in FRAMEWORKS:
        return None
    if source not in SHAPES:
        raise UnknownTargetError("unknown_source", expected_one_of(["auto", *SHAPES], source))
    return cast("Shape", source)


def _has_line_breaks(text: bytes) -> bool:
    return b"\n" in text or b"\r" in text


def _parsable(text: bytes) -> tuple[bytes, Mask | None]:
    """Text that is known to be JSON in UTF-8, on one line, with its lone surrogates masked."""
    text = to_utf8(text)
    try:
        _ANY.decode(text)
    except msgspec.DecodeError as error:
        mask = find_mask(text)
        if mask is None:
            raise InputError("not_json", str(error)) from None
        text = mask.hide(text)
        try:
            _ANY.decode(text)
        except msgspec.DecodeError as other:
            raise InputError("not_json", str(other)) from None
        return compact(text), mask
    return compact(text), None


def _read(text: bytes, shape: Shape | None) -> ReadResult:
    """Try the valid document, then the transcript, then the document with repairs."""
    lines = _has_line_breaks(text)
    if shape == "gemini-chat" or (shape is None and gemini_chat.is_chat(text)):
        return _read_transcript(text, "gemini-chat", gemini_chat.read_lines)
    valid: ReadResult | None = None
    if not lines and shape not in TRANSCRIPTS:
        # Before the searches for transcripts and frameworks, which take a tenth of a valid history's time.
        valid = _read_valid(text, shape)
        if valid and not _is_disguised(valid, shape):
            return valid
    if shape == "codex-rollout" or (shape is None and codex_rollout.is_rollout(text)):
        return _read_transcript(text, "codex-rollout", codex_rollout.read_lines)
    if shape == "claude-code" or (lines and shape is None and claude_code.is_transcript(text)):
        return _read_transcript(text, "claude-code", claude_code.read_lines)
    if lines and shape is None and (rows := _rows(text)) is not None and (of_rows := decided_among(rows)) is not None:
        return _read_framework(of_rows[0], Framed(messages=rows), {}, None)
    parsable, mask = _parsable(text)
    if lines and mask is None:
        valid = _read_valid(parsable, shape)
        if valid and not _is_disguised(valid, shape):
            return valid
    if shape is None and (found := _found_framework(parsable)) is not None:
        framework, given, _, keys = found
        return _read_framework(framework, given, keys, mask)
    return valid or _read_document(parsable, shape, mask)


def _is_disguised(valid: ReadResult, shape: Shape | None) -> bool:
    """Return True if what was read as valid has media that may be AG-UI's; not where the caller names the shape."""
    if shape is not None:
        return False
    holding = turns_with_media(valid.conversation.turns, valid.valid_runs)
    return any(_VALUE in bytes(medium.source) for turn in holding for medium in media_in(turn))


def _may_be_disguised(text: bytes) -> bool:
    """Return True if a message may have AG-UI's media, whose parts have the types and the members of Anthropic's."""
    return _VALUE in text and _SOURCE in text


def _rows(text: bytes) -> list[Raw] | None:
    """The lines of a file, each the JSON of an object; None for any other text. The last line may be cut."""
    lines = [line for line in text.split(b"\n") if line.strip()]
    if len(lines) < _FEWEST_ROWS or not all(line.lstrip().startswith(b"{") for line in lines):
        return None
    rows: list[Raw] = []
    for at, line in enumerate(lines):
        try:
            rows.append(_ANY.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            if at < len(lines) - 1:
                return None
    return [Raw(bytes(row).strip()) for row in rows]


def _read_named(text: bytes, framework: Framework) -> ReadResult:
    """Read a history whose shape the caller names: a list, a document with messages, or a single message."""
    if framework.lines and (rows := _rows(text)) is not None:
        return _read_framework(framework, Framed(messages=rows), {}, None)
    text, mask = _parsable(text)
    if starts_with(text, b"["):
        return _read_framework(framework, Framed(messages=as_list(text, "")), {}, mask)
    keys = as_object(text, "")
    given = framework.frame(keys)
    if given is not None:
        return _read_framework(framework, given, {}, mask)
    if "messages" in keys:
        return _read_framework(framework, Framed(messages=as_list(keys.pop("messages"), "messages")), keys, mask)
    return _read_framework(framework, Framed(messages=[Raw(text)]), {}, mask)


def _found_framework(text: bytes) -> tuple[Framework, Framed, int, dict[str, Raw]] | None:
    """The framework's shape that a document or its messages decide, or None.

    Returns:
        The shape, its messages, the index of the message that decided it (-1 for the document), and the other members
        of the document.
    """
    if not may_be_framework(text):
        return None
    keys: dict[str, Raw] = {}
    if starts_with(text, b"["):
        items = as_list(text, "")
    elif starts_with(text, b"{"):
        keys = as_object(text, "")
        whole = framed(keys)
        if whole is not None:
            return whole[0], whole[1], -1, {}
        messages = keys.get("messages")
        if messages is not None and starts_with(messages, b"["):
            items = as_list(keys.pop("messages"), "messages")
        else:
            items, keys = [Raw(text)], {}
    else:
        return None
    decided = decided_among(items)
    return None if decided is None else (decided[0], Framed(messages=items), decided[1], keys)


def _read_framework(framework: Framework, given: Framed, keys: dict[str, Raw], mask: Mask | None) -> ReadResult:
    """Read a whole history of a framework's shape; a message that cannot be of that shape is of its own."""
    notes = _notes(mask)
    turns: list[Turn] = []
    skipped: Counter[str] = Counter()
    at = 0
    while at < len(given.messages):
        items = list(takewhile(lambda item: _is_of(framework, item), given.messages[at:]))
        if items:
            reading = read_items(framework, items, notes, _other_reader(notes), first=at, frame=given)
            turns += reading.turns
            skipped += reading.skipped
            at += len(items)
        else:
            turn, _, _ = _read_one(given.messages[at], at, None, None, notes, decided=UNDECIDED)
            turns.append(turn)
            at += 1
    if mask is not None:
        turns = [_unmask_turn(turn, mask, notes) for turn in turns]
        keys = {key: Raw(_unmask_json(bytes(value), key, mask, notes)) for key, value in keys.items()}
    check_blocks(framework.name, turns, notes.unknown)
    if framework.grows:
        turns = _without_extended(turns, notes)
    told = {"system": given.system, "tools": given.tools} | keys
    head = read_head({key: value for key, value in told.items() if value is not None}, notes)
    notes.drop_members(given.dropped, "")
    if given.model is not None and head.model is None:
        head = replace(head, model=given.model)
    result = _result(turns, head, notes, framework.name, skipped=dict(skipped))
    return replace(result, received=len(given.messages))


def _without_extended(turns: list[Turn], notes: Notes) -> list[Turn]:
    """Leave out messages that the next one extends, with the fixes of reading them."""
    kept, fixes = without_extended(turns)
    gone = tuple(f"{fix.path}." for fix in fixes)
    if gone:
        notes.fixes = [fix for fix in notes.fixes if not f"{fix.path}.".startswith(gone)] + fixes
    return kept


def _other_reader(notes: Notes) -> ReadOther:
    return lambda item, index, shape: _read_one(item, index, shape, None, notes, decided=UNDECIDED)[0]


def _is_of(framework: Framework, item: Raw) -> bool:
    """Return True if a message can be of a framework's shape; one that is no object is left to the reader to refuse."""
    if not starts_with(item, b"{"):
        return True
    members = as_object(item, "")
    return framework.decides(members) or framework.fits(members)


def _framework_of_message(text: bytes, decided: Decided) -> Framework | None:
    """The framework's shape that a message decides, or that earlier messages have decided for it; or None."""
    earlier = FRAMEWORKS.get(decided.shape)
    if earlier is None and not may_be_framework(text):
        return None
    parsable, _ = _parsable(text)
    if not starts_with(parsable, b"{"):
        return None
    members = as_object(parsable, "")
    found = framework_of(members)
    return found or (earlier if earlier is not None and earlier.fits(members) else None)


def _read_framework_message(text: bytes, index: int, framework: Framework) -> tuple[list[Turn], list[Fix]]:
    """Read one message of a framework's shape."""
    text, mask = _parsable(text)
    notes = _notes(mask)
    turns = read_items(framework, [Raw(text)], notes, _other_reader(notes), first=index).turns
    if mask is not None:
        turns = [_unmask_turn(turn, mask, notes) for turn in turns]
    return turns, with_ids(notes.fixes, turns)


def _read_valid(text: bytes, shape: Shape | None) -> ReadResult | None:
    """Return a document or list whose messages are all valid, or None."""
    readers = [STRICT[shape]] if shape else _IN_MESSAGES
    valid: ValidTurns | None = None
    listed: Shape | None = None
    keys: dict[str, Raw] = {}
    if not text.startswith(b"["):
        if shape not in ROOTS:
            valid, keys = next(filter(None, (reader.read_document(text) for reader in readers)), (None, keys))
        if valid is None:
            keys = decoded(_OBJECT, text) or {}
            root = next((root for root in _ROOTS if root in keys), "")
            if not root or (shape is None and framed(keys) is not None):
                return None
            text, listed = bytes(keys.pop(root)), _SHAPES_BY_ROOT.get(root)
            readers = [STRICT[named]] if (named := shape or listed) else readers
    if valid is None:
        valid = next(filter(None, (reader.read_list(text) for reader in readers)), None)
    if valid is None:
        return None
    notes = Notes()
    head = read_head({key: Raw(to_utf8(bytes(value))) for key, value in keys.items()}, notes)
    found = shape_of_head(keys) if valid.shape == CANONICAL else valid.shape
    return _result(valid.turns, head, notes, shape or listed or found, valid_runs=valid.valid_runs, reader=valid.reader)


def _read_document(text: bytes, shape: Shape | None, mask: Mask | None) -> ReadResult:
    """A document, a list or a single message, each message read by itself."""
    notes = _notes(mask)
    keys: dict[str, Raw] = {}
    decided = UNDECIDED
    if starts_with(text, b"["):
        items = as_list(text, "")
        if shape is None and (found_lines := _listed_lines(items)) is not None:
            return _read_transcript(mask.show(text) if mask else text, *found_lines)
    elif starts_with(text, b"{"):
        keys = as_object(text, "")
        root = next((root for root in _ROOTS if root in keys), "")
        if root:
            items = _listed(keys.pop(root), root)
            decided = Decided(_SHAPES_BY_ROOT[root]) if root in _SHAPES_BY_ROOT else decided
        elif shape is None and claude_code.is_transcript_line(keys):
            return _read_transcript(text, "claude-code", claude_code.read_lines)
        elif keys.keys().isdisjoint({"role", "content", "message", "parts", "type"}):
            raise InputError("no_messages", "expected a list of messages, or a document with messages")
        else:
            items, keys = [Raw(text)], {}
    else:
        raise wrong_type("", "a list of messages, or a document with messages", text)
    if mask is not None:
        keys = {key: Raw(_unmask_json(bytes(value), key, mask, notes)) for key, value in keys.items()}
    turns: list[Turn] = []
    found: Shape = CANONICAL
    for index, item in enumerate(items):
        try:
            turn, its_shape, decided = _read_one(item, index, shape, mask, notes, decided=decided)
        except InputError as error:
            if shape is None and error.code == "missing_role" and not turns:
                raise unknown_shape(error.path, item) from None
            raise
        turns.append(turn)
        found = its_shape if found == CANONICAL else found
    if shape is None:
        check_known(turns, notes.fixes, items)
    head = read_head(keys, notes)
    found = shape or decided.listed or (found if found != CANONICAL else shape_of_head(keys))
    return _result(turns, head, notes, found)


def _listed_lines(items: Sequence[Raw]) -> tuple[Shape, _LinesReader] | None:
    """The shape and the reader of a transcript whose lines are a list; a line that is not JSON is a string in it."""
    for at, item in enumerate(items[:_LINES_SEEN]):
        members = as_object(item, f"{at}") if starts_with(item, b"{") else {}
        if claude_code.is_transcript_line(members):
            return "claude-code", claude_code.read_lines
        if codex_rollout.is_rollout_line(members):
            return "codex-rollout", codex_rollout.read_lines
        if "role" in members:
            return None
    # The older chat is one document, whose lines are no objects.
    is_chat = bool(items) and starts_with(items[0], b'"') and gemini_chat.is_chat(from_items(items[:_LINES_SEEN]))
    return ("gemini-chat", gemini_chat.read_lines) if is_chat else None


def _listed(value: Raw, root: str) -> list[Raw]:
    """The messages of a document; Responses' input may be a text, which is the user's."""
    if root == "input" and starts_with(value, b'"'):
        return [Raw(b'{"role":"user","content":%b}' % bytes(value))]
    return as_list(value, root)


def _read_one(
    item: Raw | bytes, index: int, shape: Shape | None, mask: Mask | None, notes: Notes, *, decided: Decided
) -> tuple[Turn, Shape, Decided]:
    """One message, fast or tolerantly: its turn, its shape, and what is decided after it."""
    masked = mask is not None and mask.is_in(bytes(item))
    valid = None if masked else _valid_message(item, index, shape, decided)
    if isinstance(valid, ValidTurns):
        return valid.turns[0], valid.shape, _decided(valid, index, shape, decided)
    turn, found, decided = read_tolerantly(item, index, shape, notes, decided=decided, misfit=valid)
    return (_unmask_turn(turn, mask, notes) if masked and mask else turn), found, decided


def _valid_message(item: Raw | bytes, index: int, shape: Shape | None, decided: Decided) -> ValidTurns | Misfit:
    """One message if it is valid, by its own shape if it has one, else by the shape that is decided."""
    if shape is None and decided.is_given:
        shape = decided.listed
    found = valid_message(item, index, shape)
    if shape is None and decided.listed and isinstance(found, ValidTurns) and not found.decides:
        return valid_message(item, index, decided.listed)
    return found


def _decided(found: ValidTurns, index: int, shape: Shape | None, decided: Decided) -> Decided:
    """Return the decided shape after a valid message; one whose shape was named decides nothing."""
    return decided.after(found.shape, index) if shape is None and found.decides else decided


def _repaired_message(
    text: bytes, index: int, shape: Shape | None, decided: Decided, misfit: Misfit
) -> tuple[list[Turn], list[Fix], Decided] | None:
    """One message tolerantly; None where it is no JSON, be it for half a surrogate pair."""
    notes = Notes()
    try:
        turn, _, decided = read_tolerantly(text, index, shape, notes, decided=decided, misfit=misfit)
    except InputError as error:
        if error.code != "not_json":
            raise
        return None
    return [turn], with_ids(notes.fixes, [turn]), decided


def _notes(mask: Mask | None) -> Notes:
    return Notes(None if mask is None else mask.reveal)


def _read_transcript(text: bytes, shape: Shape, read_lines: _LinesReader) -> ReadResult:
    if text.startswith(b"["):
        listed, hidden = _parsable(text)
        text = from_items(as_list(listed, ""))
        text = hidden.show(text) if hidden else text
    text = utf8_lines(text)
    mask = find_mask(text)
    notes = _notes(mask)
    turns, model, skipped = read_lines(mask.hide(text) if mask else text, notes)
    if mask:
        turns = [_unmask_turn(turn, mask, notes) for turn in turns]
    return _result(turns, DocumentHead(model=model), notes, shape, skipped=skipped)


def _result(
    turns: list[Turn],
    head: DocumentHead,
    notes: Notes,
    shape: str,
    *,
    skipped: dict[str, int] | None = None,
    valid_runs: Sequence[ValidRun] | None = None,
    reader: StrictReader[Any] | None = None,
) -> ReadResult:
    return ReadResult(
        conversation=Conversation(
            turns=tuple(turns), system=head.system, tools=head.tools, model=head.model, params=head.params
        ),
        fixes=tuple(with_ids(notes.fixes, turns)),
        shape=shape,
        skipped=skipped or {},
        valid_runs=find_valid_runs(turns) if valid_runs is None else valid_runs,
        reader=reader,
    )


def _unmask_turn(turn: Turn, mask: Mask, notes: Notes) -> Turn:
    """The turn with its masked halves joined where they belong together, replaced where they do not."""
    paths = turn.paths or tuple(f"messages.{turn.index}.content.{i}" for i in range(len(turn.blocks)))
    blocks = _join(turn.blocks, paths, mask, notes)
    blocks = [_unmask_block(block, path, mask, notes) for block, path in zip(blocks, paths, strict=True)]
    turn_id = turn.id and _unmask_json(turn.id.encode(), f"{turn.place}.id", mask, notes).decode()
    return replace(turn, blocks=tuple(blocks), id=turn_id)


def _unmask_json(data: bytes, path: str, mask: Mask, notes: Notes) -> bytes:
    if not mask.is_in(data):
        return data
    after = mask.reveal(data)
    notes.add_fix("surrogate_replaced", path, after=after)
    return after


def _unmask_block(block: Block, path: str, mask: Mask, notes: Notes) -> Block:
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        content = _join(block.content, [path] * len(block.content), mask, notes)
        block = replace(block, content=content)
    data = msgspec.json.encode(block)
    after = _unmask_json(data, path, mask, notes)
    return block if after is data else _BLOCK.decode(after)


def _join(
    parts: list[_Part] | tuple[_Part, ...], paths: list[str] | tuple[str, ...], mask: Mask, notes: Notes
) -> list[_Part]:
    """Give a character that was split over two text parts to the first of them."""
    whole = list(parts)
    for i in range(1, len(whole)):
        first, second = whole[i - 1], whole[i]
        if not (isinstance(first, Text) and isinstance(second, Text)):
            continue
        character = mask.joined(first.text, second.text)
        if character:
            whole[i - 1] = replace(first, text=first.text[:-1] + character)
            whole[i] = replace(second, text=second.text[1:])
            notes.add_fix("surrogate_joined", paths[i])
    return whole
