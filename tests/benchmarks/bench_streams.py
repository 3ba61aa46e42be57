"""Recovery of provider streams, bytes of events to bytes of items, compared with official accumulators and a plain
reducer.

    python tests/benchmarks/bench_streams.py [--rounds 5] [--peers PYTHON]

The streams are recorded ones (``REKNIT_CORPUS``; without them, generated ones of 400 deltas) that both sides accept.
All sides are given the same records, of one event and of a hundred; for the SDKs they are the chunks of the network.
The peers end with a finished message and write nothing. Recovery writes an item for its input, and so does the reducer,
which reads each event with ``json.loads``, adds texts up to a message and writes that, too; it recovers nothing and
checks nothing. At the end, the growth of an event's time with its message.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import measure
import msgspec

from reknit.pipeline.streams.session import Recovery

HERE = Path(__file__).resolve().parent

# Measures a side on records of N events.
Side = Callable[[int], float]
Events = list[bytes]

CORPUS = Path(os.environ.get("REKNIT_CORPUS", HERE.parents[2] / "shared" / "corpus"))
DELTAS = 400
# The number of recorded streams of each source, the longest first: short ones measure the fixed cost of a stream.
MOST_STREAMS = 40
PEERS = {
    "anthropic": ["Anthropic SDK"],
    "openai-chat": ["OpenAI SDK, chat", "LiteLLM chunk builder"],
    "openai-responses": ["OpenAI SDK, responses"],
    "gemini": [],
}
# The required factors of recovery's speed.
LEAST_OF_PEERS = {"Anthropic SDK": 20.0}
LEAST_PLAIN = 1.5
encode = msgspec.json.Encoder().encode


# -- streams ------------------------------------------------------------------------------------------------------


def sse(event, *, named):
    """An event as a server sends it."""
    name = f"event: {event['type']}\n" if named else ""
    return f"{name}data: {json.dumps(event, separators=(',', ':'), ensure_ascii=False)}\n\n".encode()


def recorded(source):
    path = CORPUS / f"{source}.jsonl.gz"
    if not path.is_file():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    streams = [row["stream"] for row in rows if row.get("stream") and row["stream_format"] == "sse"]
    streams.sort(key=len, reverse=True)
    return [[as_sent(payload, source) for payload in stream] for stream in streams[:MOST_STREAMS]]


def as_sent(payload, source):
    """A recorded event as its server sends it."""
    done = payload.strip() == "[DONE]"
    return b"data: [DONE]\n\n" if done else sse(json.loads(payload), named=is_named(source))


def is_named(source):
    return source in {"anthropic", "openai-responses"}


def made(source, deltas):
    """One message of a text in N deltas, as the source writes it."""
    words = [f"part {number} of an answer " for number in range(deltas)]
    return [sse(event, named=is_named(source)) for event in MADE[source](words)]


def chat(words):
    common = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", "usage": None}
    for delta, reason in [({"role": "assistant", "content": ""}, None), *(({"content": word}, None) for word in words)]:
        yield common | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}
    yield common | {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]}


def responses(words):
    item = {"id": "msg_0", "type": "message", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": "".join(words), "annotations": []}
    place = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
    response = {"id": "resp_0", "object": "response", "model": "gpt-5", "output": []}
    events = [
        {"type": "response.created", "response": response},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"content": []}},
        {"type": "response.content_part.added", "part": part | {"text": ""}} | place,
        *({"type": "response.output_text.delta", "delta": word, "logprobs": []} | place for word in words),
        {"type": "response.output_item.done", "output_index": 0, "item": item | {"content": [part]}},
        {"type": "response.completed", "response": response | {"output": [item | {"content": [part]}]}},
    ]
    for number, event in enumerate(events):
        yield event | {"sequence_number": number}


def anthropic(words):
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_0", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    yield {"type": "message_start", "message": message | {"stop_reason": None, "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for word in words:
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def gemini(words):
    common = {"responseId": "r0", "modelVersion": "gemini-3-pro", "usageMetadata": {"promptTokenCount": 1}}
    for word in words:
        yield common | {"candidates": [{"content": {"parts": [{"text": word}], "role": "model"}, "index": 0}]}
    yield common | {"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP", "index": 0}]}


MADE = {"anthropic": anthropic, "openai-chat": chat, "openai-responses": responses, "gemini": gemini}


# -- sides --------------------------------------------------------------------------------------------------------


def records(streams, batch):
    """The streams in records of N events."""
    return [[b"".join(stream[at : at + batch]) for at in range(0, len(stream), batch)] for stream in streams]


def ours(source, streams):
    """Recovery, the streams as runs of one session. Returns the bytes written."""
    recovery = Recovery(source, records=False)
    size = 0
    for stream in streams:
        for record in stream:
            for item in recovery.feed(record):
                size += len(encode(item))
        size += sum(len(encode(item)) for item in recovery.end_run())
    return size


def reducer(source, streams):
    """The plainest client. Returns the bytes written."""
    return sum(len(written) for stream in streams for written in reduced(source, stream))


def reduced(source, stream):
    """An item for each event, and at last the message: a text for each block."""
    words_of = WORDS[source]
    texts = {}
    for record in stream:
        for line in record.split(b"\n"):
            if line[:6] != b"data: " or line == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            found = list(words_of(event))
            for key, words in found:
                texts.setdefault(key, []).append(words)
                yield json.dumps({"type": "item/delta", "item_id": f"block-{key}", "content": words}).encode()
            if not found:
                yield json.dumps({"type": "item/other", "of": event.get("type", "chunk")}).encode()
    content = [{"id": key, "text": "".join(parts)} for key, parts in texts.items()]
    yield json.dumps({"type": "message", "content": content}).encode()


def _anthropic_words(event):
    if event["type"] == "content_block_delta":
        delta = event["delta"]
        yield event["index"], delta.get("text") or delta.get("partial_json") or delta.get("thinking") or ""


def _chat_words(chunk):
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("content"):
            yield choice["index"], delta["content"]
        for call in delta.get("tool_calls") or ():
            yield f"call-{call['index']}", call["function"].get("arguments") or ""


def _responses_words(event):
    if event["type"].endswith(".delta"):
        yield f"{event['output_index']}-{event.get('content_index')}", event["delta"]


def _gemini_words(chunk):
    for candidate in chunk.get("candidates") or ():
        for part in (candidate.get("content") or {}).get("parts") or ():
            yield bool(part.get("thought")), part.get("text") or json.dumps(part.get("functionCall"))


WORDS = {
    "anthropic": _anthropic_words,
    "openai-chat": _chat_words,
    "openai-responses": _responses_words,
    "gemini": _gemini_words,
}


@contextmanager
def peer(python, name, streams):
    """A peer: its version, the numbers of the streams that it takes, and what measures it on them."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(json.dumps([[event.decode() for event in stream] for stream in streams]).encode())
        file.flush()
        with measure.peer(python, "stream_peers.py", name, file.name) as (line, once):
            told = json.loads(line or "null")
            if told is None or not told["taken"]:
                measure.say(f"{name}: {python} does not have it, or it takes no stream (see --peers)")
                yield None
            else:
                taken = told["taken"]
                yield told["version"], taken, lambda batch: once(json.dumps([taken, batch]))


# -- findings -----------------------------------------------------------------------------------------------------


class Against(NamedTuple):
    """Another side: its name, its measurement, and the required factor."""

    name: str
    seconds: Side
    budget: float | None


def beside(source, python, rounds):
    """Compare one source with its peers and the reducer."""
    streams = recorded(source)
    what = f"{source}, {'recorded' if streams else 'made'} streams"
    streams = streams or [made(source, DELTAS)] * 5
    plain = Against("json.loads reducer", side(reducer, source, streams), LEAST_PLAIN)
    compare(what, source, streams, plain, rounds)
    for name in PEERS[source]:
        with peer(python, name, streams) as found:
            if found is not None:
                version, taken, seconds = found
                other = Against(f"{name} {version}", seconds, LEAST_OF_PEERS.get(name))
                compare(what, source, [streams[number] for number in taken], other, rounds)


def side(work, source, streams):
    """A side that runs in this process."""

    def seconds(batch):
        given = records(streams, batch)
        return measure.seconds_a_call(lambda: work(source, given))

    return seconds


def compare(what, source, streams, other, rounds):
    """Compare Reknit, with one event and with a hundred in a record, with another."""
    events = sum(map(len, streams))
    for batch in (1, 100):
        sides = {"ours": partial(side(ours, source, streams), batch), "theirs": partial(other.seconds, batch)}
        took = measure.medians(sides, rounds)
        ratio = took["theirs"] / took["ours"]
        measure.report(
            what=f"{what} ({len(streams)}, {events} events), {batch} a record",
            ours=f"{events / took['ours']:,.0f} events/s",
            theirs=f"{other.name} {events / took['theirs']:,.0f} events/s",
            **measure.as_fast(ratio, other.budget),
        )


def growth(source, rounds):
    """The cost of an event in a message of 2,000 and of 32,000."""
    short, long = made(source, 2_000), made(source, 32_000)
    sides = {
        "short": lambda: side(ours, source, [short])(1) / len(short),
        "long": lambda: side(ours, source, [long])(1) / len(long),
    }
    took = measure.medians(sides, rounds)
    ratio = took["long"] / took["short"]
    measure.report(
        what=f"{source}, an event in a message of 32,000 events",
        ours=f"{took['long'] * 1e6:.2f} µs",
        theirs=f"in one of 2,000 {took['short'] * 1e6:.2f} µs",
        ratio=f"{ratio:.2f} times",
        budget="at most 1.5 times",
        met=ratio <= 1.5,
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for source in PEERS:
        beside(source, options.peers, options.rounds)
    for source in PEERS:
        growth(source, options.rounds)


if __name__ == "__main__":
    main()
