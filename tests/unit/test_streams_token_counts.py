"""Token counts that are not whole numbers are reported by every source, and one that is not a number costs no other."""

import pytest
from claude_lines import result, said, whole
from stream_runs import only, run

from reknit.pipeline.streams.fields import MOST_COUNTED
from reknit.topics.items import AgentUnrecognized, Usage

PARTS = {"role": "model", "parts": [{"text": "Hi"}]}
# Each source's events of one answer, by its counts: tokens of the prompt, those read from a cache, and the output's.
EVENTS = {
    "anthropic": lambda read, cached, output: [
        {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [],
         "model": "m", "usage": {"input_tokens": read, "cache_read_input_tokens": cached, "output_tokens": output}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ],
    "openai-chat": lambda read, cached, output: [
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}], "usage": {
            "prompt_tokens": read, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": cached}}},
    ],
    "openai-responses": lambda read, cached, output: [
        {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [], "usage": {
            "input_tokens": read, "output_tokens": output, "input_tokens_details": {"cached_tokens": cached}}}},
    ],
    "gemini": lambda read, cached, output: [
        {"responseId": "r", "candidates": [{"content": PARTS, "finishReason": "STOP"}], "usageMetadata": {
            "promptTokenCount": read, "candidatesTokenCount": output, "cachedContentTokenCount": cached}},
    ],
    "bedrock-converse": lambda read, cached, output: [
        {"messageStart": {"role": "assistant"}},
        {"messageStop": {"stopReason": "end_turn"}},
        {"metadata": {"usage": {"inputTokens": read, "outputTokens": output, "cacheReadInputTokens": cached}}},
    ],
    "codex-cli": lambda read, cached, output: [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "turn.started"},
        {"type": "turn.completed",
         "usage": {"input_tokens": read, "cached_input_tokens": cached, "output_tokens": output}},
    ],
    "gemini-cli": lambda read, cached, output: [
        {"type": "init", "timestamp": "t", "session_id": "s", "model": "m"},
        {"type": "result", "timestamp": "t", "status": "success",
         "stats": {"input_tokens": read, "output_tokens": output, "cached": cached, "duration_ms": 5}},
    ],
    "cascade": lambda read, cached, output: [
        {"type": "done", "usage": {"inputTokens": read, "outputTokens": output, "cacheReadTokens": cached}},
    ],
    "claude-cli": lambda read, cached, output: [
        result("", usage={"input_tokens": read, "output_tokens": output, "cache_read_input_tokens": cached}),
    ],
}  # fmt: skip
# These count what was read from a cache separately.
SEPARATE = {"anthropic", "bedrock-converse", "cascade", "claude-cli"}
each_source = pytest.mark.parametrize("source", EVENTS)


def reported(source, *counts):
    """Return the usages in the items, and the reasons of what was not recognised."""
    items = run(source, *EVENTS[source](*counts)).items
    usages = [item.usage for item in items if isinstance(getattr(item, "usage", None), Usage)]
    return usages, [item.reason for item in only(items, AgentUnrecognized)]


def counted(source, read, cached, output):
    return Usage(input_tokens=read if source in SEPARATE else read - cached, output_tokens=output,
                 cache_read_input_tokens=cached)  # fmt: skip


@each_source
@pytest.mark.parametrize("counts", [(7, 2, 3), (7.0, 2.0, 3.0), (7.5, 2.25, 3.9), (7, 2.0, 3)])
def test_counts_with_a_fraction_are_whole_numbers(source, counts):
    assert reported(source, *counts) == ([counted(source, 7, 2, 3)], [])


@each_source
@pytest.mark.parametrize("odd", ["3", None, True, [3]])
def test_a_count_that_is_not_a_number_is_absent_and_the_others_are_reported(source, odd):
    assert reported(source, 7, 2, odd) == ([counted(source, 7, 2, 0)], [])


@each_source
@pytest.mark.parametrize("many", [10**30, 1e300])
def test_counts_are_bounded(source, many):
    assert reported(source, 7, 2, many) == ([counted(source, 7, 2, MOST_COUNTED)], [])


def test_the_counts_of_a_complete_message_of_the_claude_cli_may_have_fractions():
    line = whole("m1", said("Hi"))
    line["message"]["usage"] = {"input_tokens": 7.0, "output_tokens": 3, "cache_read_input_tokens": "2"}
    (usage,) = [item.usage for item in run("claude-cli", line).items if isinstance(getattr(item, "usage", None), Usage)]
    assert usage == Usage(input_tokens=7, output_tokens=3)
