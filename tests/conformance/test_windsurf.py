"""The behaviour of the text-only planner's source, row by row: its words, tools, environment and history.

If a row has a ``want``, the source has a defect, and ``FIXED`` names the planner's words, which are given at every
split; a row without one must behave like the source. If the rows of a whole history show a structure that is repaired
here, or a defect of the source's, ``windsurf_requests.jsonl`` has the required result, and why.
"""

import json
import re

import msgspec
import pytest
from filter_runs import fed, shown
from reader_results import vectors

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.text.environment import lift_environment
from reknit.pipeline.text.identity import IdentityRewriter
from reknit.pipeline.text.jsontext import ToolCall
from reknit.pipeline.text.preamble import tool_fallback, tool_preamble
from reknit.pipeline.text.redaction import Redactor
from reknit.pipeline.text.tool_calls import ToolCallParser

ROWS = vectors("windsurf_cascade")
DECIDED = {row["name"]: row for row in vectors("windsurf_requests")}
OF_WORDS = {
    "cascade_neutralize_identity",
    "cascade_redact_text",
    "cascade_redact_stream",
    "cascade_redact_tool_call",
    "cascade_parse_tool_calls",
}
OF_REQUESTS = {
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


def parsed(pieces):
    outputs = fed(ToolCallParser(), pieces)
    calls = [{"name": one.name, "arguments_json": one.arguments} for one in outputs if isinstance(one, ToolCall)]
    return {"text": shown(outputs), "tool_calls": calls}


def test_every_row_is_tested():
    assert {row["target"] for row in ROWS} == OF_WORDS | OF_REQUESTS
    fixed = {row["name"] for row in ROWS if "want" in row and row["target"] in OF_WORDS}
    assert fixed == FIXED.keys() | AS_THE_SOURCE | BETTER.keys()


@pytest.mark.parametrize("row", about("cascade_neutralize_identity"))
def test_identity(row):
    text, model = row["input"]["text"], row["input"]["model"]
    answers = {fed(IdentityRewriter(model), pieces) for pieces in splits(text)}
    assert len(answers) == 1
    assert answers.pop() in wanted(row)


@pytest.mark.parametrize("row", about("cascade_redact_text", "cascade_redact_tool_call"))
def test_redaction_of_a_value(row):
    value = row["input"].get("text", row["input"].get("tool_call"))
    redacted = Redactor().value(value)
    assert redacted in wanted(row)
    assert (redacted == row["expect"]) == (row["name"] not in FIXED.keys() | BETTER.keys())
    if isinstance(value, str):
        assert {fed(Redactor(), pieces) for pieces in splits(value)} == {redacted}


@pytest.mark.parametrize("row", about("cascade_redact_stream"))
def test_redaction_of_a_stream(row):
    redactor, chunks = Redactor(), row["input"]["chunks"]
    given = [redactor.feed(chunk) for chunk in chunks]
    rest = redactor.flush()
    assert {"fed": given, "flush": rest, "joined": "".join(given) + rest} in wanted(row)
    assert {fed(Redactor(), pieces) for pieces in splits("".join(chunks))} == {row["expect"]["joined"]}


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
        assert shown(parser.feed(chunk)) == source["text"]


@pytest.mark.parametrize("row", about("cascade_extract_environment"))
def test_an_environment_is_lifted(row):
    assert lift_environment(row["input"]["messages"]) in row.get("want", [row["expect"]])


@pytest.mark.parametrize("row", about("cascade_tool_preamble_user"))
def test_the_line_for_the_users_turn(row):
    line = tool_fallback(row["input"]["tools"])
    if "empty" in row["expect"]:
        assert line == ""
        return
    wanted = row["expect"]["properties"]
    assert line.splitlines() == [line]
    assert f": {wanted['lists_names_joined_by_comma_space']}." in line
    assert all(part in line for part in wanted["contains"])
    assert len(line) < wanted["max_chars"]
    assert [shape for shape in wanted["must_not_match"] if re.search(shape, line, re.MULTILINE)] == []


@pytest.mark.parametrize("row", about("cascade_tool_preamble_proto"))
def test_the_preamble_of_the_system_slot(row):
    given = row["input"]
    text = tool_preamble(given["tools"], given["tool_choice"], given["environment"])
    if "empty" in row["expect"]:
        assert text == ""
        return
    wanted = row["expect"]["properties"]
    environment = "\n".join(wanted["env_lines"])
    assert text.startswith("## Authoritative environment") == wanted["env_block_first"]
    assert (f"\n\n{environment}\n\n---\n\n" in text) == wanted["fence_after_env"]
    assert re.findall(r"^### (.*)$", text, re.MULTILINE) == wanted["function_headings_in_order"]
    schemas = re.findall(r"^```json\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert len(schemas) == wanted["schema_blocks"]
    assert all(json.dumps(json.loads(schema), indent=wanted["schema_indent"]) == schema for schema in schemas)
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, wanted["rule_count"] + 1))
    assert (len(numbers) == 7) == wanted["forced_function_named"]
    assert all(part in text for part in wanted["contains"])


@pytest.mark.parametrize("row", about("cascade_normalize_messages"))
def test_a_history_becomes_turns_of_text(row):
    given = row["input"]
    decided = DECIDED.get(row["name"], {"want": row["expect"], "fixes": []})
    done = normalize(msgspec.json.encode(given), to="cascade", policy={"tail": "keep"})
    session = Session(("cascade",), {"tail": "keep"}, tools=given["tools"])
    for message in given["messages"]:
        session.append(message)
        session.request()
    assert session.request().body == done.body
    line = tool_fallback(given["tools"])
    wanted = [turn | {"content": turn["content"].replace("{{PREAMBLE}}", line)} for turn in decided["want"]]
    assert json.loads(done.body)["messages"] == wanted
    assert [fix.code for fix in done.fixes] == decided["fixes"]
    assert [found for found in validate(done.body, "cascade") if found.severity == "hard"] == []


def test_a_different_decision_gives_its_reason():
    assert DECIDED.keys() <= {row["name"] for row in ROWS}
    assert all(row["why"].endswith(".") for row in DECIDED.values())
