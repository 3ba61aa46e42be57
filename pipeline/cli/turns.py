"""Records of ``agent.turns`` from documents that a user gives: a record, a message or a history."""

from __future__ import annotations

import msgspec

from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.history.frameworks import framed, framework_of
from reknit.pipeline.history.readers.lines import as_items, members_of
from reknit.pipeline.history.readers.rawjson import to_bytes
from reknit.pipeline.history.readers.shapes import is_transcript, read
from reknit.pipeline.session import Session
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turn_records import decoded
from reknit.topics.records import HistoryRestored, SessionOpened, TurnAppended

# Members of a history document besides its messages, as in the record that opens a session.
_OPENING = ("model", "system", "tools", "params", "targets", "policy")


def usable_records(document: bytes, number: int, *, mirror: bool) -> list[bytes]:
    """Return the records of a document that begins in this line.

    Raises:
        InputError: a worker could not use one of them.
    """
    try:
        records = records_of(document, mirror=mirror)
        for record in records:
            _try_out(record)
    except ReknitError as error:
        place = f"line {number}: {error.path}" if error.path else f"line {number}"
        raise InputError(error.code, error.message, path=place) from error
    return records


def _try_out(value: bytes) -> None:
    """Process a record as a worker processes one that begins a session."""
    _, event = decoded(Record(partition=0, offset=0, key=b"session", value=value))
    session = Session()
    match event:
        case TurnAppended():
            session.append(bytes(event.message))
        case HistoryRestored():
            session.replace(bytes(event.messages))
        case SessionOpened():
            session.configure(**Defaults().changes(event, session.policy))


def records_of(document: bytes, *, mirror: bool = False) -> list[bytes]:
    """Return the records of ``agent.turns`` for a record, a message or a history; none for a blank document.

    Args:
        document: JSON, or the lines of a transcript.
        mirror: no turn or history makes a request due.

    Raises:
        InputError: the document is of another kind.
    """
    if not document.strip():
        return []
    if holds_transcript(document):
        return _transcript_records(document, wants_request=not mirror)
    try:
        fields = msgspec.json.decode(document, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("not_json", f"neither a JSON object nor a list of messages: {error}") from error
    if isinstance(fields, list):
        fields = {"messages": msgspec.Raw(document.strip())}
    if (frame := framed(fields)) is not None:
        _, given = frame
        members = {"system": given.system, "tools": given.tools, "model": given.model, "messages": given.messages}
        encoded = {
            name: msgspec.Raw(msgspec.json.encode(value)) for name, value in members.items() if value is not None
        }
        return _history_records(encoded, wants_request=not mirror)
    if "messages" in fields and "type" not in fields:
        return _history_records(fields, wants_request=not mirror)
    framework = framework_of(fields)
    if "role" in fields or (framework is not None and not framework.lines):
        turn = {"type": "turn.appended", "message": msgspec.Raw(document.strip())}
        return [msgspec.json.encode(turn | ({"request": False} if mirror else {}))]
    if mirror and bytes(fields.get("type", b"")) == b'"turn.appended"' and "request" not in fields:
        return [msgspec.json.encode(fields | {"request": False})]
    return [document.strip()]


def holds_transcript(document: bytes) -> bool:
    """Return True if these are lines of a transcript, one or all of them; its lines may also be a record's messages."""
    if document.lstrip().startswith(b"["):
        return False
    members = members_of(document) or {}
    # Only the types of records have a dot.
    is_record = b"." in bytes(members.get("type", b"")) or ("messages" in members and "sessionId" not in members)
    return not is_record and is_transcript(document)


def _transcript_records(text: bytes, *, wants_request: bool) -> list[bytes]:
    """The records that restore the history of a transcript, with the model of its last answer."""
    text = to_bytes(text)
    items = as_items(text)
    model = read(text).conversation.model
    fields = {"messages": msgspec.Raw(msgspec.json.encode(items))}
    if model is not None:
        fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return _history_records(fields, wants_request=wants_request)


def _history_records(fields: dict[str, msgspec.Raw], *, wants_request: bool) -> list[bytes]:
    opening = {name: fields[name] for name in _OPENING if name in fields}
    others = {name: value for name, value in fields.items() if name not in {*_OPENING, "messages"}}
    if others and "params" not in opening:
        opening["params"] = msgspec.Raw(msgspec.json.encode(others))
    records = [{"type": "session.opened", **opening}] if opening else []
    records.append({"type": "history.restored", "messages": fields["messages"]})
    records += [{"type": "request.wanted"}] if wants_request else []
    return [msgspec.json.encode(record) for record in records]


def names_a_model(record: bytes) -> bool:
    """Return whether a record gives its session a model."""
    _, event = decoded(Record(partition=0, offset=0, key=b"session", value=record))
    return isinstance(event, SessionOpened) and isinstance(event.model, str)
