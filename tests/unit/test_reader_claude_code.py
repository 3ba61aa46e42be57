"""A Claude Code transcript is read along the path to its newest leaf; every other line is counted."""

import json

import pytest
from build import call, result, text
from reader_results import named, shown

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.model import Issuer, Text, Thinking


def line(kind, uuid, parent=None, content=None, *, message_id=None, model="claude-x", **more):
    message = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": message_id or f"msg_{uuid}", "model": model, "usage": {"input_tokens": 1}}
    body = {"message": message} if content is not None else {}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", **body, **more}


def user_line(uuid, words, parent=None, **more):
    return line("user", uuid, parent, words, **more)


def said(uuid, words, parent=None, **more):
    return line("assistant", uuid, parent, [text(words)], **more)


def called(uuid, parent, call_id, **more):
    return line("assistant", uuid, parent, [call(call_id)], **more)


def answered(uuid, parent, call_id, words="ok"):
    return line("user", uuid, parent, [result(call_id, words)])


def transcript(*lines):
    found = read("\n".join(json.dumps(one) for one in lines))
    assert found.shape == "claude-code"
    return found


def test_lines_of_one_message_are_one_turn():
    found = transcript(
        user_line("u1", "q"),
        line("assistant", "a1", "u1", [{"type": "thinking", "thinking": "t", "signature": "s"}], message_id="m1"),
        said("a2", "x", "a1", message_id="m1"),
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


BOUNDARY = {"type": "system", "subtype": "compact_boundary", "uuid": "b", "parentUuid": None}
SEGMENT = {"headUuid": "u2", "anchorUuid": "c", "tailUuid": "a2"}
KEPT = {"compactMetadata": {"trigger": "auto", "preTokens": 9, "preservedSegment": SEGMENT}}
# The lines, the resulting turns, and the lines that are left out.
PATHS = {
    "parallel calls branch, and their results follow their message": (
        [
            user_line("u1", "q"),
            called("a1", "u1", "A", message_id="m1"),
            called("a2", "a1", "B", message_id="m1"),
            answered("r2", "a2", "B"),
            answered("r1", "a1", "A"),
            said("a3", "done", "r1", message_id="m2"),
        ],
        [
            ("user", "q"),
            ("assistant", "call A", "call B"),
            ("user", "result B: ok"),
            ("user", "result A: ok"),
            ("assistant", "done"),
        ],
        {},
    ),
    "a message that goes on after a result is one turn": (
        [
            user_line("u1", "q"),
            called("a1", "u1", "A", message_id="m1"),
            answered("r1", "a1", "A"),
            called("a2", "r1", "B", message_id="m1"),
            answered("r2", "a2", "B"),
        ],
        [("user", "q"), ("assistant", "call A", "call B"), ("user", "result A: ok"), ("user", "result B: ok")],
        {},
    ),
    "a rewound branch is left out": (
        [
            user_line("u1", "q"),
            called("a1", "u1", "A"),
            answered("r1", "a1", "A"),
            user_line("u2", "other", "u1"),
            said("a2", "answer", "u2"),
        ],
        [("user", "q"), ("user", "other"), ("assistant", "answer")],
        {"assistant/off-path": 1, "user/off-path": 1},
    ),
    "the newest leaf is the latest by time": (
        [
            user_line("u1", "q", timestamp="2026-01-01T00:00:00Z"),
            said("a2", "new", "u1", timestamp="2026-01-01T00:00:09Z"),
            said("a1", "old", "u1", timestamp="2026-01-01T00:00:05Z"),
        ],
        [("user", "q"), ("assistant", "new")],
        {"assistant/off-path": 1},
    ),
    "the path goes through lines that are no messages": (
        [
            {"type": "file-history-snapshot", "messageId": "x", "snapshot": {}},
            user_line("u1", "q"),
            {"type": "progress", "uuid": "p1", "parentUuid": "u1"},
            {"type": "system", "subtype": "stop_hook_summary", "uuid": "s1", "parentUuid": "p1"},
            said("a1", "x", "s1"),
            {"type": "progress", "uuid": "p2", "parentUuid": "a1"},
            {"type": "summary", "summary": "s", "leafUuid": "a1"},
        ],
        [("user", "q"), ("assistant", "x")],
        {"file-history-snapshot": 1, "progress": 2, "system/stop_hook_summary": 1, "summary": 1},
    ),
    "sidechains are left out of the main chain": (
        [
            user_line("u1", "q"),
            user_line("s1", "task", isSidechain=True),
            said("s2", "sub", "s1", isSidechain=True),
            said("a1", "x", "u1"),
        ],
        [("user", "q"), ("assistant", "x")],
        {"user/sidechain": 1, "assistant/sidechain": 1},
    ),
    "a sidechain is read alone": (
        [user_line("s1", "task", isSidechain=True), said("s2", "sub", "s1", isSidechain=True)],
        [("user", "task"), ("assistant", "sub")],
        {},
    ),
    "notices of the CLI are no assistant's words, but hidden user lines stay": (
        [
            user_line("u1", "caveat", isMeta=True),
            said("a1", "API Error", "u1", isApiErrorMessage=True),
            user_line("u2", "again", "a1"),
            said("a2", "No response", "u2", model="<synthetic>"),
        ],
        [("user*", "caveat"), ("user", "again")],
        {"assistant/notice": 2},
    ),
    "after a compaction the path begins with the summary": (
        [
            user_line("u1", "old"),
            said("a1", "old answer", "u1"),
            BOUNDARY | {"logicalParentUuid": "a1"},
            user_line("c", "summary", "b", isCompactSummary=True, isVisibleInTranscriptOnly=True),
            user_line("u2", "go on", "c"),
        ],
        [("user", "summary"), ("user", "go on")],
        {"user/off-path": 1, "assistant/off-path": 1, "system/compact_boundary": 1},
    ),
    "messages that a compaction kept follow the summary": (
        [
            user_line("u1", "old"),
            user_line("u2", "kept", "u1"),
            said("a2", "kept answer", "u2"),
            BOUNDARY | KEPT,
            user_line("c", "summary", "b", isCompactSummary=True),
            user_line("u3", "go on", "c"),
        ],
        [("user", "summary"), ("user", "kept"), ("assistant", "kept answer"), ("user", "go on")],
        {"user/off-path": 1, "system/compact_boundary": 1},
    ),
    "kept messages may be listed, in the order that they have": (
        [
            user_line("u1", "gone"),
            said("a1", "gone", "u1"),
            user_line("u2", "kept", "a1"),
            said("a2", "not kept", "u2"),
            said("a3", "kept answer", "a2"),
            BOUNDARY | {"compactMetadata": {"preservedMessages": {"anchorUuid": "c", "uuids": ["u2", "a3"]}}},
            user_line("c", "summary", "b", isCompactSummary=True),
            user_line("u3", "go on", "a2"),
        ],
        [("user", "summary"), ("user", "kept"), ("assistant", "kept answer"), ("user", "go on")],
        {"user/off-path": 1, "assistant/off-path": 2, "system/compact_boundary": 1},
    ),
    "a listed message that is missing keeps nothing": (
        [
            user_line("u1", "gone"),
            said("a1", "gone", "u1"),
            BOUNDARY | {"compactMetadata": {"preservedMessages": {"anchorUuid": "c", "uuids": ["a1", "lost"]}}},
            user_line("c", "summary", "b", isCompactSummary=True),
        ],
        [("user", "summary")],
        {"user/off-path": 1, "assistant/off-path": 1, "system/compact_boundary": 1},
    ),
    "an earlier compaction keeps nothing in a later one": (
        [
            user_line("u2", "kept"),
            said("a2", "kept answer", "u2"),
            BOUNDARY | KEPT,
            user_line("c", "summary", "b", isCompactSummary=True),
            user_line("u3", "go on", "c"),
            BOUNDARY | {"uuid": "b2"},
            user_line("c2", "second summary", "b2", isCompactSummary=True),
        ],
        [("user", "second summary")],
        {"user/off-path": 3, "assistant/off-path": 1, "system/compact_boundary": 2},
    ),
    "a rewind that nothing follows": (
        [
            user_line("u1", "q"),
            said("a1", "x", "u1"),
            user_line("u2", "wrong", "a1"),
            said("a2", "y", "u2"),
            {"type": "last-prompt", "leafUuid": "a1", "rewound": True, "sessionId": "s"},
        ],
        [("user", "q"), ("assistant", "x")],
        {"user/off-path": 1, "assistant/off-path": 1, "last-prompt": 1},
    ),
    "a rewind that the next prompt follows": (
        [
            user_line("u1", "q"),
            said("a1", "x", "u1"),
            user_line("u2", "wrong", "a1"),
            {"type": "last-prompt", "leafUuid": "a1", "rewound": True, "sessionId": "s"},
            user_line("u3", "right", "a1"),
        ],
        [("user", "q"), ("assistant", "x"), ("user", "right")],
        {"user/off-path": 1, "last-prompt": 1},
    ),
    "a rewind to the beginning": (
        [user_line("u1", "q"), {"type": "last-prompt", "leafUuid": None, "explicit": True, "sessionId": "s"}],
        [],
        {"user/off-path": 1, "last-prompt": 1},
    ),
    "a last prompt that names no leaf": (
        [user_line("u1", "q"), {"type": "last-prompt", "lastPrompt": "q", "sessionId": "s"}],
        [("user", "q")],
        {"last-prompt": 1},
    ),
    "lines without any links follow each other": (
        [user_line("u1", "q"), said("a1", "x"), user_line("u2", "r")],
        [("user", "q"), ("assistant", "x"), ("user", "r")],
        {},
    ),
    "a parent in another file is the line before": (
        [user_line("u1", "a", "gone"), user_line("u2", "b", "gone too")],
        [("user", "a"), ("user", "b")],
        {},
    ),
    "links that form a ring end": (
        [
            user_line("u1", "a", "p2"),
            {"type": "progress", "uuid": "p1", "parentUuid": "p2"},
            {"type": "progress", "uuid": "p2", "parentUuid": "p1"},
            user_line("u2", "b", "u3"),
            user_line("u3", "c", "u2"),
        ],
        [("user", "a")],
        {"user/off-path": 2, "progress": 2},
    ),
}


@pytest.mark.parametrize("name", PATHS)
def test_the_conversation_is_one_path_and_other_lines_are_counted(name):
    lines, turns, skipped = PATHS[name]
    found = transcript(*lines)
    assert (shown(found), found.skipped) == (turns, skipped)


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
    cut = user_line("u2", "Your response above was cut off mid-stream.", "a1", **mark)
    found = transcript(user_line("u1", "Write a long answer."), said("a1", "It", "u1"), cut)
    assert [turn.synthetic for turn in found.conversation.turns] == [False, False, synthetic]


def test_cut_repeated_and_empty_lines_are_counted():
    first, empty = user_line("u1", "q"), user_line("u2", [], "u1")
    found = read("\n".join([*map(json.dumps, (first, first)), "", json.dumps(empty), '{"type":"us']), "claude-code")
    assert shown(found) == [("user", "q")]
    assert found.skipped == {"user/repeated": 1, "user/empty": 1, "unreadable": 1}
    assert [(fix.code, fix.path) for fix in found.fixes] == [("line_unreadable", "lines.4")]


def test_a_corrupt_line_in_the_middle_is_a_fix_and_a_line_that_is_no_message_is_only_counted():
    first, last = user_line("u1", "q"), user_line("u2", "r", "a1")
    found = read(
        "\n".join([json.dumps(first), '{"type":"assis\\', '{"type":"progress"}', json.dumps(last)]), "claude-code"
    )
    assert shown(found) == [("user", "q"), ("user", "r")]
    assert found.skipped == {"unreadable": 1, "progress": 1}
    assert [(fix.code, fix.path, fix.lossless) for fix in found.fixes] == [("line_unreadable", "lines.1", False)]
    assert found.fixes[0].detail == "line 2, 15 bytes"


UNKNOWN = {
    "a message of a new type": (said("x", "more", "u1") | {"type": "aside"}, "aside"),
    "words without a message": ({"type": "note", "content": "more"}, "note"),
    "no type": ({"uuid": "x", "message": {"role": "user", "content": "more"}}, ""),
    "an answer without its message": ({"type": "assistant", "uuid": "x", "content": [text("more")]}, "assistant"),
    "members of other types": ({"type": "aside", "timestamp": 5, "message": {"content": "more"}}, "aside"),
}


@pytest.mark.parametrize(("other", "kind"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_line_of_an_unknown_type_with_content_is_a_fix(other, kind):
    found = transcript(user_line("u1", "q"), other, said("a1", "x", "u1"))
    assert shown(found) == [("user", "q"), ("assistant", "x")]
    assert found.skipped == {kind: 1}
    size = len(json.dumps(other))
    fixes = [(fix.code, fix.path, fix.detail, fix.lossless) for fix in found.fixes]
    assert fixes == [("line_skipped", "lines.1", f"line 2, type {kind!r}, {size} bytes", False)]


OTHERS = {
    "an unknown type without content": {"type": "aside", "uuid": "x", "parentUuid": "u1"},
    "an unknown type with a blank content": {"type": "aside", "content": " ", "message": {"content": []}},
    "a notice": {"type": "system", "subtype": "local_command", "content": "<command-name>/mcp</command-name>"},
    "progress of a sub-agent": {"type": "progress", "data": {"message": said("x", "more")}},
    "a title": {"type": "summary", "summary": "More", "leafUuid": "u1"},
    "a known type with members of other types": {"type": "progress", "message": "more", "timestamp": 5},
    "a sub-agent's line": said("x", "more", "u1", isSidechain=True) | {"type": "aside"},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_other_lines_that_are_no_messages_are_only_counted(other):
    found = transcript(user_line("u1", "q"), other, said("a1", "x", "u1"))
    assert shown(found) == [("user", "q"), ("assistant", "x")]
    assert found.fixes == ()
    assert sum(found.skipped.values()) == 1


def queued(operation, content=None, **more):
    members = {} if content is None else {"content": content}
    return {"type": "queue-operation", "operation": operation, "timestamp": "t", "sessionId": "s", **members, **more}


def command(uuid, parent, prompt, **more):
    attachment = {"type": "queued_command", "prompt": prompt, "commandMode": "prompt", **more}
    return {"type": "attachment", "uuid": uuid, "parentUuid": parent, "sessionId": "s", "attachment": attachment}


COMMAND = "<command-name>/mcp</command-name>\n<command-message>mcp</command-message>"
TASK = "<task-notification>\n<task-id>b1</task-id>\n<status>completed</status>\n</task-notification>"
ONE, MORE = queued("enqueue", "one"), queued("enqueue", "more")
BEGIN = [user_line("u1", "q"), said("a1", "x", "u1")]
BEGUN = [("user", "q"), ("assistant", "x")]
# Sequences of 2.1.39's recorded transcripts, and those that the code of 2.0.77, 2.1.50 and 2.1.332 writes.
QUEUES = {
    "never taken": ([*BEGIN, ONE], [*BEGUN, ("user", "one")]),
    "two, never taken": ([*BEGIN, ONE, MORE], [*BEGUN, ("user", "one"), ("user", "more")]),
    "the same words twice, never taken": ([*BEGIN, ONE, ONE], [*BEGUN, ("user", "one"), ("user", "one")]),
    "taken": ([*BEGIN, ONE, queued("dequeue"), said("a2", "y", "a1")], [*BEGUN, ("assistant", "y")]),
    "the older one taken": (
        [*BEGIN, ONE, MORE, queued("dequeue"), said("a2", "y", "a1")],
        [*BEGUN, ("assistant", "y"), ("user", "more")],
    ),
    "removed": ([*BEGIN, ONE, queued("remove")], BEGUN),
    "removed by its words": ([*BEGIN, ONE, MORE, queued("remove", "more")], [*BEGUN, ("user", "one")]),
    "back in the input": ([*BEGIN, ONE, MORE, queued("popAll", "one"), queued("popAll", "more")], BEGUN),
    "taken before it was queued": ([queued("dequeue"), *BEGIN, ONE], [*BEGUN, ("user", "one")]),
    "said": ([*BEGIN, ONE, user_line("u2", "one", "a1")], [*BEGUN, ("user", "one")]),
    "taken and said, and once more": (
        [*BEGIN, ONE, ONE, queued("dequeue"), user_line("u2", "one", "a1")],
        [*BEGUN, ("user", "one"), ("user", "one")],
    ),
    "the later one said": (
        [*BEGIN, ONE, MORE, queued("dequeue"), user_line("u2", "more", "a1")],
        [*BEGUN, ("user", "one"), ("user", "more")],
    ),
    "said with an image": (
        [*BEGIN, ONE, user_line("u2", [text("one"), {"type": "text", "text": "[Image #1]"}], "a1")],
        [*BEGUN, ("user", "one", "[Image #1]")],
    ),
    "both in one message": ([*BEGIN, ONE, MORE, user_line("u2", "one\nmore", "a1")], [*BEGUN, ("user", "one\nmore")]),
    "given within a turn": ([*BEGIN, ONE, command("c1", "a1", "one")], [*BEGUN, ("user", "one")]),
    "given within a turn by 2.1.332": (
        [
            user_line("u1", "q"),
            called("a1", "u1", "A"),
            ONE,
            queued("enqueue"),
            answered("r1", "a1", "A"),
            command("c1", "r1", "one", source_uuid="s1"),
            queued("remove", "one", reason="absorbed_mid_turn", commandUuid="s1"),
            queued("remove", "two", reason="absorbed_mid_turn", commandUuid="s2"),
            command("c2", "c1", [text("two")], source_uuid="s2"),
            said("a2", "x", "c2"),
        ],
        [
            ("user", "q"),
            ("assistant", "call A"),
            ("user", "result A: ok"),
            ("user", "one"),
            ("user", "two"),
            ("assistant", "x"),
        ],
    ),
    "given within a turn by 2.1.50, whose file does not have it": (
        [
            user_line("u1", "q"),
            called("a1", "u1", "A"),
            ONE,
            queued("enqueue"),
            answered("r1", "a1", "A"),
            queued("remove"),
            queued("remove"),
            said("a2", "x", "r1"),
        ],
        [("user", "q"), ("assistant", "call A"), ("user", "result A: ok"), ("assistant", "x")],
    ),
    "a notification given within a turn": (
        [*BEGIN, command("c1", "a1", TASK, commandMode="task-notification")],
        [*BEGUN, ("user*", TASK)],
    ),
    "before the user's next words": (
        [*BEGIN, ONE, said("a2", "y", "a1"), user_line("u2", "r", "a2"), said("a3", "z", "u2")],
        [*BEGUN, ("assistant", "y"), ("user", "one"), ("user", "r"), ("assistant", "z")],
    ),
    "not before a result": (
        [user_line("u1", "q"), called("a1", "u1", "A"), ONE, answered("r1", "a1", "A"), said("a2", "y", "r1")],
        [("user", "q"), ("assistant", "call A"), ("user", "result A: ok"), ("assistant", "y"), ("user", "one")],
    ),
    "a list of parts": ([*BEGIN, queued("enqueue", [text("one"), text("two")])], [*BEGUN, ("user", "one", "two")]),
    "blank": ([*BEGIN, queued("enqueue", " ")], BEGUN),
    "a notification": ([*BEGIN, queued("enqueue", TASK)], [*BEGUN, ("user*", TASK)]),
    "a notification that a result names": (
        [
            user_line("u1", "q"),
            called("a1", "u1", "A"),
            queued("enqueue", TASK),
            answered("r1", "a1", "A", "<task_id>b1</task_id>"),
        ],
        [("user", "q"), ("assistant", "call A"), ("user", "result A: <task_id>b1</task_id>")],
    ),
    "a prompt is taken before a notification": (
        [*BEGIN, queued("enqueue", TASK), ONE, queued("remove")],
        [*BEGUN, ("user*", TASK)],
    ),
    "a command that ran": (
        [*BEGIN, queued("enqueue", "/mcp"), {"type": "system", "subtype": "local_command", "content": COMMAND}],
        BEGUN,
    ),
}


@pytest.mark.parametrize(("lines", "turns"), QUEUES.values(), ids=QUEUES)
def test_a_queued_prompt_that_nothing_took_is_a_turn(lines, turns):
    found = transcript(*lines)
    assert (shown(found), found.fixes) == (turns, ())
    places = {path.split(".")[1] for turn in found.conversation.turns for path in turn.paths}
    assert len(places) + sum(found.skipped.values()) == len(lines)


def test_a_queued_prompt_has_its_place_and_its_image():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    turns = transcript(*BEGIN, queued("enqueue", [text("one"), image])).conversation.turns
    assert turns[2].paths == ("lines.2.content.0", "lines.2.content.1")
    assert [type(block).__name__ for block in turns[2].blocks] == ["Text", "Image"]


def test_a_queued_prompt_whose_words_the_file_does_not_have_is_a_fix():
    found = transcript(*BEGIN, queued("enqueue"))
    assert shown(found) == BEGUN
    fixes = [(fix.code, fix.path, fix.detail) for fix in found.fixes]
    assert fixes == [("line_skipped", "lines.2", "line 3, a queued prompt without its words")]
    assert transcript(*BEGIN, queued("enqueue"), queued("dequeue")).fixes == ()
    one_given = [*BEGIN, ONE, queued("enqueue"), command("c1", "a1", "one"), queued("remove", "one")]
    assert named(transcript(*one_given).fixes) == [("line_skipped", "lines.3")]
    assert named(transcript(*one_given, queued("remove", "two")).fixes) == []


def test_a_prompt_that_was_taken_and_of_which_nothing_was_written_is_a_fix():
    """2.1.50, killed in its first turn: its file has these lines of the queue and no other."""
    found = transcript(ONE, queued("dequeue"), MORE)
    assert shown(found) == [("user", "more")]
    fixes = [(fix.code, fix.path, fix.detail) for fix in found.fixes]
    assert fixes == [("line_skipped", "lines.0", "line 1, a queued prompt that was taken, and no message has it")]
    assert transcript(*BEGIN, queued("enqueue", "/mcp"), queued("dequeue")).fixes == ()
    assert transcript(*BEGIN, ONE, queued("dequeue"), said("a2", "y", "a1")).fixes == ()
    assert transcript(*BEGIN, ONE, queued("remove")).fixes == ()


def test_a_line_that_is_not_utf_8_is_left_out_alone():
    lines = [
        json.dumps(line).encode() for line in (user_line("u1", "q"), said("a1", "x", "u1"), user_line("u2", "r", "a1"))
    ]
    found = read(lines[0] + b"\n" + lines[1].replace(b'"x"', b'"\xff"') + b"\n" + b"\0" * 9 + lines[2] + b"\n\0\0")
    assert shown(found) == [("user", "q"), ("user", "r")]
    assert named(found.fixes) == [("line_unreadable", "lines.1"), ("line_unreadable", "lines.3")]


def test_lines_as_python_objects():
    lines = [user_line("u1", "q"), said("a1", "x", "u1")]
    assert read(lines) == read(lines, source="claude-code") == transcript(*lines)
    assert shown(read(lines[0])) == [("user", "q")]


def test_line_separators_inside_strings_do_not_split_lines():
    found = read(json.dumps(user_line("u1", "a\u2028b"), ensure_ascii=False), source="claude-code")
    assert shown(found) == [("user", "a\u2028b")]


def test_half_a_surrogate_pair_in_a_line():
    half = json.dumps(user_line("u1", "x")).replace('"x"', '"\\ud83d"')
    found = read(half + "\n" + json.dumps(user_line("u2", "b", "u1")))
    assert shown(found) == [("user", "\ufffd"), ("user", "b")]
    assert named(found.fixes) == [("surrogate_replaced", "lines.0.message.content")]


@pytest.mark.parametrize("given", ["not json", "[]", "5\n6"])
def test_other_input_is_rejected(given):
    with pytest.raises(InputError):
        read(given, source="claude-code")
