"""Recorded streams of Bedrock's ConverseStream.

The oracle is the turn that the client sent again and the service accepted; without one, a plain reading of the events,
because no official client joins them.
"""

import base64
import json
from functools import cache

import pytest
import stream_lab as lab
import stream_runs
from recorded import needs_corpus
from stream_runs import encoded, only, without_deltas

from reknit.topics.items import TurnDelta, TurnStop, Usage

pytestmark = needs_corpus


@cache
def rows():
    return lab.streams("bedrock-converse")


def read(stream):
    """The blocks of a stream, put together in the plainest way."""
    blocks = {}
    for event in stream:
        start, delta = event.get("contentBlockStart"), event.get("contentBlockDelta")
        if start and start["start"]:
            ((kind, members),) = start["start"].items()
            blocks[start["contentBlockIndex"]] = [members.get("type", "tool_use"), members, ""]
            if kind != "toolUse":
                blocks[start["contentBlockIndex"]] = [kind, None, None]
        elif delta:
            block = blocks.setdefault(delta["contentBlockIndex"], ["text", {}, ""])
            reasoning = delta["delta"].get("reasoningContent")
            if reasoning is not None:
                block[0] = "redacted_thinking" if "redactedContent" in reasoning else "thinking"
                block[2] += reasoning.get("text", "")
            elif "citation" not in delta["delta"] and block[2] is not None:
                block[2] += delta["delta"].get("text", "") or delta["delta"].get("toolUse", {}).get("input", "")
    return [shown(*block) for block in blocks.values()]


def shown(kind, members, text):
    if kind.endswith("tool_use"):
        return kind, members["name"], members["toolUseId"], json.loads(text or "{}")
    return (kind, text) if kind in {"text", "thinking"} else (kind, None)


def sent_again(block):
    call = block.get("toolUse")
    if call:
        return "tool_use", call["name"], call["toolUseId"], call["input"]
    if "citationsContent" in block:
        return "text", "".join(part["text"] for part in block["citationsContent"]["content"])
    return (
        ("text", block["text"]) if "text" in block else ("thinking", block["reasoningContent"]["reasoningText"]["text"])
    )


def events(row):
    return [json.dumps(event).encode() + b"\n" for event in row["stream"]]


def framed(row):
    return [lab.frame(name, json.dumps(body).encode()) for event in row["stream"] for name, body in event.items()]


RECORDINGS = [lab.Recording(row["id"], "bedrock-converse", events(row), read(row["stream"])) for row in rows()]
FRAMED = [recording._replace(events=framed(row)) for recording, row in zip(RECORDINGS, rows(), strict=True)]
SENT_AGAIN = [row for row in rows() if row.get("followup_assistant")]
each = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.id)
each_framed = pytest.mark.parametrize("recording", FRAMED, ids=lambda recording: recording.id)


def test_the_recordings_are_all_there():
    assert len(rows()) == 56
    assert len(SENT_AGAIN) == 9


@each
def test_what_is_on_the_screen_is_what_the_events_say(recording):
    lab.check_whole(recording)


@each_framed
def test_the_same_in_binary_frames(recording):
    lab.check_whole(recording)
    lab.check_cuts(recording)
    plain = next(other for other in RECORDINGS if other.id == recording.id)
    assert encoded(lab.fed(recording.source, recording.events)) == encoded(lab.fed(plain.source, plain.events))


@pytest.mark.parametrize("row", SENT_AGAIN, ids=lambda row: row["id"])
def test_what_is_on_the_screen_is_what_the_client_sent_again(row):
    sent = [sent_again(block) for turn in row["followup_assistant"] for block in turn["content"]]
    assert lab.compared(lab.fed("bedrock-converse", events(row))) == sent


@each
def test_the_name_of_an_event_may_be_separate(recording):
    row = next(row for row in rows() if row["id"] == recording.id)
    whole = without_deltas(lab.fed("bedrock-converse", recording.events))
    named = [lab.sse(json.dumps(body), name) for event in row["stream"] for name, body in event.items()]
    bare = [json.dumps(body).encode() for event in row["stream"] for body in event.values()]
    assert without_deltas(lab.fed("bedrock-converse", named)) == whole
    assert without_deltas(lab.fed("bedrock-converse", bare)) == whole


@each
@lab.each_check
def test_cut_redelivered_broken_off_and_asked_for_again(recording, check):
    # Without its start, a second attempt cannot be distinguished from a continuation.
    if check is not lab.check_retry or b"messageStart" in recording.events[0]:
        check(recording)


@each
def test_tokens_are_reported_once(recording):
    row = next(row for row in rows() if row["id"] == recording.id)
    counts = [event["metadata"]["usage"] for event in row["stream"] if "metadata" in event]
    told = [item.usage for item in only(lab.fed(recording.source, recording.events), TurnStop | TurnDelta)]
    expected = [
        Usage(
            input_tokens=usage["inputTokens"],
            output_tokens=usage["outputTokens"],
            cache_creation_input_tokens=usage.get("cacheWriteInputTokens", 0),
            cache_read_input_tokens=usage.get("cacheReadInputTokens", 0),
        )
        for usage in counts
    ]
    assert [usage for usage in told if isinstance(usage, Usage)] == expected


@each
def test_the_history_has_the_reasoning_with_its_issuer(recording):
    row = next(row for row in rows() if row["id"] == recording.id)
    content = stream_runs.run("bedrock-converse", b"".join(recording.events)).blocks
    pieces = [event["contentBlockDelta"]["delta"] for event in row["stream"] if "contentBlockDelta" in event]
    reasoning = [piece["reasoningContent"] for piece in pieces if "reasoningContent" in piece]
    kept = [block for block in content if "issuer" in block]
    assert "".join(block.get("signature", "") for block in kept) == "".join(p.get("signature", "") for p in reasoning)
    sealed = b"".join(base64.b64decode(piece["redactedContent"]) for piece in reasoning if "redactedContent" in piece)
    assert b"".join(base64.b64decode(block["data"]) for block in kept if "data" in block) == sealed
    assert all(block["issuer"] == {"provider": "bedrock-converse"} for block in kept)
    assert len([block for block in content if block.get("type") in {"thinking", "redacted_thinking"}]) == len(kept)
