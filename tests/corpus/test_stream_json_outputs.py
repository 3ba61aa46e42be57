"""Recorded outputs of ``claude -p --output-format stream-json``, from other projects' tests."""

import json

import pytest
from recorded import CORPUS, needs_corpus, unpacked

from reknit.pipeline.streams.session import recover
from reknit.topics.reducer import reduce

OUTPUTS = CORPUS / "claude-stream-json"

pytestmark = needs_corpus

each_output = pytest.mark.parametrize("path", sorted(OUTPUTS.glob("*.gz")), ids=lambda path: path.name[:40])


def read(path):
    return unpacked(path).splitlines()


def as_json(line):
    try:
        return json.loads(line)
    except ValueError:
        return {"type": "not JSON"}


def main_blocks(lines, kind):
    """Return the content of the main turn's complete messages, read in the simplest way."""
    found = map(as_json, lines)
    messages = [line["message"] for line in found if line["type"] == "assistant" and not line.get("parent_tool_use_id")]
    return [block for message in messages for block in message["content"] if block["type"] == kind]


def known_texts(lines):
    """The text blocks; where no complete message holds any, the result is all that is known."""
    texts = [block["text"] for block in main_blocks(lines, "text")]
    results = [line.get("result") for line in map(as_json, lines) if line["type"] == "result"]
    return texts or [text for text in results if text]


def view_of(path):
    return reduce(recover(read(path)))


@each_output
def test_an_output_is_recovered_to_its_known_text(path):
    assert [entry.text for entry in view_of(path).blocks("text")] == known_texts(read(path))


@each_output
def test_its_calls_are_there_with_their_inputs_and_answers(path):
    lines = read(path)
    calls = view_of(path).blocks("tool_use")
    expected = main_blocks(lines, "tool_use")
    assert [call.item_id for call in calls] == [block["id"] for block in expected]
    assert [call.input and json.loads(bytes(call.input)) for call in calls] == [block["input"] for block in expected]
    answered = {
        block["tool_use_id"]
        for line in map(as_json, lines)
        if line["type"] == "user"
        for block in line["message"]["content"]
        if block["type"] == "tool_result"
    }
    assert {call.item_id for call in calls if call.result is not None} == answered & {call.item_id for call in calls}


@each_output
def test_every_result_with_text_is_on_the_screen(path):
    assert [result.unseen for result in view_of(path).results.values() if result.result] == [
        False for line in map(as_json, read(path)) if line["type"] == "result" and line.get("result")
    ]


@each_output
def test_lines_that_are_not_json_are_passed_on(path):
    found = [item.text for item in view_of(path).unrecognized.values() if item.reason == "non-JSON output"]
    lines = [line.decode() for line in read(path) if as_json(line)["type"] == "not JSON" and line.strip()]
    assert found == lines
