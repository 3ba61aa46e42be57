"""Records as stages read and write them: turns, events, items, and a session's head in the changelog."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct, structs

from reknit.pipeline.errors import InputError, InternalError
from reknit.pipeline.history.readers.rawjson import Mask, find_mask
from reknit.pipeline.registry import SOURCES
from reknit.pipeline.stages.base import Record
from reknit.topics import PROVIDER_EVENTS
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.items import Item, ItemDelta
from reknit.topics.records import RECORD_KINDS, REKNIT, TURN_RECORDS, HistoryRestored, TurnAppended, TurnRecord

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


class _Kept(Struct, frozen=True, array_like=True):
    """A record without its key, which is the session's."""

    partition: int
    offset: int
    timestamp: int
    value: bytes | None
    headers: Headers
    base: int = 0


def packed(record: Record, value: bytes | None) -> bytes:
    """A record with this value as it is kept."""
    place = (record.partition, record.offset, record.timestamp)
    return msgspec.msgpack.encode(_Kept(*place, value, record.headers, record.base))


def unpacked(key: bytes, kept: bytes) -> Record:
    """The record again."""
    found = msgspec.msgpack.decode(kept, type=_Kept)
    return Record(
        partition=found.partition,
        offset=found.offset,
        key=key,
        value=found.value,
        headers=found.headers,
        timestamp=found.timestamp,
        base=found.base,
    )


# Events that are fed together, and items that are shown together.


def runs(records: Sequence[Record], source: str = "") -> Iterator[list[Record]]:
    """Records of one session that say alike whose events they hold, together; each session's in order.

    Records of whole events can be fed at once, which costs a third of feeding them one by one. ``source`` is that of
    records without one.
    """
    current: dict[bytes | None, tuple[Headers | None, list[Record]]] = {}
    for record in records:
        joined_by, run = current.get(record.key, (None, None))
        if run is not None:
            if joined_by == record.headers and record.value is not None:
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
    # Where words are changed, each fix names the record that it is from.
    rewritten = known is not None and known.rewrites
    # A refusal goes to the log before the turns of later records do.
    refusing = (headers.get(names.STATUS) or b"") >= b"4"
    is_alone = not first.key or first.value is None or names.FRAMING in headers or rewritten or refusing
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


def event_details(record: Record) -> EventDetails:
    """Decode the headers of a record of events, before anything is done with the record.

    Raises:
        InputError: ``bad_header``, where a required one cannot be read; ``bad_framing``, ``bad_transcript`` or
            ``bad_status``, where one has an invalid value.
    """
    headers = dict(record.headers)
    source, run = header_text(headers, names.SOURCE), header_text(headers, names.RUN)
    if record.value is None:
        # A run ends with such a record, whatever it says of the reason.
        ended = (names.text_of(headers[names.EXIT]) or "end of run") if names.EXIT in headers else None
        return EventDetails(source=source, run=run, exit=ended)
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


def joined(items: Sequence[Item]) -> list[Item]:
    """Items with neighbouring deltas of one item made one; what they add up to stays the same."""
    found: list[Item] = []
    run: list[ItemDelta] = []
    for item in items:
        if type(item) is ItemDelta and item.raw is msgspec.UNSET:
            if run and not _goes_on(run[-1], item):
                found.append(_as_one(run))
                run = []
            run.append(item)
            continue
        if run:
            found.append(_as_one(run))
            run = []
        found.append(item)
    if run:
        found.append(_as_one(run))
    return found


def _goes_on(before: ItemDelta, item: ItemDelta) -> bool:
    return (
        before.item_id == item.item_id
        and before.delta_type == item.delta_type
        and item.at == before.at + len(before.content)
    )


def _as_one(run: list[ItemDelta]) -> ItemDelta:
    if len(run) == 1:
        return run[0]
    first = run[0]
    content = "".join([item.content for item in run])
    return ItemDelta(item_id=first.item_id, delta_type=first.delta_type, content=content, at=first.at)


# A session's head.

CHANGE = b"c"

# The first format of state that has changes.
CHANGED_HEADS = 2

# More changes than this make reading slow: each is one more copy of the head.
_MOST_CHANGES = 4096
# The approximate overhead of one more record: its key and the lengths of its parts.
_RECORD_BYTES = 40
# Where two heads diverge, this many bytes of the old one are searched in the new one.
_PROBE_BYTES = 16
# The maximum number of searches through the new head. If two large heads diverge everywhere, writing the rest costs
# less than searching for equal parts.
_MOST_SEARCHES = 16
# In small ones that is no time at all, and each place that is found makes the change smaller.
_LEAST_SEARCHED_BYTES = 1 << 24


class _Change(Struct, frozen=True, array_like=True):
    """``parts`` repeat: the start of a piece in the previous head, its length, and the bytes after it."""

    of: bytes
    parts: list[int | bytes]


_encode_change = msgspec.msgpack.Encoder().encode
_decode_change = msgspec.msgpack.Decoder(_Change).decode


class WrittenHead:
    """A session's head as stored in the changelog, from which the next one is written: whole, or as its changes.

    A head is written with every batch that touches its session. A head of less than ``small_bytes`` is written whole,
    because finding its changes costs more than writing it. A large one (many open calls, a long answer that still
    streams) is written whole once, then as changes, each relative to the previous head, until the changes together are
    as large as the head was. The written bytes are thus a small multiple of the new ones, however large a head becomes.
    A head is one record under its own key, and its changes are records under ``c`` + number + session, numbered from 0,
    which the next whole head deletes. A change names the digest of the head that it belongs to: where writing is not
    atomic, changes of an earlier head may remain.
    """

    __slots__ = ("_changes", "_changes_bytes", "_digest", "_last", "_small_bytes", "_whole_bytes")

    def __init__(self, small_bytes: int) -> None:
        self._small_bytes = small_bytes
        self._digest = self._last = b""
        self._whole_bytes = self._changes = self._changes_bytes = 0

    @classmethod
    def read(cls, whole: bytes, changes: Mapping[int, bytes], small_bytes: int) -> tuple[WrittenHead, bytes]:
        """Read the last written head from its records.

        Raises:
            InternalError: a change does not fit the head that it names.
        """
        written, head = cls(small_bytes), whole
        if len(whole) >= small_bytes:
            written._note_whole(whole)
            for change, size in _changes_of(written._digest, changes):
                head = _changed(head, change.parts)
                written._note_change(head, size)
        written._changes = len(changes)  # those of an earlier head are deleted too
        return written, head

    def write(self, key: bytes, session: bytes, head: bytes, state_format: int) -> dict[bytes, bytes | None]:
        """The records that make this the session's head; ``key`` is that of a whole one."""
        if self._last and state_format >= CHANGED_HEADS and self._changes < _MOST_CHANGES:
            parts = _difference(self._last, head)
            change = _encode_change(_Change(self._digest, parts))
            if self._changes_bytes + len(change) < self._whole_bytes:
                changed = change_key(self._changes, session)
                self._note_change(head, len(change))
                return {changed: change}
        removed = dict.fromkeys(change_key(number, session) for number in range(self._changes))
        self._changes = 0
        if len(head) >= self._small_bytes and state_format >= CHANGED_HEADS:
            self._note_whole(head)
        else:
            self._last = b""
        return {**removed, key: head}

    def _note_whole(self, head: bytes) -> None:
        self._last, self._digest = head, hashlib.sha256(head).digest()[:8]
        self._whole_bytes, self._changes, self._changes_bytes = len(head), 0, 0

    def _note_change(self, head: bytes, size: int) -> None:
        self._last = head
        self._changes += 1
        self._changes_bytes += size + _RECORD_BYTES


def change_key(number: int, session: bytes) -> bytes:
    return CHANGE + number.to_bytes(4, "big") + session


def _changes_of(digest: bytes, changes: Mapping[int, bytes]) -> Iterator[tuple[_Change, int]]:
    """Return the changes of one whole head with their sizes, in order; changes of an earlier one may follow them."""
    for number in range(len(changes)):
        change = _decode_change(changes[number]) if number in changes else None
        if change is None or change.of != digest:
            return
        yield change, len(changes[number])


def _changed(head: bytes, parts: list[int | bytes]) -> bytes:
    pieces = []
    for start, length, added in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if not (isinstance(start, int) and isinstance(length, int) and isinstance(added, bytes)):
            raise InternalError("state_unreadable", "a change of a session's head is none")
        pieces += [head[start : start + length], added]
    return b"".join(pieces)


def _difference(old: bytes, new: bytes) -> list[int | bytes]:
    """Return the parts that make ``new`` from ``old``: pieces of the old one and the bytes after each.

    Where they diverge, the search continues at the next place of the old one, at growing distance, that the new one has
    too.
    """
    parts: list[int | bytes] = []
    at_old = at_new = 0
    left = max(_MOST_SEARCHES * len(new), _LEAST_SEARCHED_BYTES)
    while True:
        same = _common(old, at_old, new, at_new)
        start, end_new = at_old, at_new + same
        at_old, at_new = at_old + same, end_new
        skip, found = 1, -1
        while found < 0 < left and at_new < len(new) and at_old + skip + _PROBE_BYTES <= len(old):
            found = new.find(old[at_old + skip : at_old + skip + _PROBE_BYTES], at_new)
            left -= (len(new) if found < 0 else found) - at_new
            at_found, skip = at_old + skip, skip * 2
        if found < 0:
            return [*parts, start, same, new[at_new:]]
        while at_found > at_old and found > at_new and old[at_found - 1] == new[found - 1]:
            at_found, found = at_found - 1, found - 1
        parts += (start, same, new[end_new:found])
        at_old, at_new = at_found, found


def _common(old: bytes, at_old: int, new: bytes, at_new: int) -> int:
    """Return the number of equal bytes from these places on: in growing steps, then by halves."""
    same, step = 0, 64
    while True:
        one, other = old[at_old + same : at_old + same + step], new[at_new + same : at_new + same + step]
        if one != other:
            break
        same += len(one)
        if len(one) < step:
            return same
        step *= 4
    while min(len(one), len(other)) > 256:  # where a comparison of numbers finds the place faster
        half = min(len(one), len(other)) // 2
        if one[:half] == other[:half]:
            same, one, other = same + half, one[half:], other[half:]
        else:
            one, other = one[:half], other[:half]
    most = min(len(one), len(other))
    differing = int.from_bytes(one[:most], "little") ^ int.from_bytes(other[:most], "little")
    return same + (((differing & -differing).bit_length() - 1) // 8 if differing else most)
