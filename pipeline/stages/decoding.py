"""Records of ``agent.turns.v1`` from their bytes, read a second time where half a surrogate pair stands in a text."""

from __future__ import annotations

import msgspec
from msgspec import Raw, structs

from pipeline.errors import InputError
from pipeline.history.readers.surrogates import Mask, find_mask
from pipeline.stages.base import Record
from topics.records import TURN_RECORDS, HistoryRestored, TurnAppended, TurnRecord


def decoded(record: Record) -> tuple[bytes, TurnRecord]:
    """The session's key and what the record says.

    Raises:
        InputError: no key, no value, not JSON, nested too deeply, or not a record of the topic.
    """
    if not record.key:
        raise InputError("no_key", "the record has no key; the key is the session's id")
    if record.value is None:
        raise InputError("no_value", "the record has no value")
    try:
        return record.key, _decode(record.value)
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
