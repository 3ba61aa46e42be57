"""A Claude Code transcript is read along the path to its newest leaf; every other line is counted."""

import json

import pytest

from pipeline.errors import InputError
from pipeline.history.readers import read
from pipeline.model import Issuer, Text, Thinking, ToolResult, ToolUse


def line(kind, uuid, parent=None, content=None, *, message_id=None, model="claude-x", **more):
    message = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": message_id or f"msg_{uuid}", "model": model, "usage": {"input_tokens": 1}}
    body = {"message": message} if content is not None else {}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", **body, **more}


def call(call_id):
    return [{"type": "tool_use", "id": call_id, "name": "f", "input": {"id": call_id}}]


def result(call_id, text="ok"):
    return [{"type": "tool_result", "tool_use_id": call_id, "content": text}]


def transcript(*lines):
    found = read("\n".join(json.dumps(one) for one in lines))
    assert found.shape == "claude-code"
    return found


def shown(found):
    """Each turn as its role and what its blocks say."""
    say = {Text: lambda b: b.text, ToolUse: lambda b: f"call {b.id}", ToolResult: lambda b: f"result {b.tool_use_id}"}
    return [(turn.role, [say[type(block)](block) for block in turn.blocks]) for turn in found.conversation.turns]


def test_lines_of_one_message_are_one_turn():
    found = transcript(
        line("user", "u1", content="q"),
        line("assistant", "a1", "u1", [{"type": "thinking", "thinking": "t", "signature": "s"}], message_id="m1"),
        line("assistant", "a2", "a1", [{"type": "text", "text": "x"}], message_id="m1"),
    )
    turns = found.conversation.turns
    assert [turn.id for turn in turns] == ["u1", "m1"]
    assert [turn.index for turn in turns] == [0, 1]
    assert turns[1].paths == ("lines.1.message.content.0", "lines.2.message.content.0")
    assert turns[1].blocks == (
        Thinking(thinking="t", signature="s", issuer=Issuer(provider="anthropic", model="claude-x")),
        Text(text="x"),
    )
    assert (found.conversation.model, found.fixes, found.skipped) == ("claude-x", (), {})


def test_parallel_calls_branch_and_their_results_follow_their_message():
    found = transcript(
        line("user", "u1", content="q"),
        line("assistant", "a1", "u1", call("A"), message_id="m1"),
        line("assistant", "a2", "a1", call("B"), message_id="m1"),
        line("user", "r2", "a2", result("B")),
        line("user", "r1", "a1", result("A")),
        line("assistant", "a3", "r1", [{"type": "text", "text": "done"}], message_id="m2"),
    )
    assert shown(found) == [
        ("user", ["q"]),
        ("assistant", ["call A", "call B"]),
        ("user", ["result B"]),
        ("user", ["result A"]),
        ("assistant", ["done"]),
    ]
    assert found.skipped == {}


def test_a_message_that_goes_on_after_a_result_is_one_turn():
    found = transcript(
        line("user", "u1", content="q"),
        line("assistant", "a1", "u1", call("A"), message_id="m1"),
        line("user", "r1", "a1", result("A")),
        line("assistant", "a2", "r1", call("B"), message_id="m1"),
        line("user", "r2", "a2", result("B")),
    )
    assert shown(found) == [
        ("user", ["q"]),
        ("assistant", ["call A", "call B"]),
        ("user", ["result A"]),
        ("user", ["result B"]),
    ]


def test_a_rewound_branch_is_left_out_and_counted():
    found = transcript(
        line("user", "u1", content="q"),
        line("assistant", "a1", "u1", call("A")),
        line("user", "r1", "a1", result("A")),
        line("user", "u2", "u1", content="other"),
        line("assistant", "a2", "u2", [{"type": "text", "text": "answer"}]),
    )
    assert shown(found) == [("user", ["q"]), ("user", ["other"]), ("assistant", ["answer"])]
    assert found.skipped == {"assistant/off-path": 1, "user/off-path": 1}


def test_the_newest_leaf_is_the_latest_by_time():
    found = transcript(
        line("user", "u1", content="q", timestamp="2026-01-01T00:00:00Z"),
        line("assistant", "a2", "u1", [{"type": "text", "text": "new"}], timestamp="2026-01-01T00:00:09Z"),
        line("assistant", "a1", "u1", [{"type": "text", "text": "old"}], timestamp="2026-01-01T00:00:05Z"),
    )
    assert shown(found) == [("user", ["q"]), ("assistant", ["new"])]


def test_the_path_goes_through_lines_that_are_no_messages():
    found = transcript(
        {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
        line("user", "u1", content="q"),
        {"type": "progress", "uuid": "p1", "parentUuid": "u1"},
        {"type": "system", "subtype": "stop_hook_summary", "uuid": "s1", "parentUuid": "p1"},
        line("assistant", "a1", "s1", [{"type": "text", "text": "x"}]),
        {"type": "progress", "uuid": "p2", "parentUuid": "a1"},
        {"type": "summary", "summary": "s", "leafUuid": "a1"},
    )
    assert shown(found) == [("user", ["q"]), ("assistant", ["x"])]
    assert found.skipped == {"file-history-snapshot": 1, "progress": 2, "system/stop_hook_summary": 1, "summary": 1}


def test_sidechains_are_left_out_of_the_main_chain_and_read_alone():
    side = [
        line("user", "s1", content="task", isSidechain=True),
        line("assistant", "s2", "s1", [{"type": "text", "text": "sub"}], isSidechain=True),
    ]
    main = [line("user", "u1", content="q"), line("assistant", "a1", "u1", [{"type": "text", "text": "x"}])]
    found = transcript(main[0], *side, main[1])
    assert shown(found) == [("user", ["q"]), ("assistant", ["x"])]
    assert found.skipped == {"user/sidechain": 1, "assistant/sidechain": 1}
    assert shown(transcript(*side)) == [("user", ["task"]), ("assistant", ["sub"])]


def test_notices_of_the_cli_are_no_assistants_words_but_hidden_user_lines_stay():
    found = transcript(
        line("user", "u1", content="caveat", isMeta=True),
        line("assistant", "a1", "u1", [{"type": "text", "text": "API Error"}], isApiErrorMessage=True),
        line("user", "u2", "a1", content="again"),
        line("assistant", "a2", "u2", [{"type": "text", "text": "No response"}], model="<synthetic>"),
    )
    assert shown(found) == [("user", ["caveat"]), ("user", ["again"])]
    assert [turn.synthetic for turn in found.conversation.turns] == [True, False]
    assert found.skipped == {"assistant/notice": 2}


@pytest.mark.parametrize(
    ("mark", "synthetic"),
    [
        ({"isMeta": True}, True),
        ({"isSynthetic": True}, True),
        ({"isMeta": False}, False),
        ({"isMeta": None}, False),
        ({}, False),
    ],
)
def test_a_line_that_the_cli_wrote_in_the_users_name_is_marked(mark, synthetic):
    found = transcript(
        line("user", "u1", content="Write a long answer."),
        line("assistant", "a1", "u1", [{"type": "text", "text": "It"}]),
        line("user", "u2", "a1", content="Your response above was cut off mid-stream.", **mark),
    )
    assert [turn.synthetic for turn in found.conversation.turns] == [False, False, synthetic]


def test_after_a_compaction_the_path_begins_with_the_summary():
    found = transcript(
        line("user", "u1", content="old"),
        line("assistant", "a1", "u1", [{"type": "text", "text": "old answer"}]),
        {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None, "logicalParentUuid": "a1"},
        line("user", "c", "b", content="summary", isCompactSummary=True, isVisibleInTranscriptOnly=True),
        line("user", "u2", "c", content="go on"),
    )
    assert shown(found) == [("user", ["summary"]), ("user", ["go on"])]
    assert found.skipped == {"user/off-path": 1, "assistant/off-path": 1, "system/compact_boundary": 1}


def test_messages_that_a_compaction_kept_follow_the_summary():
    segment = {"headUuid": "u2", "anchorUuid": "c", "tailUuid": "a2"}
    found = transcript(
        line("user", "u1", content="old"),
        line("user", "u2", "u1", content="kept"),
        line("assistant", "a2", "u2", [{"type": "text", "text": "kept answer"}]),
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "b",
            "parentUuid": None,
            "compactMetadata": {"trigger": "auto", "preTokens": 9, "preservedSegment": segment},
        },
        line("user", "c", "b", content="summary", isCompactSummary=True),
        line("user", "u3", "c", content="go on"),
    )
    assert shown(found) == [
        ("user", ["summary"]),
        ("user", ["kept"]),
        ("assistant", ["kept answer"]),
        ("user", ["go on"]),
    ]


def test_lines_without_any_links_follow_each_other():
    found = transcript(
        line("user", "u1", content="q"),
        line("assistant", "a1", content=[{"type": "text", "text": "x"}]),
        line("user", "u2", content="r"),
    )
    assert shown(found) == [("user", ["q"]), ("assistant", ["x"]), ("user", ["r"])]


def test_a_parent_in_another_file_is_the_line_before():
    found = transcript(line("user", "u1", "gone", content="a"), line("user", "u2", "gone too", content="b"))
    assert shown(found) == [("user", ["a"]), ("user", ["b"])]


def test_links_that_form_a_ring_end():
    found = transcript(
        line("user", "u1", "p2", content="a"),
        {"type": "progress", "uuid": "p1", "parentUuid": "p2"},
        {"type": "progress", "uuid": "p2", "parentUuid": "p1"},
        line("user", "u2", "u3", content="b"),
        line("user", "u3", "u2", content="c"),
    )
    assert shown(found) == [("user", ["a"])]
    assert found.skipped == {"user/off-path": 2, "progress": 2}


def test_lines_that_are_cut_repeated_or_empty_are_counted():
    first = line("user", "u1", content="q")
    text = "\n".join(
        [json.dumps(first), json.dumps(first), "", json.dumps(line("user", "u2", "u1", [])), '{"type":"us']
    )
    found = read(text, source="claude-code")
    assert shown(found) == [("user", ["q"])]
    assert found.skipped == {"user/repeated": 1, "user/empty": 1, "unreadable": 1}


def test_lines_as_python_objects():
    lines = [line("user", "u1", content="q"), line("assistant", "a1", "u1", [{"type": "text", "text": "x"}])]
    assert read(lines) == read(lines, source="claude-code") == transcript(*lines)
    assert shown(read(lines[0])) == [("user", ["q"])]


def test_line_separators_inside_strings_do_not_split_lines():
    found = read(json.dumps(line("user", "u1", content="a\u2028b"), ensure_ascii=False), source="claude-code")
    assert shown(found) == [("user", ["a\u2028b"])]


def test_half_a_surrogate_pair_in_a_line():
    text = json.dumps(line("user", "u1", content="x")).replace('"x"', '"\\ud83d"')
    found = read(text + "\n" + json.dumps(line("user", "u2", "u1", content="b")))
    assert shown(found) == [("user", ["\ufffd"]), ("user", ["b"])]
    assert [(fix.code, fix.path) for fix in found.fixes] == [("surrogate_replaced", "lines.0.message.content")]


@pytest.mark.parametrize("text", ["not json", "[]", "5\n6"])
def test_what_is_no_transcript_is_refused(text):
    with pytest.raises(InputError):
        read(text, source="claude-code")
