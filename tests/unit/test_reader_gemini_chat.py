"""A Gemini CLI's chat is read as its lines leave it: replaced, set, rewound; every other line is counted."""

import json

import pytest
from reader_results import named, shown

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.model import Issuer

HEAD = {"sessionId": "s", "projectHash": "p", "startTime": "t", "lastUpdated": "t", "kind": "main"}
TOUCHED = {"$set": {"lastUpdated": "t2"}}


def user(message_id, *parts):
    return {"id": message_id, "timestamp": "t", "type": "user", "content": [*parts]}


def said(message_id, text):
    return user(message_id, {"text": text})


def answer(message_id, text="", *calls, thoughts=(), **more):
    line = {"id": message_id, "timestamp": "t", "type": "gemini", "content": text, "model": "gemini-2.5-flash"}
    return line | {"thoughts": list(thoughts)} | ({"toolCalls": list(calls)} if calls else {}) | more


def response(call_id, name="f", output="ok", key="output"):
    return {"functionResponse": {"id": call_id, "name": name, "response": {key: output}}}


def call(call_id, name="f", **more):
    return {"id": call_id, "name": name, "args": {"of": call_id}, "status": "success", **more}


def chat(*lines, source="auto"):
    found = read("\n".join(json.dumps(line) for line in (HEAD, *lines)), source)
    assert found.shape == "gemini-chat"
    return found


def test_an_answer_with_thoughts_calls_and_results():
    found = chat(
        said("u1", "q"),
        answer("a1", "I look.", call("f__1"), thoughts=[{"subject": "Plan", "description": "Look first."}]),
        user("u2", response("f__1")),
        answer("a2", "Done."),
    )
    assert shown(found) == [
        ("user", "q"),
        ("assistant", "thought **Plan** Look first.", "I look.", "call f__1"),
        ("user", "result f__1: ok"),
        ("assistant", "Done."),
    ]
    turn = found.conversation.turns[1]
    assert turn.id == "a1"
    assert turn.paths == ("lines.2.thoughts.0", "lines.2.content", "lines.2.toolCalls.0")
    assert turn.blocks[0].issuer == Issuer(provider="gemini", model="gemini-2.5-flash")
    assert json.loads(bytes(turn.blocks[2].input)) == {"of": "f__1"}
    assert (found.conversation.model, found.fixes) == ("gemini-2.5-flash", ())
    assert found.skipped == {"session": 1}


LEFT = {
    "a repeated id replaces in place": (
        [said("u", "q"), answer("a", "no"), TOUCHED, answer("b", "end"), answer("a", "yes")],
        [("user", "q"), ("assistant", "yes"), ("assistant", "end")],
        {"session": 1, "$set": 1, "gemini/replaced": 1},
    ),
    "set messages replaces all": (
        [said("u", "q"), answer("a", "no"), {"$set": {"messages": [said("v", "again")]}}],
        [("user", "again")],
        {"session": 1, "$set": 1, "user/replaced": 1, "gemini/replaced": 1},
    ),
    "a rewind takes the message and what follows": (
        [said("u", "q"), answer("a", "no"), {"$rewindTo": "a"}, answer("b", "yes")],
        [("user", "q"), ("assistant", "yes")],
        {"session": 1, "$rewindTo": 1, "gemini/rewound": 1},
    ),
    "a rewind to nobody takes everything": (
        [said("u", "q"), answer("a", "no"), {"$rewindTo": "nobody"}, said("v", "anew")],
        [("user", "anew")],
        {"session": 1, "$rewindTo": 1, "user/rewound": 1, "gemini/rewound": 1},
    ),
    "a result that only its call has": (
        [said("u", "q"), answer("a", "x", call("f__1", result=[response("f__1", output="beside")]))],
        [("user", "q"), ("assistant", "x", "call f__1"), ("user", "result f__1: beside")],
        {"session": 1},
    ),
    "a result that stands twice, the user's without the prefix": (
        [answer("a", "x", call("f__1", result=[response("f__1", output="beside")])), user("u", response("1"))],
        [("assistant", "x", "call f__1"), ("user", "result f__1: ok")],
        {"session": 1},
    ),
    "an error": (
        [answer("a", "x", call("1")), user("u", response("1", output="gone", key="error"))],
        [("assistant", "x", "call 1"), ("user", "result 1: gone")],
        {"session": 1},
    ),
    "what is no part of the conversation is counted": (
        [said("u", "q"), {"id": "i", "type": "info", "content": "note"}, {"odd": 1}, answer("a")],
        [("user", "q")],
        {"session": 1, "info": 1, "unknown": 1, "gemini": 1},
    ),
}


@pytest.mark.parametrize(("lines", "turns", "skipped"), LEFT.values(), ids=LEFT)
def test_the_result_of_replaced_set_and_rewound_lines(lines, turns, skipped):
    found = chat(*lines)
    assert (shown(found), found.skipped) == (turns, skipped)


LOST = {
    "a message of an unknown type": (said("x", "more") | {"type": "aside"}, "line_skipped"),
    "an unknown line with content": ({"content": "more"}, "line_skipped"),
    "a message of an unknown type without content": ({"id": "x", "type": "aside"}, None),
    "a notice": (said("x", "more") | {"type": "warning"}, None),
    "a rewind to no id": ({"$rewindTo": 5}, "line_unreadable"),
    "messages that are no list": ({"$set": {"messages": "more"}}, None),
}


@pytest.mark.parametrize(("other", "code"), LOST.values(), ids=LOST)
def test_lines_that_are_left_out(other, code):
    found = chat(said("u", "q"), other, answer("a", "yes"))
    assert shown(found) == [("user", "q"), ("assistant", "yes")]
    assert named(found.fixes) == ([] if code is None else [(code, "lines.2")])


def test_errors_and_notices_of_the_program_are_marked():
    found = chat(
        said("c", "<session_context>\nToday"), said("u", "q"), user("v", response("1", output="gone", key="error"))
    )
    assert [turn.synthetic for turn in found.conversation.turns] == [True, False, False]
    assert found.conversation.turns[2].blocks[0].is_error


def test_the_older_document_on_one_line_or_many_and_a_truncated_line():
    document = HEAD | {"messages": [{"id": "u", "type": "user", "content": "q"}, answer("a", "yes")]}
    turns = [("user", "q"), ("assistant", "yes")]
    for text in (json.dumps(document), json.dumps(document, indent=2), json.dumps(document, indent=2) + "\n"):
        found = read(text)
        assert (found.shape, shown(found), found.skipped) == ("gemini-chat", turns, {"session": 1})
    cut = "\n".join([json.dumps(HEAD), json.dumps(said("u", "q")), json.dumps(answer("a", "yes"))[:-9]])
    assert shown(read(cut)) == [("user", "q"), ("assistant", "yes")]
    assert (read(cut).skipped, named(read(cut).fixes)) == ({"session": 1}, [("line_cut", "lines.2")])
    assert named(read(cut[:-70]).fixes) == [("line_unreadable", "lines.2")]


def test_other_input_is_rejected():
    with pytest.raises(InputError, match="expected the lines of a chat"):
        read("no chat\nat all", "gemini-chat")
