"""Fixes name the tool call that they are about by the id it had in the input, whatever the shape and the target."""

import pytest

from pipeline import Session, normalize

USER = {"role": "user", "content": [{"type": "text", "text": "Read the README."}]}
DATED = {"type": "ephemeral"}


def call(id_, name="read", **more):
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": name, "input": {}, **more}]}


def result(id_, content="It says hello.", **more):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": content, **more}]}


def marked(role, times=1):
    return {"role": role, "content": [{"type": "text", "text": "Well.", "cache_control": DATED}] * times}


def named(given, to="anthropic", **options):
    return [(fix.code, fix.path, fix.id) for fix in normalize(given, to=to, **options).fixes]


IMAGE = {"type": "image", "source": 7}
TOOL_ROWS = [
    USER,
    {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "read", "arguments": "", "mood": 1}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "hello", "mood": 1},
    {"role": "user", "content": "Thanks.", "mood": 1},
]
CONTENTS = [
    {"role": "user", "parts": [{"text": "Read."}]},
    {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]},
    {"role": "user", "parts": [{"text": "No."}]},
]
NAMED = {
    "both sides of a rewritten id": (
        [USER, call("call:1", name="a b"), result("call:1")],
        ("id_rewritten", "messages.1.content.0", "call:1"),
        ("id_rewritten", "messages.2.content.0", "call:1"),
        ("tool_name_rewritten", "messages.1.content.0", "call:1"),
    ),
    "what stands in a result": (
        [USER, call("a"), result("a", [IMAGE, {"type": "text", "text": " "}])],
        ("blank_in_result", "messages.2.content.0", "a"),
        ("image_stubbed", "messages.2.content.0.content.0", "a"),
    ),
    "what was added, of the call that it answers": (
        [USER, call("call:1"), USER],
        ("id_rewritten", "messages.1.content.0", "call:1"),
        ("result_synthesised", "messages.2.content.0", "call:1"),
    ),
    "a breakpoint too many beside a result of our own": (
        [USER, call("a"), *[said for _ in range(3) for said in (marked("user"), marked("assistant"))]],
        ("result_synthesised", "messages.2.content.0", "a"),
        ("tail_continued", "messages.8.content.0", ""),
        ("cache_control_dropped", "messages.2.content.0", ""),
        ("cache_control_dropped", "messages.3.content.0", ""),
    ),
    "several of them": (
        [USER, call("a"), marked("user", 6)],
        ("result_synthesised", "messages.2.content.0", "a"),
        ("cache_control_dropped", "messages.2.content.0", ""),
    ),
    "one in a result": (
        [USER, call("a"), call("b"), result("a", cache_control=DATED), *[marked("assistant"), marked("user")] * 2],
        ("result_synthesised", "messages.3.content.1", "b"),
        ("cache_control_dropped", "messages.3.content.0", "a"),
    ),
    "what was added, of no call": (
        [USER, {"role": "assistant", "content": "Done."}],
        ("tail_continued", "messages.2.content.0", ""),
    ),
    "arguments that are no object, of an item": (
        [
            {"type": "message", "role": "user", "content": "Read."},
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "[1]"},
            {"type": "function_call_output", "call_id": "c1", "output": "hello"},
        ],
        ("input_parsed", "input.1.arguments", "c1"),
        ("input_wrapped", "input.1", "c1"),
    ),
    "rows of a tool and fields of a call": (
        TOOL_ROWS,
        ("field_missing", "messages.1.tool_calls.0.function.arguments", "c1"),
        ("field_dropped", "messages.1.tool_calls.0.function.mood", "c1"),
        ("field_dropped", "messages.2.mood", "c1"),
        ("field_dropped", "messages.3.mood", ""),
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_fix_names_the_call_by_the_id_that_it_came_with(name):
    given, *fixes = NAMED[name]
    assert named(given) == fixes


def test_a_call_without_an_id_has_the_one_that_reading_gave_it():
    assert named({"contents": CONTENTS})[0] == ("result_synthesised", "messages.2.content.0", "call_read")


def test_a_result_that_became_text_still_names_its_call():
    given = [USER, result("gone", [{"type": "text", "text": "x\0"}, IMAGE])]
    assert named(given, "copilot-cli", policy={"orphan_result": "text"}) == [
        ("result_orphan_text", "messages.1.content.0", "gone"),
        ("turns_merged", "messages.1", ""),
        ("nul_replaced", "messages.1.content.0", "gone"),
        ("image_stubbed", "messages.1.content.0.content.1", "gone"),
    ]


def test_a_breakpoint_that_is_taken_off_a_result_names_its_call():
    turns = [turn for n in range(6) for turn in (call(f"c{n}"), result(f"c{n}", cache_control=DATED))]
    session = Session()
    for turn in [USER, *turns]:
        session.append(turn)
    expected = [("cache_control_dropped", f"messages.{2 * n + 2}.content.0", f"c{n}") for n in range(2)]
    assert [(fix.code, fix.path, fix.id) for fix in session.request().fixes] == expected
    restored = Session.load(session.head(), [])
    assert [(fix.code, fix.path, fix.id) for fix in restored.request().fixes] == expected
