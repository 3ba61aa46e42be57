"""``reknit explain``: every code has a page, and every page's example does what the page says."""

import json

import pytest
from build import call, result, said, user
from click.testing import CliRunner

from reknit.pipeline.cli.offline import explain_command
from reknit.pipeline.errors import InputError
from reknit.pipeline.explain import FIX_EXAMPLES, RULE_EXAMPLES, STREAM_EXAMPLES, FixPage, RulePage, explain
from reknit.pipeline.explain.page_text import plain
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.healing.table import HEALED_CODES
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.session import normalize

HEALTHY = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1024,
    "tools": [{"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}],
    "messages": [
        user("Read the README."),
        said("I will look.", call("toolu_01", "read_file", path="README.md")),
        user(result("toolu_01", "Hello.")),
        said("It says hello."),
        user("Thanks. And the licence?"),
    ],
}

RESULT_REPEATED = """\
result_repeated: a second, identical result of a call was left out

This fix leaves something out and loses nothing: the same result stays.
Without it the provider says:
  each tool_use must have a single result
Rules that the example would break: ANT-09.
Seen in sipeed/picoclaw#1792.
Always made: results and calls could not be paired without it.

Before:
  user       {"type": "text", "text": "Read the README."}
  assistant  {"type": "tool_use", "id": "toolu_01", "name": "read_file", "input": {"path": "README.md"}}
  user       {"type": "tool_result", "tool_use_id": "toolu_01", "content": "It says hello."}
-            {"type": "tool_result", "tool_use_id": "toolu_01", "content": "It says hello."}
After (to anthropic):
  user       {"type": "text", "text": "Read the README."}
  assistant  {"type": "tool_use", "id": "toolu_01", "name": "read_file", "input": {"path": "README.md"}}
  user       {"type": "tool_result", "tool_use_id": "toolu_01", "content": "It says hello."}
Recorded:
"""

ANT_08 = """\
ANT-08: A result answers a call of the message before.

A rule of anthropic. A body that breaks it is refused.
Repair: move it to its call, or drop it.
Source: anthropics/claude-code#13460, #18947; router-for-me/CLIProxyAPI#497.

This body breaks it:
  model      "claude-sonnet-4-5"
  max_tokens 1024
  tools      {"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}
  user       {"type": "text", "text": "Read the README."}
  assistant  {"type": "text", "text": "Hello."}
  user       {"type": "tool_result", "tool_use_id": "toolu_99", "content": "It says hello."}
The provider says, of messages.2.content.0:
  messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_99. Each `tool_result` block \
must have a corresponding `tool_use` block in the previous message.
"""


def run(*arguments):
    return CliRunner().invoke(explain_command, arguments)


def test_every_fix_has_an_example_and_every_example_a_fix():
    assert sorted([*FIX_EXAMPLES, *STREAM_EXAMPLES]) == sorted(FIXES)


def test_every_rule_that_a_body_can_break_has_an_example():
    assert RULE_EXAMPLES.keys() == {rule.id for rule in RULES.values() if not rule.unchecked}


@pytest.mark.parametrize("code", FIX_EXAMPLES)
def test_an_example_makes_its_fix_and_no_other(code):
    page = explain(code)
    assert isinstance(page, FixPage)
    assert {fix.code for fix in page.example.fixes} == {code, *FIX_EXAMPLES[code].also}
    assert page.example.request is not None


@pytest.mark.parametrize("code", STREAM_EXAMPLES)
def test_an_example_of_a_stream_makes_its_fix_and_no_other(code):
    page = explain(code)
    assert {fix.code for fix in page.example.fixes} == {code, *STREAM_EXAMPLES[code].also}
    assert [message["role"] for message in page.example.messages] == ["assistant"]


def test_a_valid_history_makes_no_fix():
    done = normalize(HEALTHY, to="anthropic")
    assert list(done.fixes) == []
    assert json.loads(done.body) == HEALTHY


@pytest.mark.parametrize("code", RULE_EXAMPLES)
def test_an_example_breaks_its_rule(code):
    page = explain(code)
    assert isinstance(page, RulePage)
    rule = RULES[code]
    assert page.example.violation.rule == code
    # A rule of some models is hard for the model that the example names.
    assert page.example.violation.severity in {rule.severity, "hard" if rule.severity == "model" else rule.severity}
    assert page.example.outcome != "still broken" or page.example.violation.severity != "hard"


def test_every_page_is_readable():
    pages = {code: plain(explain(code)) for code in (*FIXES, *RULES)}
    assert [code for code, text in pages.items() if not text.startswith(f"{code}: ") or not text.endswith("\n")] == []
    # Long strings are cut, so that no page is full of base64.
    assert {code: len(text) for code, text in pages.items() if len(text) >= 8_000} == {}
    assert [code for code, text in pages.items() if "{at}" in text] == []


def test_a_fix_page_shows_before_and_after():
    result = run("result_repeated")
    assert result.exit_code == 0
    assert result.stdout.startswith(RESULT_REPEATED)
    record = json.loads(result.stdout.removeprefix(RESULT_REPEATED))
    assert (record["code"], record["path"], record["lossless"]) == ("result_repeated", "messages.2.content.1", True)


def test_a_rule_page_shows_the_body_and_the_providers_words():
    result = run("ANT-08")
    assert result.exit_code == 0
    assert result.stdout.startswith(ANT_08)
    assert result.stdout.removeprefix(ANT_08) == "reknit normalize mends it: result_orphan.\n"


@pytest.mark.parametrize("spelling", ["ant-08", "ANT-8", " ANT-08 "])
def test_codes_are_matched_leniently(spelling):
    assert run(spelling).stdout == run("ANT-08").stdout


def test_json_is_one_object():
    result = run("--json", "result_repeated")
    assert result.exit_code == 0
    page = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert (page["kind"], page["code"], page["example"]["to"]) == ("fix", "result_repeated", "anthropic")
    assert len(page["example"]["request"]["messages"][2]["content"]) == 1


def test_an_unknown_code_names_the_nearest():
    result = run("result_repeatd")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "result_repeated" in result.stderr
    with pytest.raises(InputError) as caught:
        explain("ANT-99")
    assert caught.value.code == "unknown_code"


def test_without_a_code_all_are_listed():
    result = run()
    assert result.exit_code == 0
    assert result.stdout == run("--list").stdout
    listed = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted([*FIXES, *HEALED_CODES, *RULES])
    groups = json.loads(run("--list", "--json").stdout)
    assert "rules of anthropic" in groups
    assert groups["fixes that lose nothing"]["result_moved"] == FIXES["result_moved"].summary
    assert groups["fixes that lose something"]["result_orphan"] == FIXES["result_orphan"].summary
    assert groups["fixes that add content"]["tail_continued"] == FIXES["tail_continued"].summary


def test_a_page_states_if_a_fix_loses_content():
    assert "\nThis fix moves content and loses nothing.\n" in run("result_moved").stdout
    assert "\nThis fix leaves something out and loses content.\n" in run("result_orphan").stdout
    assert "\nThis fix adds content that no party wrote, which counts as a loss.\n" in run("tail_continued").stdout
