"""``reknit test``: a team's own cases, the output for each, and the exit codes."""

import json

import pytest
from build import call, said, user
from click.testing import CliRunner

from reknit.pipeline.cli.offline import test_command as command
from reknit.pipeline.registry import TARGETS

ASKED = user("Read the README.")
CALLED = said(call("toolu_01", "read_file", path="README.md"))
INTERRUPTED = user("Never mind.")
BROKEN = [ASKED, CALLED, INTERRUPTED]


def run(*cases, raw=None):
    given = raw if raw is not None else "\n".join(json.dumps(case) for case in cases)
    done = CliRunner().invoke(command, ["-"], input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_case_without_expectations_holds_on_every_target():
    code, results, words = run({"name": "interrupted", "history": BROKEN, "to": sorted(TARGETS)})
    assert code == 0
    assert [(result["name"], result["target"]) for result in results] == [
        ("interrupted", target) for target in sorted(TARGETS)
    ]
    assert all(result["passed"] and "failures" not in result for result in results)
    # Gemini accepts a call without a result.
    assert {result["target"] for result in results if "fixes" not in result} == {"gemini"}
    assert all("result_synthesised" in result["fixes"] for result in results if "fixes" in result)
    assert words == f"{len(TARGETS)} passed, 0 failed, 0 cannot be used\n"


def test_a_case_may_expect_body_and_fixes():
    lost = "[No result was recorded for this tool call: it was interrupted, or its result was lost.]"
    error = {"type": "tool_result", "tool_use_id": "toolu_01", "content": lost, "is_error": True}
    answered = user(error, "Never mind.")
    case = {
        "messages": BROKEN,
        "to": "anthropic",
        "model": "claude-sonnet-4-5",
        "params": {"max_tokens": 64},
        "fixes": ["result_synthesised"],
        "expect": {"messages": [ASKED, CALLED, answered], "max_tokens": 64, "model": "claude-sonnet-4-5"},
    }
    code, (result,), _ = run(case)
    assert (code, result["passed"]) == (0, True)
    assert {found["severity"] for found in result["violations"]} == {"soft"}
    error["content"] = "Never came."
    code, (result,), words = run(case)
    assert code == 4
    place = "messages.2.content.0.content"
    assert result["failures"] == [{"promise": "expected", "where": place, "what": f"{lost!r}, expected 'Never came.'"}]
    assert f"failed: line 1 (anthropic): expected at {place}: " in words


def test_an_expected_body_is_compared_exactly():
    from reknit.pipeline import normalize

    for target in TARGETS:
        body = normalize(BROKEN, to=target).body
        exact = {"history": BROKEN, "to": target, "expect": body.decode()}
        assert run(exact)[0] == 0
        if not TARGETS[target].is_text:
            assert run(exact | {"expect": json.loads(body)})[0] == 0
        code, (result,), _ = run(exact | {"expect": body.decode()[:-1] + "?"})
        assert code == 4
        assert result["failures"] == [{"promise": "expected", "where": "body", "what": result["failures"][0]["what"]}]
        assert result["failures"][0]["what"].startswith(f"byte {len(body) - 1}: ")


def test_fixes_are_compared_in_any_order_and_by_count():
    case = {"history": [ASKED, CALLED, said("So.")], "to": "anthropic"}
    _, (result,), _ = run(case)
    assert run(case | {"fixes": result["fixes"][::-1]})[0] == 0
    code, (failed,), _ = run(case | {"fixes": [*result["fixes"], "turn_empty"]})
    assert code == 4
    assert failed["failures"] == [{"promise": "expected", "where": "fixes", "what": "missing 'turn_empty'"}]
    code, (failed,), _ = run(case | {"fixes": []})
    assert failed["failures"][0]["what"] == "unexpected 'call_moved', 'result_synthesised', 'turns_merged'"


def test_a_rejection_can_be_expected():
    case = {
        "history": [ASKED, {"role": "assistant", "content": "So."}],
        "to": "anthropic",
        "policy": {"tail": "reject"},
    }
    code, (result,), _ = run(case | {"violations": ["ANT-25"], "expect": None})
    assert (code, result["passed"]) == (0, True)
    assert run(case | {"violations": [{"rule": "ANT-25", "path": "messages.1"}]})[0] == 0
    code, (result,), _ = run(case | {"violations": [{"rule": "ANT-25", "path": "messages.0"}]})
    assert [failure["what"].split()[0] for failure in result["failures"]] == ["missing", "unexpected"]
    assert (code, result["passed"]) == (4, False)
    code, (result,), _ = run(case | {"expect": {}})
    assert (code, result["failures"][0]["what"]) == (4, "the body was refused")


def test_a_transcript_is_a_history_too():
    lines = [
        {"type": "user", "uuid": "a", "parentUuid": None, "sessionId": "s", "message": ASKED},
        {"type": "user", "uuid": "b", "parentUuid": "a", "sessionId": "s", "message": INTERRUPTED},
    ]
    transcript = "\n".join(json.dumps(line) for line in lines)
    code, (result,), _ = run({"history": transcript, "to": "bedrock-converse", "fixes": ["turns_merged"]})
    assert (code, result["passed"]) == (0, True)


UNUSABLE = [
    pytest.param("nonsense", "not_a_case", id="not JSON"),
    pytest.param("[]", "not_a_case", id="a list"),
    pytest.param("null", "not_a_case", id="null"),
    pytest.param('{"history": []}', "not_a_case", id="no target"),
    pytest.param('{"history": [], "to": []}', "not_a_case", id="an empty list of targets"),
    pytest.param('{"to": "anthropic"}', "not_a_case", id="no history"),
    pytest.param('{"to": "anthropic", "history": [], "messages": []}', "not_a_case", id="two histories"),
    pytest.param('{"to": "anthropic", "history": [], "expected": {}}', "not_a_case", id="an unknown key"),
    pytest.param('{"to": ["anthropic", "gemini"], "history": [], "expect": {}}', "not_a_case", id="two bodies"),
    pytest.param('{"to": "nobody", "history": []}', "unknown_target", id="an unknown target"),
    pytest.param('{"to": "anthropic", "history": [], "from": "nobody"}', "unknown_source", id="an unknown shape"),
    pytest.param('{"to": "anthropic", "history": [], "policy": {"tail": "off"}}', "policy", id="an unknown policy"),
    pytest.param('{"to": "anthropic", "history": [], "fixes": ["nobody"]}', "unknown_code", id="an unknown fix"),
    pytest.param('{"to": "anthropic", "history": 7}', "wrong_type", id="a number for a history"),
    pytest.param('{"to": "anthropic", "history": "not JSON"}', "not_json", id="a text for a history"),
    pytest.param('{"to": "anthropic", "history": [{"role": 7}]}', "wrong_type", id="a bad message"),
    pytest.param('{"to": "anthropic", "history": ' + "[" * 1000 + "]" * 1000 + "}", "not_a_case", id="depth 1,000"),
]


@pytest.mark.parametrize(("line", "error"), UNUSABLE)
def test_an_unusable_case_is_reported_and_the_others_run(line, error):
    good = json.dumps({"history": [ASKED], "to": "anthropic"})
    code, results, words = run(raw=f"{line}\n\n{good}\n")
    assert code == 2
    assert [result["passed"] for result in results] == [False, True]
    assert results[0]["error"]["code"] == error
    assert results[0]["error"]["fault"] == "caller"
    assert "1 passed, 0 failed, 1 cannot be used" in words


def test_no_case_at_all_is_no_success():
    code, results, words = run(raw="\n")
    assert (code, results) == (2, [])
    assert "there are no cases" in words


def test_cases_are_a_file(tmp_path):
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps({"history": [ASKED], "to": "anthropic"}))
    done = CliRunner().invoke(command, [str(file)])
    assert done.exit_code == 0
    assert CliRunner().invoke(command, [str(tmp_path / "missing.jsonl")]).exit_code == 2
