"""Recorded streams of providers are complete by their final events, and cut without them."""

import json

import pytest
import stream_lab as lab
from recorded import needs_corpus

from reknit.pipeline.client.answers import AnswerReader, StreamFailure
from reknit.pipeline.registry import find_source

pytestmark = needs_corpus

SOURCES = {
    "anthropic": "anthropic",
    "anthropic-compat": "anthropic",
    "bedrock-invoke": "anthropic",
    "bedrock-converse": "bedrock-converse",
    "gemini": "gemini",
    "openai-chat": "openai-chat",
    "openai-compat": "openai-chat",
    "openai-responses": "openai-responses",
    "responses-compat": "openai-responses",
}
# Recordings of answers that did not end: the client broke one off, providers reported errors in the others.
INTERRUPTED = "cassettes/openai/agent_driver/streamed_interrupted.yaml"
FAILED = {
    "test_groq/test_tool_use_failed_error_streaming_with_text.yaml#0": StreamFailure(
        "invalid_request_error", may_pass=False
    ),
    "groq/meta_llama_llama_4_scout_17b_16e_instruct/object_streaming.json": StreamFailure(
        "invalid_request_error", may_pass=False
    ),
    "openrouter/meta_llama_llama_3_3_70b_instruct_free/object_streaming.json": StreamFailure("502", may_pass=True),
}


def recorded(file):
    """Of each stream its id and its events as bytes; Bedrock's file also has streams of other models."""
    for row in lab.streams(file):
        events = [event if isinstance(event, str) else json.dumps(event) for event in row["stream"]]
        if SOURCES[file] != "anthropic" or any('"message_start"' in event for event in events):
            yield row["id"], [lab.sse(event) for event in events]


def read(source, pieces):
    reader = AnswerReader(find_source(source), "bytes")
    for piece in pieces:
        reader.take(piece)
    reader.finish()
    return reader


@pytest.mark.parametrize("file", SOURCES)
def test_recorded_streams_are_complete_exactly_with_their_final_event(file):
    expected = {}
    found = {}
    for name, pieces in recorded(file):
        reader = read(SOURCES[file], pieces)
        found[name] = reader.failure if not reader.is_whole else "whole"
        expected[name] = next((failure for part, failure in FAILED.items() if part in name), "whole")
        if INTERRUPTED in name:
            expected[name] = None
        if not reader.is_whole:
            continue
        # The last event, or one of the last few, is the final one: without them the answer is cut.
        ends = next(cut for cut in range(1, len(pieces) + 1) if not read(SOURCES[file], pieces[:-cut]).is_whole)
        assert ends <= 4 or len(pieces) == ends, name
    assert found == expected
    assert found
