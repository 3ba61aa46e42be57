"""Record headers: their names, and structs that define the headers of each record.

A header's value is UTF-8 text of at most 16 KiB, numbers in decimal. If a name occurs more than once, the last one
counts, as in Kafka's own ``lastHeader``. Headers that are not listed here are not read.

Kafka itself checks none of this: any client can write a name that is not UTF-8, and a value that is null, not UTF-8 or
as large as a record may be. All code that reads a header uses the functions of this module. They accept all of these
values and never raise for one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, structs

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

# provider.events
SOURCE = "source"
RUN = "run"
FRAMING = "framing"
TRANSCRIPT = "transcript"
EXIT = "exit"
POLICY = "policy"
CLOSED = "closed"
FORGOTTEN = "forgotten"
EXPIRED = "expired"
STATUS = "status"
SEQ = "seq"
ORIGIN = "origin"

# provider.requests
REQUEST_ID = "request-id"
TARGET = "target"
MODEL = "model"
TURN = "turn"
FIXES = "fixes"
BODY_SHA256 = "body-sha256"
PREFIX_BYTES = "prefix-bytes"
REKNIT_VERSION = "reknit-version"
SUPERSEDES = "supersedes"
HEALS = "heals"
DATAREF = "dataref"
CAUSE = "cause"
REASON = "reason"
FIRST = "first"
BASE = "base"
PREFIX_RESET = "prefix-reset"
SENT = "sent"

# any topic
PRODUCER = "producer"
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

# agent.turns
JUDGED = "judged"

# pipeline.dead-letters
ERROR_PREFIX = "reknit.error."
ERROR_CODE = ERROR_PREFIX + "code"
ERROR_RULE = ERROR_PREFIX + "rule"
ERROR_PATH = ERROR_PREFIX + "path"
ERROR_MESSAGE = ERROR_PREFIX + "message"
ERROR_TOPIC = ERROR_PREFIX + "topic"
ERROR_PARTITION = ERROR_PREFIX + "partition"
ERROR_OFFSET = ERROR_PREFIX + "offset"
ERROR_BASE = ERROR_PREFIX + "base"
ERROR_VERSION = ERROR_PREFIX + "version"
ERROR_VALUE_SHA256 = ERROR_PREFIX + "value-sha256"
ERROR_LIMIT = ERROR_PREFIX + "limit"
ERROR_LETTER = ERROR_PREFIX + "letter"
ERROR_TARGET = ERROR_PREFIX + "target"
ERROR_BODY_SHA256 = ERROR_PREFIX + "body-sha256"

Digest: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="SHA-256, hexadecimal.")]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Framing: TypeAlias = Literal["events", "bytes"]
Expected: TypeAlias = Literal["expected"]
Status: TypeAlias = Annotated[int, Meta(ge=100, le=599)]
Place: TypeAlias = Annotated[str, Meta(description="A record: topic without prefix, partition, offset, as a/0/17.")]
Producer: TypeAlias = Annotated[str, Meta(description="The program that wrote the input, as name/version.")]
Traceparent: TypeAlias = Annotated[str, Meta(description="W3C Trace Context, passed on unchanged.")]
Tracestate: TypeAlias = Annotated[str, Meta(description="As `traceparent`, which it needs.")]
WorkersOwn: TypeAlias = Annotated[
    Literal["recorded", "reknit"],
    Meta(description="The worker wrote this record to its own input; a replay reads it and never writes it."),
]


Dataref: TypeAlias = Annotated[
    str,
    Meta(
        description="The value's key in the configured object store, where it is too large for the topic; the value is "
        "then null. Digests of the session and of the value, never a URL or a path.",
    ),
]


Seq: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        description="The number of the record in its run, from 0. A record whose number is not above that of the last "
        "one of the same run was written twice, and is ignored.",
    ),
]


class EventHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """Headers of a record of provider events."""

    source: Annotated[
        str | UnsetType,
        Meta(description="Whose events these are, such as claude-cli or anthropic; the worker has a default."),
    ] = UNSET
    run: Annotated[
        str | UnsetType, Meta(description="One run of the source, such as a process or a response; a new one ends it.")
    ] = UNSET
    framing: Annotated[
        Framing,
        Meta(description="events: a record holds whole events. bytes: it may end inside one, the next record goes on."),
    ] = "events"
    transcript: Annotated[
        Expected | UnsetType,
        Meta(
            description="The program's own transcript of this run will come as well, with a `source` of its own: turns "
            "are recorded only when it has ended, or the run."
        ),
    ] = UNSET
    request_id: Annotated[
        str | UnsetType, Meta(description="The published request that this is the provider's answer to.")
    ] = UNSET
    status: Annotated[
        Status | UnsetType,
        Meta(
            description="The HTTP status of that answer. From 400 on the record holds the whole of it, and is compared "
            "with the rules."
        ),
    ] = UNSET
    seq: Seq | UnsetType = UNSET
    dataref: Dataref | UnsetType = UNSET
    producer: Producer | UnsetType = UNSET
    traceparent: Traceparent | UnsetType = UNSET
    tracestate: Tracestate | UnsetType = UNSET


class EndOfRunHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Headers of the record, with a null value, that ends a run."""

    exit: Annotated[str, Meta(description="Why it ended: an exit status, a signal's name, or words.")]
    source: str | UnsetType = UNSET
    run: str | UnsetType = UNSET
    seq: Seq | UnsetType = UNSET
    traceparent: Traceparent | UnsetType = UNSET
    tracestate: Tracestate | UnsetType = UNSET


class PolicyHeaders(Struct, frozen=True, kw_only=True):
    """Headers of the record, with a null value, that passes a session's policy to the stream side."""

    policy: Annotated[str, Meta(description="JSON of the fields that the stream side acts on.")]
    origin: WorkersOwn | UnsetType = UNSET


class ClosedHeaders(Struct, frozen=True, kw_only=True):
    """Headers of the record, with a null value, that notifies the stream side that a session was closed."""

    closed: Annotated[Place, Meta(description="The record of the session's log that closed it.")]
    origin: WorkersOwn | UnsetType = UNSET


class ForgottenHeaders(Struct, frozen=True, kw_only=True):
    """Headers of the record, with a null value, that makes the stream side forget a session."""

    forgotten: Annotated[Place, Meta(description="The record of the session's log that had it forgotten.")]
    origin: WorkersOwn | UnsetType = UNSET


class ExpiredHeaders(Struct, frozen=True, kw_only=True):
    """Headers of the record, with a null value, that notifies the stream side that a session has expired."""

    expired: Annotated[Place, Meta(description="The record whose time showed that the session has expired.")]
    origin: WorkersOwn | UnsetType = UNSET


class TurnHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Headers of a record of agent turns; all of them are optional."""

    judged: Annotated[
        str | UnsetType,
        Meta(
            description="Of the last record of a request that was read from a log: its target, and behind it the rules "
            "that the request broke as it was sent, with spaces between."
        ),
    ] = UNSET
    dataref: Dataref | UnsetType = UNSET
    producer: Producer | UnsetType = UNSET
    traceparent: Traceparent | UnsetType = UNSET
    tracestate: Tracestate | UnsetType = UNSET


class ItemHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """Headers of an item."""

    run: Annotated[
        str | UnsetType | None, Meta(description="The run of the source that it came from, if that has a name.")
    ] = UNSET
    request_id: Annotated[
        str | UnsetType | None, Meta(description="The request that the provider answered so, where the events said it.")
    ] = UNSET
    traceparent: Traceparent | UnsetType | None = UNSET
    tracestate: Tracestate | UnsetType | None = UNSET


class FixHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Headers of a fix."""

    producer: Producer | UnsetType | None = UNSET
    traceparent: Traceparent | UnsetType | None = UNSET
    tracestate: Tracestate | UnsetType | None = UNSET


class RequestHeaders(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """Headers of a request; its value is the body."""

    request_id: Annotated[
        str,
        Meta(
            description="Digest of session, `first`, turn, target, how many requests were asked for since that turn, "
            "and how many were healed since the user spoke, if any: a redelivery has the same id."
        ),
    ]
    target: Annotated[str, Meta(description="Whose request this is, such as anthropic or openai-chat.")]
    turn: Annotated[Count, Meta(description="How many turns of the session's log the request has seen.")]
    fixes: Annotated[Count, Meta(description="How many fixes the body stands on, those of earlier requests included.")]
    body_sha256: Digest
    prefix_bytes: Annotated[Count, Meta(description="Leading bytes that are the settled part, unchanged from now on.")]
    reknit_version: str
    cause: Annotated[Place | UnsetType | None, Meta(description="The record that made it due.")] = UNSET
    reason: Annotated[
        Literal["turn", "interrupted", "wanted", "healed", "sent", "answered"] | UnsetType | None,
        Meta(
            description="turn: the conversation waits for the model. interrupted: it does, and the user spoke over a "
            "call of the last assistant turn that has no result. wanted: it was asked for. healed: the provider "
            "refused the request in `heals`, and this one is without the cause. sent: a gateway has sent it. answered: "
            "a withdrawal, with a null value and no dataref: the session's log has answered the request in "
            "`supersedes`; send nothing."
        ),
    ] = UNSET
    first: Annotated[
        Count | UnsetType | None,
        Meta(
            description="The offset in agent.turns with which this life of the session began; unset if not known. If "
            "the topic was re-created and accepted, it includes `base`."
        ),
    ] = UNSET
    base: Annotated[
        Count | UnsetType | None,
        Meta(
            description="Only if agent.turns was re-created and accepted: the offsets of its former topics end before "
            "this number. With `cause` it names the record."
        ),
    ] = UNSET
    model: str | UnsetType | None = UNSET
    supersedes: Annotated[
        str | UnsetType | None, Meta(description="The id of an earlier request that no assistant turn has answered.")
    ] = UNSET
    heals: Annotated[str | UnsetType | None, Meta(description="The id of the request that its provider refused.")] = (
        UNSET
    )
    sent: Annotated[
        Digest | UnsetType | None,
        Meta(description="A gateway has sent this request, as bytes with this digest: do not send it."),
    ] = UNSET
    dataref: Dataref | UnsetType | None = UNSET
    prefix_reset: Annotated[
        str | UnsetType | None,
        Meta(
            description="Why the body does not begin with the settled part of the request before it; then, where that "
            "made reasoning void, `; reasoning from` and the first message of the body that lost it."
        ),
    ] = UNSET
    producer: Producer | UnsetType | None = UNSET
    traceparent: Traceparent | UnsetType | None = UNSET
    tracestate: Tracestate | UnsetType | None = UNSET


class WithdrawalHeaders(RequestHeaders, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """Headers of a withdrawal: the headers of a request without a body, so that readers of requests can decode them."""

    request_id: Annotated[
        str,
        Meta(description="The id of this record; a redelivery has the same one. No answer refers to it."),
    ]
    supersedes: Annotated[str, Meta(description="The id of the request: do not send it, or break it off.")]
    reason: Annotated[
        Literal["answered"],
        Meta(description="An assistant turn that no run of this request recorded is in the session's log."),
    ]


class DeadLetterHeaders(
    Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    rename=lambda name: ERROR_PREFIX + name.replace("_", "-"),
):
    """Headers that a dead letter carries in addition to those of the original record."""

    code: Annotated[str, Meta(description="What went wrong, from a bounded set.")]
    topic: Annotated[str, Meta(description="The source topic's contract name, without prefix.")]
    partition: Count
    offset: Count
    version: Annotated[str, Meta(description="The version of Reknit that refused the record.")]
    message: str | UnsetType | None = UNSET
    rule: Annotated[str | UnsetType | None, Meta(description="The provider's rule, where a request broke one.")] = UNSET
    path: Annotated[str | UnsetType | None, Meta(description="The place, such as messages.3.content.1.")] = UNSET
    value_sha256: Annotated[
        Digest | UnsetType | None, Meta(description="The value's digest, where it did not fit; the value is then null.")
    ] = UNSET
    limit: Annotated[
        str | UnsetType | None,
        Meta(
            description="The limit of its tenant that refused the record, as sessions=100. A replay of other sessions "
            "has other tenants' shares: what it says of this session cannot be compared."
        ),
    ] = UNSET
    letter: Annotated[
        str | UnsetType | None,
        Meta(
            description="Only of a note, which has no value: the letter, as partition/offset of this topic, that was "
            "retried or dropped, as the note's code says."
        ),
    ] = UNSET
    target: Annotated[
        str | UnsetType | None, Meta(description="Whose the request was, where the provider refused a published one.")
    ] = UNSET
    body_sha256: Annotated[
        Digest | UnsetType | None, Meta(description="The digest of that request, as in its own header.")
    ] = UNSET
    base: Annotated[
        Count | UnsetType | None,
        Meta(
            description="Only if the source topic was re-created and accepted: the offsets of its former topics end "
            "before this number. With topic, partition and offset it names the record."
        ),
    ] = UNSET


HeaderStruct = TypeVar("HeaderStruct", bound=Struct)

# The longest value that is read or copied. Node.js and h11 limit the whole head of an HTTP message to the same size.
LONGEST_VALUE = 16 * 1024
# ``reknit.pipeline.kafka.header_names`` replaces bytes of a name that are not UTF-8 by it.
_replacement = "\N{REPLACEMENT CHARACTER}"
# Bytes of an undecodable value that a dead letter shows: each takes four characters when it is escaped.
_SHOWN_BYTES = LONGEST_VALUE // 4


def text_of(value: bytes | None, longest: int | None = LONGEST_VALUE) -> str | None:
    """Return the text of a header's value; None if it is null, not UTF-8 or too long."""
    if value is None or (longest is not None and len(value) > longest):
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def fault_of(value: bytes | None, longest: int | None = LONGEST_VALUE) -> str:
    """Return why a header's value has no text, as the end of a sentence; empty if it has one."""
    if text_of(value, longest) is not None:
        return ""
    if value is None:
        return "is null"
    return f"is longer than {longest} bytes" if longest is not None and len(value) > longest else "is not UTF-8"


def find_text(headers: Iterable[tuple[str, bytes | None]], wanted: str) -> str | None:
    """Return the text of the last header with this name; None if the header is absent or has no valid text."""
    found = [value for name, value in headers if name == wanted]
    return text_of(found[-1]) if found else None


def has_bad_name(headers: Iterable[tuple[str, bytes | None]]) -> bool:
    """Return True if the name of a header was not UTF-8 when it was read. A name that contains U+FFFD also counts."""
    return any(_replacement in name for name, _ in headers)


def encode(headers: Struct) -> Headers:
    """Return the wire form of a header struct, in the order of its fields; unset fields are omitted."""
    names = headers.__struct_encode_fields__
    values = structs.astuple(headers)
    return tuple((name, str(value).encode()) for name, value in zip(names, values, strict=True) if value is not UNSET)


def decode(headers: Iterable[tuple[str, bytes | None]], kind: type[HeaderStruct]) -> HeaderStruct:
    """Return the struct of a record's headers, without those that it does not name.

    An optional field becomes None if its header has a value that the struct does not allow.

    Raises:
        msgspec.ValidationError: a required header is missing or has a value that the struct does not allow.
    """
    found, unread = _read(headers, kind)
    if unread:
        raise ValidationError(f"header `{unread[0]}` is missing, or is not what {kind.__name__} says")
    return found


def read(headers: Iterable[tuple[str, bytes | None]], kind: type[HeaderStruct]) -> HeaderStruct:
    """Return the struct of a record's headers, even if some are not valid.

    As ``decode``, but a required field, too, becomes None if its header is missing or has a value that the struct does
    not allow. The worker writes no such record, but any client can write to any topic.
    """
    return _read(headers, kind)[0]


def _read(headers: Iterable[tuple[str, bytes | None]], kind: type[HeaderStruct]) -> tuple[HeaderStruct, Sequence[str]]:
    """Return the struct, and the names of the required headers that are missing or not valid."""
    wanted = set(kind.__struct_encode_fields__)
    given = {name: text_of(value) for name, value in headers if name in wanted}
    try:
        return convert(given, kind, strict=False), ()
    except ValidationError:
        pass
    fields: dict[str, Any] = {}
    unread = []
    for field in structs.fields(kind):
        if not field.required and field.encode_name not in given:
            continue
        try:
            fields[field.name] = convert(given.get(field.encode_name), field.type, strict=False)
        except ValidationError:
            fields[field.name] = None
            if field.required:
                unread.append(field.encode_name)
    return kind(**fields), unread


def as_texts(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, str]]:
    """Return all headers of a record for display: undecodable bytes are U+FFFD, null is empty."""
    return [(name, (value or b"").decode("utf-8", "replace")) for name, value in headers]


def well_formed(headers: Headers) -> Headers:
    """Return the headers with names and values that this module can read."""
    return tuple((name, value) for name, value in headers if _replacement not in name and text_of(value) is not None)


def escaped(headers: Headers) -> Headers:
    """Return all headers of a record with UTF-8 values: binary ones are escaped and cut, null ones are empty."""
    return tuple((name, value if text_of(value, None) is not None else _escaped(value)) for name, value in headers)


def _escaped(value: bytes | None) -> bytes:
    return (value or b"")[:_SHOWN_BYTES].decode("utf-8", "backslashreplace").encode()


def dataref_of(session: bytes, value: bytes) -> str:
    """Return the key under which a session's value is stored in an object store."""
    return f"{hashlib.sha256(session).hexdigest()}/{hashlib.sha256(value).hexdigest()}"


_DATAREF = re.compile(r"[0-9a-f]{64}/[0-9a-f]{64}")


def is_own_dataref(session: bytes, dataref: str) -> bool:
    """Return True if this is a valid key of this session, so that no session reads another one's values."""
    return _DATAREF.fullmatch(dataref) is not None and dataref.startswith(hashlib.sha256(session).hexdigest())


def find_dataref(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """Return the header ``dataref`` of a record; None if it is absent or cannot be read."""
    return find_text(headers, DATAREF)
