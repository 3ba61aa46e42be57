"""What the text-only planner's source does to the planner's own words, row by row, and at every split.

The rows about environment, preambles and whole histories are in the same file and are tested in
``test_windsurf_requests.py``. Where a row has a ``want``, the source has a defect, and ``FIXED`` says which; a row
without one must hold as the source has it.
"""

import json
from pathlib import Path

import pytest

from pipeline.text.identity import IdentityRewriter
from pipeline.text.jsontext import ToolCall
from pipeline.text.redaction import Redactor
from pipeline.text.tool_calls import ToolCallParser

ROWS = [
    json.loads(line)
    for line in Path(__file__).with_name("windsurf_cascade.jsonl").read_text(encoding="utf-8").split("\n")
    if line
]
HERE = {
    "cascade_neutralize_identity",
    "cascade_redact_text",
    "cascade_redact_stream",
    "cascade_redact_tool_call",
    "cascade_parse_tool_calls",
}
ELSEWHERE = {
    "cascade_extract_environment",
    "cascade_tool_preamble_user",
    "cascade_tool_preamble_proto",
    "cascade_normalize_messages",
}
FIXED = {
    "neutralize__case_insensitive": "only the name is rewritten, so the words before it keep their case",
    "neutralize__acting_as": "only the name is rewritten, so 'Acting as' stays",
    "neutralize__i_am_made_by": "one phrase, so the maker is not left behind when the name is gone",
    "neutralize__workspace_cap": "the article stays as it is, also at the beginning of a sentence",
    "neutralize__unknown_provider": "the name is known even where the maker is not",
    "neutralize__json_payload": "JSON is a program's, not the model speaking of itself",
    "neutralize__dollar_model": "the model's name is no pattern",
    "sanitize__account_workspace_upper": "ids have capitals",
    "sanitize__opt_suffix": "a root ends at a name's end: /opt/windsurf-next is another directory",
    "sanitize__windows": "separators may be those of Windows, and the drive goes with its path",
    "parse__tool_result_unclosed": "what was not closed is given back, it may be an answer that talks of the tag",
    "parse__angle_in_args": "the end of a call is the end of its JSON, whatever its strings hold",
}
# Rows in which several answers are right, and the source's is the one that is given here.
AS_THE_SOURCE = {"sanitize__workspace_information_block"}
# Rows in which the source's answer would do, and another is given.
BETTER = {"sanitize__trailing_period": "the period that ends a sentence is the sentence's"}


def about(*targets):
    found = [pytest.param(row, id=row["name"]) for row in ROWS if row["target"] in targets]
    assert found
    return found


def wanted(row):
    return row.get("want", [row["expect"]])


def splits(text):
    yield [text]
    yield list(text)
    yield from ([text[:at], text[at:]] for at in range(1, len(text)))


def streamed(one, pieces):
    return "".join(map(one.feed, pieces)) + one.flush()


def parsed(pieces):
    parser = ToolCallParser()
    outputs = [output for piece in pieces for output in parser.feed(piece)] + parser.flush()
    calls = [{"name": one.name, "arguments_json": one.arguments} for one in outputs if isinstance(one, ToolCall)]
    return {"text": "".join(output for output in outputs if isinstance(output, str)), "tool_calls": calls}


def test_every_row_is_tested_here_or_there():
    assert {row["target"] for row in ROWS} == HERE | ELSEWHERE
    fixed = {row["name"] for row in ROWS if "want" in row and row["target"] in HERE}
    assert fixed == FIXED.keys() | AS_THE_SOURCE | BETTER.keys()


@pytest.mark.parametrize("row", about("cascade_neutralize_identity"))
def test_identity(row):
    text, model = row["input"]["text"], row["input"]["model"]
    answers = {streamed(IdentityRewriter(model), pieces) for pieces in splits(text)}
    assert len(answers) == 1
    assert answers.pop() in wanted(row)


@pytest.mark.parametrize("row", about("cascade_redact_text", "cascade_redact_tool_call"))
def test_redaction_of_a_value(row):
    value = row["input"].get("text", row["input"].get("tool_call"))
    redacted = Redactor().value(value)
    assert redacted in wanted(row)
    assert (redacted == row["expect"]) == (row["name"] not in FIXED.keys() | BETTER.keys())
    if isinstance(value, str):
        assert {streamed(Redactor(), pieces) for pieces in splits(value)} == {redacted}


@pytest.mark.parametrize("row", about("cascade_redact_stream"))
def test_redaction_of_a_stream(row):
    redactor, chunks = Redactor(), row["input"]["chunks"]
    fed = [redactor.feed(chunk) for chunk in chunks]
    rest = redactor.flush()
    assert {"fed": fed, "flush": rest, "joined": "".join(fed) + rest} in wanted(row)
    assert {streamed(Redactor(), pieces) for pieces in splits("".join(chunks))} == {row["expect"]["joined"]}


@pytest.mark.parametrize("row", about("cascade_parse_tool_calls"))
def test_tool_calls(row):
    chunks = row["input"]["chunks"]
    answers = [parsed(pieces) for pieces in (chunks, *splits("".join(chunks)))]
    assert all(answer == answers[0] for answer in answers)
    source = {"text": row["expect"]["text"], "tool_calls": row["expect"]["tool_calls"]}
    assert answers[0] in row.get("want", [source])
    assert (answers[0] == source) == (row["name"] not in FIXED)


@pytest.mark.parametrize("row", [param for param in about("cascade_parse_tool_calls") if "want" not in param.values[0]])
def test_text_is_given_out_as_soon_as_the_source_gives_it(row):
    parser = ToolCallParser()
    for chunk, source in zip(row["input"]["chunks"], row["expect"]["fed"], strict=True):
        outputs = parser.feed(chunk)
        assert "".join(output for output in outputs if isinstance(output, str)) == source["text"]
