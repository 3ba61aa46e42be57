"""Plain lines of the Claude CLI: those that fit a struct are decoded once, and most do.

What does not fit (an unknown member of an assistant's line, a member of the wrong type, another type of line) fails to
decode, and is then read member by member (``lines``); where it does fit, both give the same event.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from pipeline.streams import fields as read
from pipeline.streams.bytes.salvage import check_strings, read_fields
from pipeline.streams.claude_cli.lines import RESULT, unless_empty
from pipeline.streams.claude_cli.messages import Message, whole_block
from pipeline.streams.claude_cli.wire import StreamEvent
from pipeline.streams.events import Event, RunResult, WholeMessage
from topics.items import TurnResult, Usage

MaybeRaw = Raw | UnsetType


class AssistantLine(Struct, tag_field="type", tag="assistant", forbid_unknown_fields=True, gc=False):
    """A complete message, or a part of one, of the main turn or a sub-agent. Notices have members that it lacks."""

    message: Message
    uuid: str | None = None
    parent_tool_use_id: str | None = None
    session_id: MaybeRaw = UNSET
    request_id: MaybeRaw = UNSET
    timestamp: MaybeRaw = UNSET

    def event(self) -> Event | None:
        """The event of the line; None where the words may be the CLI's own."""
        message = self.message
        if message.model == "<synthetic>":
            return None
        others = (("timestamp", self.timestamp), ("request_id", self.request_id))
        extras = {name: raw for name, value in others if (raw := read.given(value)) is not UNSET}
        return WholeMessage(
            message_id=message.id or None,
            blocks=tuple([whole_block(raw) for raw in message.content]),
            model=message.model or None,
            usage=message.usage or UNSET,
            uuid=self.uuid or None,
            parent=self.parent_tool_use_id or None,
            extras=extras or UNSET,
        )


class ResultLine(Struct, tag_field="type", tag="result", gc=False):
    """The end of an answer; the members that have no place here are extras."""

    subtype: str = ""
    is_error: bool = False
    result: str | None = None
    num_turns: int | None = None
    duration_ms: int | float | None = None
    total_cost_usd: int | float | None = None
    usage: Usage | UnsetType | None = UNSET
    model_usage: MaybeRaw = field(default=UNSET, name="modelUsage")
    permission_denials: MaybeRaw = UNSET
    stop_reason: str | None = None
    errors: MaybeRaw = UNSET
    uuid: str | None = None
    begun_message_ids: list[str] | None = None

    def event(self, fields: read.Fields) -> Event:
        """The event of the line; ``fields`` are all its members."""
        item = TurnResult(
            subtype=self.subtype,
            is_error=self.is_error,
            result=self.result,
            num_turns=self.num_turns,
            duration_ms=self.duration_ms,
            total_cost_usd=self.total_cost_usd,
            usage=self.usage or UNSET,
            model_usage=read.given(self.model_usage),
            permission_denials=unless_empty(read.given(self.permission_denials)),
            stop_reason=self.stop_reason or None,
            errors=unless_empty(read.given(self.errors)),
            uuid=self.uuid or None,
            extras=read.others(fields, RESULT),
        )
        return RunResult(item, None if self.begun_message_ids is None else tuple(self.begun_message_ids))


PlainLine = AssistantLine | ResultLine
decode = msgspec.json.Decoder(StreamEvent | PlainLine).decode


def plain_events(line: PlainLine, data: bytes) -> list[Event] | None:
    """The events of a line that was decoded from ``data``; None where it has to be read member by member.

    Raw members were only skipped, so the text that stands in them has to be sound.
    """
    try:
        check_strings(data)
        if isinstance(line, ResultLine):
            return [line.event(read_fields(data))]
    except (ValueError, RecursionError):
        return None
    found = line.event()
    return None if found is None else [found]
