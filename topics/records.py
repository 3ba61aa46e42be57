"""Records of the contract: those of JSON topics as frozen structs, and the kinds of records of each topic.

Unknown fields are ignored, so that a producer may be newer than the worker; within a major version all additions are
optional. Messages, tools and parameters stay raw JSON: readers decode them, and a block of an unknown type is kept,
never dropped.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import Decoder

from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    headers,
)
from reknit.topics.headers import Count, Status
from reknit.topics.items import AnyItem

# Raw JSON has no schema of its own, so each use describes the accepted values.
_Message: TypeAlias = Annotated[
    Raw,
    Meta(
        description="One message: canonical (role and content blocks), or any other shape that Reknit reads.",
        extra_json_schema={"type": "object"},
    ),
]
_Messages: TypeAlias = Annotated[
    Raw,
    Meta(
        description="Messages, oldest first, each canonical or any other shape that Reknit reads; or all lines of a "
        "transcript, of which one that is no JSON object is the string of its text.",
        extra_json_schema={"type": "array", "items": {"type": ["object", "string"]}},
    ),
]
_System: TypeAlias = Annotated[
    Raw,
    Meta(description="System prompt: text, or text blocks.", extra_json_schema={"type": ["string", "array", "null"]}),
]
_Tools: TypeAlias = Annotated[
    Raw,
    Meta(
        description="Tools, in the shape of any provider that Reknit reads.",
        extra_json_schema={"type": ["array", "null"], "items": {"type": "object"}},
    ),
]
_Id: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        description="The producer's id. Repeated with the same content it is ignored, with other content refused.",
    ),
]

_Origin: TypeAlias = Annotated[
    str,
    Meta(
        description="recorded, reknit: written by the worker. gateway: by `reknit serve`. Other values are the "
        "producer's own."
    ),
]

# Origins of records that the worker itself wrote to an input: a stream's finished turn, or its own decision.
RECORDED = "recorded"
REKNIT = "reknit"
# The origin of turns that a gateway mirrors.
GATEWAY = "gateway"


Mend: TypeAlias = Literal["on", "observe"]


class Endpoint(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The endpoint of a target's requests. An empty member is unknown."""

    platform: Annotated[
        Literal["", "anthropic", "azure", "bedrock", "deepseek", "glm", "minimax", "moonshot", "vertex"],
        Meta(description="The service that runs the model, or one that answers in its place."),
    ] = ""
    issuer: Annotated[
        Literal["", "anthropic", "deepseek", "glm", "google", "minimax", "moonshot", "openai"],
        Meta(description="Whose reasoning the model reads; empty: derived from the model's name."),
    ] = ""


class PolicyChange(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The session's policy: how its histories are repaired where there is a choice.

    An absent field leaves its option unchanged. A misspelt name would silently leave a default in force, so here,
    unlike in the records themselves, an unknown field is an error.
    """

    tail: Annotated[
        Literal["auto", "continue", "prefill", "keep", "reject"] | UnsetType,
        Meta(description="What to do with a history that ends in an assistant turn."),
    ] = UNSET
    missing_result: Annotated[
        Literal["synthesise", "drop"] | UnsetType, Meta(description="A call without a result: answer or drop it.")
    ] = UNSET
    orphan_result: Annotated[
        Literal["drop", "text"] | UnsetType, Meta(description="A result without a call: drop it or keep it as text.")
    ] = UNSET
    late_result: Annotated[
        Literal["replace", "turn", "drop"] | UnsetType,
        Meta(
            description="Another real result of a call that has one: until an assistant turn follows the first, it "
            "replaces it, and after that it becomes a user turn (replace), it always becomes a user turn (turn), or it "
            "is left out (drop)."
        ),
    ] = UNSET
    incomplete_call: Annotated[
        Literal["drop", "text"] | UnsetType, Meta(description="A call whose input a stream never finished.")
    ] = UNSET
    cut_text: Annotated[
        Literal["auto", "keep", "mark", "drop"] | UnsetType,
        Meta(description="A text that a stream never finished: keep it, add a line that says so, or drop it."),
    ] = UNSET
    media: Annotated[
        Literal["stub", "shrink", "reject"] | UnsetType,
        Meta(
            description="Media beyond a limit of the target: leave the oldest out (stub), scale images first (shrink), "
            "or do not send the request (reject)."
        ),
    ] = UNSET
    fit: Annotated[
        Literal["off"] | Annotated[int, Meta(ge=1)] | UnsetType,
        Meta(description="The most tokens of a request, by an estimate; a longer history is cut to half of it."),
    ] = UNSET
    summary: Annotated[
        str | UnsetType, Meta(description="A text that requests have at the place of a cut; empty: none.")
    ] = UNSET
    reasoning: Annotated[
        Literal["keep", "same_issuer", "strip"] | UnsetType,
        Meta(description="Reasoning: keep it, leave out what the endpoint is known to refuse, or leave it out."),
    ] = UNSET
    heal: Annotated[
        Literal["on", "once", "off", "reset"] | UnsetType,
        Meta(
            description="Refusals that can be healed: send the request again without what the provider refused, up to "
            "three times in a user's turn (on), once (once), or never (off); forget what was refused so far (reset)."
        ),
    ] = UNSET
    strip_tools: Annotated[bool | UnsetType, Meta(description="Take tool calls and results out of the history.")] = (
        UNSET
    )
    record_assistant: Annotated[
        bool | UnsetType, Meta(description="Append finished assistant turns from the provider's events to the log.")
    ] = UNSET
    open_exchanges: Annotated[
        int | UnsetType, Meta(description="How many of the last exchanges may still wait for a real result.")
    ] = UNSET
    expires_after: Annotated[
        Count | UnsetType,
        Meta(description="Seconds without a record of the session's own after which it is over; 0: never."),
    ] = UNSET
    mend: Annotated[
        dict[str, Mend | dict[str, Mend]] | UnsetType,
        Meta(
            description="Single mends by the code of their fix, or by target and code: each is made (on), or only "
            "recorded (observe) as long as the target takes the request without it. A code that is absent stays as it "
            "is."
        ),
    ] = UNSET
    endpoints: Annotated[
        dict[str, Endpoint] | UnsetType,
        Meta(
            description="Where requests go, by target, which decides whose reasoning is sent back. A target that is "
            "absent stays as it is."
        ),
    ] = UNSET


class _TurnRecord(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """One record of ``agent.turns``; ``type`` is its kind."""


class SessionOpened(_TurnRecord, frozen=True, tag="session.opened"):
    """Settings for the session's requests. Optional, and may be repeated to change them midway.

    An absent field leaves its setting unchanged, at first the worker's default; null restores the worker's default.
    """

    targets: Annotated[
        tuple[str, ...] | UnsetType | None, Meta(description="Whom to write requests for; each gets its own.")
    ] = UNSET
    model: str | UnsetType | None = UNSET
    system: _System | UnsetType = UNSET
    tools: _Tools | UnsetType = UNSET
    params: Annotated[
        dict[str, Raw] | UnsetType | None,
        Meta(description="Request parameters such as max_tokens, by the target's name."),
    ] = UNSET
    policy: Annotated[PolicyChange | UnsetType | None, Meta(description="Changes to the session's policy.")] = UNSET
    id: _Id | UnsetType = UNSET


class TurnAppended(_TurnRecord, frozen=True, tag="turn.appended"):
    """One more message. The worker appends those that it recovered from a stream with origin ``recorded``."""

    message: _Message
    id: _Id | UnsetType = UNSET
    origin: _Origin | UnsetType = UNSET
    source: Annotated[
        str | UnsetType, Meta(description="The source of the provider events that a recorded turn came from.")
    ] = UNSET
    self_driving: Annotated[
        bool, Meta(description="The source runs its tools itself: this turn never triggers a request.")
    ] = False
    request: Annotated[
        bool,
        Meta(
            description="False: the turn makes no request due, even if the conversation waits for the model. For a log "
            "that mirrors another program's conversation."
        ),
    ] = True
    shape: Annotated[
        str | UnsetType,
        Meta(
            description="The message's shape, by a name that `reknit normalize --from` takes. Without it the shape is "
            "detected."
        ),
    ] = UNSET


class HistoryRestored(_TurnRecord, frozen=True, tag="history.restored"):
    """A history that replaces the previous one. It triggers no request."""

    messages: _Messages
    log: Annotated[
        Raw | UnsetType,
        Meta(
            description="The session's log as `reknit export` wrote it. It says more than messages can, and is read in "
            "their place.",
            extra_json_schema={"type": "object"},
        ),
    ] = UNSET
    id: _Id | UnsetType = UNSET


class HistoryRewound(_TurnRecord, frozen=True, tag="history.rewound"):
    """Turns are removed from the end. It triggers no request."""

    to: Annotated[str | Count, Meta(description="The id of the turn that becomes the last, or how many turns stay.")]
    id: _Id | UnsetType = UNSET


class RequestWanted(_TurnRecord, frozen=True, tag="request.wanted"):
    """Publish a request now, whether or not the history has changed."""

    id: _Id | UnsetType = UNSET


class SessionClosed(_TurnRecord, frozen=True, tag="session.closed"):
    """The session is complete; its state may be deleted."""


class SessionReleased(_TurnRecord, frozen=True, tag="session.released"):
    """A parked session continues: with ``record`` in place of the one that failed, or without it."""

    record: Annotated[
        Raw | UnsetType,
        Meta(description="A record of this topic, mended.", extra_json_schema={"type": "object"}),
    ] = UNSET
    id: _Id | UnsetType = UNSET
    origin: _Origin | UnsetType = UNSET


class SessionForgotten(_TurnRecord, frozen=True, tag="session.forgotten"):
    """Forget the session in every place where its data is kept."""

    origin: _Origin | UnsetType = UNSET


class ProviderAnswered(_TurnRecord, frozen=True, tag="provider.answered"):
    """The provider's answer to a published request. It triggers none."""

    request_id: Annotated[str, Meta(min_length=1, description="The header of the request.")]
    status: Annotated[Status, Meta(description="The HTTP status.")]
    body: Annotated[str, Meta(description="The answer's body as received, cut where it is long.")] = ""
    id: _Id | UnsetType = UNSET
    origin: _Origin | UnsetType = UNSET


class AnsweredRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier request of a gateway."""

    messages: Annotated[Count, Meta(description="How many messages of the history it had.")]
    continued: Annotated[bool, Meta(description="A user turn of Reknit ended it.")] = False


class RequestSent(_TurnRecord, frozen=True, tag="request.sent"):
    """A gateway has sent the request of the history so far. The worker publishes it with the header ``sent``."""

    request_id: Annotated[str, Meta(min_length=1, description="A random id, the request's header `request-id`.")]
    target: Annotated[str, Meta(description="Whose request it is.")]
    sha256: Annotated[headers.Digest, Meta(description="Of the bytes that the provider received.")]
    content_sha256: Annotated[
        headers.Digest | UnsetType,
        Meta(
            description="Of the request as the worker writes it from this log: its JSON with sorted members, without "
            "white space, in messages without cache breakpoints and with each text as a block. Another digest counts "
            "as a mismatch. Absent if the gateway sent the client's bytes without judging them."
        ),
    ] = UNSET
    healings: Annotated[
        tuple[str, ...], Meta(description="The refusals that were healed before this request, by their names.")
    ] = ()
    memory: Annotated[
        Raw | UnsetType,
        Meta(
            description="What the gateway remembers of the session's refusals at this target: digests of the revoked "
            "values, and names of parameters.",
            extra_json_schema={"type": "array"},
        ),
    ] = UNSET
    answered: Annotated[
        tuple[AnsweredRequest, ...],
        Meta(
            description="Earlier requests that the model had answered and whose end a later turn could change. The "
            "request of `content_sha256` begins as these did."
        ),
    ] = ()
    end: Annotated[
        Literal["open", "continued"] | UnsetType,
        Meta(
            description="The provider accepted this request, and a later turn may change its end; `continued` if a "
            "user turn of Reknit ended it. An assistant turn that follows has answered it."
        ),
    ] = UNSET
    id: _Id | UnsetType = UNSET
    origin: _Origin | UnsetType = UNSET


TurnRecord: TypeAlias = (
    SessionOpened
    | TurnAppended
    | HistoryRestored
    | HistoryRewound
    | RequestWanted
    | SessionClosed
    | SessionReleased
    | SessionForgotten
    | ProviderAnswered
    | RequestSent
)
TURN_RECORDS: Decoder[TurnRecord] = Decoder(TurnRecord)


class StreamPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The session's policy for the stream side: JSON in the header ``policy`` of a record without a value."""

    record_assistant: bool = False
    incomplete_call: Literal["drop", "text"] = "drop"
    model: Annotated[
        str | None, Meta(description="The name that a planner is to speak under; for the target `cascade` only.")
    ] = None
    tools: Annotated[
        tuple[str, ...] | None, Meta(description="The tools that its text can call; for the target `cascade` only.")
    ] = None
    wrapped_tools: Annotated[
        tuple[str, ...],
        Meta(description="The tools that accept no object. Items have the values that their calls hold in `_raw`."),
    ] = ()


class FixRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of ``history.fixes``: the change, its place, and the record that made it necessary.

    ``source``, ``base``, ``offset`` and ``number`` together identify a fix of a partition: a redelivery repeats them.
    """

    code: Annotated[str, Meta(description="The kind of mend, from the catalogue.")]
    path: Annotated[
        str,
        Meta(
            description="The place in the session's history, such as messages.3.content.1; of what was added to it, "
            "such as a missing result, the place where that stands in the mended history; of a stream, the item's id; "
            "of a block that a provider dropped (provider_dropped), the place in the request."
        ),
    ]
    lossless: Annotated[
        bool,
        Meta(description="False where content is lost, and where the output has content that no party wrote."),
    ]
    turn: Annotated[
        Count,
        Meta(description="How many turns of the session's log had been read; of a stream, how many it had finished."),
    ]
    offset: Annotated[
        Count,
        Meta(description="The record of agent.turns, or of provider.events, in the partition of the same number."),
    ]
    number: Annotated[Count, Meta(description="The fix's position among those of the same record.")]
    version: Annotated[str, Meta(description="The version of Reknit that made it.")]
    target: Annotated[str, Meta(description="The target that needed it; empty where all do.")] = ""
    detail: str = ""
    before: Annotated[str, Meta(description="Digest of what was there; empty where nothing was.")] = ""
    after: Annotated[str, Meta(description="Digest of what is there now; empty where nothing is.")] = ""
    request_id: Annotated[str, Meta(description="The request that it was made for, where it was made for one.")] = ""
    source: Annotated[
        str, Meta(description="The source whose events were changed; empty for what was changed in a history.")
    ] = ""
    id: Annotated[
        str,
        Meta(
            description="The tool call's id as it came, where the changed block makes or answers a call, or stands in "
            "a result; otherwise empty."
        ),
    ] = ""
    observed: Annotated[
        bool, Meta(description="True where a policy only observes the mend, and it was not made for this request.")
    ] = False
    base: Annotated[
        Count,
        Meta(
            description="0, unless the input topic was re-created and accepted: the offsets of its former topics end "
            "before this number."
        ),
    ] = 0


class RecordKind(Struct, frozen=True, kw_only=True):
    """One kind of record of a topic.

    ``payload`` is the struct that its JSON value decodes to; None for foreign bytes, or, with ``null``, for a record
    without a value. ``headers`` is the struct of its headers, if it has any.
    """

    name: str
    topic: str
    summary: str
    payload: Any = None
    null: bool = False
    headers: type[Struct] | None = None


def summary_of(struct: type[Struct]) -> str:
    """Return the first line of a struct's docstring."""
    return (struct.__doc__ or "").partition("\n")[0]


def _of_union(topic: str, union: object, headers: type[Struct]) -> tuple[RecordKind, ...]:
    return tuple(
        RecordKind(name=struct.__name__, topic=topic, summary=summary_of(struct), payload=struct, headers=headers)
        for struct in get_args(union)
    )


RECORD_KINDS: tuple[RecordKind, ...] = (
    *_of_union(AGENT_TURNS, TurnRecord, headers.TurnHeaders),
    RecordKind(
        name="ProviderEvents",
        topic=PROVIDER_EVENTS,
        summary="The provider's bytes as received, whole events separated by newlines unless `framing` is `bytes`.",
        headers=headers.EventHeaders,
    ),
    RecordKind(
        name="EndOfRun",
        topic=PROVIDER_EVENTS,
        summary="The run is over; what it left open is completed as incomplete.",
        null=True,
        headers=headers.EndOfRunHeaders,
    ),
    RecordKind(
        name="SessionPolicy",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: what the stream side acts on of a session's policy.",
        null=True,
        headers=headers.PolicyHeaders,
    ),
    RecordKind(
        name="SessionEnd",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session's log closed it, and the stream side forgets it.",
        null=True,
        headers=headers.ClosedHeaders,
    ),
    RecordKind(
        name="SessionForgetting",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session is to be forgotten, and the stream side forgets it.",
        null=True,
        headers=headers.ForgottenHeaders,
    ),
    RecordKind(
        name="SessionExpiry",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session was silent for too long, and the stream side forgets it.",
        null=True,
        headers=headers.ExpiredHeaders,
    ),
    RecordKind(
        name="Request",
        topic=PROVIDER_REQUESTS,
        summary="A request body, byte for byte as it must be sent.",
        headers=headers.RequestHeaders,
    ),
    RecordKind(
        name="Withdrawal",
        topic=PROVIDER_REQUESTS,
        summary="The log has answered the request in `supersedes`: send nothing. Only with `[requests] withdraw`.",
        null=True,
        headers=headers.WithdrawalHeaders,
    ),
    *_of_union(SESSION_ITEMS, AnyItem, headers.ItemHeaders),
    RecordKind(
        name="FixRecord",
        topic=HISTORY_FIXES,
        summary=summary_of(FixRecord),
        payload=FixRecord,
        headers=headers.FixHeaders,
    ),
    RecordKind(
        name="DeadLetter",
        topic=DEAD_LETTERS,
        summary="An unchanged record, key, value and headers, with the error's headers added.",
        headers=headers.DeadLetterHeaders,
    ),
)
