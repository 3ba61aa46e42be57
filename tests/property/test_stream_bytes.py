"""Bytes of every source, however damaged, batched, formatted and cut, give the same well-formed items."""

import json

import msgspec
import pytest
import stage_runs
from hypothesis import given, settings
from hypothesis import strategies as st
from look_alikes import CHAT_SOURCES
from stream_runs import picture, without_deltas

from reknit.pipeline.registry import SOURCES
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.streams.session import Recovery
from reknit.topics import SESSION_ITEMS
from reknit.topics.items import AnyItem, ItemDelta
from reknit.topics.reducer import reduce

_item = msgspec.json.Decoder(AnyItem)
each_source = pytest.mark.parametrize("source", sorted(SOURCES))

# -- payloads of a source ------------------------------------------------------------------------------------------


def anthropic(words):
    thought = {"type": "thinking_delta", "thinking": words}
    return [
        {"type": "message_start", "message": {"id": "m1", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}},
        {"type": "content_block_delta", "index": 1, "delta": thought},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": words}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"t": words}}},
        {"type": "content_block_start", "index": 3, "content_block": {"type": "odd", "of": [words]}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "said": words}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]


def claude_cli(words):
    whole = {"id": "m1", "model": "m", "content": [{"type": "text", "text": words}]}
    streamed = [{"type": "stream_event", "event": event} for event in anthropic(words)]
    others = [
        {"type": "assistant", "message": whole, "request_id": words},
        {"type": "result", "subtype": "success", "result": words, "modelUsage": {"m": words}, "odd": words},
        {"type": "system", "subtype": "odd", "of": {"of": words}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t", "content": words}]}},
    ]
    return streamed + others


def chat(words):
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": words}}
    deltas = [{"content": words}, {"reasoning_content": words}, {"tool_calls": [call]}, {"odd": [words]}]
    reason = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunks = [{"id": "a", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*chunks, {"id": "a", "choices": [reason], "usage": {"prompt_tokens": 1}}, {"error": {"message": words}}]


def responses(words):
    part = {"type": "output_text", "text": words, "annotations": [{"title": words}]}
    item = {"id": "i", "type": "message", "content": [part]}
    return [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"id": "i", "type": "message"}},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": words},
        {"type": "response.reasoning_text.delta", "output_index": 1, "content_index": 0, "delta": words},
        {"type": "response.output_item.added", "output_index": 2, "item": {"type": "odd", "of": words}},
        {"type": "response.odd.progress", "output_index": 2, "of": words},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "r", "output": [item], "usage": {"input_tokens": 1}}},
    ]


def gemini(words):
    parts = [
        {"text": words},
        {"text": words, "thought": True},
        {"functionCall": {"name": "f", "args": {"a": words}}},
        {"executableCode": {"code": words}},
    ]
    end = {"responseId": "r", "candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 1}}
    return [*({"responseId": "r", "candidates": [{"content": {"parts": [part]}}]} for part in parts), end]


def converse(words):
    deltas = [{"text": words}, {"reasoningContent": {"text": words}}, {"citation": {"title": words}}]
    return [
        {"messageStart": {"role": "assistant"}},
        *({"contentBlockDelta": {"contentBlockIndex": at % 2, "delta": delta}} for at, delta in enumerate(deltas)),
        {"contentBlockStart": {"contentBlockIndex": 2, "start": {"odd": {"of": words}}}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "end_turn", "additionalModelResponseFields": {"of": words}}},
        {"metadata": {"usage": {"inputTokens": 1}, "trace": {"of": words}}},
    ]


def cascade(words):
    return [
        {"type": "text_delta", "text": words},
        {"type": "thinking_delta", "thinking": words},
        {"text": words, "thinking": words},
        {"type": "done", "reason": "stop"},
        {"type": "odd", "of": words},
    ]


def codex_cli(words):
    done = [
        {"type": "agent_message", "text": words},
        {"type": "command_execution", "command": words, "aggregated_output": words, "status": "failed", "odd": words},
        {
            "type": "mcp_tool_call",
            "server": words,
            "tool": "t",
            "result": {"content": [{"type": "text", "text": words}]},
        },
        {"type": "todo_list", "items": [{"text": words, "completed": False}]},
        {"type": "odd", "of": words},
    ]
    lines = [{"type": "item.completed", "item": {"id": f"item_{at}"} | item} for at, item in enumerate(done)]
    search = {"id": "item_9", "type": "web_search", "query": words}
    usage = {"input_tokens": 3, "cached_input_tokens": 1}
    return [
        {"type": "thread.started", "thread_id": words},
        {"type": "turn.started"},
        *lines,
        {"type": "item.started", "item": search},
        {"type": "error", "message": f"Reconnecting... 1/5 ({words})"},
        lines[0],
        {"type": "turn.completed", "usage": usage, "odd": words},
        {"type": "turn.failed", "error": {"message": words}},
    ]


def gemini_cli(words):
    call = {"type": "tool_use", "tool_name": "t", "tool_id": "c", "parameters": {"of": words}}
    return [
        {"type": "init", "session_id": words, "model": "m", "timestamp": "t"},
        {"type": "message", "role": "user", "content": words},
        *({"type": "message", "role": "assistant", "content": text, "delta": True} for text in ("A", words, "A", "b")),
        {"type": "message", "role": "assistant", "content": words},
        call,
        call,
        {"type": "tool_result", "tool_id": "c", "status": "success", "output": words},
        {"type": "tool_result", "tool_id": "c", "status": "error", "error": {"message": words, "type": words}},
        {"type": "error", "severity": "warning", "message": words},
        {"type": "odd", "of": words},
        {"type": "result", "status": "success", "stats": {"input_tokens": 3, "output_tokens": 1, "odd": words}},
        {"type": "result", "status": "error", "error": {"message": words}},
    ]


EVENTS = {
    "anthropic": anthropic,
    "bedrock-converse": converse,
    "cascade": cascade,
    "claude-cli": claude_cli,
    "codex-cli": codex_cli,
    "gemini": gemini,
    "gemini-cli": gemini_cli,
    "openai-responses": responses,
    **dict.fromkeys(CHAT_SOURCES, chat),
}
MARK = "<here>"
# Replacements of the mark in JSON text: words, whole characters, half surrogates, invalid bytes, ends of numbers.
WORDS = [
    b"a",
    b"b c ",
    "é\U0001f600".encode(),
    rb"\ud83d\ude00",
    rb"\\ud83d",
    b'x {[\\"',
    b"",
    rb"\u0000",
    b"\xef\xbf\xbd",
]
HALVES = [rb"\ud83d", rb"x\ud83d", rb"\ude00", rb"\ude00y", rb"\ude00\ud83d"]
BROKEN = [b"\xff", b"a\xf0\x9f", b"\xed\xa0\xbd", b"\x00", b"\n", b'"', b"\\"]


def payloads(source):
    made = [json.dumps(event, separators=(",", ":")).encode() for event in EVENTS[source](MARK)]
    words = st.sampled_from([*WORDS, *HALVES, *HALVES, *BROKEN])
    return st.builds(lambda event, word: event.replace(MARK.encode(), word), st.sampled_from(made), words)


def damaged(source):
    """Payloads, damaged payloads, and texts that are not payloads."""
    cut = st.builds(lambda payload, at: payload[: at % len(payload)], payloads(source), st.integers(1, 500))
    noise = st.sampled_from([b"", b"null", b"[DONE]", b"\x00", b"\x00\x00\x00\x20\x00", b"noise", b"{", b"\xff\xfe"])
    return st.one_of(payloads(source), payloads(source), payloads(source), cut, noise)


def laid_out(payload):
    """The lines of a pretty-printed payload; of one that is not JSON, its own lines."""
    try:
        found = json.loads(payload)
    except ValueError:
        return payload.split(b"\n")
    text = json.dumps(found, indent=1, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass").split(b"\n")


def as_event(payload, layout, newline):
    """A payload as an SSE event, or as a line."""
    if layout == "line":
        return payload + newline
    name = b"event: something" + newline if layout == "named" else b""
    beside = b"id: 7" + newline + b"retry: 5" + newline if layout == "beside" else b""
    lines = laid_out(payload) if layout == "laid out" else [payload]
    data = b"".join((b"data:" if layout == "tight" else b"data: ") + line + newline for line in lines)
    comment = b": words" + newline + newline if layout == "comment" else b""
    return comment + name + beside + data + (b"" if layout == "no blank line" else newline)


LAYOUTS = ["line", "plain", "plain", "named", "beside", "comment", "tight", "laid out", "no blank line"]
NEWLINES = [b"\n", b"\n", b"\r\n", b"\r"]


@st.composite
def streams(draw, source):
    """Events with one kind of newline, each formatted in its own way.

    Kinds that a framing detects once are not mixed.
    """
    newline = draw(st.sampled_from(NEWLINES[:2] if source == "claude-cli" else NEWLINES))
    layouts = LAYOUTS
    if source == "claude-cli" or (source == "gemini" and draw(st.booleans())):
        layouts = ["line"]
    elif source == "gemini":
        layouts = LAYOUTS[1:]
    found = draw(st.lists(st.tuples(damaged(source), st.sampled_from(layouts)), max_size=12))
    return [as_event(payload, layout, newline) for payload, layout in found]


# -- batches --------------------------------------------------------------------------------------------------------


def processed(source, values, sizes):
    """Return the items of records in batches of these sizes; the state is reloaded between two of them."""
    rest = stage_runs.records(values, (("source", source.encode()), ("run", b"r")))
    rest += stage_runs.records([None], (("exit", b"exit"), ("run", b"r")), first=len(values))
    batches = []
    for size in [*sizes, len(rest)]:
        batches.append(rest[:size])
        rest = rest[size:]
    outputs, _, _ = stage_runs.processed(EventsStage, filter(None, batches), "changelog")
    found = [output.value for output in outputs if output.topic == SESSION_ITEMS and output.value]
    for value in found:
        json.loads(value.decode())
    return [_item.decode(value) for value in found]


@each_source
@settings(max_examples=60)
@given(data=st.data(), sizes=st.lists(st.integers(1, 5), max_size=8))
def test_every_batching_gives_the_same_items(source, data, sizes):
    values = data.draw(streams(source))
    one_by_one = processed(source, values, [1] * len(values))
    batched = processed(source, values, sizes)
    assert without_deltas(batched) == without_deltas(one_by_one)
    assert picture(batched) == picture(one_by_one)


# -- cuts -----------------------------------------------------------------------------------------------------------


def in_pieces(source, stream, cuts):
    recovery, items = Recovery(source), []
    for size in [*cuts, len(stream)]:
        items += recovery.feed(stream[:size], framing="bytes")
        stream = stream[size:]
        recovery = Recovery.restore(recovery.snapshot())
    return items + recovery.end_run("exit")


@each_source
@settings(max_examples=80)
@given(data=st.data(), cuts=st.lists(st.one_of(st.integers(0, 6), st.integers(0, 200)), max_size=25))
def test_bytes_give_the_same_items_wherever_they_are_cut(source, data, cuts):
    mark = data.draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    stream = mark + b"".join(data.draw(streams(source)))
    if source in {"anthropic", "bedrock-converse"} and stream.lstrip(b"\r\n")[:1] in {b"\x00", b"\x01"}:
        stream = b"data: " + stream  # otherwise these are binary frames
    whole, cut = in_pieces(source, stream, []), in_pieces(source, stream, cuts)
    assert without_deltas(cut) == without_deltas(whole)
    assert picture(cut) == picture(whole)


# -- characters -----------------------------------------------------------------------------------------------------

GROWING = {
    "anthropic": [b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%b"}}'],
    "bedrock-converse": [b'{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"%b"}}}'],
    "cascade": [b'{"type":"text_delta","text":"%b"}', b'{"type":"thinking_delta","thinking":"%b"}'],
    "gemini": [b'{"responseId":"r","candidates":[{"content":{"parts":[{"text":"%b"}]}}]}'],
    "openai-chat": [
        b'{"id":"a","choices":[{"index":0,"delta":{"content":"%b"}}]}',
        b'{"id":"a","choices":[{"index":0,"delta":{"reasoning_content":"%b"}}]}',
    ],
    "openai-responses": [b'{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"%b"}'],
}
GROWING["anthropic"] += [
    GROWING["anthropic"][0].replace(b"text_delta", b"thinking_delta").replace(b'"text"', b'"thinking"'),
    GROWING["anthropic"][0].replace(b"text_delta", b"input_json_delta").replace(b'"text"', b'"partial_json"'),
]
GROWING["claude-cli"] = [
    b'{"type":"stream_event","event":%b}' % event for event in (b'{"type":"message_start","message":{"id":"m"}}',)
] + [b'{"type":"stream_event","event":%b}' % event for event in GROWING["anthropic"]]
GROWING |= dict.fromkeys(CHAT_SOURCES, GROWING["openai-chat"])
SHAPES = [(source, shape) for source, shapes in sorted(GROWING.items()) for shape in shapes if b"%b" in shape]


def cut_in_units(text, cuts):
    """Split a text into pieces of this many UTF-16 units, encoded as in JSON."""
    units = text.encode("utf-16-le")
    found = []
    for size in [*cuts, len(units)]:
        piece, units = units[: 2 * size], units[2 * size :]
        found.append(json.dumps(piece.decode("utf-16-le", "surrogatepass"))[1:-1].encode())
    return found


@pytest.mark.parametrize(("source", "shape"), SHAPES)
@settings(max_examples=40)
@given(
    text=st.text(st.sampled_from("abé\U0001f600\U00010000\U0010ffff"), max_size=12),
    cuts=st.lists(st.integers(1, 4), max_size=12),
    sizes=st.lists(st.integers(1, 4), max_size=6),
)
def test_a_text_is_restored_however_it_was_cut(source, shape, text, cuts, sizes):
    first = [GROWING[source][0]] if source == "claude-cli" else []
    values = [*first, *(shape % piece for piece in cut_in_units(f"x{text}x", cuts))]
    for items in (processed(source, values, sizes), processed(source, values, [1] * len(values))):
        assert [entry.text for entry in reduce(items).entries] == [f"x{text}x"]
        at = 0
        for item in items:
            if isinstance(item, ItemDelta):
                assert item.at == at
                at += len(item.content)
