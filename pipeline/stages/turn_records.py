"""Records of turns: the session's key, and the record's value."""

from __future__ import annotations

import msgspec
from msgspec import Raw, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.rawjson import Mask, find_mask
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.envelope import key_of, without_value
from reknit.topics.records import TURN_RECORDS, HistoryRestored, TurnAppended, TurnRecord


def decoded(record: Record) -> tuple[bytes, TurnRecord]:
    """The session's key and what the record says.

    Raises:
        InputError: as ``key_of``; no value, not JSON, nested too deeply, or not a record of the topic.
    """
    key = key_of(record)
    if record.value is None:
        raise without_value(record, "the record has no value")
    try:
        return key, _decode(record.value)
    except msgspec.ValidationError as error:
        raise InputError("bad_record", str(error)) from error
    except RecursionError as error:
        raise InputError("too_deep", "the record is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("not_json", f"the record is not JSON: {error}") from error


def _decode(value: bytes) -> TurnRecord:
    try:
        return TURN_RECORDS.decode(value)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        mask = find_mask(value)
        if mask is None:
            raise
    return _decode_torn(value, mask)


def _decode_torn(value: bytes, mask: Mask) -> TurnRecord:
    """A record with lone surrogates: messages keep them for the reader, which records what it makes of them."""
    hidden = mask.hide(value)
    event = TURN_RECORDS.decode(hidden)
    match event:
        case TurnAppended():
            return structs.replace(event, message=Raw(mask.show(bytes(event.message))))
        case HistoryRestored():
            return structs.replace(event, messages=Raw(mask.show(bytes(event.messages))))
        case _:
            return TURN_RECORDS.decode(mask.reveal(hidden))
