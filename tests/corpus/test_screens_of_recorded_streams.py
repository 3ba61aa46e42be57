"""Recorded streams as screens: UI clients that are cut off anywhere and resume show the view, with each item once."""

import os
from functools import cache

import pytest
from recorded import needs_corpus, rows
from recorded_streams import sse, streams
from screen_clients import AgUiClient, AiSdkClient, as_sent, shown_by_ag_ui, shown_by_ai_sdk, wanted
from stream_runs import items_of

from reknit.pipeline.screens.ag_ui import AgUi
from reknit.pipeline.screens.ai_sdk import AiSdk

pytestmark = needs_corpus

# A plain run cuts each stream in this many places; with the variable set, in all of them.
PLACES = 10**9 if os.environ.get("REKNIT_ALL_CUTS") else 4
# Recordings of one file, so that a plain run takes seconds; with the variable set, all of them.
MOST = 10**9 if os.environ.get("REKNIT_ALL_CUTS") else 100
APIS = {
    "anthropic": "anthropic",
    "anthropic-compat": "anthropic",
    "gemini": "gemini",
    "openai-chat": "openai-chat",
    "openai-compat": "openai-chat",
    "openai-responses": "openai-responses",
    "responses-compat": "openai-responses",
}
PROGRAMS = ("claude-cli-faults", "claude-cli-signals", "claude-cli-held")
# Items of longer streams are not cut in a plain run.
LONGEST = 400


@cache
def recordings(name):
    """Return the items of each recording of a file."""
    if name in APIS:
        found = (items_of(APIS[name], *sse(row)) for row in streams(name)[:MOST])
    else:
        lines = [row["lines"] for row in rows(name)[:MOST] if row.get("lines")]
        found = (items_of("claude-cli", *(line.encode() for line in each), end="exit 0") for each in lines)
    return [items for items in found if 1 < len(items) <= (10**9 if MOST > 10**6 else LONGEST)]


def places(count):
    step = max(1, -(-count // PLACES))
    return range(0, count, step)


@pytest.mark.parametrize("name", [*APIS, *PROGRAMS])
def test_ag_ui(name):
    for items in recordings(name):
        for cut in places(len(items)):
            writer, client = AgUi("s"), AgUiClient()
            response = client.respond([])
            for count, item in enumerate(items, start=1):
                for event in as_sent(writer.apply(item, "r1")):
                    response.read(event)
                if count == cut + 1:
                    response = client.respond(writer.resume(client.posted()))
                    assert shown_by_ag_ui(client) == wanted(items[:count])
            assert shown_by_ag_ui(client) == wanted(items)
            late = AgUiClient()
            late.respond(writer.resume())
            assert shown_by_ag_ui(late) == wanted(items)


@pytest.mark.parametrize("name", [*APIS, *PROGRAMS])
def test_ai_sdk(name):
    for items in recordings(name):
        for cut in places(len(items)):
            writer, client = AiSdk("s"), AiSdkClient()
            response = client.respond([])
            for count, item in enumerate(items, start=1):
                for chunk in as_sent(writer.apply(item, "r1")):
                    response.read(chunk)
                if count == cut + 1:
                    response = client.respond(writer.resume())
            # Texts of failed results are never empty.
            expected = {(key, kind): text or ("error" if kind == "error" else "") for key, kind, text in wanted(items)}
            for message in client.messages[-1:]:
                shown = {each[:2]: each[2] for each in shown_by_ai_sdk(message, items)}
                assert len(shown) == len(shown_by_ai_sdk(message, items))
                assert shown == {key: expected[key] for key in shown}
            alone = AiSdkClient()
            alone.respond(writer.resume())
            assert client.messages[-1:] == alone.messages[-1:]


def test_recordings_are_many():
    assert sum(len(recordings(name)) for name in (*APIS, *PROGRAMS)) >= 300
