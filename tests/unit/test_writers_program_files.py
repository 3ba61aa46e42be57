"""Session files of Claude Code and Codex that Reknit writes: ids are of the content, and `reknit repair` finds nothing.

`make clients` lets the real programs resume such files.
"""

import json

import msgspec
import pytest
from build import call, result, said, user
from click.testing import CliRunner

import reknit
from reknit.pipeline.cli.convert import convert_command
from reknit.pipeline.cli.sessions import export_command
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import WRITERS
from reknit.pipeline.transcripts import repair_transcript

FILES = [name for name, writer in WRITERS.items() if writer.lines]
THOUGHT = {"type": "thinking", "thinking": "The file.", "signature": "EqQBCkYIBxgCKkBsomething"}
HISTORY = [
    user("Read."),
    said(THOUGHT, "I look.", call("c1", "read", path="a"), call("c2", "read", path="b")),
    user({**result("c1", "No."), "is_error": True}, result("c2", "Yes.")),
    said("One is missing."),
]
SEALED = "gAAAAABo" + "y" * 120


def lines_of(history, name, **members):
    return reknit.convert({"messages": history, **members}, to=name).messages


@pytest.mark.parametrize("name", FILES)
def test_a_written_file_needs_no_repair(name):
    data = reknit.convert(HISTORY, to=name).data
    assert repair_transcript(data).fixes == ()
    assert data.endswith(b"}\n")


@pytest.mark.parametrize("name", FILES)
def test_the_same_history_is_the_same_file_and_another_one_another_session(name):
    first = reknit.convert(HISTORY, to=name)
    assert reknit.convert(HISTORY, to=name) == first
    other = reknit.convert([*HISTORY, user("And?")], to=name)

    def session(done):
        return done.messages[0].get("sessionId") or done.messages[0]["payload"]["id"]

    assert session(first) != session(other)


def test_lines_of_claude_code_are_a_chain_whose_ids_stay_when_it_grows():
    lines = lines_of(HISTORY, "claude-code")
    uuids = [line["uuid"] for line in lines]
    assert [line["parentUuid"] for line in lines] == [None, *uuids[:-1]]
    assert len({line["sessionId"] for line in lines}) == 1
    assert sorted({line["timestamp"] for line in lines}) == [line["timestamp"] for line in lines]
    longer = lines_of([*HISTORY, user("And?")], "claude-code")
    assert [line["uuid"] for line in longer][:-1] == uuids


def test_each_block_of_an_answer_is_a_line_under_the_id_of_the_message():
    answers = [line["message"] for line in lines_of(HISTORY, "claude-code") if line["type"] == "assistant"]
    assert [[block["type"] for block in each["content"]] for each in answers] == [
        ["thinking"],
        ["text"],
        ["tool_use"],
        ["tool_use"],
        ["text"],
    ]
    assert len({each["id"] for each in answers[:4]}) == 1
    assert answers[4]["id"] != answers[0]["id"]


def test_calls_of_neighbouring_messages_are_one_message_where_the_program_needs_it():
    apart = [user("Read."), said(call("c1", "read")), said(call("c2", "read")), user(result("c1"), result("c2"))]
    assert len({line["message"].get("id") for line in lines_of(apart, "claude-code")[1:3]}) == 1
    words = [user("Read."), said("I look."), said("I found it.")]
    assert len({line["message"].get("id") for line in lines_of(words, "claude-code")[1:]}) == 2


def test_ids_of_a_transcript_stay_and_an_id_that_is_no_uuid_is_a_loss():
    given = "00000000-0000-4000-8000-000000000001"
    done = reknit.convert([{**user("Hi"), "id": given}, {**said("Yes."), "id": "msg_1"}], to="claude-code")
    assert done.fixes == ()
    assert [done.messages[0]["uuid"], done.messages[1]["message"]["id"]] == [given, "msg_1"]
    other = reknit.convert([{**user("Hi"), "id": "m1"}], to="claude-code")
    assert [(fix.code, fix.path) for fix in other.fixes] == [("field_dropped", "messages.0.id")]


@pytest.mark.parametrize(("model", "named"), [("claude-sonnet-4-5", "claude-sonnet-4-5"), ("gpt-5.1", None)])
def test_a_line_names_the_model_of_the_document_if_it_is_anthropics(model, named):
    answers = [line["message"] for line in lines_of(HISTORY, "claude-code", model=model)[1:5]]
    assert [each.get("model") for each in answers] == [named] * 4


@pytest.mark.parametrize(("model", "count"), [("gpt-5.1-codex", 1), ("a-model", 1), ("claude-sonnet-4-5", 0)])
def test_a_rollout_names_a_model_that_may_be_openais(model, count):
    contexts = [line for line in lines_of(HISTORY, "codex", model=model) if line["type"] == "turn_context"]
    assert [line["payload"]["model"] for line in contexts] == [model] * count
    assert all(line["payload"]["sandbox_policy"] == {"type": "read-only"} for line in contexts)


def test_a_rollout_has_only_items_and_parts_that_codex_knows():
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"}}
    png = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    done = reknit.convert([user("Read.", pdf, png), *HISTORY[1:]], to="codex")
    assert [fix.code for fix in done.fixes] == [
        "document_stubbed",
        "image_stubbed",
        "thinking_dropped",
        "field_dropped",
    ]
    items = [
        {"type": "message", "role": "user", "content": "Click."},
        {"type": "computer_call", "call_id": "c1", "id": "cu_1", "action": {"type": "click"}, "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "clicked"},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c", "outputs": []},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ]
    done = reknit.convert({"input": items}, to="codex")
    kinds = [line["payload"]["type"] for line in done.messages[1:]]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert [fix.code for fix in done.fixes] == [
        "field_dropped",
        "tool_as_function",
        "native_dropped",
        "refusal_as_text",
    ]


def test_items_of_a_rollout_keep_their_own_members():
    items = [
        {"type": "message", "role": "user", "id": "msg_1", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "compaction", "encrypted_content": SEALED},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": SEALED},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "local_shell_call", "id": "ls_1", "call_id": "c2", "status": "completed", "action": {"type": "exec"}},
        {"type": "function_call_output", "call_id": "c2", "output": "a"},
    ]
    for name in ("codex", "openai-agents"):
        done = reknit.convert({"input": items}, to=name)
        assert done.fixes == (), name
        written = [line["payload"] for line in done.messages[1:]] if name == "codex" else done.messages
        assert [{**item, "content": None} for item in written] == [{**item, "content": None} for item in items]


def test_words_of_a_program_in_the_users_name_are_so_again():
    for name in FILES:
        turns = read(reknit.convert(HISTORY, to=name).data).conversation.turns
        assert not any(turn.synthetic for turn in turns)
    hidden = [
        {"type": "user", "message": {"role": "user", "content": "Hi"}, "uuid": "u1", "parentUuid": None},
        {
            "type": "user",
            "message": {"role": "user", "content": "Hint"},
            "uuid": "u2",
            "parentUuid": "u1",
            "isMeta": True,
        },
    ]
    data = b"\n".join(map(msgspec.json.encode, hidden))
    for name in FILES:
        turns = read(reknit.convert(data, to=name).data).conversation.turns
        assert [turn.synthetic for turn in turns] == [False, True], name


def test_codex_is_another_name_of_its_rollouts():
    assert reknit.convert(HISTORY, to="codex") == reknit.convert(HISTORY, to="codex-rollout")


def test_convert_prints_a_file_of_lines():
    done = CliRunner().invoke(convert_command, ["--to", "claude-code"], input=json.dumps(HISTORY))
    assert done.exit_code == 0
    assert done.stdout.encode() == reknit.convert(json.dumps(HISTORY), to="claude-code").data


def test_a_file_has_one_session():
    done = CliRunner().invoke(export_command, ["--as", "claude-code", "one", "two"])
    assert done.exit_code == 2
    assert "holds one session" in done.output
