"""Recorded streams of Mistral, DeepSeek and Moonshot, and the turns that go back to the same provider."""

import json
from pathlib import Path

import pytest
import stream_runs
from stream_runs import errors, extras, items_of, shown, stop_reasons

from reknit import normalize

VECTORS = Path(__file__).parents[1] / "vectors" / "provider_streams.jsonl"
ROWS = [
    row
    for row in map(json.loads, VECTORS.read_text().splitlines())
    if row["source"] in ("mistral", "deepseek", "moonshot")
]
MODELS = {"mistral": "mistral-small-latest", "deepseek": "deepseek-v4-flash", "moonshot": "kimi-k2.5"}
# By the end of the recording's name: the kinds of blocks, and the reason for the end.
SHOWN = {
    "reasoning_tool_roundtrip/streaming.yaml@164ad5d078#1": (["thinking", "text"], "stop"),
    "can_use_tools_with_multi-turn_streaming_conversations.yml#2": (["tool_use"], "tool_calls"),
    "test_deepseek_tool_variations.yaml#0": (["thinking", "tool_use"], "tool_calls"),
    "moonshotai-stream.chunks.txt#0": (["thinking", "text"], "stop"),
}


def pieces(row):
    return [f"data: {event}\n\n".encode() for event in row["events"]]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["recording"][-40:])
def test_a_recorded_stream_is_shown_whole(row):
    (expected,) = [found for end, found in SHOWN.items() if row["recording"].endswith(end)]
    items = items_of(row["source"], *pieces(row))
    assert ([kind for kind, _ in shown(items)], stop_reasons(items)[-1]) == expected
    assert (errors(items), extras(items)) == ([], [])
    assert all(text for kind, text in shown(items) if kind != "tool_use")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["recording"][-40:])
def test_the_turn_goes_back_with_its_reasoning(row):
    source, model = row["source"], MODELS[row["source"]]
    blocks = stream_runs.run(source, *pieces(row)).blocks
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call, "content": "done"} for call in calls]
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": blocks}]
    messages.append({"role": "user", "content": results or "Go on."})
    done = normalize({"model": model, "messages": messages}, to=source)
    assert [found for found in done.violations if found.severity == "hard"] == []
    assert {fix.code for fix in done.fixes} <= {"id_rewritten"}
    spoken = json.loads(done.body)["messages"][1]
    for block in blocks:
        if block["type"] == "thinking" and source == "mistral":
            part = {"type": "thinking", "thinking": [{"type": "text", "text": block["thinking"]}], "closed": True}
            assert part in spoken["content"]
        elif block["type"] == "thinking":
            assert spoken["reasoning_content"] == block["thinking"]
