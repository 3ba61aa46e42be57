"""The index's entry of one record: its session, its kind, and its words for the search. Pure.

Every record makes an entry: one that cannot be read has the kind ``unreadable``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.fixes import severity_of
from reknit.pipeline.letters import letter_kind
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.stages.base import Record
from reknit.pipeline.viewer.index.entries import EVENTS, FORGOTTEN, LETTER_OF, PARKED, UNPARKED, WORDS, Entry, line
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TURNS_STATE,
    items,
)
from reknit.topics import headers as names
from reknit.topics.headers import DeadLetterHeaders, Headers, RequestHeaders
from reknit.topics.records import (
    TURN_RECORDS,
    FixRecord,
    HistoryRestored,
    HistoryRewound,
    ProviderAnswered,
    SessionOpened,
    TurnAppended,
)


class _Indexed(NamedTuple):
    """The fields that depend on a record's kind; the others are the same for all."""

    kind: str
    fields: Mapping[str, Any] = MappingProxyType({})
    words: str = ""
    summary: str = ""


_Read = Callable[[int, bytes, bytes | None, Headers], _Indexed]


def entry_of(topic: str, record: Record) -> Entry:
    """The entry of a record; ``topic`` is the contract's name."""
    key, value = record.key, record.value
    try:
        indexed = _READ[topic](record.partition, key or b"", value, record.headers)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        indexed = _Indexed("unreadable", {"code": "unreadable"}, summary=str(error))
    kind, fields, words, summary = indexed
    for name in _NAMES:
        if len(fields.get(name, "")) > _LONGEST_NAME:
            fields = {**fields, name: fields[name][:_LONGEST_NAME]}
    session = key or b""
    if topic == TURNS_STATE:
        session, value = session[1:], None
    return Entry(
        topic=topic,
        partition=record.partition,
        offset=record.offset,
        # Kafka's times are not negative but for -1, no time; a producer's may be, and SQLite's counters end there.
        time_ms=max(record.timestamp, -1),
        session=session.decode("utf-8", "replace"),
        kind=kind,
        producer=(names.find_text(record.headers, names.PRODUCER) or "")[:_LONGEST_NAME],
        words=words,
        summary=line(summary or words),
        size=0 if value is None else len(value),
        headers=tuple(record.headers),
        value=value,
        **fields,
    )


# Names that other parties chose appear in lists and in facets.
_LONGEST_NAME = 200
_NAMES = ("code", "role", "target")


class _Role(Struct):
    """The role of a message, in any shape that has one."""

    role: str = ""
    type: str = ""


_decode_role = msgspec.json.Decoder(_Role, strict=False).decode
_KINDS: Final = {
    "session.opened": "opened",
    "turn.appended": "turn",
    "history.restored": "restored",
    "history.rewound": "rewound",
    "request.wanted": "wanted",
    "session.closed": "closed",
    "session.released": "released",
    "session.forgotten": FORGOTTEN,
    "provider.answered": "answered",
    "request.sent": "sent",
}


def _turn(_: int, _key: bytes, value: bytes | None, headers: Headers) -> _Indexed:
    if value is None:
        return _Indexed("unreadable" if names.find_dataref(headers) is None else "large")
    record = TURN_RECORDS.decode(value)
    kind = _KINDS[str(record.__struct_config__.tag)]
    origin = getattr(record, "origin", UNSET)
    fields: dict[str, Any] = {"origin": "" if origin is UNSET else origin}
    match record:
        case TurnAppended(message=message):
            try:
                said = _decode_role(message)
                fields["role"] = said.role or said.type
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            return _Indexed(kind, fields, text_of(message))
        case HistoryRestored(messages=messages):
            return _Indexed(kind, fields | {"turn": _length(messages)}, text_of(messages))
        case HistoryRewound(to=to):
            return _Indexed(kind, fields, summary=f"to {to}")
        case ProviderAnswered(request_id=request_id, status=status, body=body):
            fields |= {"request_id": request_id, "code": str(status)}
            return _Indexed(kind, fields, body[:WORDS])
        case SessionOpened(model=model):
            return _Indexed(kind, fields, text_of(value), summary=str(model or ""))
    return _Indexed(kind, fields)


_decode_list = msgspec.json.Decoder(list[Raw]).decode


def _length(messages: Raw) -> int:
    try:
        return len(_decode_list(messages))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0


def _event(_: int, _key: bytes, value: bytes | None, headers: Headers) -> _Indexed:
    texts = {name: names.text_of(given) or "" for name, given in headers}
    fields = {
        field: texts.get(name, "")
        for field, name in (("run", names.RUN), ("request_id", names.REQUEST_ID), ("target", names.SOURCE))
    }
    if names.EXIT in texts:
        return _Indexed("exit", fields, texts[names.EXIT])
    for name in (names.POLICY, names.CLOSED, names.FORGOTTEN, names.EXPIRED):
        if value is None and name in texts:
            return _Indexed("told", fields | {"role": name}, summary=texts[name])
    status = texts.get(names.STATUS, "")
    if status and value is not None:
        return _Indexed("answer", fields | {"code": status}, text_of(value))
    return _Indexed(EVENTS, fields)


def _request(_: int, _key: bytes, _value: bytes | None, headers: Headers) -> _Indexed:
    found = names.decode(headers, RequestHeaders)
    fields = {
        "target": found.target,
        "turn": found.turn,
        "request_id": found.request_id,
        "cause": found.cause or "",
        "origin": found.reason or "",
    }
    if found.reason == "answered":
        withdrawn = found.supersedes or ""
        return _Indexed("withdrawal", fields, f"{found.request_id} {withdrawn}", summary=f"withdraws {withdrawn}")
    return _Indexed("request", fields, f"{found.request_id} {found.model or ''}", summary=found.model or found.target)


_decode_fix = msgspec.json.Decoder(FixRecord).decode


def _fix(partition: int, _key: bytes, value: bytes | None, _headers: Headers) -> _Indexed:
    fix = _decode_fix(value or b"")
    fields = {
        "code": fix.code,
        "severity": severity_of(lossless=fix.lossless, observed=fix.observed),
        "target": fix.source or fix.target,
        "turn": fix.turn,
        "request_id": fix.request_id,
        "item_id": fix.path if fix.source else "",
        "cause": f"{PROVIDER_EVENTS if fix.source else AGENT_TURNS}/{partition}/{fix.offset}",
    }
    words = f"{fix.code} {fix.path} {fix.detail} {fix.id}"
    return _Indexed("fix", fields, words[:WORDS], summary=f"{fix.path} {fix.detail}")


def _letter(_: int, _key: bytes, value: bytes | None, headers: Headers) -> _Indexed:
    why = names.decode(headers, DeadLetterHeaders)
    rule, message = why.rule or "", why.message or ""
    fields = {
        "code": why.code,
        "cause": f"{why.topic}/{why.partition}/{why.offset}",
        "target": why.target or "",
    }
    if why.letter:
        return _Indexed("note", fields | {"cause": f"{DEAD_LETTERS}/{why.letter}"}, summary=why.code)
    kind = letter_kind(why.code)
    if kind != "failed":
        known = RULES[rule].target if rule in RULES else message.partition(":")[0]
        fields |= {"code": rule or why.code, "target": why.target or known}
    content = "" if value is None else text_of(value)
    words = f"{why.code} {rule} {message}\n{content}"[:WORDS]
    return _Indexed(LETTER_OF[kind], fields, words, summary=message or why.code)


_decode_item = msgspec.json.Decoder(items.AnyItem).decode


def _item(_: int, _key: bytes, value: bytes | None, headers: Headers) -> _Indexed:
    item = _decode_item(value or b"")
    fields: dict[str, Any] = {"item_id": getattr(item, "item_id", "")}
    fields["run"] = names.find_text(headers, names.RUN) or ""
    fields["request_id"] = names.find_text(headers, names.REQUEST_ID) or ""
    kind = item.__struct_config__.tag
    indexed = _ITEMS.get(type(item))
    if indexed is None:
        return _Indexed(str(kind), fields, summary=str(kind))
    code, role, words = indexed(item)
    return _Indexed(str(kind), fields | {"code": code, "role": role}, words[:WORDS])


def _raw(*given: object) -> str:
    return "\n".join(text_of(part) for part in given if isinstance(part, Raw))


def _started(item: items.ItemStarted) -> tuple[str, str, str]:
    code = "promoted" if item.origin == "promoted" else "doubtful" if item.doubtful else ""
    return code, item.item_type, f"{item.name} {item.text}".strip()


def _completed(item: items.ItemCompleted) -> tuple[str, str, str]:
    code = "incomplete" if item.incomplete else "doubtful" if item.doubtful else ""
    partial = item.partial_input or ""
    return code, "", "\n".join(part for part in (item.text or "", partial, _raw(item.input, item.raw)) if part)


def _result(item: items.TurnResult) -> tuple[str, str, str]:
    return "unseen" if item.unseen else "error" if item.is_error else "", item.subtype, item.result or ""


# Of each type of item: its code, its role, its words.
_ITEMS: Final[dict[type[items.Item], Callable[[Any], tuple[str, str, str]]]] = {
    items.ItemStarted: _started,
    items.ItemDelta: lambda _: ("", "", ""),
    items.ItemCompleted: _completed,
    items.ItemRetracted: lambda item: ("retracted", item.reason, ""),
    items.ItemResult: lambda item: ("error" if item.is_error else "", "", _raw(item.content)),
    items.TurnDelta: lambda item: ("", item.model or "", ""),
    items.TurnStop: lambda item: ("cut" if item.incomplete else "", item.stop_reason or "", ""),
    items.TurnResult: _result,
    items.TurnDiagnosis: lambda item: (item.cause, "", f"{item.reason} {item.error} {item.head} {item.tail}"),
    items.AgentError: lambda item: (item.code, "", item.message),
    items.AgentUnrecognized: lambda item: ("", item.reason, item.text or _raw(item.event)),
    items.SessionSummary: lambda item: ("", "", item.summary),
    items.ProcessStderr: lambda item: ("", "", item.text),
}


# The changelog's key of what a session is parked for; a key without a value says that it no longer is.
_PARKED_KEY = b"p"


def _state(_: int, key: bytes, value: bytes | None, _headers: Headers) -> _Indexed:
    if key[:1] != _PARKED_KEY:
        return _Indexed("")
    return _Indexed(UNPARKED if value is None else PARKED)


_READ: Final[dict[str, _Read]] = {
    AGENT_TURNS: _turn,
    PROVIDER_EVENTS: _event,
    HISTORY_FIXES: _fix,
    PROVIDER_REQUESTS: _request,
    DEAD_LETTERS: _letter,
    TURNS_STATE: _state,
    SESSION_ITEMS: _item,
}


# The words of a message, whatever shape it has.

# Members of a message without words for a reader: generated values, and pictures.
_MUTE_NAMES = """
    type role id data signature encrypted_content thought_signature thoughtSignature media_type mimeType mime_type
    format cache_control tool_use_id tool_call_id toolUseId call_id status detail issuer index
"""
_MUTE: Final = frozenset(_MUTE_NAMES.split())
_decode = msgspec.json.Decoder().decode
_MOST_LEAVES = 2000


def text_of(raw: bytes | Raw) -> str:
    """Return the words of JSON, in any shape of a message: its texts in order, without generated values."""
    try:
        found = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        found = _tolerantly(bytes(raw))
    texts, size = [], 0
    for text in _texts(found):
        texts.append(text)
        size += len(text)
        if size >= WORDS or len(texts) >= _MOST_LEAVES:
            break
    return "\n".join(texts)[:WORDS]


def _tolerantly(raw: bytes) -> object:
    try:
        return json.loads(json.dumps(json.loads(raw), ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return raw.decode("utf-8", "replace")


def _texts(found: object) -> Iterator[str]:
    # A stack and not recursion: foreign JSON may be nested as deeply as its sender likes.
    rest = [found]
    while rest:
        match rest.pop():
            case str(text):
                if text.strip():
                    yield text
            case list(parts):
                rest += reversed(parts)
            case dict(members):
                rest += [part for name, part in reversed(members.items()) if name not in _MUTE]
