"""What the text-only planner's source does to tools, environment and history, row by row.

Where the rows of a whole history show a structure that is repaired here, or a defect of the source's,
``windsurf_requests.jsonl`` says what is wanted instead, and why. Rows that have a ``want`` of their own say it there.
"""

import json
import re
from pathlib import Path

import msgspec
import pytest

from pipeline import Session, normalize, validate
from pipeline.text.preamble import lift_environment, tool_fallback, tool_preamble

HERE = Path(__file__).parent


def rows(name):
    lines = (HERE / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


ROWS = rows("windsurf_cascade")
DECIDED = {row["name"]: row for row in rows("windsurf_requests")}


def about(target):
    found = [pytest.param(row, id=row["name"]) for row in ROWS if row["target"] == target]
    assert found
    return found


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


def test_what_was_decided_otherwise_says_why():
    assert DECIDED.keys() <= {row["name"] for row in ROWS}
    assert all(row["why"].endswith(".") for row in DECIDED.values())
