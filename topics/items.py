"""Records of ``session.items.v1``: what a stream rendered, piece by piece, in a form that survives redelivery.

An **item** is one block on a screen: a text, a stretch of thinking, a tool call, a user's message. It has an id that
no other item of its session ever has. The rest of the records speak about turns, the agent and the session.

Order and meaning, which every consumer may rely on (``reknit.topics.reducer`` is the reference):

1. ``item/started`` comes first, once. A promoted item (one that its stream never delivered) starts with its whole
   content; items stand on the screen in the order in which they started.
2. ``item/delta`` appends ``content`` at ``at``, counted in code points of the item's text so far. What lies before the
   end of the known text was seen already; so a delta that is applied twice changes nothing. Where records are cut
   depends on how events were batched, what they add up to does not.
3. ``item/completed`` ends the content. Without ``text`` and ``input`` the deltas were all of it; with one of them,
   that is the content and replaces what was streamed. ``incomplete: true`` means that the end never came: what is
   there is kept, and a tool call's input stays the raw JSON that came, never closed or parsed. An item that was
   incomplete may be completed once more, when its whole content still arrives; one that was ``doubtful``, when its
   program's own transcript proves it; and one that was complete, as ``doubtful`` or as ``interrupted``, when its run
   turns out to have been killed or interrupted before the program took the item for good.
4. ``item/retracted`` withdraws an item, completed or not, with its result. Its id is never used again, and whatever
   else speaks of it is void, before or after.
5. ``item/result`` is a tool's answer; it may come while other items of the same turn are still open. The last counts.
6. ``turn/delta`` tells what is known about the running turn (model, usage), ``turn/stop`` closes it. A stop completes
   no item. ``incomplete: true``: the turn was cut off; if its stop reason still comes, or its run's result shows that
   nothing of it is missing, another ``turn/stop`` tells it.
7. ``turn/result`` ends a run's answer. ``unseen``: its text is not on the screen. ``expanded``: show it opened, because
   it is unseen or tells an error.
8. ``turn/diagnosis`` comes last in a run that ended without finishing, or that was broken off: once, beside the items
   that its end left incomplete. It is for people and dashboards; nothing on the screen depends on it.
9. ``seq`` numbers the records that have no item id, in the session; the same number is the same record.
10. ``session/reset`` and ``session/compacted`` concern every item that started before them: it stays on the screen and
    is no longer part of the conversation that the program goes on with.
11. Items with ``parent_tool_use_id`` belong to a sub-agent, those with ``is_synthetic`` were written by the agent
    program itself; neither is the user's or the main turn's own.

Fields that equal their default are left out of the JSON. Free-form JSON is carried as it came.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, field

# Where an item's content came from: its stream, a complete message, or (unseen results) the result's text.
Origin: TypeAlias = Literal["stream", "promoted", "result"]
MaybeRaw: TypeAlias = Raw | UnsetType
# Of an item: its program may have given it up for another attempt, may have taken a beginning for the whole, or may not
# have kept it in its history.
Doubt: TypeAlias = Literal["", "attempt", "end", "kept"]
# Why an item is incomplete whose program was interrupted in the middle of it.
INTERRUPTED: Final = "interrupted"
# Why a run ended without finishing, in words that a metric can bear.
Cause: TypeAlias = Literal["stall", "loop", "time_limit", "disconnect", "stopped", "error", "other"]


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens of one message or one result."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Item(Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="type"):
    """What every record of the topic is."""


class ItemStarted(Item, frozen=True, tag="item/started", gc=False):
    """A block appears. ``item_type`` is the block's type, or ``user_message``.

    A tool's name is split: ``mcp__github__search`` has ``name`` search, ``tool_server`` github, ``tool_source`` mcp.
    ``raw`` is the whole block, where its type is not one that Reknit knows. ``repeats`` is the item of an attempt that
    was cut, which said the same: both stay, for the program's own history holds both. ``doubtful``: its program does
    not say whether it has given the item up for another ``attempt``, whether its ``end`` is one, or whether the
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
    """More of an item's content. ``raw`` is the whole delta, where its type is unknown; such a one has no content."""

    item_id: str
    delta_type: str
    content: str = ""
    at: int = 0
    raw: MaybeRaw = UNSET


class ItemCompleted(Item, frozen=True, tag="item/completed", gc=False):
    """An item's content has ended. ``reason`` says why, where it is incomplete.

    ``partial_input`` repeats the raw JSON that came of an incomplete call's input; ``raw`` is a block of unknown type.
    ``doubtful`` is as in ``item/started``; the last record's word counts.
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
    """What a complete message says about the running turn."""

    model: str | None = None
    usage: Usage | UnsetType = UNSET
    uuid: str | None = None
    extras: dict[str, Raw] | UnsetType = UNSET


class TurnStop(Item, frozen=True, tag="turn/stop", gc=False):
    """An assistant turn is over. With a parent it is a sub-agent's, and says what a ``turn/delta`` would.

    So does one of a source that sends no complete messages. ``stop_reason`` is the provider's own word.
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
    """The end of an answer, as the agent program sums it up. Durations are in milliseconds."""

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
    """What is left of a run that ended without finishing.

    ``reason`` is why, in the words of whoever ended it, ``cause`` the same in one of a few; ``error`` is the provider's
    own code, where it told one. ``head`` and ``tail`` are the ends of what the model wrote in the run, attempts that
    were replaced included, at most 400 code points each as a rule; ``length`` is the whole, in code points.
    ``repeats``: the text ends in the same passage over and over. ``counts`` are the run's events by type.
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
    """A notice of the agent program about an error. ``code`` is the program's own word for it."""

    message: str
    will_retry: bool = field(default=False, name="willRetry")
    code: str = ""
    parent_tool_use_id: str | None = None
    seq: int = -1


class AgentUnrecognized(Item, frozen=True, tag="agent/unrecognized", gc=False):
    """A line or event that nothing here understands, as it came.

    ``event`` is its JSON; ``text`` is what is not JSON, undecodable bytes replaced. Of a long text only the beginning
    is kept, and ``size`` is then its whole length in bytes.
    """

    reason: str
    event: MaybeRaw = UNSET
    text: str = ""
    size: int = 0
    seq: int = -1


class SessionInit(Item, frozen=True, tag="session/init", gc=False):
    """The agent program has started, with these tools and settings; ``extras`` has what is not named here."""

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
    """What the agent program is doing, and its permission mode."""

    status: str | None = None
    permission_mode: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class SessionCompacted(Item, frozen=True, tag="session/compacted", gc=False):
    """The agent program has shortened its context: no item before this record is in the conversation as it was."""

    compact_metadata: MaybeRaw = UNSET
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class SessionReset(Item, frozen=True, tag="session/reset", gc=False):
    """The agent program has begun a new conversation: no item before this record is part of it.

    ``trigger`` is the program's own word for the reason (``clear``), ``""`` where it gives none.
    """

    new_conversation_id: str = ""
    trigger: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class ModelChanged(Item, frozen=True, tag="session/model_changed", gc=False):
    """The agent program goes on with another model, because the first one was refused or overloaded."""

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
    """A hook has ended. ``output`` is what it wrote; ``outcome`` is the program's own word for how it ended."""

    hook_id: str = ""
    hook_name: str = ""
    hook_event: str = ""
    outcome: str = ""
    exit_code: int | None = None
    output: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class AgentNotice(Item, frozen=True, tag="agent/notice", gc=False):
    """A message of the agent program to its user that reports no error of the API. ``level`` is the program's word."""

    message: str
    level: str = ""
    key: str = ""
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class TaskUpdated(Item, frozen=True, tag="task/updated", gc=False):
    """What has changed of a background task; ``patch`` is a JSON object of its new members."""

    task_id: str = ""
    patch: MaybeRaw = UNSET
    extras: dict[str, Raw] | UnsetType = UNSET
    seq: int = -1


class TaskList(Item, frozen=True, tag="task/list", gc=False):
    """The background tasks that run now: a JSON array, which replaces the one before."""

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
    """A system event of another kind, as it came."""

    subtype: str
    event: Raw
    seq: int = -1


class SessionRateLimit(Item, frozen=True, tag="session/rate_limit", gc=False):
    """How much of a rate limit is left."""

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
    """A line that the agent program wrote beside its events."""

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
