"""Lines of the Claude CLI that are not stream events: messages, notices, results, and what the program says of itself.

Names of fields follow the CLI's; older versions write some in camel case, newer ones with underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec import UNSET, Raw, UnsetType

from reknit.pipeline.providers.anthropic.stream.wire import read_message, text_block, usage, whole_block
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.events import (
    Aside,
    Event,
    Notice,
    Retried,
    RunResult,
    ToolResult,
    UserMessage,
    WholeMessage,
    unrecognized,
)
from reknit.pipeline.streams.fields import Fields
from reknit.topics.items import (
    AgentNotice,
    ControlResponse,
    HookCompleted,
    HookStarted,
    Item,
    ModelChanged,
    PermissionDenied,
    ProcessExit,
    ProcessStderr,
    SessionCompacted,
    SessionInit,
    SessionRateLimit,
    SessionReset,
    SessionStatus,
    SessionSummary,
    SessionSystem,
    TaskList,
    TaskNotification,
    TaskStarted,
    TaskUpdated,
    TurnResult,
)

# Members that every line has, or that only serve the CLI itself.
_COMMON = frozenset({"type", "subtype", "session_id", "uuid", "parent_tool_use_id", "isSidechain", "message"})
_ASSISTANT = _COMMON | {"error", "isApiErrorMessage", "is_api_error_message", "aborted"}
# The names under which a user's line says that the CLI wrote it.
_SYNTHETIC = ("isSynthetic", "is_synthetic", "isMeta")
# The CLI's texts in the user's name after an interruption. 2.1.200 gives no other sign of it.
_INTERRUPTIONS = frozenset({"[Request interrupted by user]", "[Request interrupted by user for tool use]"})
_USER = _COMMON | frozenset({"timestamp", "tool_use_result", "toolUseResult", *_SYNTHETIC, "isReplay"})


def line_events(kind: str, fields: Fields) -> list[Event]:
    reader = _READERS.get(kind)
    if reader is None:
        reason = f"unknown event type: {kind}" if kind else "no event type"
        return [unrecognized(reason, event=fields)]
    found = reader(fields)
    return [unrecognized(f"malformed {kind}", event=fields)] if found is None else found


def _assistant(fields: Fields) -> list[Event] | None:
    message = read_message(fields)
    if message is None:
        return None
    blocks = tuple(whole_block(raw) for raw in message.content)
    model = message.model or None
    parent = read.text(fields, "parent_tool_use_id") or None
    code = read.text(fields, "error")
    # Rule 5: these are the CLI's own words.
    if model == "<synthetic>" or code or read.flag(fields, "isApiErrorMessage", "is_api_error_message"):
        return [Notice(message="".join(block.text for block in blocks), code=code, parent=parent)]
    return [
        WholeMessage(
            message_id=message.id or None,
            blocks=blocks,
            model=model,
            usage=UNSET if message.usage is None else message.usage.usage(),
            uuid=read.text(fields, "uuid") or None,
            parent=parent,
            sidechain=read.flag(fields, "isSidechain"),
            interrupted=read.flag(fields, "aborted"),
            extras=read.others(fields, _ASSISTANT),
        )
    ]


def _user(fields: Fields) -> list[Event] | None:
    message = read_message(fields)
    if message is None:
        return None
    results, rest = _split(message.content)
    interrupts = any(_is_interruption(block) for block in rest)
    return [
        UserMessage(
            results=results,
            rest=rest,
            tool_result=read.raw(fields, "tool_use_result", "toolUseResult"),
            uuid=read.text(fields, "uuid") or None,
            parent=read.text(fields, "parent_tool_use_id") or None,
            sidechain=read.flag(fields, "isSidechain"),
            synthetic=interrupts or read.flag(fields, *_SYNTHETIC),
            interrupts=interrupts,
            replay=read.flag(fields, "isReplay"),
            extras=read.others(fields, _USER),
        )
    ]


def _is_interruption(raw: Raw) -> bool:
    return read.text(read.members({"block": raw}, "block") or {}, "text") in _INTERRUPTIONS


def _split(content: Iterable[Raw]) -> tuple[tuple[ToolResult, ...], tuple[Raw, ...]]:
    results: list[ToolResult] = []
    rest: list[Raw] = []
    for raw in content:
        block = read.members({"block": raw}, "block") or {}
        tool_id = read.text(block, "tool_use_id")
        if read.text(block, "type") != "tool_result" or not tool_id:
            rest.append(read.own(raw))
            continue
        results.append(
            ToolResult(
                tool_id=tool_id,
                content=_result_content(block),
                block=read.own(raw),
                is_error=read.flag(block, "is_error"),
            )
        )
    return tuple(results), tuple(rest)


def _result_content(block: Fields) -> Raw:
    """A result's content as a list of blocks: a string is wrapped, nothing is one empty text."""
    content = block.get("content")
    if content is None or bytes(content) == b"null":
        return Raw(b'[{"type":"text","text":""}]')
    if bytes(content).startswith(b'"'):
        return Raw(b"[" + bytes(text_block(content)) + b"]")
    return read.own(content)


def _result(fields: Fields) -> list[Event]:
    item = TurnResult(
        subtype=read.text(fields, "subtype"),
        is_error=read.flag(fields, "is_error"),
        result=_string_or_none(fields, "result"),
        num_turns=read.integer(fields, "num_turns"),
        duration_ms=read.number(fields, "duration_ms"),
        total_cost_usd=read.number(fields, "total_cost_usd"),
        usage=usage(fields, "usage"),
        model_usage=read.raw(fields, "modelUsage"),
        permission_denials=_unless_empty(read.raw(fields, "permission_denials")),
        stop_reason=read.text(fields, "stop_reason") or None,
        errors=_unless_empty(read.raw(fields, "errors")),
        uuid=read.text(fields, "uuid") or None,
        extras=read.others(fields, _RESULT),
    )
    return [RunResult(item, read.strings(fields, "begun_message_ids"), _is_repeated(fields, item))]


def _is_repeated(fields: Fields, item: TurnResult) -> bool:
    """Return True if the result repeats what another line has shown: a call's input, a command's output or a notice."""
    if "structured_output" in fields or read.text(fields, "local_command"):
        return True
    too_long = read.text(fields, "terminal_reason") == "prompt_too_long"
    return too_long or (item.result or "").startswith("Prompt is too long")


# The members of a result that have a place of their own; others are extras.
_RESULT = _COMMON | frozenset(
    {
        "is_error",
        "result",
        "num_turns",
        "duration_ms",
        "total_cost_usd",
        "usage",
        "modelUsage",
        "permission_denials",
        "stop_reason",
        "errors",
    }
)


def _string_or_none(fields: Fields, name: str) -> str | None:
    value = read.text(fields, name)
    return value if value or bytes(fields.get(name, b"")) == b'""' else None


def _unless_empty(raw: Raw | UnsetType) -> Raw | UnsetType:
    return UNSET if raw is not UNSET and bytes(raw) in {b"[]", b"{}"} else raw


def _system(fields: Fields) -> list[Event]:
    subtype = read.text(fields, "subtype")
    reader = _SUBTYPES.get(subtype)
    if reader is not None:
        return reader(fields)
    return [Aside(SessionSystem(subtype=subtype, event=_whole(fields)))]


def _whole(fields: Fields) -> Raw:
    return Raw(msgspec.json.encode(fields))


def _api_retry(fields: Fields) -> list[Event]:
    status, error = read.integer(fields, "error_status"), read.text(fields, "error")
    words = " ".join(str(word) for word in ("API error:", status, error) if word not in (None, ""))
    tries = f"(attempt {read.integer(fields, 'attempt')}/{read.integer(fields, 'max_retries')})"
    return [Retried(f"{words} {tries}")]


def _init(fields: Fields) -> list[Event]:
    item = SessionInit(
        session_id=read.text(fields, "session_id"),
        model=read.text(fields, "model"),
        cwd=read.text(fields, "cwd"),
        tools=read.raw(fields, "tools"),
        permission_mode=read.text(fields, "permissionMode"),
        agent_version=read.text(fields, "claude_code_version"),
        api_key_source=read.text(fields, "apiKeySource"),
        extras=read.others(fields, _INIT),
    )
    return [Aside(item)]


_INIT = _COMMON | frozenset({"model", "cwd", "tools", "permissionMode", "claude_code_version", "apiKeySource"})


def _status(fields: Fields) -> list[Event]:
    item = SessionStatus(
        status=read.text(fields, "status") or None,
        permission_mode=read.text(fields, "permissionMode"),
        extras=read.others(fields, _COMMON | {"status", "permissionMode"}),
    )
    return [Aside(item)]


def _compact_boundary(fields: Fields) -> list[Event]:
    metadata = read.raw(fields, "compact_metadata", "compactMetadata")
    extras = read.others(fields, _COMMON | {"compact_metadata", "compactMetadata"})
    return [Aside(SessionCompacted(compact_metadata=metadata, extras=extras))]


def _reset(fields: Fields) -> list[Event]:
    item = SessionReset(
        new_conversation_id=read.text(fields, "new_conversation_id"),
        trigger=read.text(fields, "trigger"),
        extras=read.others(fields, _COMMON | {"new_conversation_id", "trigger"}),
    )
    return [Aside(item)]


def _model_fallback(fields: Fields) -> list[Event]:
    item = ModelChanged(
        from_model=read.text(fields, "original_model"),
        to_model=read.text(fields, "fallback_model"),
        trigger=read.text(fields, "trigger"),
        message=read.text(fields, "content"),
        extras=read.others(fields, _COMMON | {"original_model", "fallback_model", "trigger", "content"}),
    )
    return [Aside(item)]


def _permission_denied(fields: Fields) -> list[Event]:
    item = PermissionDenied(
        item_id=read.text(fields, "tool_use_id"),
        tool_name=read.text(fields, "tool_name"),
        reason=read.text(fields, "decision_reason"),
        message=read.text(fields, "message"),
        extras=read.others(fields, _COMMON | {"tool_use_id", "tool_name", "decision_reason"}),
    )
    return [Aside(item)]


# ``output`` is what the two streams have together.
_HOOK = _COMMON | {"hook_id", "hook_name", "hook_event", "outcome", "exit_code", "output", "stdout", "stderr"}


def _hook_response(fields: Fields) -> list[Event]:
    item = HookCompleted(
        hook_id=read.text(fields, "hook_id"),
        hook_name=read.text(fields, "hook_name"),
        hook_event=read.text(fields, "hook_event"),
        outcome=read.text(fields, "outcome"),
        exit_code=read.integer(fields, "exit_code"),
        output=read.text(fields, "output"),
        extras=read.others(fields, _HOOK),
    )
    return [Aside(item)]


def _notice(fields: Fields) -> list[Event]:
    item = AgentNotice(
        message=read.text(fields, "text", "content"),
        level=read.text(fields, "priority", "level"),
        key=read.text(fields, "key"),
        extras=read.others(fields, _COMMON | {"text", "content", "priority", "level", "key"}),
    )
    return [Aside(item)]


def _task_updated(fields: Fields) -> list[Event]:
    extras = read.others(fields, _COMMON | {"task_id", "patch"})
    return [Aside(TaskUpdated(task_id=read.text(fields, "task_id"), patch=read.raw(fields, "patch"), extras=extras))]


def _task_list(fields: Fields) -> list[Event]:
    return [Aside(TaskList(tasks=read.raw(fields, "tasks"), extras=read.others(fields, _COMMON | {"tasks"})))]


def _rate_limit(fields: Fields) -> list[Event]:
    extras = read.others(fields, _COMMON | {"rate_limit_info"})
    return [Aside(SessionRateLimit(rate_limit_info=read.raw(fields, "rate_limit_info"), extras=extras))]


def _texts(item: Callable[..., Item], *names: str) -> Callable[[Fields], list[Event]]:
    """Returns a reader of a line whose item has these members, all of them strings."""
    known = _COMMON | frozenset(names)

    def read_line(fields: Fields) -> list[Event]:
        texts = {name: read.text(fields, name) for name in names}
        return [Aside(item(**texts, extras=read.others(fields, known)))]

    return read_line


_SUBTYPES: dict[str, Callable[[Fields], list[Event]]] = {
    "init": _init,
    "status": _status,
    "compact_boundary": _compact_boundary,
    "api_retry": _api_retry,
    "model_fallback": _model_fallback,
    "permission_denied": _permission_denied,
    "hook_started": _texts(HookStarted, "hook_id", "hook_name", "hook_event"),
    "hook_response": _hook_response,
    "notification": _notice,
    "informational": _notice,
    "task_updated": _task_updated,
    "background_tasks_changed": _task_list,
    # An estimate, one line for every few tokens; the message's usage has the number.
    "thinking_tokens": lambda _fields: [],
    "task_started": _texts(TaskStarted, "task_id", "tool_use_id", "description", "task_type"),
    "task_notification": _texts(TaskNotification, "task_id", "status", "output_file", "summary", "tool_use_id"),
}

_READERS: dict[str, Callable[[Fields], list[Event] | None]] = {
    "assistant": _assistant,
    "user": _user,
    "result": _result,
    "system": _system,
    "rate_limit_event": _rate_limit,
    "conversation_reset": _reset,
    "summary": lambda fields: [Aside(SessionSummary(summary=read.text(fields, "summary"), event=_whole(fields)))],
    "queue-operation": lambda fields: [Aside(SessionSystem(subtype="queue-operation", event=_whole(fields)))],
    "control_response": lambda fields: [Aside(ControlResponse(response=read.raw(fields, "response")))],
    "stderr": lambda fields: [Aside(ProcessStderr(text=read.text(fields, "text", "data", "message")))],
    "exit": lambda fields: [Aside(ProcessExit(code=read.integer(fields, "code"), event=_whole(fields)))],
    # Kept by the CLI for itself, or for keeping a connection open.
    **dict.fromkeys(("progress", "file-history-snapshot", "keep_alive"), lambda _fields: []),
}
