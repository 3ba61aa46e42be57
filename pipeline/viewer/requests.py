"""One published request: its body, its origin, and the violations of its provider's rules.

It is computed from the session's turns, in time proportional to the history. So recent results are cached, within
bounds, and so are the sessions, since a switch to another target needs the same one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Raw, Struct, structs, to_builtins

from reknit.pipeline.cli.config import session_defaults
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.readers.shapes import read as read_history
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.session import Session, normalize
from reknit.pipeline.session.export import export
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.targets import Setting
from reknit.pipeline.validation import validate
from reknit.pipeline.viewer.aligned import LISTS, Aligned, session_until
from reknit.pipeline.viewer.cells import items_of, members_of
from reknit.pipeline.viewer.index import timeline
from reknit.pipeline.viewer.index.entries import OFFSETS, Entry
from reknit.pipeline.viewer.index.numbers import read_place
from reknit.pipeline.viewer.pages import VIEWER, Viewer
from reknit.topics import AGENT_TURNS
from reknit.topics.headers import RequestHeaders, decode
from reknit.topics.records import TURN_RECORDS, HistoryRestored, TurnAppended

# The origins of at most this many bytes of bodies are cached; they take a few times as much.
_REMEMBERED_BYTES: Final = 24 << 20
_REMEMBERED: Final = 16

T = TypeVar("T")


class _Published(Struct, frozen=True, kw_only=True):
    """The topics' content of a request.

    Attributes:
        entry: its record in the index.
        headers: its headers.
        body: its bytes; None if they are not available, and ``lost`` says why.
        fixes: those that no earlier request had, as published.
        records: the records that it was made from and that still exist; ``gone`` is the number of the others.
    """

    entry: Entry
    headers: RequestHeaders
    body: bytes | None
    lost: str
    fixes: list[Fix]
    records: list[Record]
    gone: int


class Request(_Published, frozen=True, kw_only=True):
    """A published request and its analysis.

    Attributes:
        aligned: both sides; if they could not be computed, ``why`` says so in a sentence.
        violations: the violations of the body; None if it is lost, or its target is unknown.
        session: the session when the request was made; None if it could not be computed.
    """

    aligned: Aligned
    why: str
    violations: list[Violation] | None
    session: Session | None


class Recent(Generic[T]):
    """A cache of recent values by key, bounded by number and bytes; it always keeps the last one."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[object, tuple[T, int]] = OrderedDict()

    def find(self, key: object) -> T | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def keep(self, key: object, value: T, size: int) -> None:
        self._kept[key] = value, size
        while len(self._kept) > 1 and (len(self._kept) > self._most or self._size() > self._most_bytes):
            self._kept.popitem(last=False)

    def _size(self) -> int:
        return sum(size for _, size in self._kept.values())


class Requests:
    """The requests that pages asked for last, and the sessions that they were made from."""

    def __init__(self) -> None:
        self._requests: Recent[Request] = Recent(_REMEMBERED, _REMEMBERED_BYTES)
        self._sessions: Recent[Session | None] = Recent(_REMEMBERED // 4, _REMEMBERED_BYTES)
        # A session makes one request at a time.
        self._busy = threading.Lock()

    async def find(self, viewer: Viewer, entry: Entry) -> Request:
        """The request of an entry.

        Raises:
            web.HTTPNotFound: its record says nothing of itself.
        """
        known = self._requests.find(entry.place)
        if known is not None and not (known.why or known.lost):
            return known
        value = await viewer.values.read(entry)
        try:
            headers = decode(value.headers, RequestHeaders)
        except msgspec.ValidationError as error:
            raise web.HTTPNotFound from error
        led_to = await viewer.pools.pages.run(timeline.led_to, viewer.index.reader, entry.cause)
        # A certain fix is published without a request, for all targets or one.
        reported = [each for each in led_to if each.kind == "fix" and each.request_id in {"", entry.request_id}]
        reported = [each for each in reported if each.target in {"", entry.target}]
        values = [found.value for found in await viewer.values.read_many(reported)]
        fixes = [msgspec.json.decode(value, type=Fix) for value in values if value is not None]
        records, gone = await _records(viewer, entry, headers)
        # A missing record may have arrived since.
        if known is not None and (known.lost, len(known.records)) == (value.lost, len(records)):
            return known
        published = _Published(
            entry=entry,
            headers=headers,
            body=value.value,
            lost=value.lost,
            fixes=fixes,
            records=records,
            gone=gone,
        )
        found = await viewer.pools.work.run(self._work_out, viewer, published)
        self._requests.keep(entry.place, found, len(value.value or b"") + _size(records))
        return found

    def _work_out(self, viewer: Viewer, read: _Published) -> Request:
        headers, body = read.headers, read.body
        session, aligned, why = None, None, _ANOTHER
        for defaults in (session_defaults(viewer.config), _defaults_of(read)):
            try:
                with self._busy:
                    session = self._session(read, defaults)
                    done = None if session is None else session.request(headers.target)
                    if session is not None and done is not None and done.sha256 == headers.body_sha256:
                        aligned = Aligned.of_request(session.turns, done, session.setting, new=read.fixes)
                        break
            except ReknitError as error:
                why = str(error)
        if aligned is None:
            turns, setting = ([], Setting()) if session is None else (session.turns, session.setting)
            aligned = Aligned.by_position(turns, body or b"", headers.target, setting, read.fixes)
            session = None
            if read.gone:
                why = f"{read.gone} of the records that led to this request are no longer there."
        return Request(
            **structs.asdict(read),
            aligned=aligned,
            why="" if session is not None else why,
            violations=_violations(body, headers),
            session=session,
        )

    def _session(self, read: _Published, defaults: Defaults) -> Session | None:
        """Return the session under these defaults when the request was made."""
        cause = read.entry.cause
        key = cause, len(read.records), msgspec.json.encode(defaults)
        found = self._sessions.find(key)
        if found is None:
            at = _place_of_cause(read.entry)
            found = session_until(read.records, read.entry.session.encode(), at[1] if at else 0, defaults)
            self._sessions.keep(key, found, _size(read.records))
        return found


def _defaults_of(read: _Published) -> Defaults:
    """The worker's defaults as the request shows them, for a viewer that has another configuration."""
    target = read.headers.target
    named = Defaults(targets=(target,), model=read.headers.model or None)
    shape = TARGETS[target].shape if target in TARGETS else None
    if not isinstance(shape, str) or not read.body:
        return named
    members = members_of(read.body)
    head = members | {name: Raw(b"[]") for name in LISTS if name in members}
    try:
        found = read_history(msgspec.json.encode(head), shape).conversation
    except ReknitError:
        return named
    return structs.replace(
        named,
        params=found.params,
        system=found.system if isinstance(found.system, str) else None,
        tools=tuple(tool.raw if isinstance(tool.raw, Raw) else Raw(msgspec.json.encode(tool)) for tool in found.tools),
    )


_ANOTHER = (
    "Repaired again, the request has another body: the beginning of the session is no longer in the topics, or the "
    "worker had another version or other defaults than this viewer."
)
REQUESTS: web.AppKey[Requests] = web.AppKey("requests", Requests)


async def find_request(request: web.Request, name: str, request_id: str) -> Request:
    """Return the request of this id in a session.

    Raises:
        web.HTTPNotFound: it does not exist.
    """
    viewer = request.app[VIEWER]
    entry = await viewer.pools.pages.run(timeline.request, viewer.index.reader, name, request_id)
    if entry is None:
        raise web.HTTPNotFound
    return await request.app[REQUESTS].find(viewer, entry)


def _place_of_cause(entry: Entry) -> tuple[int, int] | None:
    """Partition and offset of the record of a session's log that a request names as its cause, if it names one."""
    try:
        topic, partition, offset = read_place(entry.cause)
    except InputError:
        return None
    return (partition, offset) if topic == AGENT_TURNS else None


async def _records(viewer: Viewer, entry: Entry, headers: RequestHeaders) -> tuple[list[Record], int]:
    """Return the records of the session's log for a request, and the number of missing ones.

    The record that releases a parked session comes later than the place where it takes effect, so the whole log is
    read.
    """
    place = _place_of_cause(entry)
    if place is None:
        return [], 0
    partition, cause = place
    until = f"{AGENT_TURNS}/{partition}/{OFFSETS - 1}"
    entries = await viewer.pools.pages.run(timeline.turns_until, viewer.index.reader, entry.session, until)
    first = max(0, (headers.first or 0) - (headers.base or 0))  # it may have begun in a former topic
    wanted = [each for each in entries if first <= each.offset and (each.offset <= cause or each.kind == "released")]
    values = await viewer.values.read_many(wanted)
    gone = sum(bool(value.lost) for value in values)
    found = zip(wanted, values, strict=True)
    return [value.record(each, each.session.encode()) for each, value in found if not value.lost], gone


def case_of(found: Request) -> bytes:
    """Return the request as a case for ``reknit test``: its history, its target, and the expected body.

    The messages are the original ones, or those of the session's export, whichever gives the published body. If neither
    does (the target depends on something that no history expresses), the case checks the promises only.

    Raises:
        InputError: the session could not be computed.
    """
    session, target = found.session, found.headers.target
    if session is None:
        raise InputError("not_worked_out", found.why)
    document = export(found.entry.session, session).document
    policy = to_builtins(session.policy)
    name = f"{found.entry.session} {found.headers.request_id[:12]}"
    for messages in (_as_they_came(found.records), document.messages):
        given = msgspec.json.encode(structs.replace(document, messages=messages))
        try:
            done = normalize(given, to=target, policy=policy)
        except ReknitError:
            continue
        if done.sha256 == found.headers.body_sha256:
            body = done.unjudged
            expect = body.decode() if TARGETS[target].is_text else Raw(body)
            wanted = {"expect": expect, "fixes": [fix.code for fix in done.fixes]}
            break
    else:
        wanted = {}
    given = to_builtins(structs.replace(document, messages=messages), builtin_types=(Raw,))
    return msgspec.json.encode({"name": name, "to": target, "policy": policy, **given, **wanted})


def _as_they_came(records: Iterable[Record]) -> list[Raw]:
    """The messages of a log that was never rewound, in whatever shape they came."""
    messages: list[Raw] = []
    for record in records:
        try:
            event = TURN_RECORDS.decode(record.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(event, TurnAppended):
            messages.append(event.message)
        elif isinstance(event, HistoryRestored):
            messages = items_of(event.messages)
    return messages


def _violations(body: bytes | None, headers: RequestHeaders) -> list[Violation] | None:
    try:
        return None if body is None else validate(body, headers.target, headers.model or None)
    except ReknitError:  # a target that only the worker knows
        return None


def _size(records: Sequence[Record]) -> int:
    return sum(len(record.value or b"") for record in records)
