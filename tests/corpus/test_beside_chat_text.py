"""Recorded chats: notes about the text are in its items, and whole answers are promoted.

Thinking, stop reasons and usage equal those of the official SDK's accumulator; a whole answer is shown and recorded
with its message's content.
"""

import json
from functools import cache

import pytest
import stream_runs
from recorded import needs_corpus, rows
from recorded_streams import arguments, events, recordings, sse
from stream_lab import fed
from stream_runs import only

from reknit.topics.items import AgentError, AgentUnrecognized, ItemStarted, TurnStop
from reknit.topics.reducer import reduce

pytestmark = needs_corpus

PROVIDERS = ("openai-chat", "openai-compat", "other")
each_provider = pytest.mark.parametrize("provider", PROVIDERS)


@cache
def answers(provider):
    """The rows of a provider whose answer came whole: an object with choices."""
    whole = [row for row in rows(provider) if not row.get("stream") and isinstance(row.get("response"), dict)]
    return tuple(row for row in whole if any("message" in choice for choice in row["response"].get("choices") or []))


def fed_whole(row, source="openai-chat"):
    return fed(source, [json.dumps(row["response"]).encode()])


def thinking(entries):
    return "".join(entry.text for entry in entries if entry.item_type == "thinking")


def reasoning(message):
    details = message.get("reasoning_details") or []
    plain = message.get("reasoning_content") or message.get("reasoning") or ""
    parts = message.get("content") if isinstance(message.get("content"), list) else []
    thoughts = [piece["text"] for part in parts if part["type"] == "thinking" for piece in part["thinking"]]
    return plain or "".join(item.get("text") or item.get("summary") or "" for item in details) or "".join(thoughts)


@pytest.mark.parametrize("provider", PROVIDERS[:2])
def test_thinking_reasons_and_tokens_are_what_the_accumulator_makes_of_a_stream(provider):
    rows = [row for row in recordings(provider) if row.get("sdk_final")]
    assert rows
    for row in rows:
        final = row["sdk_final"]
        first = final["choices"][0]
        items = fed("openai-chat", sse(row))
        stop = only(items, TurnStop)[0]
        # The accumulator leaves Mistral's lists of parts out; there the chunks themselves are asked.
        deltas = [choice["delta"] for event in events(row) for choice in event.get("choices") or []]
        in_parts = "".join(reasoning(delta) for delta in deltas if isinstance(delta.get("content"), list))
        assert thinking(reduce(items).entries) == (in_parts or reasoning(first["message"])), row["id"]
        assert stop.stop_reason == (first.get("finish_reason")), row["id"]
        usage = final.get("usage")
        if usage:
            read = usage["prompt_tokens"] - stop.usage.input_tokens - stop.usage.cache_read_input_tokens
            assert (read, stop.usage.output_tokens) == (0, usage["completion_tokens"]), row["id"]


@each_provider
def test_no_answer_with_a_reported_end_is_cut(provider):
    for row in recordings(provider):
        chunks = events(row)
        reasons = [choice.get("finish_reason") for chunk in chunks for choice in chunk.get("choices") or []]
        if not any(reasons) or "error" in reasons:
            continue
        items = fed("openai-chat", sse(row))
        assert [item.incomplete for item in only(items, TurnStop)] == [False], row["id"]


@each_provider
def test_a_whole_answer_is_promoted(provider):
    """Texts, reasoning, calls, reason and tokens are those of its message; nothing is cut or not understood."""
    for row in answers(provider):
        response = row["response"]
        items = fed_whole(row)
        entries = reduce(items).entries
        message, reason = response["choices"][0]["message"], response["choices"][0].get("finish_reason")
        assert only(items, AgentUnrecognized | AgentError) == [], row["id"]
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if part["type"] == "text")
        spoken = (message.get("audio") or {}).get("transcript") or ""
        texts = [entry.text for entry in entries if entry.item_type == "text"]
        assert "".join(texts) == content + (message.get("refusal") or "") + spoken, row["id"]
        assert thinking(entries) == reasoning(message), row["id"]
        functions = [call["function"] for call in message.get("tool_calls") or []]
        functions += [message["function_call"]] if message.get("function_call") and not functions else []
        calls = [entry for entry in entries if entry.item_type == "tool_use"]
        shown = [json.loads(bytes(entry.input)) if entry.input else arguments(entry.text) for entry in calls]
        assert shown == [arguments(function["arguments"]) for function in functions], row["id"]
        assert {item.origin for item in only(items, ItemStarted) if item.item_type == "text"} <= {"promoted"}
        (stop,) = only(items, TurnStop)
        told = (stop.incomplete, stop.stop_reason, stop.model)
        assert told == (False, reason or None, response["model"] or None), row["id"]
        tokens = (response.get("usage") or {}).get("completion_tokens")
        assert tokens is None or stop.usage.output_tokens == tokens, row["id"]


@pytest.mark.parametrize("provider", PROVIDERS[:2])
def test_a_whole_answer_and_its_stream_make_the_same_turn(provider):
    """The stream's accumulated message, fed whole, gives the words and calls that its chunks gave."""
    for row in recordings(provider):
        final = row.get("sdk_final")
        if not final or len(final["choices"]) > 1 or "error" in json.dumps(row["stream"][-2:]):
            continue
        turns = []
        for pieces in (sse(row), [json.dumps(final).encode()]):
            blocks = stream_runs.run("openai-chat", *pieces).blocks
            texts = "".join(block["text"] for block in blocks if block["type"] == "text")
            calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
            turns.append((texts, calls))
        assert turns[0] == turns[1], row["id"]
