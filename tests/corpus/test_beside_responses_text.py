"""What recorded Responses streams name beside their text: every address and every title is in their items."""

import json

import msgspec
import pytest
from recorded import needs_corpus
from recorded_streams import events, payloads, recordings
from stream_lab import fed, sse, strings
from streamed import only

from topics.items import AgentUnrecognized

pytestmark = needs_corpus

# What a response repeats of its request: nothing of it is said about the answer.
ECHOED = {"instructions", "tools", "text", "metadata", "tool_choice", "prompt"}
ENVELOPES = {"response.created", "response.in_progress", "response.queued", "response.completed", "response.incomplete"}


def names(value, key=""):
    """Every address in a value, and every title, file name and quotation."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from names(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from names(inner, key)
    elif isinstance(value, str) and (value.startswith("http") or key in {"title", "filename", "file_id", "url"}):
        yield value


def said(event):
    """What an event says beside the pieces of texts, without what it repeats of its request."""
    if event["type"].endswith(".delta"):
        return {}
    if event["type"] not in ENVELOPES:
        return event
    return {name: value for name, value in event["response"].items() if name not in ECHOED}


@pytest.mark.parametrize("provider", ["openai-responses", "responses-compat"])
def test_every_address_and_title_is_in_an_item(provider):
    found = 0
    for row in recordings(provider):
        items = fed("openai-responses", [sse(payload) for payload in payloads(row)])
        told = [item for item in map(plain, items) if item["type"] != "item/delta"]
        known = set(strings(told))
        for event in events(row):
            named = set(names(said(event)))
            found += len(named)
            assert named <= known, (row["id"], event["type"], named - known)
        assert only(items, AgentUnrecognized) == []
    assert found


def plain(item):
    """An item as its consumers read it."""
    return json.loads(msgspec.json.encode(item))
