"""Records of ``session.items.v1``: the rendered stream, piece by piece, in a form that survives redelivery.

An **item** is one block on a screen: a text, a thinking block, a tool call, a user's message. Its id is unique in its
session. The other records describe turns, the agent and the session.

Every consumer may rely on this order and meaning (``reknit.topics.reducer`` is the reference):

1. ``item/started`` comes first, once. A promoted item (one that its stream never delivered) starts with its whole
   content. Items appear on the screen in the order in which they started.
2. ``item/delta`` appends ``content`` at ``at``, counted in code points of the item's text so far. Content before the
   end of the known text was seen already, so a delta that is applied twice changes nothing. The boundaries between
   records depend on the batching of events; the total content does not.
3. ``item/completed`` ends the content. Without ``text`` and ``input``, the deltas were the whole content; with one of
   them, it replaces the streamed content. ``incomplete: true`` means that the end never arrived: the received content
   is kept, and a tool call's input stays raw JSON as received, never closed or parsed. An item can be completed again
   in three cases: an incomplete one when its whole content still arrives; a ``doubtful`` one when its program's own
   transcript proves it; a complete one, as ``doubtful`` or ``interrupted``, when it turns out that its run was killed
   or interrupted before the program had stored the item.
4. ``item/retracted`` withdraws an item, completed or not, with its result. Its id is never used again. All other
   records of the item, earlier or later, are void.
5. ``item/result`` is a tool's answer; it may arrive while other items of the same turn are still open. The last counts.
6. ``turn/delta`` reports facts about the running turn (model, usage), ``turn/stop`` closes it. A stop completes no
   item. ``incomplete: true``: the turn was cut off. If its stop reason still arrives, or its run's result shows that
   nothing of it is missing, another ``turn/stop`` reports that.
7. ``turn/result`` ends a run's answer. ``unseen``: its text is not on the screen. ``expanded``: show it expanded,
   because it is unseen or reports an error.
8. ``turn/diagnosis`` comes last in a run that ended without finishing, or that was aborted: once, in addition to the
   items that its end left incomplete. It is for people and dashboards; nothing on the screen depends on it.
9. ``seq`` numbers the records without an item id within the session; the same number is the same record.
10. ``session/reset`` and ``session/compacted`` concern every item that started before them: it stays on the screen,
    but is no longer part of the conversation that the program continues.
11. Items with ``parent_tool_use_id`` belong to a sub-agent; those with ``is_synthetic`` were written by the agent
    program itself. Neither belongs to the user or the main turn.

Fields that equal their default are omitted from the JSON. Free-form JSON is passed on unchanged.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, field

# Source of an item's content: its stream, a complete message, or (unseen results) the result's text.
Origin: TypeAlias = Literal["stream", "promoted", "result"]
MaybeRaw: TypeAlias = Raw | UnsetType
# Uncertainty about an item: its program may have abandoned it for another attempt, may have taken a beginning for the
# whole, or may not have kept it in its history.
Doubt: TypeAlias = Literal["", "attempt", "end", "kept"]
# Reason of an incomplete item whose program was interrupted in the middle of it.
INTERRUPTED: Final = "interrupted"
# Why a run ended without finishing, as a bounded set that is suitable for a metric label.
Cause: TypeAlias = Literal["stall", "loop", "time_limit", "disconnect", "stopped", "error", "other"]


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens of one message or one result."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Item(Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="type"):
    """Base of every record of the topic."""


class ItemStarted(Item, frozen=True, tag="item/started", gc=False):
    """A block appears. ``item_type`` is the block's type, or ``user_message``.

    A tool's name is split: ``mcp__github__search`` has ``name`` search, ``tool_server`` github, ``tool_source`` mcp.
    ``raw`` is the whole block if Reknit does not know its type. ``repeats`` is the item of an interrupted attempt with
    the same content: both are kept, because the program's own history contains both. ``doubtful``: its program does not
    report whether it has abandoned the item for another ``attempt``, whether its ``end`` is one, or whether the
    program's history has ``kept`` it.
    """

    item_id: str
    item_type: str
    origin: Origin = "stream"
    text: str = ""
    name: str = ""
    tool_server: str = ""
    tool_source: str = ""
    input: MaybeRaw = UNSET
    content: MaybeRaw = UNSET
    raw: MaybeRaw = UNSET
    parent_tool_use_id: str | None = None
    is_sidechain: bool = False
    is_synthetic: bool = False
    is_replay: bool = False
    repeats: str = ""
    doubtful: Doubt = ""
    uuid: str | None = None
    extras: dict[str, Raw] | UnsetType = UNSET


class ItemDelta(Item, frozen=True, tag="item/delta", gc=False):
    """More of an item's content. ``raw`` is the whole delta if its type is unknown; such a delta has no content."""

    item_id: str
    delta_type: str
    content: str = ""
    at: int = 0
    raw: MaybeRaw = UNSET


class ItemCompleted(Item, frozen=True, tag="item/completed", gc=False):
    """An item's content has ended. If it is incomplete, ``reason`` states why.

    ``partial_input`` repeats the raw JSON received for an incomplete call's input; ``raw`` is a block of unknown type.
    ``doubtful`` is as in ``item/started``; the value of the last record counts.
    """

    item_id: str
    origin: Origin = "stream"
    text: str | UnsetType = UNSET
    input: MaybeRaw = UNSET
    raw: MaybeRaw = UNSET
    partial_input: str | UnsetType = UNSET
    incomplete: bool = False
    doubtful: Doubt = ""
    reason: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET


class ItemRetracted(Item, frozen=True, tag="item/retracted", gc=False):
    """An item is withdrawn, because a later attempt replaces it."""

    item_id: str
    reason: str = "replaced"


class ItemResult(Item, frozen=True, tag="item/result", gc=False):
    """A tool's answer to the call with this item id. ``content`` is a list of blocks."""

    item_id: str
    content: Raw
    is_error: bool = False
    tool_result: MaybeRaw = UNSET
    parent_tool_use_id: str | None = None
    extras: dict[str, Raw] | UnsetType = UNSET


class TurnDelta(Item, frozen=True, tag="turn/delta", gc=False):
    """Facts about the running turn from a complete message."""

    model: str | None = None
    usage: Usage | UnsetType = UNSET
    uuid: str | None = None
    extras: dict[str, Raw] | UnsetType = UNSET


class TurnStop(Item, frozen=True, tag="turn/stop", gc=False):
    """An assistant turn is over. ``stop_reason`` is the provider's value.

    With a parent it is a sub-agent's turn, and carries the fields of a ``turn/delta``. So does the record of a source
    that sends no complete messages.
    """

    incomplete: bool = False
    model: str | None = None
    stop_reason: str | None = None
    usage: Usage | UnsetType = UNSET
    parent_tool_use_id: str | None = None
    is_sidechain: bool = False
    uuid: str | None = None
    extras: dict[str, Raw] | UnsetType = UNSET


class TurnResult(Item, frozen=True, tag="turn/result", gc=False):
    """The end of an answer, as the agent program summarizes it. Durations are in milliseconds."""

    is_error: bool
    subtype: str = ""
    result: str | None = None
    expanded: bool = False
    unseen: bool = False
    num_turns: int | None = None
    duration_ms: int | float | None = None
    total_cost_usd: int | float | None = None
    usage: Usage | UnsetType = UNSET
    model_usage: MaybeRaw = UNSET
    permission_denials: MaybeRaw = UNSET
    stop_reason: str | None = None
    errors: MaybeRaw = UNSET
    uuid: str | None = None
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class TurnDiagnosis(Item, frozen=True, tag="turn/diagnosis", gc=False):
    """The remains of a run that ended without finishing.

    ``reason`` is why, in the words of the party that ended it; ``cause`` is the same as one of a few values. ``error``
    is the provider's error code, if it sent one. ``head`` and ``tail`` are the beginning and the end of the text that
    the model wrote in the run, including replaced attempts, usually at most 400 code points each; ``length`` is the
    whole, in code points. ``repeats``: the text ends in repetitions of the same passage. ``counts`` are the run's
    events by type.
    """

    reason: str
    cause: Cause
    error: str = ""
    head: str = ""
    tail: str = ""
    length: int = 0
    repeats: bool = False
    counts: dict[str, int] = {}
    seq: int = -1


class AgentError(Item, frozen=True, tag="agent/error", gc=False):
    """A notice of the agent program about an error. ``code`` is the program's own error code."""

    message: str
    will_retry: bool = field(default=False, name="willRetry")
    code: str = ""
    parent_tool_use_id: str | None = None
    seq: int = -1


class AgentUnrecognized(Item, frozen=True, tag="agent/unrecognized", gc=False):
    """A line or event that Reknit does not understand, unchanged.

    ``event`` is its JSON; ``text`` is input that is not JSON, with undecodable bytes replaced. Of a long text only the
    beginning is kept, and ``size`` is then its whole length in bytes.
    """

    reason: str
    event: MaybeRaw = UNSET
    text: str = ""
    size: int = 0
    seq: int = -1


class SessionInit(Item, frozen=True, tag="session/init", gc=False):
    """The agent program has started, with these tools and settings; ``extras`` has all other fields."""

    session_id: str = ""
    model: str = ""
    cwd: str = ""
    tools: MaybeRaw = UNSET
    permission_mode: str = ""
    agent_version: str = ""
    api_key_source: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class SessionStatus(Item, frozen=True, tag="session/status", gc=False):
    """The agent program's current activity and its permission mode."""

    status: str | None = None
    permission_mode: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class SessionCompacted(Item, frozen=True, tag="session/compacted", gc=False):
    """The agent program has shortened its context: no earlier item remains unchanged in the conversation."""

    compact_metadata: MaybeRaw = UNSET
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class SessionReset(Item, frozen=True, tag="session/reset", gc=False):
    """The agent program has begun a new conversation: no item before this record is part of it.

    ``trigger`` is the program's own name for the reason (``clear``), ``""`` if it gives none.
    """

    new_conversation_id: str = ""
    trigger: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class ModelChanged(Item, frozen=True, tag="session/model_changed", gc=False):
    """The agent program continues with another model, because the first one was refused or overloaded."""

    from_model: str = ""
    to_model: str = ""
    trigger: str = ""
    message: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class PermissionDenied(Item, frozen=True, tag="tool/denied", gc=False):
    """The agent program did not run a tool, because it has no permission. ``item_id`` is the call, if it is known."""

    item_id: str = ""
    tool_name: str = ""
    reason: str = ""
    message: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class HookStarted(Item, frozen=True, tag="hook/started", gc=False):
    """A command that a user configured for an event of the agent program has begun."""

    hook_id: str = ""
    hook_name: str = ""
    hook_event: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class HookCompleted(Item, frozen=True, tag="hook/completed", gc=False):
    """A hook has ended. ``output`` is its output; ``outcome`` is the program's own name for how it ended."""

    hook_id: str = ""
    hook_name: str = ""
    hook_event: str = ""
    outcome: str = ""
    exit_code: int | None = None
    output: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class AgentNotice(Item, frozen=True, tag="agent/notice", gc=False):
    """A message of the agent program to its user that reports no error of the API. ``level`` is the program's value."""

    message: str
    level: str = ""
    key: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class TaskUpdated(Item, frozen=True, tag="task/updated", gc=False):
    """A background task has changed; ``patch`` is a JSON object of its changed members."""

    task_id: str = ""
    patch: MaybeRaw = UNSET
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class TaskList(Item, frozen=True, tag="task/list", gc=False):
    """The background tasks that are running: a JSON array, which replaces the previous one."""

    tasks: MaybeRaw = UNSET
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class TaskStarted(Item, frozen=True, tag="task/started", gc=False):
    """A sub-agent or background task has begun."""

    task_id: str = ""
    tool_use_id: str = ""
    description: str = ""
    task_type: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class TaskNotification(Item, frozen=True, tag="task/notification", gc=False):
    """A background task has news."""

    task_id: str = ""
    status: str = ""
    output_file: str = ""
    summary: str = ""
    tool_use_id: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class SessionSystem(Item, frozen=True, tag="session/system", gc=False):
    """A system event of another kind, unchanged."""

    subtype: str
    event: Raw
    seq: int = -1


class SessionRateLimit(Item, frozen=True, tag="session/rate_limit", gc=False):
    """The remaining amount of a rate limit."""

    rate_limit_info: MaybeRaw = UNSET
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class SessionSummary(Item, frozen=True, tag="session/summary", gc=False):
    """A title for the session."""

    summary: str = ""
    event: MaybeRaw = UNSET
    seq: int = -1


class ControlResponse(Item, frozen=True, tag="control/response", gc=False):
    """The agent program's answer to a control request."""

    response: MaybeRaw = UNSET
    seq: int = -1


class ProcessStderr(Item, frozen=True, tag="process/stderr", gc=False):
    """A line that the agent program wrote to standard error."""

    text: str = ""
    seq: int = -1


class ProcessExit(Item, frozen=True, tag="process/exit", gc=False):
    """The agent program has ended."""

    code: int | None = None
    event: MaybeRaw = UNSET
    seq: int = -1


AnyItem: TypeAlias = (
    ItemStarted
    | ItemDelta
    | ItemCompleted
    | ItemRetracted
    | ItemResult
    | TurnDelta
    | TurnStop
    | TurnResult
    | TurnDiagnosis
    | AgentError
    | AgentUnrecognized
    | SessionInit
    | SessionStatus
    | SessionCompacted
    | SessionReset
    | ModelChanged
    | PermissionDenied
    | HookStarted
    | HookCompleted
    | AgentNotice
    | TaskUpdated
    | TaskList
    | TaskStarted
    | TaskNotification
    | SessionSystem
    | SessionRateLimit
    | SessionSummary
    | ControlResponse
    | ProcessStderr
    | ProcessExit
)
