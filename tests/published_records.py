"""Published records of the stages as one side of a comparison: the history and stream sides of sessions, in memory."""

import hashlib
import json

from reknit.pipeline.diff import COMPARED_TOPICS, compare_session
from reknit.pipeline.diff.outputs import Published
from reknit.pipeline.stages.base import Output, Record
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage

OPENED = {"type": "session.opened", "model": "claude-sonnet-4-5", "params": {"max_tokens": 100}}


def appended(*messages):
    return [{"type": "turn.appended", "message": message} for message in messages]


def turns(*records, key=b"s1", first=0):
    """Records of agent.turns in one partition."""
    return [
        Record(partition=0, offset=first + at, key=key, value=json.dumps(each).encode())
        for at, each in enumerate(records)
    ]


def answers(*texts, key=b"s1", piece=1):
    """Records of provider.events: a session that records its turns, and these answers of one run, with its result.

    ``piece`` is the number of characters per delta.
    """
    told = Record(partition=0, offset=0, key=key, value=None, headers=(("policy", b'{"record_assistant": true}'),))
    lines = [line for number, text in enumerate(texts) for line in _answer(text, f"m{number}", piece)]
    lines.append({"type": "result", "subtype": "success", "is_error": False, "result": texts[-1]})
    headers = (("source", b"claude-cli"), ("run", b"r1"))
    return [
        told,
        *(
            Record(partition=0, offset=at + 1, key=key, value=json.dumps(line).encode(), headers=headers)
            for at, line in enumerate(lines)
        ),
    ]


def _answer(text, message_id, piece):
    message = {"id": message_id, "role": "assistant", "model": "m", "content": []}
    deltas = [{"type": "text_delta", "text": text[at : at + piece]} for at in range(0, len(text), piece)]
    events = (
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    )
    whole = {"type": "assistant", "message": message | {"content": [{"type": "text", "text": text}]}}
    lines = [{"type": "stream_event", "event": event} for event in events]
    return [*lines[:-3], whole, *lines[-3:]]


def processed(turn_records=(), event_records=(), *, defaults=None, batch=1000):
    """Return the outputs of both sides in the order in which they were made."""
    outputs = []
    for stage, records in ((TurnsStage(defaults), turn_records), (EventsStage(defaults), event_records)):
        for at in range(0, len(records), batch):
            outputs += stage.process(records[at : at + batch]).outputs
    return outputs


def published(output, offset=0, partition=0):
    return Published(
        topic=output.topic,
        partition=partition,
        offset=offset,
        headers=output.headers,
        digest=hashlib.sha256(output.value or b"").digest(),
        read=lambda: output.value,
    )


def side(outputs, key=b"s1"):
    """Return everything that a side has about a session."""
    made = [output for output in outputs if output.key == key and output.topic in COMPARED_TOPICS]
    return [published(output, at) for at, output in enumerate(made)]


def compared(before, after, key=b"s1", at_least_once=(False, False)):
    return compare_session(key.decode(), side(before, key), side(after, key), at_least_once)


def changes(before, after, key=b"s1", at_least_once=(False, False)):
    """Return each difference as subject, how, label, place and path."""
    found = compared(before, after, key, at_least_once).changes
    return [(each.subject, each.how, each.label, each.place, each.path) for each in found]


def with_value(output, value):
    return Output(output.topic, output.key, value, output.headers)


def with_header(output, name, value):
    kept = tuple(header for header in output.headers if header[0] != name)
    return Output(output.topic, output.key, output.value, (*kept, (name, value)))
