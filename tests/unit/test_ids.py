"""Ids of calls in a request: kept if possible, otherwise rewritten, and always unique."""

import json
import re

import pytest
from build import call, result, said, session_of, text, user
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.pipeline import Session, normalize
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.targets import Setting, nine, shortened, structure_of

MISTRAL = "mistralai/Mistral-7B-Instruct-v0.3"
# Ids that each target accepts. Anthropic's alphabet is the strictest, and 64 is the shortest maximum length.
TAKEN = {
    ("anthropic", None): r"[a-zA-Z0-9_-]{1,64}",
    ("openai-chat", None): r"[a-zA-Z0-9_-]{1,40}",
    ("vllm", MISTRAL): r"[a-zA-Z0-9]{9}",
}


def rounds(ids):
    """Return a round for each id: the call, and its result, which names it."""
    history = [{"role": "user", "content": "q"}]
    for at, call_id in enumerate(ids):
        history += [said(call(call_id, "f", n=at)), user(result(call_id, f"r{at}"))]
    return history


def ids_of(body):
    """Return the ids of a body's calls in order; assert that their results have the same ids."""
    asked, answered = [], []
    for row in json.loads(body)["messages"]:
        asked += [made["id"] for made in row.get("tool_calls") or ()]
        answered += [row["tool_call_id"]] if row["role"] == "tool" else []
        for block in row["content"] if isinstance(row["content"], list) else ():
            asked += [block["id"]] if block["type"] == "tool_use" else []
            answered += [block["tool_use_id"]] if block["type"] == "tool_result" else []
    assert asked == answered
    return asked


def made(ids, target="anthropic", model=None):
    return ids_of(normalize({"model": model, "messages": rounds(ids)}, to=target).body)


LONG = "x" * 41
legal = st.sampled_from(["a", "a_b", LONG, "abcdefgh1", shortened(LONG), nine("a")])
others = st.one_of(st.sampled_from(["a.b", "a:b", "", "ü", "x" * 116]), st.text(max_size=90))


@pytest.mark.parametrize(("target", "model"), TAKEN)
@settings(max_examples=60)
@given(ids=st.lists(st.one_of(legal, others), max_size=20), data=st.data())
def test_ids_are_unique_and_valid_also_after_a_reload(target, model, ids, data):
    found = made(ids, target, model)
    assert len(found) == len(ids)
    # Each call has its own turn, so ids may repeat if the models allow that.
    assert structure_of(TARGETS[target].writer, Setting(model=model)).ids_again or len(set(found)) == len(found)
    assert all(re.fullmatch(TAKEN[target, model], each) for each in found)
    session, segments = Session([target], model=model), []
    for message in rounds(ids):
        session.append(message)
        if data.draw(st.booleans()):
            segments += session.take_segments(flush=True)
            session = Session.load(session.head(), [record for _, record in segments])
    assert ids_of(session.request().body) == found


@pytest.mark.parametrize("ids", [
    ["toolu_1"], ["x" * 64], ["call_1", "call-1"], [LONG, "a"],
])  # fmt: skip
def test_legal_ids_stay_unchanged(ids):
    assert made(ids) == ids


@pytest.mark.parametrize(
    ("ids", "kept"),
    [(["toolu_1", "toolu_1"], [0, 1]), (["call.1", "call_1", "call:1", "call.1"], [1]), (["x" * 65], []), ([""], [])],
)
def test_illegal_ids_are_rewritten_without_collisions(ids, kept):
    found = made(ids)
    assert [at for at, each in enumerate(found) if each == ids[at]] == kept


def test_an_id_in_reknits_own_format_is_treated_like_any_other():
    ours = made(["call.1"])[0]
    assert made([ours]) == [ours]
    assert made([ours, "call.1"])[0] == ours
    assert made([LONG, shortened(LONG)], "openai-chat")[0] == shortened(LONG)
    assert made(["a-b"], "vllm", MISTRAL) == [nine("a-b")]


@pytest.mark.parametrize("ids", [[LONG, shortened(LONG)], [shortened(LONG), LONG], [LONG + "a", LONG + "b", LONG]])
def test_a_body_read_again_keeps_its_ids(ids):
    done = normalize({"messages": rounds(ids)}, to="openai-chat")
    again = normalize(done.body, to="openai-chat", source="openai-chat")
    assert (again.body, again.fixes) == (done.body, [])


# The places of blocks in the ledger, and the ids of a body's rows.

ROUND = [
    {"role": "user", "content": "q", "id": "m0"},
    said("so", call("a", "f"), call("b", "f"), id="m1"),
    user(result("a", "ra"), result("b", "rb"), "one", "two", id="m2"),
]


@pytest.mark.parametrize(
    ("target", "model", "root", "places", "ids"),
    [
        ("openai-chat", None, "messages",
         "1.content 2.content 2.tool_calls.0 2.tool_calls.1 3.content 4.content 5.content.0 5.content.1",
         [None, "m0", "m1", "m2", "m2", "m2"]),
        ("vllm", "meta-llama/Llama-3.1-8B-Instruct", "messages",
         "1.content 2.content 2.tool_calls.0 4.tool_calls.0 3.content 5.content 6.content.0 6.content.1",
         [None, "m0", "m1", "m2", "m1", "m2", "m2"]),
        ("vllm", "mistralai/Mistral-7B-Instruct-v0.3", "messages",
         "1.content 2.content 2.tool_calls.0 2.tool_calls.1 3.content 4.content 5.content 6.content.0 6.content.1",
         [None, "m0", "m1", "m2", "m2", "m2", "m2"]),
        ("openai-responses", None, "input",
         "0.content 1.content 2 3 4.output 5.output 6.content.0 6.content.1",
         ["m0", "m1", "m1", "m1", "m2", "m2", "m2"]),
        ("gemini", None, "contents",
         "0.parts.0 1.parts.0 1.parts.1 1.parts.2 2.parts.0 2.parts.1 2.parts.2 2.parts.3",
         ["m0", "m1", "m2"]),
        ("bedrock-converse", "us.mistral.pixtral-large-2502-v1:0", "messages",
         "0.content.0 1.content.0 1.content.1 1.content.2 2.content.0 2.content.1 3.content.0 4.content.0 4.content.1",
         ["m0", "m1", "m2", "m2", "m2"]),
    ],
)  # fmt: skip
def test_places_and_ids_of_a_round(target, model, root, places, ids):
    done = normalize({"messages": ROUND, "system": "Be brief.", "model": model}, to=target)
    assert [entry.output for entry in done.ledger] == [f"{root}.{place}" for place in places.split()]
    assert done.ids == ids


# Fixes name the tool call that they concern by its id in the input, for any shape and target.


USER = user("Read the README.")
DATED = {"type": "ephemeral"}


def said_call(call_id, name="read"):
    return said(call(call_id, name))


def answered(call_id, content="It says hello.", **more):
    return user(result(call_id, content, **more))


def marked(role, times=1):
    return {"role": role, "content": [text("Well.", cache_control=DATED)] * times}


def fixes_in(done):
    return [(fix.code, fix.path, fix.id) for fix in done.fixes]


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
        [USER, said_call("call:1", name="a b"), answered("call:1")],
        ("id_rewritten", "messages.1.content.0", "call:1"),
        ("id_rewritten", "messages.2.content.0", "call:1"),
        ("tool_name_rewritten", "messages.1.content.0", "call:1"),
    ),
    "what stands in a result": (
        [USER, said_call("a"), answered("a", [IMAGE, {"type": "text", "text": " "}])],
        ("blank_in_result", "messages.2.content.0", "a"),
        ("image_stubbed", "messages.2.content.0.content.0", "a"),
    ),
    "what was added, of the call that it answers": (
        [USER, said_call("call:1"), USER],
        ("id_rewritten", "messages.1.content.0", "call:1"),
        ("result_synthesised", "messages.2.content.0", "call:1"),
    ),
    "a breakpoint too many beside a result of our own": (
        [USER, said_call("a"), *[each for _ in range(3) for each in (marked("user"), marked("assistant"))]],
        ("result_synthesised", "messages.2.content.0", "a"),
        ("tail_continued", "messages.8.content.0", ""),
        ("cache_control_dropped", "messages.2.content.0", ""),
        ("cache_control_dropped", "messages.3.content.0", ""),
    ),
    "several of them": (
        [USER, said_call("a"), marked("user", 6)],
        ("result_synthesised", "messages.2.content.0", "a"),
        ("cache_control_dropped", "messages.2.content.0", ""),
    ),
    "one in a result": (
        [
            USER,
            said_call("a"),
            said_call("b"),
            answered("a", cache_control=DATED),
            *[marked("assistant"), marked("user")] * 2,
        ],
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
def test_a_fix_names_the_call_by_its_input_id(name):
    given, *fixes = NAMED[name]
    assert fixes_in(normalize(given)) == fixes


def test_a_call_without_an_id_has_the_one_from_the_reader():
    assert fixes_in(normalize({"contents": CONTENTS}))[0] == ("result_synthesised", "messages.2.content.0", "call_read")


def test_a_result_that_became_text_still_names_its_call():
    given = [USER, answered("gone", [{"type": "text", "text": "x\0"}, IMAGE])]
    assert fixes_in(normalize(given, to="copilot-cli", policy={"orphan_result": "text"})) == [
        ("result_orphan_text", "messages.1.content.0", "gone"),
        ("turns_merged", "messages.1", ""),
        ("nul_replaced", "messages.1.content.0", "gone"),
        ("image_stubbed", "messages.1.content.0.content.1", "gone"),
    ]


def test_the_fix_of_a_dropped_breakpoint_of_a_result_names_its_call():
    turns = [turn for n in range(6) for turn in (said_call(f"c{n}"), answered(f"c{n}", cache_control=DATED))]
    session = session_of(USER, *turns)
    expected = [("cache_control_dropped", f"messages.{2 * n + 2}.content.0", f"c{n}") for n in range(2)]
    assert fixes_in(session.request()) == fixes_in(Session.load(session.head(), []).request()) == expected
