"""The envelope of an input record: its key, and the headers that processing needs."""

from __future__ import annotations

from collections.abc import Mapping

from reknit.pipeline.errors import InputError
from reknit.pipeline.stages.base import Record
from reknit.topics import PROVIDER_EVENTS
from reknit.topics import headers as names
from reknit.topics.records import RECORD_KINDS, REKNIT

# Marks what the worker writes to an input by its own decision.
OWN_ORIGIN = (names.ORIGIN, REKNIT.encode())
# The headers of either input that the contract knows.
TURN_HEADERS = frozenset(names.TurnHeaders.__struct_encode_fields__)
EVENT_HEADERS = frozenset(
    name
    for kind in RECORD_KINDS
    if kind.topic == PROVIDER_EVENTS and kind.headers is not None
    for name in kind.headers.__struct_encode_fields__
)


def is_session(key: bytes | None) -> bool:
    """Return True if a record's key is a session's id: UTF-8, and not empty."""
    try:
        return bool(key and key.decode())
    except UnicodeDecodeError:
        return False


def key_of(record: Record) -> bytes:
    """The session of a record whose envelope can be used: its key, and the names of its headers.

    Raises:
        InputError: no key, or one that is not UTF-8; a header whose name was not UTF-8.
    """
    if not record.key:
        raise InputError("no_key", "the record has no key; the key is the session's id")
    if not is_session(record.key):
        raise InputError("bad_key", "the record's key is not UTF-8; the key is the session's id")
    if names.has_bad_name(record.headers):
        raise InputError("bad_header", "the name of a header is not UTF-8, or holds U+FFFD")
    return record.key


def header_text(
    headers: Mapping[str, bytes | None], name: str, longest: int | None = names.LONGEST_VALUE
) -> str | None:
    """The text of a header that processing needs; None where it is absent.

    Raises:
        InputError: ``bad_header``, where it has none.
    """
    if name not in headers:
        return None
    if fault := names.fault_of(headers[name], longest):
        raise InputError("bad_header", f"header `{name}` {fault}")
    return names.text_of(headers[name], longest)


def without_value(record: Record, message: str) -> InputError:
    """Return the error of a record without a value: its object is missing, or it never had one."""
    try:
        dataref = header_text(dict(record.headers), names.DATAREF)
    except InputError as error:
        return error
    if dataref is None:
        return InputError("no_value", message)
    if not names.is_own_dataref(record.key or b"", dataref):
        return InputError("object_foreign", "header `dataref` is no key of this session")
    return InputError("object_missing", "what header `dataref` names is not in the object store, or there is no store")
