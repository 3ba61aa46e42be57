"""Streamed answers of the providers, whole and cut, as bytes: the pieces that a provider would send."""

import base64
import json
import struct
from zlib import crc32

import anthropic_events
import gemini_chunks
import responses_events

# The words of each text, and the JSON of each call's arguments.
WORDS = ("Hel", "lo")
ARGUMENTS = ('{"pa', 'th": "/srv"}')


def _sse(*events, named=False):
    names = (f"event: {each['type']}\n" if named else "" for each in events)
    return [f"{name}data: {json.dumps(each)}\n\n".encode() for name, each in zip(names, events, strict=True)]


def anthropic_text():
    usage = {"input_tokens": 1, "output_tokens": 1}
    return _sse(
        anthropic_events.start(usage=usage, stop_reason=None, stop_sequence=None),
        *anthropic_events.hello(),
        *anthropic_events.end(usage=usage),
        named=True,
    )


def anthropic_call():
    usage = {"input_tokens": 1, "output_tokens": 1}
    return _sse(
        anthropic_events.start(usage=usage, stop_reason=None, stop_sequence=None),
        *anthropic_events.call(0, "toolu_1", *ARGUMENTS),
        *anthropic_events.end("tool_use", usage=usage),
        named=True,
    )


def _chat(delta, reason=None):
    choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", "choices": [choice]}


def chat_text():
    deltas = [_chat({"role": "assistant", "content": ""}), *(_chat({"content": each}) for each in WORDS)]
    return [*_sse(*deltas, _chat({}, "stop")), b"data: [DONE]\n\n"]


def chat_call():
    head = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "ls", "arguments": ""}}
    pieces = [{"tool_calls": [{"index": 0, "function": {"arguments": each}}]} for each in ARGUMENTS]
    deltas = [{"role": "assistant", "content": None}, {"tool_calls": [head]}, *pieces]
    return [*_sse(*map(_chat, deltas), _chat({}, "tool_calls")), b"data: [DONE]\n\n"]


def _response(kind, status, *output):
    more = {
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return responses_events.response(kind, *output, **more)


def responses_text():
    item = responses_events.message(status="in_progress")
    whole = responses_events.message("".join(WORDS), status="completed")
    part = {"item_id": "m1", "content_index": 0}
    return _sse(
        *responses_events.numbered(
            [
                _response("created", "in_progress"),
                responses_events.added(item),
                responses_events.event("content_part.added", part=responses_events.text(""), **part),
                *(responses_events.event("output_text.delta", delta=each, logprobs=[], **part) for each in WORDS),
                responses_events.event("output_text.done", text="".join(WORDS), logprobs=[], **part),
                responses_events.event("content_part.done", part=responses_events.text("".join(WORDS)), **part),
                responses_events.done(whole),
                _response("completed", "completed", whole),
            ]
        ),
        named=True,
    )


def responses_call():
    item = responses_events.call("", status="in_progress")
    whole = responses_events.call("".join(ARGUMENTS), status="completed")
    deltas = [responses_events.event("function_call_arguments.delta", item_id="f-t1", delta=each) for each in ARGUMENTS]
    done = responses_events.event(
        "function_call_arguments.done", item_id="f-t1", name="f", arguments="".join(ARGUMENTS)
    )
    return _sse(
        *responses_events.numbered(
            [
                _response("created", "in_progress"),
                responses_events.added(item),
                *deltas,
                done,
                responses_events.done(whole),
                _response("completed", "completed", whole),
            ]
        ),
        named=True,
    )


def gemini_text():
    return _sse(*(gemini_chunks.chunk(gemini_chunks.text(each)) for each in WORDS), gemini_chunks.END)


def gemini_call():
    """A call arrives whole, so that a cut is before it or after it."""
    called = gemini_chunks.chunk(gemini_chunks.call("ls", args={"path": "/srv"}))
    return _sse(gemini_chunks.chunk(gemini_chunks.text("Hel")), called, gemini_chunks.END)


def _frame(kind, **members):
    return framed(members, **{":event-type": kind, ":content-type": "application/json", ":message-type": "event"})


def framed(members, **headers):
    """Return a message of AWS's event stream."""
    head = b"".join(
        bytes((len(name),)) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    payload = json.dumps(members).encode()
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    frame = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return frame + struct.pack(">I", crc32(frame))


def exception(kind, message):
    """Return the frame in which Bedrock reports an error inside a stream."""
    return framed({"message": message}, **{":exception-type": kind, ":message-type": "exception"})


def chunk(payload):
    """Return the frame of InvokeModelWithResponseStream that holds an event of the model."""
    return _frame("chunk", bytes=base64.b64encode(payload).decode())


def invoked(events):
    """Return server-sent events in the frames of InvokeModelWithResponseStream."""
    return [chunk(each.partition(b"data: ")[2].strip()) for each in events]


def _converse(deltas, reason, **start):
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    return [
        _frame("messageStart", role="assistant"),
        *([_frame("contentBlockStart", contentBlockIndex=0, start=start)] if start else []),
        *(_frame("contentBlockDelta", contentBlockIndex=0, delta=each) for each in deltas),
        _frame("contentBlockStop", contentBlockIndex=0),
        _frame("messageStop", stopReason=reason),
        _frame("metadata", usage=usage, metrics={"latencyMs": 1}),
    ]


def converse_text():
    return _converse([{"text": each} for each in WORDS], "end_turn")


def converse_call():
    tool = {"toolUseId": "t1", "name": "ls"}
    return _converse([{"toolUse": {"input": each}} for each in ARGUMENTS], "tool_use", toolUse=tool)
