"""Recorded streams of the Anthropic API, of compatible ones, and of Bedrock's invoke bodies for Claude.

The oracle is the turn that the client sent again and the provider accepted, and without one, the official SDK's
accumulator. If the SDK is wrong, the right result is stated here, with the reason.
"""

import base64
import json
from functools import cache

import msgspec
import pytest
import stream_lab as lab
import stream_runs
from recorded import needs_corpus
from stream_runs import only

from reknit.topics.items import TurnDelta, TurnStop, Usage
from reknit.topics.reducer import reduce

FILES = ("anthropic", "anthropic-compat", "bedrock-invoke")

pytestmark = needs_corpus

# The SDK's errors for these streams, and the right screen.
EXCEPTIONS = {
    "gateway_message_delta_metadata": "the SDK gave up on the gateway's [DONE]; the one text is complete",
    "incomplete_partial_json_response": "cut by max_tokens inside an input, which the SDK closes; it stays incomplete",
    "anthropic-programmatic-tool-calling.1": "several messages in one file, which the SDK glues together",
    "anthropic-tool-search-bm25.1": "two messages in one file, whose blocks the SDK mixes by index",
    "spliced-message-start": "a second attempt, which the SDK glues to the first; the first is withdrawn",
}


def excepted(row):
    return next((name for name in EXCEPTIONS if name in row["id"]), "")


# Turns that the client rewrote before it sent them again: the id, and what it did.
REWRITTEN = {
    "test_structured_output_resume_stream/anthropic_claude_sonnet_4_0": "the answer's call became a text",
    "test_structured_output_resume_stream/tool/anthropic_claude_sonnet_4_0": "the answer's call became a text",
    "test_structured_output_resume_stream/tool/anthropic_claude_sonnet_4_5": "the answer's call became a text",
    "streams-with-web-search-tool.har": "the server's tools were left out",
    "TestAnthropicComputerUse/claude-sonnet-4/computer_use_streaming": "the text before the call was left out",
    "simonw/llm-anthropic:tests/cassettes/test_anthropic/test_tools": "a text of one space was put before the calls",
}


@cache
def claude_rows():
    found = [row for name in FILES for row in lab.streams(name)]
    return [row for row in found if any('"message_start"' in event for event in row["stream"])]


def shown(block):
    kind = block["type"]
    if kind in {"text", "thinking"}:
        return kind, block[kind]
    if kind.endswith("tool_use"):
        return kind, block["name"], block["id"], block["input"]
    return kind, None


def name_of(event):
    return "" if event == "[DONE]" else str(json.loads(event)["type"])


def events(row):
    return [lab.sse(event, name_of(event)) for event in row["stream"]]


def recording(row):
    return lab.Recording(row["id"], "anthropic", events(row), on_screen(row["sdk_final"]["content"]))


def on_screen(content):
    return [shown(block) for block in content if block["type"] != "thinking" or block["thinking"]]


ROWS = [row for row in claude_rows() if not excepted(row)]
RECORDINGS = [recording(row) for row in ROWS]
each = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.id)


def the_row(name):
    (row,) = [row for row in claude_rows() if name in row["id"]]
    return row


def test_the_recordings_are_all_there():
    by_file = {name: sum(1 for row in lab.streams(name) if row in claude_rows()) for name in FILES}
    assert by_file == {"anthropic": 293, "anthropic-compat": 17, "bedrock-invoke": 27}
    assert len(RECORDINGS) == sum(by_file.values()) - len(EXCEPTIONS)


@each
def test_what_is_on_the_screen_is_what_the_official_client_makes_of_it(recording):
    lab.check_whole(recording)


@pytest.mark.parametrize(
    "row", [row for row in claude_rows() if row.get("followup_assistant")], ids=lambda row: row["id"]
)
def test_what_is_on_the_screen_is_what_the_client_sent_again(row):
    turns = [turn["content"] for turn in row["followup_assistant"]]
    sent = [block for turn in turns for block in ([{"type": "text", "text": turn}] if isinstance(turn, str) else turn)]
    rewritten = any(name in row["id"] for name in REWRITTEN)
    found = lab.compared(lab.fed("anthropic", events(row)))
    assert (found == on_screen(sent)) is not rewritten


@each
@lab.each_check
def test_cut_redelivered_broken_off_and_asked_for_again(recording, check):
    check(recording)


def without(block, *names):
    return {name: value for name, value in block.items() if name not in names and value not in (None, "", [])}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_the_history_has_each_block_as_the_provider_wrote_it(row):
    content = stream_runs.run("anthropic", *events(row)).blocks
    # An empty block cannot be sent back and has nothing to say.
    expected = [block for block in row["sdk_final"]["content"] if not is_empty(block)]
    assert [without(block, "issuer") for block in content] == [
        without(block, "citations" * (not block.get("citations"))) for block in expected
    ]
    issuers = {block["type"] for block in content if "issuer" in block}
    assert issuers == {block["type"] for block in expected} & {"thinking", "redacted_thinking"}


def is_empty(block):
    return block["type"] in {"text", "thinking"} and not block[block["type"]] and not block.get("signature")


@each
def test_tokens_are_reported_once(recording):
    usage = next(row["sdk_final"]["usage"] for row in claude_rows() if row["id"] == recording.id)
    items = lab.fed("anthropic", recording.events)
    (told,) = [item.usage for item in only(items, TurnStop | TurnDelta)]
    assert {name: usage.get(name) or 0 for name in Usage.__struct_fields__} == msgspec.structs.asdict(told)


# -- the streams that the official client gets wrong ----------------------------------------------------------------


def test_a_cut_call_stays_cut():
    items = lab.fed("anthropic", events(the_row("incomplete_partial_json_response")))
    text, call = reduce(items).entries
    assert (text.incomplete, call.incomplete, call.item_id) == (False, True, "toolu_01EKqbqmZrGRXy18eN7m9kvY")
    assert call.text.startswith('{"filename": "taxes.txt", "lines_of_text": [\n')
    (stop,) = only(items, TurnStop)
    assert (stop.stop_reason, stop.incomplete) == ("max_tokens", False)


def test_a_gateway_that_ends_with_done():
    found = lab.screen(lab.fed("anthropic", events(the_row("gateway_message_delta_metadata"))))
    assert found == [("text", "A solar eclipse occurs when the Moon passes directly between the Earth and the Sun,")]


@pytest.mark.parametrize("name", ["anthropic-programmatic-tool-calling.1", "anthropic-tool-search-bm25.1"])
def test_several_messages_in_one_run_follow_one_another(name):
    row = the_row(name)
    starts = [at for at, event in enumerate(row["stream"]) if '"message_start"' in event]
    parts = [row["stream"][start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    alone = [block for part in parts for block in lab.screen(lab.fed("anthropic", [lab.sse(event) for event in part]))]
    items = lab.fed("anthropic", events(row))
    assert lab.screen(items) == alone
    assert len(only(items, TurnStop)) == len(parts) > 1
    assert (reduce(items).retracted, [entry for entry in reduce(items).entries if entry.incomplete]) == (set(), [])


def test_a_spliced_attempt_replaces_the_first():
    items = lab.fed("anthropic", events(the_row("spliced-message-start")))
    assert lab.screen(items) == [
        ("thinking", "Let me call the tool."),
        ("tool_use", "test-tool", "toolu_second", {"value": "Sparkle Day"}),
    ]
    assert reduce(items).retracted == {"an-block-0", "toolu_first"}


# -- Bedrock's frames -----------------------------------------------------------------------------------------------


BEDROCK = [recording(row) for row in lab.streams("bedrock-invoke") if row in claude_rows()]


@pytest.mark.parametrize("recording", BEDROCK, ids=lambda recording: recording.id)
def test_invoke_bodies_in_binary_frames(recording):
    payloads = [event.split(b"data: ", 1)[1].rstrip() for event in recording.events]
    chunks = [json.dumps({"bytes": base64.b64encode(payload).decode(), "p": "abcd"}).encode() for payload in payloads]
    framed = recording._replace(events=[lab.frame("chunk", chunk) for chunk in chunks])
    lab.check_whole(framed)
    lab.check_cuts(framed)
    lab.check_redelivery(framed)
