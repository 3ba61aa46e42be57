"""Records as stages read and write them: those of ``agent.turns.v1`` from their bytes, those of ``history.fixes.v1``.

A turn is read a second time where half a surrogate pair stands in a text. Each fix is counted, those of a history and
those of what a stream said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct, structs

from pipeline import __version__
from pipeline.errors import InputError
from pipeline.fixes import Fix
from pipeline.history.readers.rawjson import Mask, find_mask
from pipeline.stages.base import Output, Record, Result, passed_on
from topics import HISTORY_FIXES
from topics.headers import PRODUCER, find_dataref, is_own_dataref
from topics.records import TURN_RECORDS, FixRecord, HistoryRestored, TurnAppended, TurnRecord


def decoded(record: Record) -> tuple[bytes, TurnRecord]:
    """The session's key and what the record says.

    Raises:
        InputError: no key, no value, not JSON, nested too deeply, or not a record of the topic.
    """
    if not record.key:
        raise InputError("no_key", "the record has no key; the key is the session's id")
    if record.value is None:
        raise without_value(record, "the record has no value")
    try:
        return record.key, _decode(record.value)
    except msgspec.ValidationError as error:
        raise InputError("bad_record", str(error)) from error
    except RecursionError as error:
        raise InputError("too_deep", "the record is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError("not_json", f"the record is not JSON: {error}") from error


def without_value(record: Record, message: str) -> InputError:
    """What is wrong with a record that has no value: its object is not there, or none was given."""
    dataref = find_dataref(record.headers)
    if dataref is None:
        return InputError("no_value", message)
    if not is_own_dataref(record.key or b"", dataref):
        return InputError("object_foreign", "header `dataref` is no key of this session")
    return InputError("object_missing", "what header `dataref` names is not in the object store, or there is no store")


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


class FixPublisher(Struct):
    """Publishes the fixes that one source record led to, in their order."""

    record: Record
    result: Result
    tally: Counter[tuple[str, ...]]
    numbered: int = 0

    def publish_fix(self, fix: Fix, turn: int, *, request_id: str = "", source: str = "") -> None:
        """Publish a fix and count it. ``turn`` is how many the session has; see ``FixRecord`` for the rest."""
        told = FixRecord(
            code=fix.code,
            path=fix.path,
            lossless=fix.lossless,
            turn=turn,
            offset=self.record.offset,
            number=self.numbered,
            version=__version__,
            target="" if source else fix.target,
            detail=fix.detail,
            before=fix.before,
            after=fix.after,
            request_id=request_id,
            source=source,
            id=fix.id,
            observed=fix.observed,
        )
        self.numbered += 1
        self.result.outputs.append(
            Output(HISTORY_FIXES, self.record.key, msgspec.json.encode(told), passed_on(self.record))
        )
        if fix.observed:
            self.tally["reknit_fixes_observed_total", fix.code, fix.target] += 1
            return
        self.tally["reknit_fixes_total", fix.code, fix.target] += 1
        producer = dict(self.record.headers).get(PRODUCER, b"").decode("utf-8", "replace")
        self.tally["reknit_producer_fixes_total", producer, fix.code] += 1
        if not fix.lossless:
            self.tally["reknit_fixes_lossy_total", fix.code, fix.target] += 1


def publish_stream_fixes(
    fixes: Sequence[Fix], record: Record, turns: int, result: Result, tally: Counter[tuple[str, ...]]
) -> None:
    """Publish what a record of events led to; a fix's target is the source, ``turns`` are those finished so far."""
    publisher = FixPublisher(record, result, tally)
    for fix in fixes:
        publisher.publish_fix(fix, turns, source=fix.target)
