"""The published bytes of an answer and its completeness, in the wire format of each provider."""

import json
import zlib

import pytest
from look_alikes import CHAT_SOURCES
from sender_runs import anthropic

from reknit.pipeline.client import answers
from reknit.pipeline.client.answers import AnswerReader, StreamFailure
from reknit.pipeline.errors import InputError
from reknit.pipeline.registry import SOURCES, TARGETS, find_source


def sse(*events, names=False, end=b""):
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if names else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n".encode())
    return [*lines, end] if end else lines


def chunk(delta, finish=None):
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def frame(kind, payload, message="event"):
    """One message of AWS's event-stream format."""
    headers = b""
    for name, value in ((":message-type", message), (f":{message}-type", kind)):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
    body = json.dumps(payload).encode()
    prelude = (len(headers) + len(body) + 16).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    start = prelude + zlib.crc32(prelude).to_bytes(4, "big") + headers + body
    return start + zlib.crc32(start).to_bytes(4, "big")


RESPONSE = {"id": "r1", "model": "m", "status": "in_progress", "output": []}
SAID = {"type": "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
PARTS = {"content": {"role": "model", "parts": [{"text": "hi"}]}}
CLI = {"session_id": "s", "uuid": "u"}

# By source: the pieces, and the number of the first one that completes the answer.
STREAMS = {
    "anthropic": (anthropic(), 6),
    **dict.fromkeys(
        CHAT_SOURCES,
        (sse(chunk({"role": "assistant", "content": "hi"}), chunk({}, "length"), end=b"data: [DONE]\n\n"), 2),
    ),
    "openai-chat": (
        sse(
            chunk({"role": "assistant", "content": "hi"}),
            chunk({}, "stop"),
            {"choices": [], "usage": {}},
            end=b"data: [DONE]\n\n",
        ),
        2,
    ),
    "openai-chat without a reason": (sse(chunk({"role": "assistant", "content": "hi"}), end=b"data: [DONE]\n\n"), 2),
    "openai-responses": (
        sse(
            {"type": "response.created", "response": RESPONSE, "sequence_number": 0},
            {"type": "response.output_item.done", "output_index": 0, "item": SAID, "sequence_number": 1},
            {"type": "response.completed", "response": {**RESPONSE, "status": "completed"}, "sequence_number": 2},
            names=True,
        ),
        3,
    ),
    "openai-responses incomplete": (
        sse(
            {"type": "response.created", "response": RESPONSE, "sequence_number": 0},
            {"type": "response.incomplete", "response": {**RESPONSE, "status": "incomplete"}, "sequence_number": 1},
            names=True,
        ),
        2,
    ),
    "gemini": (sse({"candidates": [PARTS]}, {"candidates": [PARTS | {"finishReason": "STOP"}]}), 2),
    "gemini as an array": (
        [
            b"[" + json.dumps({"candidates": [PARTS]}).encode(),
            b"\n,\n" + json.dumps({"candidates": [PARTS | {"finishReason": "STOP"}]}).encode(),
            b"]\n",
        ],
        2,
    ),
    "bedrock-converse": (
        [
            frame("messageStart", {"role": "assistant"}),
            frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hi"}}),
            frame("contentBlockStop", {"contentBlockIndex": 0}),
            frame("messageStop", {"stopReason": "end_turn"}),
            frame("metadata", {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}}),
        ],
        4,
    ),
    "cascade": (sse({"type": "text_delta", "text": "hi"}, {"type": "done", "reason": "stop"}), 2),
    "claude-cli": (
        [
            json.dumps({"type": "system", "subtype": "init", **CLI}).encode() + b"\n",
            json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": "hi", **CLI}).encode()
            + b"\n",
        ],
        2,
    ),
    "codex-cli": (
        [
            json.dumps({"type": kind, "thread_id": "t", "usage": {}}).encode() + b"\n"
            for kind in ("thread.started", "turn.started", "turn.completed")
        ],
        3,
    ),
    "codex-cli failed": (
        [
            json.dumps({"type": kind, "thread_id": "t", "error": {"message": "no"}}).encode() + b"\n"
            for kind in ("thread.started", "turn.started", "turn.failed")
        ],
        3,
    ),
    "gemini-cli": (
        [
            b'{"type":"init","session_id":"s","model":"m"}\n',
            b'{"type":"message","role":"assistant","content":"hi","delta":true}\n',
            b'{"type":"result","status":"success","stats":{}}\n',
        ],
        3,
    ),
}


def test_each_source_has_a_stream_here():
    assert {name.partition(" ")[0] for name in STREAMS} == set(SOURCES)


def read(name, pieces, **options):
    """Return an answer's reader, and the bytes that it published for each piece and at the end."""
    reader = AnswerReader(find_source(name.partition(" ")[0]), "bytes")
    published = [reader.take(piece, **options) for piece in pieces]
    return reader, [*published, reader.finish()]


@pytest.mark.parametrize("name", STREAMS)
def test_an_answer_is_complete_with_its_final_event_and_not_before(name):
    pieces, final = STREAMS[name]
    found = [read(name, pieces[:count])[0].is_whole for count in range(len(pieces) + 1)]
    assert found == [count >= final for count in range(len(pieces) + 1)]


@pytest.mark.parametrize("name", STREAMS)
def test_published_bytes_equal_received_bytes_at_every_split(name):
    whole = b"".join(STREAMS[name][0])
    for at in range(len(whole) + 1):
        reader, published = read(name, [whole[:at], whole[at:]])
        assert b"".join(published) == whole
        assert reader.is_whole


@pytest.mark.parametrize("name", ["anthropic", "bedrock-converse", "openai-responses"])
def test_only_whole_events_are_published_before_the_end(name):
    pieces, _ = STREAMS[name]
    whole = b"".join(pieces)
    ends = {sum(map(len, pieces[:count])) for count in range(len(pieces) + 1)}
    reader = AnswerReader(find_source(name), "bytes")
    done = 0
    for at in range(len(whole)):
        done += len(reader.take(whole[at : at + 1]))
        # The line of an event ends it, one byte before the blank line.
        assert done in ends or done + 1 in ends


def test_a_final_event_without_its_blank_line_counts():
    whole = b"".join(anthropic())
    assert read("anthropic", [whole[:-2]])[0].is_whole


def test_another_message_after_the_final_event_must_end_too():
    again = anthropic(message_id="m2")
    assert not read("anthropic", [*anthropic(), *again[:3]])[0].is_whole
    assert read("anthropic", [*anthropic(), *again])[0].is_whole


# One document.

ANSWER = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "hi"}]}
DOCUMENT = json.dumps(ANSWER | {"stop_reason": "end_turn"}, indent=2).encode()


def test_a_document_is_published_once_it_is_complete():
    pieces = [b"\n", b" \n", DOCUMENT[:20], DOCUMENT[20:]]
    reader, published = read("anthropic", pieces, is_document=True)
    assert published == [b"", b"", b"", b"", b"\n \n" + DOCUMENT]
    assert reader.is_whole


@pytest.mark.parametrize("at", range(1, len(DOCUMENT), 7))
def test_a_cut_document_is_incomplete(at):
    reader, published = read("anthropic", [DOCUMENT[:at]], is_document=True)
    assert not reader.is_whole
    assert published == [b"", DOCUMENT[:at]]


def test_a_document_without_an_end_status_is_complete_as_a_document():
    queued = json.dumps({"object": "response", "id": "r1", "status": "queued", "output": []}).encode()
    assert read("openai-responses", [queued], is_document=True)[0].is_whole
    assert not read("openai-responses", [queued + b"\n"])[0].is_whole


def test_a_streaming_array_is_not_a_document():
    pieces, _ = STREAMS["gemini as an array"]
    reader, published = read("gemini", pieces, is_document=True)
    assert published[0] == pieces[0]
    assert reader.is_whole


def test_a_document_that_reports_an_error_is_incomplete():
    error = b'{"error": {"type": "server_error", "message": "words"}}'
    reader, _ = read("openai-chat", [error], is_document=True)
    assert not reader.is_whole
    assert reader.failure == StreamFailure("server_error", may_pass=True)


# Keep-alives and errors.


def test_keep_alives_are_published_with_the_first_event():
    reader = AnswerReader(find_source("openai-chat"), "bytes")
    first = sse(chunk({"role": "assistant", "content": "hi"}))[0]
    assert reader.take(b": OPENROUTER PROCESSING\n\n") == b""
    assert reader.take(b": OPENROUTER PROCESSING\n\n") == b""
    assert reader.take(first) == b": OPENROUTER PROCESSING\n\n" * 2 + first


@pytest.mark.parametrize(
    ("code", "shown", "may_pass"),
    [
        ("overloaded_error", "overloaded_error", True),
        ("rate_limit_exceeded", "rate_limit_exceeded", True),
        ("invalid_request_error", "invalid_request_error", False),
        ("SAFETY", "SAFETY", False),
        ("a secret of the request", "", False),
        ("x" * 65, "", False),
    ],
)
def test_an_error_in_the_stream_is_held_back_and_named_by_its_code(code, shown, may_pass):
    event = sse({"type": "error", "error": {"type": code, "message": "words"}}, names=True)[0]
    reader = AnswerReader(find_source("anthropic"), "bytes")
    assert reader.take(event) == b""
    assert reader.finish() == event
    assert (reader.is_whole, reader.failure) == (False, StreamFailure(shown, may_pass))


def failed_response(code):
    failed = {"id": "resp_1", "status": "failed", "output": [], "error": {"code": code, "message": "words"}}
    return {"type": "response.failed", "sequence_number": 1, "response": failed}


# Errors that refuse the request, by source and as each writes them.
REFUSALS = {
    "anthropic": [{"type": "error", "error": {"type": "invalid_request_error", "message": "words"}}],
    "openai-responses": [
        failed_response("invalid_encrypted_content"),
        failed_response("previous_response_not_found"),
        failed_response("invalid_image_format"),
        {"type": "error", "code": "invalid_encrypted_content", "message": "words", "param": None, "sequence_number": 1},
        {"type": "error", "error": {"type": "invalid_request_error", "code": None, "message": "words"}, "status": 400},
    ],
    "gemini": [
        {"error": {"code": 400, "message": "words", "status": "INVALID_ARGUMENT"}},
        {"error": {"code": 403, "message": "words", "status": "PERMISSION_DENIED"}},
    ],
    **dict.fromkeys(
        ["openai-chat", *CHAT_SOURCES],
        (
            {"error": {"code": 400, "message": "words", "type": "invalid_request_error"}},
            {"error": {"code": "unsupported_value", "message": "words", "type": "invalid_request_error"}},
            {"object": "error", "message": "words", "type": "BadRequestError", "param": None, "code": 400},
            {"error": {"object": "error", "message": "words", "type": "BadRequestError", "code": 400}},
        ),
    ),
    "bedrock-converse": [frame("validationException", {"message": "words"}, "exception")],
}


@pytest.mark.parametrize("is_late", [False, True], ids=["before content", "after content"])
@pytest.mark.parametrize(("source", "event"), [(source, event) for source in REFUSALS for event in REFUSALS[source]])
def test_an_error_that_refuses_the_request_is_known_as_a_refusal(source, event, is_late):
    reader = AnswerReader(find_source(source), "bytes")
    pieces, final = STREAMS[source]
    for piece in pieces[: final - 1] if is_late else ():
        reader.take(piece)
    assert reader.has_content == is_late
    reader.take(event if isinstance(event, bytes) else sse(event, names="type" in event and "object" not in event)[0])
    reader.finish()
    assert reader.failure is not None
    assert (reader.failure.is_refusal, reader.is_whole, reader.has_content) == (True, False, is_late)


def test_every_source_of_an_api_has_a_refusal():
    assert REFUSALS.keys() == {
        name for name, source in SOURCES.items() if name in TARGETS and not (TARGETS[name].is_text or source.rewrites)
    }


def test_an_error_that_may_pass_is_no_refusal():
    assert not StreamFailure("overloaded_error", may_pass=True).is_refusal
    assert not StreamFailure("", may_pass=False).is_refusal


def test_lines_of_a_program_are_published_one_by_one():
    reader = AnswerReader(find_source("claude-cli"), "events")
    lines = [piece.rstrip(b"\n") for piece in STREAMS["claude-cli"][0]]
    assert [reader.take(line) for line in lines] == lines
    assert reader.finish() == b""
    assert reader.is_whole


def test_an_event_too_large_for_a_record_is_rejected(monkeypatch):
    monkeypatch.setattr(answers, "MOST_TAIL", 1000)
    reader = AnswerReader(find_source("anthropic"), "bytes")
    with pytest.raises(InputError, match="exceeds 1000 bytes"):
        reader.take(b'{"x": "' + b"x" * 2000, is_document=True)
