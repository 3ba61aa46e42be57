"""The three formats in which a session is served, as frames of server-sent events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.screens.ag_ui import AgUi
from reknit.pipeline.screens.ai_sdk import AiSdk
from reknit.pipeline.viewer.index.entries import Entry
from reknit.topics import AGENT_TURNS
from reknit.topics.items import AnyItem, Item, ItemResult, ItemStarted
from reknit.topics.records import TURN_RECORDS, TurnAppended

Format: TypeAlias = Literal["ag-ui", "ai-sdk", "ai-sdk-6", "items"]
# Id and role of a message that a client has.
Posted: TypeAlias = tuple[str, str]

_ITEMS: Final = msgspec.json.Decoder(AnyItem)
# Records about the program and its machine: paths, settings, output that no one wrote for a screen.
DETAILS: Final = frozenset(
    {
        *("session/init", "session/status", "session/system", "session/rate_limit", "agent/unrecognized"),
        *("hook/started", "hook/completed", "task/updated", "task/list", "task/started", "task/notification"),
        *("control/response", "process/stderr", "process/exit"),
    }
)
# The name of this server in the turns that it writes.
PRODUCER: Final = "reknit-screens"
DONE: Final = b"data: [DONE]\n\n"


class Piece(Struct, frozen=True):
    """Frames that follow each other.

    Attributes:
        data: the frames.
        begins: the first one begins an answer.
        ends: the last one ends an answer.
    """

    data: bytes
    begins: bool = False
    ends: bool = False


class Writer(Protocol):
    """Writes one session in one format."""

    @property
    def is_running(self) -> bool:
        """True while an answer is open."""

    def take(self, entry: Entry) -> list[Piece]:
        """Apply one record, and return the frames by which it changes a client."""

    def resume(self, posted: Iterable[Posted] = ()) -> list[Piece]:
        """Return the frames that bring a client to the current state."""

    def answers(self, message_id: str) -> bool | None:
        """Return whether anything came after a user's message; None for an unknown message."""


def writer_of(form: Format, session: str, *, with_details: bool) -> Writer:
    """Return the writer of a session in a format."""
    if form == "ag-ui":
        return _AgUiWriter(session, with_details=with_details)
    if form == "items":
        return _ItemsWriter(with_details=with_details)
    return _AiSdkWriter(session, confirmed_only=form == "ai-sdk-6")


def item_of(entry: Entry) -> Item | None:
    """Return the item of a record; None if this version does not know it."""
    try:
        found: Item = _ITEMS.decode(entry.value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found


def turn_of(entry: Entry) -> ItemStarted | None:
    """Return a user's turn that this server wrote as an item; None for any other turn.

    The streams of APIs do not contain the user's messages. The id is the client's, so that the client knows its own.
    """
    try:
        record = TURN_RECORDS.decode(entry.value or b"")
        message = msgspec.json.decode(record.message) if isinstance(record, TurnAppended) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if entry.producer != PRODUCER or not isinstance(message, dict) or not isinstance(record, TurnAppended):
        return None
    content = Raw(msgspec.json.encode(message.get("content")))
    return ItemStarted(item_id=str(record.id), item_type="user_message", content=content)


def frame(event: dict[str, Any]) -> bytes:
    """Return an event as one frame. JSON has no line ends, so content cannot end a frame."""
    return b"data: %s\n\n" % msgspec.json.encode(event)


def pieces(events: Iterable[dict[str, Any]], begin: str, ends: frozenset[str]) -> list[Piece]:
    """Return events as frames, divided where answers begin and end."""
    found: list[Piece] = []
    is_joined = False
    for event in events:
        kind = str(event["type"])
        begins, is_end, data = kind == begin, kind in ends, frame(event)
        if is_joined and not begins:
            last = found[-1]
            found[-1] = Piece(last.data + data, last.begins, is_end)
        else:
            found.append(Piece(data, begins, is_end))
        is_joined = not is_end
    return found


class _AgUiWriter:
    _END = frozenset({"RUN_FINISHED", "RUN_ERROR"})

    def __init__(self, session: str, *, with_details: bool) -> None:
        self._mapping = AgUi(session, with_details=with_details)

    @property
    def is_running(self) -> bool:
        return self._mapping.is_running

    def take(self, entry: Entry) -> list[Piece]:
        if entry.topic == AGENT_TURNS:
            turn = turn_of(entry)
            if turn is not None:
                self._mapping.apply_turn(turn)
            return []
        item = item_of(entry)
        return [] if item is None else pieces(self._mapping.apply(item, entry.run), "RUN_STARTED", self._END)

    def answers(self, message_id: str) -> bool | None:
        return self._mapping.state.is_followed(message_id)

    def resume(self, posted: Iterable[Posted] = ()) -> list[Piece]:
        return pieces(self._mapping.resume(posted), "RUN_STARTED", self._END)


class _AiSdkWriter:
    _END = frozenset({"finish"})

    def __init__(self, session: str, *, confirmed_only: bool) -> None:
        self._mapping = AiSdk(session, confirmed_only=confirmed_only)

    @property
    def is_running(self) -> bool:
        return self._mapping.is_running

    def take(self, entry: Entry) -> list[Piece]:
        if entry.topic == AGENT_TURNS:
            turn = turn_of(entry)
            if turn is not None:
                self._mapping.state.apply_turn(turn)
            return []
        item = item_of(entry)
        return [] if item is None else pieces(self._mapping.apply(item, entry.run), "start", self._END)

    def answers(self, message_id: str) -> bool | None:
        return self._mapping.state.is_followed(message_id)

    def resume(self, posted: Iterable[Posted] = ()) -> list[Piece]:  # noqa: ARG002  the protocol sends no messages
        return pieces(self._mapping.resume(), "start", self._END)


class _ItemsWriter:
    """Records as they are published. They can be applied again, so a client may get some twice."""

    is_running = True

    def __init__(self, *, with_details: bool) -> None:
        self._with_details = with_details

    def take(self, entry: Entry) -> list[Piece]:
        value = entry.value
        if entry.topic == AGENT_TURNS or value is None or (entry.kind in DETAILS and not self._with_details):
            return []
        item = item_of(entry)
        if item is None and not self._with_details:
            return []  # of a later version, and perhaps about the machine
        if isinstance(item, ItemResult) and item.tool_result is not UNSET and not self._with_details:
            value = msgspec.json.encode(structs.replace(item, tool_result=UNSET))
        if b"\n" in value or b"\r" in value:
            value = msgspec.json.format(value, indent=-1)
        return [Piece(b"id: %d/%d\ndata: %s\n\n" % (entry.partition, entry.offset, value))]

    def resume(self, posted: Iterable[Posted] = ()) -> list[Piece]:  # noqa: ARG002  it resumes by a position
        return []

    def answers(self, message_id: str) -> bool | None:  # noqa: ARG002  it takes no input
        return None
