"""The Gemini CLI's chats: its record of a session, which alone shows what part of a stream it took for the answer.

A chat is a file of lines. The first names the session. A line with an ``id`` is a message, and one with a known ``id``
replaces that message. ``{"$set": {…}}`` changes the session's own members, and with ``messages`` replaces all of them;
``{"$rewindTo": id}`` removes that message and everything after it, or everything if there is no such id. Older versions
keep one JSON document instead, on one line or on many.

A message of type ``gemini`` has a text, thoughts, and its calls with their results, which are repeated in the user's
message that follows. The model's input is the latter, so the former is used only if nothing followed. A call's id is
``<name>__<id>`` in newer versions; a result may lack the prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.cut import Cut, Needs, read_cut, whole_tail
from reknit.pipeline.history.readers.fields import Fields, Notes
from reknit.pipeline.history.readers.lines import holds_content, members_of
from reknit.pipeline.history.readers.rawjson import check_nesting, starts_with
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.history.readers.tolerant import Placed
from reknit.pipeline.model import Issuer, Role, Text, Thinking, ToolResult, Turn
from reknit.pipeline.providers.gemini.reader import ISSUER, Parts

# The beginning of the program's own message to the model, in the user's name.
_INJECTED: Final = "<session_context>"
_NOTHING: Final = Raw(b'""')
# The lines before and after the pieces of an older document.
_OPENS, _CLOSES = b"{", b"}"


Loss: TypeAlias = Literal["", "unreadable", "skipped"]
"""The loss of a line: none, what could not be read of it, or the content of a line of an unknown type."""


class Thought(Struct, frozen=True):
    subject: str = ""
    description: str = ""


class Call(Struct, frozen=True):
    id: str = ""
    name: str = ""
    args: Raw = Raw(b"{}")
    result: Raw = Raw(b"null")


class Message(Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    type: str
    timestamp: str = ""
    content: Raw = _NOTHING
    thoughts: list[Thought] = []
    tool_calls: list[Call] = []
    model: str | None = None


# The members without which a part of a chat that was cut is of no use.
NEEDS: Final = Needs(
    texts=frozenset({"content", "text", "description", "output"}),
    types={"user": frozenset({"id", "content"}), "gemini": frozenset({"id"})},
    members={
        "messages": [],
        "content": [frozenset({"text"}), frozenset({"functionResponse"}), frozenset({"functionCall"})],
        "functionResponse": [frozenset({"name", "response"})],
        "response": [frozenset({"output"})],
        "thoughts": [frozenset({"description"})],
        "toolCalls": [frozenset({"id", "name", "args"})],
        "result": [frozenset({"functionResponse"}), frozenset({"text"})],
    },
    opaque=frozenset({"args"}),
)


class Entry(Struct, array_like=True):
    """A message as the file has it, and the number of the line that has it, from 0."""

    line: int
    raw: bytes
    kind: str


class Chat(Struct):
    """A chat so far, line by line. ``skipped`` counts the lines that are not messages, by type."""

    session_id: str = ""
    entries: dict[str, Entry] = {}
    skipped: dict[str, int] = {}
    lines: int = 0
    # The lines of an older document so far.
    begun: list[bytes] = []

    def read_line(self, line: bytes) -> Loss:
        """Take the next line, whatever it is; return what is lost of it."""
        number, self.lines = self.lines, self.lines + 1
        line = line.lstrip(b"\0")
        if self.begun or line.strip() == _OPENS:
            self.begun.append(line)
            if line.rstrip() != _CLOSES:
                return ""
            line, self.begun = b"\n".join(self.begun), []
        if not line.strip():
            return ""
        keys = members_of(line)
        # The last line of a session that was killed is often cut.
        return self.skip_unreadable() if keys is None else self._read_object(keys, number, line)

    def read_cut_line(self, line: bytes) -> Cut | None:
        """Take the last line up to its cut; None, and nothing is taken, if it is whole or of no use.

        A message that would replace a longer one of the same id is of no use.
        """
        whole = b"\n".join([*self.begun, line]).lstrip(b"\0")
        cut = None if members_of(whole) is not None else read_cut(whole, NEEDS)
        keys = {} if cut is None else members_of(cut.data) or {}
        message = None if cut is None or "id" not in keys else decoded(_MESSAGE, cut.data)
        if cut is None or not (_is_longer(message, self.entries.get(message.id)) if message else "sessionId" in keys):
            return None
        self._read_object(keys, self.lines, cut.data)
        self.begun = []
        return cut

    def _read_object(self, keys: dict[str, Raw], number: int, line: bytes) -> Loss:
        """Take an object, in the order in which the program asks for its kind."""
        if "$rewindTo" in keys:
            if not starts_with(keys["$rewindTo"], b'"'):
                return self.skip_unreadable()
            self._skip("$rewindTo")
            self._rewind(_string(keys["$rewindTo"]))
            return ""
        if "$set" in keys:
            self._skip("$set")
            return self._set_members(_members(keys["$set"]), number)
        if "id" in keys and "type" in keys:
            return self._put(line, number)
        if "sessionId" in keys:
            self._skip("session")
            self.session_id = _string(keys["sessionId"])
            return self._set_members(keys, number)
        self._skip("unknown")
        return "skipped" if holds_content(keys) else ""

    def _set_members(self, keys: dict[str, Raw], number: int) -> Loss:
        if "messages" not in keys or not starts_with(keys["messages"], b"["):
            return ""
        self._remove(list(self.entries), "replaced")
        lost = [self._put(bytes(raw), number) for raw in _items(keys["messages"])]
        return "unreadable" if any(lost) else ""

    def _put(self, raw: bytes, number: int) -> Loss:
        """Add a message at the end, or in place of the one with its id."""
        try:
            message = _MESSAGE.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self.skip_unreadable()
        before = self.entries.get(message.id)
        if before is not None:
            self._skip(f"{before.kind}/replaced")
        self.entries[message.id] = Entry(number, raw, message.type)
        return ""

    def _rewind(self, message_id: str) -> None:
        ids = list(self.entries)
        self._remove(ids[ids.index(message_id) :] if message_id in self.entries else ids, "rewound")

    def _remove(self, ids: Iterable[str], why: str) -> None:
        for message_id in ids:
            self._skip(f"{self.entries.pop(message_id).kind}/{why}")

    def skip_unreadable(self) -> Loss:
        """Count a line, or a message in it, that cannot be read."""
        self._skip("unreadable")
        return "unreadable"

    def _skip(self, kind: str) -> None:
        self.skipped[kind] = self.skipped.get(kind, 0) + 1

    def messages(self) -> list[tuple[Message, int]]:
        """The messages in order, each with its line."""
        return [(_MESSAGE.decode(entry.raw), entry.line) for entry in self.entries.values()]


_MESSAGE: Final = msgspec.json.Decoder(Message)
# Messages to the user, which the model is never sent.
_MARKS: Final = frozenset({"id", "$set", "$rewindTo"})
_NOTICES: Final = frozenset({"info", "warning", "error"})
_MESSAGES: Final = frozenset({"user", "gemini"})


def is_chat(text: bytes) -> bool:
    """Return True if these are the lines of a chat, or its older document, which begin alike."""
    head = text[:1024]
    return b'"projectHash"' in head and b'"sessionId"' in head and b'"parentUuid"' not in head


def read_lines(text: bytes, notes: Notes) -> tuple[list[Turn], str | None, dict[str, int]]:
    """Read a chat: its turns, the model of the last answer, and the skipped lines by type.

    The place of a block is ``lines.N.content``, ``lines.N.thoughts.I``, ``lines.N.toolCalls.I`` and what is within,
    with N counted from 0.

    Raises:
        InputError: no readable line, or nested too deeply.
    """
    chat, cut = _read_chat(text, notes)
    if not chat.entries and not chat.session_id:
        raise InputError("no_messages", "expected the lines of a chat, found no readable line")
    skipped = Counter(chat.skipped)
    turns: list[Turn] = []
    messages = chat.messages()
    for message, line in messages:
        attempt = notes.attempt()
        try:
            placed = turns_of(message, line, messages, attempt)
        except InputError as error:
            notes.add_unusable_line(line, error)
            skipped["unreadable"] += 1
            continue
        notes.fixes += attempt.fixes
        if not placed:
            skipped[message.type] += 1
            _note_content(chat.entries[message.id], notes)
        for role, blocks in placed:
            turns.append(_turn(role, blocks, message, len(turns)))
    if turns and turns[-1].role == "assistant" and _ends_in_text(cut):
        turns[-1] = msgspec.structs.replace(turns[-1], incomplete=isinstance(turns[-1].blocks[-1], Text))
    models = [message.model for message, _ in messages if message.model]
    return turns, models[-1] if models else None, dict(skipped)


def _read_chat(text: bytes, notes: Notes) -> tuple[Chat, Cut | None]:
    """Take all lines; return also the cut of the last, if it is read up to there."""
    chat = Chat()
    lines = text.rstrip().split(b"\n")
    for number, raw in enumerate(lines):
        check_nesting(raw, f"lines.{number}")
        is_last = number == len(lines) - 1
        if is_last and (cut := chat.read_cut_line(raw)) is not None:
            notes.add_cut_line(number, raw, cut.place)
            return chat, cut
        is_whole = bool(chat.begun) or members_of(raw) is not None
        rest = None if is_whole else whole_tail(raw, _MARKS)
        lost = chat.read_line(raw if rest is None else rest)
        if is_last and chat.begun:
            lost = chat.skip_unreadable()
        if rest is not None:
            # Half of another line is before it.
            chat.skip_unreadable()
            notes.add_unreadable_line(number, raw[: -len(rest)])
        if lost == "unreadable":
            notes.add_unreadable_line(number, raw)
        elif lost:
            notes.add_skipped_line(number, "", raw)
    return chat, None


def _ends_in_text(cut: Cut | None) -> bool:
    """Return True if the text of an answer ends at the cut, which is not in a thought or a call."""
    return cut is not None and cut.in_text and "content" in cut.place


def _is_longer(message: Message, before: Entry | None) -> bool:
    """Return True if a message that was cut has what the one of its id had."""
    if before is None:
        return True
    earlier = _MESSAGE.decode(before.raw)
    said, was_said = bytes(message.content).rstrip(b'"]}'), bytes(earlier.content).rstrip(b'"]}')
    thoughts = [thought.description for thought in message.thoughts]
    return (
        said.startswith(was_said)
        and thoughts[: len(earlier.thoughts)] == [thought.description for thought in earlier.thoughts]
        and len(message.tool_calls) >= len(earlier.tool_calls)
    )


def _note_content(entry: Entry, notes: Notes) -> None:
    if entry.kind not in _MESSAGES | _NOTICES and holds_content(members_of(entry.raw) or {}):
        notes.add_skipped_line(entry.line, entry.kind, entry.raw)


def turns_of(
    message: Message, line: int, messages: Sequence[tuple[Message, int]], notes: Notes
) -> list[tuple[Role, list[Placed]]]:
    """Return the turns of a chat's message: none, one, or an answer and the results that no message repeats."""
    place = f"lines.{line}"
    if message.type == "user":
        called = {call.id for other, _ in messages for call in other.tool_calls}
        blocks = [_prefixed(block, called) for block in _content(message, place, notes)]
        return [("user", blocks)] if blocks else []
    if message.type != "gemini":
        return []
    blocks = _answer(message, place, notes)
    turns: list[tuple[Role, list[Placed]]] = [("assistant", blocks)] if blocks else []
    results = _results(message, place, notes, _answered(messages))
    return [*turns, ("user", results)] if results else turns


def _turn(role: Role, blocks: list[Placed], message: Message, index: int) -> Turn:
    return Turn(
        role=role,
        blocks=tuple(block for block, _ in blocks),
        index=index,
        id=message.id if role == "assistant" or message.type == "user" else f"{message.id}-results",
        paths=tuple(path for _, path in blocks),
        synthetic=role == "user" and is_injected(message),
    )


def is_injected(message: Message) -> bool:
    """Return True if the program itself speaks here, in the user's name."""
    return message.type == "user" and bytes(message.content).find(_INJECTED.encode(), 0, 64) >= 0


def _answer(message: Message, place: str, notes: Notes) -> list[Placed]:
    issuer = Issuer(provider=ISSUER.provider, model=message.model)
    blocks: list[Placed] = []
    for at, thought in enumerate(message.thoughts):
        words = f"**{thought.subject}** {thought.description}" if thought.subject else thought.description
        blocks.append((Thinking(thinking=words, issuer=issuer), f"{place}.thoughts.{at}"))
    blocks += _content(message, place, notes)
    for at, call in enumerate(message.tool_calls):
        part = {"functionCall": {"id": call.id, "name": call.name, "args": call.args}}
        blocks += _part(part, f"{place}.toolCalls.{at}", notes)
    return blocks


def _content(message: Message, place: str, notes: Notes) -> list[Placed]:
    """Return the blocks of a content: a text, one part, or a list of them; an empty text gives none."""
    content, place = message.content, f"{place}.content"
    if starts_with(content, b'"'):
        return _part({"text": content}, place, notes) if bytes(content) != bytes(_NOTHING) else []
    if starts_with(content, b"["):
        return [block for at, part in enumerate(_items(content)) for block in _any_part(part, f"{place}.{at}", notes)]
    return _any_part(content, place, notes) if starts_with(content, b"{") else []


def _any_part(part: Raw, place: str, notes: Notes) -> list[Placed]:
    if starts_with(part, b'"'):
        return _part({"text": part}, place, notes)
    keys = _members(part)
    if "functionResponse" in keys:
        keys["functionResponse"] = _plainly_said(keys["functionResponse"])
    return _part(keys, place, notes)


def _part(keys: dict[str, Any], place: str, notes: Notes) -> list[Placed]:
    return Parts().read(Fields(Raw(msgspec.json.encode(keys)), place, notes))


def _plainly_said(response: Raw) -> Raw:
    """A response whose output is a text, as a result that is that text."""
    keys = _members(response)
    said = _members(keys.get("response", _NOTHING))
    if said.keys() != {"output"} or not starts_with(said["output"], b'"'):
        return response
    return Raw(msgspec.json.encode(keys | {"response": {"result": said["output"]}}))


def _answered(messages: Sequence[tuple[Message, int]]) -> set[str]:
    """Return the ids of the results in the user's messages."""
    found: set[str] = set()
    for message, _ in messages:
        if message.type == "user" and starts_with(message.content, b"["):
            for part in _items(message.content):
                response = _members(_members(part).get("functionResponse", _NOTHING))
                found |= {_string(response[key]) for key in ("id",) if key in response}
    return found


def _results(message: Message, place: str, notes: Notes, answered: set[str]) -> list[Placed]:
    """Return the results that are only with their calls."""
    blocks: list[Placed] = []
    for at, call in enumerate(message.tool_calls):
        if not answered.isdisjoint({call.id, call.id.removeprefix(f"{call.name}__")}):
            continue
        found = _items(call.result) if starts_with(call.result, b"[") else []
        for number, part in enumerate(found):
            blocks += _any_part(part, f"{place}.toolCalls.{at}.result.{number}", notes)
    return blocks


def _prefixed(placed: Placed, called: set[str]) -> Placed:
    """A result under the id that its call has."""
    block, path = placed
    if not isinstance(block, ToolResult) or block.tool_use_id in called:
        return placed
    longer = [call_id for call_id in called if call_id.endswith(f"__{block.tool_use_id}")]
    return (msgspec.structs.replace(block, tool_use_id=longer[0]), path) if len(longer) == 1 else placed


def _members(raw: Raw) -> dict[str, Raw]:
    return msgspec.json.decode(raw, type=dict[str, Raw]) if starts_with(raw, b"{") else {}


def _items(raw: Raw) -> list[Raw]:
    return msgspec.json.decode(raw, type=list[Raw]) if starts_with(raw, b"[") else []


def _string(raw: Raw) -> str:
    return msgspec.json.decode(raw, type=str) if starts_with(raw, b'"') else ""
