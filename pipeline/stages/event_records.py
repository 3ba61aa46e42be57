"""Records of events: the details in their headers, and the records that are fed together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.losses import MEMBER
from reknit.pipeline.registry import SOURCES
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.envelope import header_text
from reknit.topics import headers as names
from reknit.topics.headers import Headers

_LOSSES = MEMBER.encode()
# Numbers of records fit into 64 bits.
_MOST_DIGITS = 18


def runs(records: Sequence[Record], source: str = "") -> Iterator[list[Record]]:
    """Records of one session that say alike whose events they hold, together; each session's in order.

    Records of whole events can be fed at once, which costs a third of feeding them one by one. ``source`` is that of
    records without one.
    """
    current: dict[bytes | None, tuple[Headers | None, list[Record]]] = {}
    for record in records:
        joined_by, run = current.get(record.key, (None, None))
        if run is not None:
            if joined_by == record.headers and record.value is not None and _LOSSES not in record.value:
                run.append(record)
                continue
            yield run
        current[record.key] = (_headers_to_join(record, source), [record])
    for _, run in current.values():
        yield run


def _headers_to_join(first: Record, source: str) -> Headers | None:
    """Return the headers that a record must have to be fed together with this one; None if it is fed alone."""
    headers = dict(first.headers)
    known = SOURCES.get(names.text_of(headers.get(names.SOURCE)) or source)
    # Each fix names the record that it is from, whatever else is in the batch.
    has_fixes = (known is not None and known.rewrites) or (first.value is not None and _LOSSES in first.value)
    # A refusal goes to the log before the turns of later records do.
    refusing = (headers.get(names.STATUS) or b"") >= b"4"
    is_alone = not first.key or first.value is None or names.FRAMING in headers or has_fixes or refusing
    return None if is_alone else first.headers


class EventDetails(Struct, frozen=True, kw_only=True):
    """The headers of a record of events; ``reknit.topics.headers`` describes each.

    ``status`` is set with a request's id only. ``exit`` is None where the record ends no run.
    """

    source: str | None
    run: str | None
    framing: names.Framing = "events"
    is_transcript_expected: bool = False
    request_id: str | None = None
    status: int | None = None
    exit: str | None = None
    seq: int | None = None


def event_details(record: Record) -> EventDetails:
    """Decode the headers of a record of events, before anything is done with the record.

    Raises:
        InputError: ``bad_header``, where a required one cannot be read; ``bad_framing``, ``bad_transcript``,
            ``bad_status`` or ``bad_seq``, where one has an invalid value.
    """
    headers = dict(record.headers)
    source, run = header_text(headers, names.SOURCE), header_text(headers, names.RUN)
    seq = _seq(headers)
    if record.value is None:
        # A run ends with such a record, whatever it says of the reason.
        ended = (names.text_of(headers[names.EXIT]) or "end of run") if names.EXIT in headers else None
        return EventDetails(source=source, run=run, exit=ended, seq=seq)
    status = header_text(headers, names.STATUS)
    request_id = names.text_of(headers.get(names.REQUEST_ID))
    if status is not None:
        request_id = header_text(headers, names.REQUEST_ID)
    return EventDetails(
        source=source,
        run=run,
        framing=_framing(headers),
        is_transcript_expected=_is_transcript_expected(headers),
        request_id=request_id,
        status=None if status is None or request_id is None else _status(status),
        seq=seq,
    )


def _framing(headers: Mapping[str, bytes | None]) -> names.Framing:
    framing = header_text(headers, names.FRAMING)
    if framing not in {None, "events", "bytes"}:
        raise InputError("bad_framing", f"header `framing` is `events` or `bytes`, not {framing!r}")
    return "bytes" if framing == "bytes" else "events"


def _is_transcript_expected(headers: Mapping[str, bytes | None]) -> bool:
    expected = header_text(headers, names.TRANSCRIPT)
    if expected not in {None, "expected"}:
        raise InputError("bad_transcript", f"header `transcript` is `expected` or absent, not {expected!r}")
    return expected is not None


def _status(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) == 3):
        raise InputError("bad_status", "header `status` is no HTTP status")
    return int(text)


def _seq(headers: Mapping[str, bytes | None]) -> int | None:
    text = header_text(headers, names.SEQ)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise InputError("bad_seq", "header `seq` is no number of a record")
    return int(text)
