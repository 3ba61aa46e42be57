"""The spans of a worker's batch and of a provider's call, as data: names and attributes of the conventions.

Names are those of OpenTelemetry's semantic conventions for generative AI (semantic-conventions-genai) and for messaging
with Kafka. They are not stable yet, so no package for Python has constants for them. Reknit's own names begin with
``reknit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from reknit.pipeline.stages.base import Output
from reknit.pipeline.tracing.calls import Call, Outcome
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_REQUESTS,
    RECORDED_PREFIX,
    SESSION_ITEMS,
)
from reknit.topics import headers as names
from reknit.topics.records import FixRecord
from reknit.topics.trace import carried

Value: TypeAlias = str | int | bool | list[str]
Attributes: TypeAlias = dict[str, Value]

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
CONVERSATION: Final = "gen_ai.conversation.id"
ERROR: Final = "error.type"
FIX: Final = "reknit.fix"

# Providers with a well-known name; any other one has the name of its target.
_PROVIDERS: Final = MappingProxyType(
    {
        "openai-chat": "openai",
        "openai-responses": "openai",
        "gemini": "gcp.gemini",
        "bedrock-converse": "aws.bedrock",
        "mistral": "mistral_ai",
    }
)
_OPERATIONS: Final = MappingProxyType({"gemini": "generate_content"})
_CHAT: Final = "chat"
# From this status on an answer is an error.
_ERRORS_FROM: Final = 400
_PORTS: Final = MappingProxyType({"https": 443, "http": 80})
_FIXES: Final = msgspec.json.Decoder(FixRecord)


class SpanEvent(Struct, frozen=True):
    """An event of a span."""

    name: str
    attributes: Attributes


class SpanData(Struct, kw_only=True):
    """A span: ``trace`` are the trace headers of its parent, ``error`` the code of what failed."""

    name: str
    trace: Mapping[str, str]
    attributes: Attributes
    events: list[SpanEvent] = []
    error: str = ""


def operation_of(target: str) -> str:
    """Return the name of a call's operation."""
    return _OPERATIONS.get(target, _CHAT)


def provider_of(target: str) -> str:
    """Return a provider's name in the conventions."""
    return _PROVIDERS.get(target, target)


# A worker's batch.


def spans_of(topic: str, partition: int, outputs: Iterable[Output], prefix: str = "") -> list[SpanData]:
    """Return the spans of a committed batch, in the order of its outputs.

    A record of turns has a span of its own if it gave outputs. A stream has thousands of records, so those of one
    session and trace in a batch share a span.

    Args:
        topic: the source topic, by its contract name.
        partition: of the batch.
        outputs: of the batch.
        prefix: of the source topic.
    """
    of_batch: Attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": f"{prefix}{topic}",
        "messaging.destination.partition.id": str(partition),
    }
    spans: dict[tuple[object, ...], SpanData] = {}
    for output in outputs:
        add = _ADD.get(output.topic.removeprefix(RECORDED_PREFIX))
        if add is None:
            continue
        trace = carried(output.headers)
        offset = _offset_of(output) if topic == AGENT_TURNS else None
        group = (output.key, *trace.values()) if offset is None else (output.key, offset)
        if group not in spans:
            attributes = of_batch | {CONVERSATION: (output.key or b"").decode("utf-8", "replace")}
            if offset is not None:
                attributes["messaging.kafka.offset"] = offset
            spans[group] = SpanData(name=f"process {topic}", trace=trace, attributes=attributes, events=[])
        add(spans[group], output)
    return list(spans.values())


def _offset_of(output: Output) -> int | None:
    """Return the offset of the record that an output is from, if the output names it."""
    if output.topic == HISTORY_FIXES:
        return _FIXES.decode(output.value or b"").offset
    name = names.CAUSE if output.topic == PROVIDER_REQUESTS else names.ERROR_OFFSET
    found = (names.find_text(output.headers, name) or "").rpartition("/")[2]
    return int(found) if found.isdecimal() else None


def _add_request(span: SpanData, output: Output) -> None:
    said = names.read(output.headers, names.RequestHeaders)
    model = said.model if isinstance(said.model, str) else ""
    attributes: Attributes = {
        PROVIDER: provider_of(said.target),
        "reknit.target": said.target,
        "reknit.request.id": said.request_id,
        "reknit.request.fixes": said.fixes,
        "reknit.request.reason": str(said.reason),
    }
    if model:
        attributes[MODEL] = model
    span.events.append(SpanEvent("reknit.request", attributes))
    span.attributes |= {OPERATION: operation_of(said.target)} | {
        name: attributes[name] for name in (PROVIDER, MODEL) if name in attributes
    }


def _add_fix(span: SpanData, output: Output) -> None:
    fix = _FIXES.decode(output.value or b"")
    attributes: Attributes = {
        f"{FIX}.code": fix.code,
        f"{FIX}.place": fix.path,
        f"{FIX}.lossy": not fix.lossless,
        f"{FIX}.observed": fix.observed,
        "reknit.target": fix.target or fix.source,
    }
    span.events.append(SpanEvent(FIX, attributes))


def _add_letter(span: SpanData, output: Output) -> None:
    said = names.read(output.headers, names.DeadLetterHeaders)
    attributes: Attributes = {ERROR: said.code}
    if isinstance(said.rule, str):
        attributes["reknit.rule"] = said.rule
    span.events.append(SpanEvent("reknit.dead_letter", attributes))
    span.attributes[ERROR] = span.error = said.code


def _count_item(span: SpanData, _output: Output) -> None:
    _count(span, "reknit.items")


def _count_turn(span: SpanData, _output: Output) -> None:
    _count(span, "reknit.turns.recorded")


def _count(span: SpanData, name: str) -> None:
    counted = span.attributes.get(name)
    span.attributes[name] = counted + 1 if isinstance(counted, int) else 1


# Records of the history side for the stream side (policy, ends of sessions) are in no span.
_ADD: Final[Mapping[str, Callable[[SpanData, Output], None]]] = MappingProxyType(
    {
        PROVIDER_REQUESTS: _add_request,
        HISTORY_FIXES: _add_fix,
        DEAD_LETTERS: _add_letter,
        SESSION_ITEMS: _count_item,
        AGENT_TURNS: _count_turn,
    }
)


# A provider's call.


def call_span(call: Call) -> SpanData:
    """Return the span of a call at its begin."""
    attributes: Attributes = {OPERATION: operation_of(call.target), PROVIDER: provider_of(call.target)}
    if call.model:
        attributes[MODEL] = call.model
    if call.session:
        attributes[CONVERSATION] = call.session
    attributes |= _server_of(call.url)
    return SpanData(name=f"{operation_of(call.target)} {call.model}".rstrip(), trace=call.trace, attributes=attributes)


def _server_of(url: str) -> Attributes:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return {}
    found: Attributes = {} if host is None else {"server.address": host}
    return found if host is None or port is None else found | {"server.port": port}


def outcome_attributes(outcome: Outcome) -> Attributes:
    """Return the attributes of a call that are known at its end."""
    found: Attributes = {}
    answer = outcome.answer
    if outcome.status is not None:
        found["http.response.status_code"] = outcome.status
    if error := error_of(outcome):
        found[ERROR] = error
    if answer.message_id:
        found["gen_ai.response.id"] = answer.message_id
    if answer.model:
        found["gen_ai.response.model"] = answer.model
    if answer.stop_reason:
        found["gen_ai.response.finish_reasons"] = [answer.stop_reason]
    if (usage := answer.usage) is not None:
        read, created = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        # In the conventions cached tokens are part of the input; in Anthropic's terms they are not.
        found |= {
            "gen_ai.usage.input_tokens": usage.input_tokens + read + created,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": read,
            "gen_ai.usage.cache_creation.input_tokens": created,
        }
    return found


def outcome_events(outcome: Outcome) -> Sequence[SpanEvent]:
    """Return the events of a call whose request was repaired for it."""
    fixes = [SpanEvent(FIX, {f"{FIX}.code": code, f"{FIX}.count": count}) for code, count in outcome.fixes.items()]
    return [*fixes, *(SpanEvent("reknit.healed", {"reknit.healing": name}) for name in outcome.healed)]


def error_of(outcome: Outcome) -> str:
    """Return the type of a call's error, or ""."""
    if outcome.error:
        return outcome.error
    return str(outcome.status) if outcome.status is not None and outcome.status >= _ERRORS_FROM else ""
