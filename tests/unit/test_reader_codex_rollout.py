"""A Codex rollout is read as the model's input at its end; every other line is counted."""

import json

import pytest
from reader_results import named, shown

from reknit.pipeline import normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.registry import TARGETS

META = ("session_meta", {"id": "th", "cwd": "/w"})
CONTEXT = ("turn_context", {"model": "gpt-5.1-codex"})
EVENT = ("event_msg", {"type": "agent_message", "message": "Hello."})


def message(role, text, **more):
    kind = "output_text" if role == "assistant" else "input_text"
    return ("response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **more})


def user_line(text):
    return message("user", text)


def said(text):
    return message("assistant", text)


def noted(text, *provenances):
    parts = [{"provenance": {"type": kind}} for kind in provenances]
    return message("user", text, internal_chat_message_metadata_passthrough={"content_item_metadata": parts})


CALL = ("response_item", {"type": "function_call", "name": "shell", "arguments": '{"a":1}', "call_id": "c"})
OUTPUT = ("response_item", {"type": "function_call_output", "call_id": "c", "output": "out"})


def rollout(*lines, source="auto"):
    text = "\n".join(line if isinstance(line, str) else written(*line) for line in lines)
    found = read(text, source)
    assert found.shape == "codex-rollout"
    return found


def written(kind, payload, **more):
    return json.dumps({"timestamp": "t", **more, "type": kind, "payload": payload})


USER = [
    pytest.param(user_line("Go."), "user", id="the user"),
    pytest.param(user_line("<environment_context>\n</environment_context>"), "user*", id="the environment"),
    pytest.param(user_line("<turn_aborted>\n</turn_aborted>"), "user*", id="an abort"),
    pytest.param(user_line("see <turn_aborted>"), "user", id="its name further on"),
    pytest.param(noted("Go.", "harness"), "user*", id="noted as Codex's"),
    pytest.param(noted("<environment_context>", "user"), "user", id="noted as the user's"),
    pytest.param(noted("<turn_aborted>", "user", "harness"), "user", id="both"),
]


@pytest.mark.parametrize(("line", "role"), USER)
def test_a_message_that_codex_wrote_in_the_users_name_is_marked(line, role):
    assert [turn[0] for turn in shown(rollout(META, line, said("Hello.")))] == [role, "assistant"]
    assert rollout(META, line).fixes == ()


def test_items_are_read_and_the_events_that_repeat_them_are_counted():
    thought = ("response_item", {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]})
    snapshot = ("response_item", {"type": "ghost_snapshot", "ghost_commit": {}})
    lines = [
        META,
        CONTEXT,
        snapshot,
        message("developer", "Be brief."),
        user_line("Go."),
        thought,
        EVENT,
        said("Hello."),
    ]
    found = rollout(*lines, CALL, ("world_state", {}), OUTPUT, EVENT, said("Done."), '{"type": "response_i')
    assert shown(found) == [
        ("system", "Be brief."),
        ("user", "Go."),
        ("assistant", "thought hm"),
        ("assistant", "Hello."),
        ("assistant", "call c"),
        ("user", "result c: out"),
        ("assistant", "Done."),
    ]
    assert found.skipped == {
        "session_meta": 1,
        "turn_context": 1,
        "response_item/ghost_snapshot": 1,
        "event_msg/agent_message": 2,
        "world_state": 1,
        "unreadable": 1,
    }
    assert [(fix.code, fix.path) for fix in found.fixes] == [("line_unreadable", "lines.13")]
    assert found.conversation.model == "gpt-5.1-codex"
    assert found.conversation.turns[0].paths == ("lines.3.payload.content.0",)
    assert found.conversation.turns[4].paths == ("lines.8.payload",)


MOVED = {
    "a history in its place": (
        [
            user_line("A"),
            said("B"),
            ("compacted", {"message": "S", "replacement_history": [user_line("C")[1], said("D")[1]]}),
        ],
        [("user", "C"), ("assistant", "D")],
        {"response_item/message/compacted": 2},
    ),
    "a summary in its place": (
        [user_line("<environment_context>"), user_line("A"), said("B"), CALL, OUTPUT, ("compacted", {"message": "S"})],
        [("user", "A"), ("user*", "S")],
        {
            "response_item/message/compacted": 2,
            "response_item/function_call/compacted": 1,
            "response_item/function_call_output/compacted": 1,
        },
    ),
    "another agent's message": (
        [user_line("A"), ("inter_agent_communication", {"author": "/root", "recipient": "/root/a", "content": "B"})],
        [("user", "A"), ("user*", "B")],
        {},
    ),
    "rolled back": (
        [
            user_line("A"),
            said("B"),
            user_line("C"),
            said("D"),
            ("event_msg", {"type": "thread_rolled_back", "num_turns": 1}),
        ],
        [("user", "A"), ("assistant", "B")],
        {"response_item/message/rolled-back": 2, "event_msg/thread_rolled_back": 1},
    ),
    "rolled back beyond its beginning": (
        [user_line("A"), said("B"), ("event_msg", {"type": "thread_rolled_back", "num_turns": 9}), user_line("C")],
        [("user", "C")],
        {"response_item/message/rolled-back": 2, "event_msg/thread_rolled_back": 1},
    ),
    "a fork, which begins with its parent": (
        [META, user_line("A"), said("B"), user_line("C")],
        [("user", "A"), ("assistant", "B"), ("user", "C")],
        {"session_meta": 2},
    ),
    "an ordinal that was given twice": (
        [written(*user_line("A"), ordinal=3), written(*user_line("A"), ordinal=3), written(*user_line("B"), ordinal=3)],
        [("user", "A"), ("user", "B")],
        {"response_item/repeated": 1},
    ),
    "a text that a retry repeats": (
        [user_line("A"), said("B"), said("B")],
        [("user", "A"), ("assistant", "B"), ("assistant", "B")],
        {},
    ),
    "a message without parts": (
        [user_line("A"), message("assistant", "", content=[])],
        [("user", "A")],
        {"response_item/message/empty": 1},
    ),
}


@pytest.mark.parametrize(("lines", "turns", "skipped"), MOVED.values(), ids=MOVED)
def test_the_models_input_at_the_end(lines, turns, skipped):
    found = rollout(META, *lines)
    assert shown(found) == turns
    assert found.skipped == {"session_meta": 1, **skipped}


UNKNOWN = {
    "a line with a message": ("aside", {"type": "message", "content": [{"type": "input_text", "text": "B"}]}),
    "an item without a type": ("response_item", {"role": "user", "content": "B"}),
    "another agent's encrypted message": ("inter_agent_communication", {"content": "", "encrypted_content": "B"}),
}


@pytest.mark.parametrize("other", UNKNOWN.values(), ids=UNKNOWN)
def test_a_line_of_an_unknown_type_with_content_is_a_fix(other):
    found = rollout(META, user_line("A"), other, said("C"))
    assert shown(found) == [("user", "A"), ("assistant", "C")]
    assert named(found.fixes) == [("line_skipped", "lines.2")]


def test_a_line_of_an_unknown_type_without_content_is_only_counted():
    found = rollout(META, user_line("A"), ("aside", {"type": "mark", "number": 5}), ("world_state", {"content": "B"}))
    assert (shown(found), found.fixes) == ([("user", "A")], ())
    assert found.skipped == {"session_meta": 1, "aside/mark": 1, "world_state": 1}


def test_an_item_whose_members_have_other_types_is_unreadable():
    found = rollout(META, user_line("A"), ("response_item", {"type": 5, "content": "B"}), ("compacted", [1]))
    assert shown(found) == [("user", "A")]
    assert named(found.fixes) == [("line_unreadable", "lines.2"), ("line_unreadable", "lines.3")]


def test_a_damaged_item_is_repaired_in_its_place():
    broken = ("response_item", {"type": "function_call", "name": "shell", "arguments": '{"a":', "call_id": "c"})
    odd = (
        "response_item",
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "A"}], "x": 1},
    )
    found = rollout(META, odd, broken)
    assert named(found.fixes) == [("field_dropped", "lines.1.payload.x")]
    assert found.conversation.turns[1].blocks[0].incomplete


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_it_can_be_sent_to_every_target(target):
    lines = "\n".join(written(*line) for line in (META, CONTEXT, user_line("Go."), said("I look."), CALL, OUTPUT))
    done = normalize(lines, to=target)
    assert done.body is not None
    # Mistral's ids have nine characters.
    assert {fix.code for fix in done.fixes} <= {"tools_stubbed"} | ({"id_rewritten"} if target == "mistral" else set())
    assert all(word in done.body for word in (b"I look.", b"shell", b"out"))


def test_other_input_is_rejected():
    with pytest.raises(InputError, match="expected the lines of a rollout"):
        read("no rollout\nat all", "codex-rollout")
