"""A transcript may end in the middle of a line, at any byte: what came before the cut is read, and the cut is a fix.

The last lines have the members of those that the programs write, in their order: Claude Code 2.1.39 (an assistant's
line has its type after its message), Codex 0.169, Gemini CLI 0.61.0 and, as one document, 0.12.0.
"""

import json

import msgspec
import pytest
from build import call, text
from msgspec import Raw
from reader_results import SAY, hard, named, shown

from reknit.pipeline import Session, normalize
from reknit.pipeline.cli.turns import holds_transcript, usable_records
from reknit.pipeline.history.readers.cut import Needs, read_cut
from reknit.pipeline.history.readers.lines import as_items
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.model import ToolResult, ToolUse

TIME = "2026-01-01T00:00:00.000Z"


def user_line(uuid, parent, content):
    head = {"parentUuid": parent, "isSidechain": False, "userType": "external", "sessionId": "s"}
    return head | {"type": "user", "message": {"role": "user", "content": content}, "uuid": uuid, "timestamp": TIME}


def said(uuid, parent, *content):
    head = {"parentUuid": parent, "isSidechain": False, "userType": "external", "sessionId": "s"}
    message = {"model": "claude-sonnet-4-5", "id": f"msg_{uuid}", "type": "message", "role": "assistant"}
    message |= {"content": content, "stop_reason": None, "usage": {"input_tokens": 1}}
    return head | {"message": message, "requestId": "r", "type": "assistant", "uuid": uuid, "timestamp": TIME}


def result(content):
    return {"tool_use_id": "call_1", "type": "tool_result", "content": content, "is_error": False}


def rollout(kind, payload):
    return {"timestamp": TIME, "ordinal": 7, "type": kind, "payload": payload}


def item(role, words):
    kind = "output_text" if role == "assistant" else "input_text"
    return rollout("response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": words}]})


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
WORDS = 'héllo \\ "x" \U0001f600 end'
CLAUDE = [user_line("u1", None, "q"), said("a1", "u1", call("call_1", p="."))]
BEFORE = [("user", "q"), ("assistant", "call call_1")]
CODEX = [
    rollout("session_meta", {"id": "th"}),
    item("user", "q"),
    rollout("response_item", {"type": "function_call", "name": "ls", "arguments": "{}", "call_id": "call_1"}),
]
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": WORDS}
SESSION = {"sessionId": "s", "projectHash": "p", "startTime": TIME, "lastUpdated": TIME, "kind": "main"}
CALL = {"id": "call_1", "name": "ls", "args": {"p": "."}, "status": "success", "timestamp": TIME}
GEMINI = [
    SESSION,
    {"id": "m1", "timestamp": TIME, "type": "user", "content": [{"text": "q"}]},
    {"id": "m2", "timestamp": TIME, "type": "gemini", "content": "", "toolCalls": [CALL], "model": "gemini-2.5-flash"},
]
ANSWER = {"id": "m3", "timestamp": TIME, "type": "gemini", "content": WORDS, "thoughts": [{"description": "hm hm"}]}
RESPONSE = {"functionResponse": {"id": "call_1", "name": "ls", "response": {"output": WORDS}}}
SET = {"$set": {"messages": GEMINI[1:2]}}

LAST = {
    "claude: a prompt": (CLAUDE, user_line("u2", "a1", WORDS)),
    "claude: a result": (CLAUDE, user_line("u2", "a1", [result(WORDS)])),
    "claude: a result of parts": (CLAUDE, user_line("u2", "a1", [result([text(WORDS), IMAGE])])),
    "claude: an answer": (CLAUDE, said("a2", "a1", text(WORDS))),
    "claude: a thought": (CLAUDE, said("a2", "a1", {"type": "thinking", "thinking": WORDS, "signature": "c2ln"})),
    "claude: a call": (CLAUDE, said("a2", "a1", call("call_2", p=[1, {"input": WORDS}]))),
    "claude: progress": (CLAUDE, {"parentUuid": "a1", "type": "progress", "data": {"message": {"content": "x"}}}),
    "claude: a queued prompt": (
        CLAUDE,
        {"type": "queue-operation", "operation": "enqueue", "timestamp": TIME, "sessionId": "s", "content": WORDS},
    ),
    "claude: an unknown type": (CLAUDE, {"type": "aside", "message": {"role": "user", "content": WORDS}}),
    "codex: a prompt": (CODEX, item("user", WORDS)),
    "codex: an answer": (CODEX, item("assistant", WORDS)),
    "codex: a result": (CODEX, rollout("response_item", OUTPUT)),
    "codex: a call": (CODEX, rollout("response_item", CODEX[2]["payload"] | {"call_id": "call_2"})),
    "codex: a rollback": (CODEX, rollout("event_msg", {"type": "user_message", "message": WORDS})),
    "gemini: a prompt": (GEMINI, {"id": "m3", "timestamp": TIME, "type": "user", "content": [{"text": WORDS}]}),
    "gemini: a result": (GEMINI, {"id": "m3", "timestamp": TIME, "type": "user", "content": [RESPONSE]}),
    "gemini: an answer": (GEMINI, ANSWER),
    "gemini: a call": (GEMINI, ANSWER | {"toolCalls": [CALL | {"id": "call_2", "args": {"p": [WORDS]}}]}),
    "gemini: a notice": (GEMINI, {"id": "m3", "timestamp": TIME, "type": "info", "content": WORDS}),
}
OF_LINES = ("line_cut", "line_unreadable")


def lines_of(before, last, **how):
    head = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in before).encode()
    return head, json.dumps(last, ensure_ascii=False, **how).encode()


def about_lines(found):
    return [(fix.code, fix.path) for fix in found.fixes if fix.code in OF_LINES]


def parts_of(found):
    """Everything that the turns say, in parts; calls that are not whole are left out."""
    blocks = [(turn.role, block) for turn in found.conversation.turns for block in turn.blocks]
    return [
        f"{role} {said_by(block)}" for role, block in blocks if not (isinstance(block, ToolUse) and block.incomplete)
    ]


def said_by(block):
    if isinstance(block, ToolResult) and isinstance(block.content, list):
        return f"result {block.tool_use_id}: " + " ".join(said_by(part) for part in block.content)
    return SAY.get(type(block), lambda block: type(block).__name__)(block)


def counted(found):
    places = {path.split(".")[1] for turn in found.conversation.turns for path in turn.paths}
    return len(places) + sum(found.skipped.values())


@pytest.mark.parametrize(("before", "last"), LAST.values(), ids=LAST)
def test_every_cut_of_the_last_line_has_one_fix_and_keeps_what_came_before_it(before, last):
    head, raw = lines_of(before, last)
    whole = read(head + raw)
    assert about_lines(whole) == []
    longest = 0
    for size in range(1, len(raw)):
        found = read(head + raw[:size])
        assert [path for _, path in about_lines(found)] == [f"lines.{len(before)}"]
        assert counted(found) == len(before) + 1
        parts = parts_of(found)
        assert parts[:2] == ["user q", "assistant call call_1"]
        assert all(any(other.startswith(part) for other in parts_of(whole)) for part in parts)
        assert len("".join(parts)) >= longest
        longest = len("".join(parts))
        assert hard(normalize(head + raw[:size])) == []
    assert longest == len("".join(parts_of(whole)))


KEPT = {
    "in an answer": ("claude: an answer", b"x", ("assistant", 'héllo \\ "x'), True),
    "in an escape": ("claude: an answer", b"x\\", ("assistant", 'héllo \\ "x'), True),
    "in a character": ("claude: an answer", "\U0001f600".encode()[:2], ("assistant", 'héllo \\ "x" '), True),
    "after an answer": ("claude: an answer", b'end"', ("assistant", WORDS), False),
    "in a prompt": ("claude: a prompt", b"x", ("user", 'héllo \\ "x'), False),
    "in a result": ("claude: a result", b"x", ("user", 'result call_1: héllo \\ "x'), False),
    "in a part of a result": ("claude: a result of parts", b"x", ("user", 'result call_1: héllo \\ "x'), False),
    "in a thought": ("claude: a thought", b"x", ("assistant", 'thought héllo \\ "x'), False),
    "in a signature": ("claude: a thought", b"c2l", ("assistant", f"thought {WORDS}"), False),
    "in a queued prompt": ("claude: a queued prompt", b"x", ("user", 'héllo \\ "x'), False),
    "in an item": ("codex: an answer", b"x", ("assistant", 'héllo \\ "x'), True),
    "in an output": ("codex: a result", b"x", ("user", 'result call_1: héllo \\ "x'), False),
    "in an answer of Gemini": ("gemini: an answer", b"x", ("assistant", 'héllo \\ "x'), True),
    "in a thought of Gemini": ("gemini: an answer", b'"hm h', ("assistant", "thought hm h", WORDS), False),
    "in a response": ("gemini: a result", b"x", ("user", 'result call_1: héllo \\ "x'), False),
}


@pytest.mark.parametrize(("name", "at", "turn", "incomplete"), KEPT.values(), ids=KEPT)
def test_what_is_read_up_to_a_cut(name, at, turn, incomplete):
    head, raw = lines_of(*LAST[name])
    found = read(head + raw[: raw.rindex(at) + len(at)])
    assert [(each.role, *map(said_by, each.blocks)) for each in found.conversation.turns[2:]] == [turn]
    assert found.conversation.turns[-1].incomplete is incomplete
    assert [code for code, _ in about_lines(found)] == ["line_cut"]


CALLS = {
    "claude": ("claude: a call", '{"p": [1, {"input": "héllo'),
    "gemini": ("gemini: a call", '{"p": ["héllo'),
}


@pytest.mark.parametrize(("name", "so_far"), CALLS.values(), ids=CALLS)
def test_the_input_of_a_call_that_was_cut_is_neither_closed_nor_parsed(name, so_far):
    head, raw = lines_of(*LAST[name])
    at = raw.rindex("héllo".encode()) + len("héllo".encode())
    cut = read(head + raw[:at]).conversation.turns[-1].blocks[-1]
    assert (cut.id, cut.incomplete, json.loads(bytes(cut.input))) == ("call_2", True, so_far)
    done = normalize(head + raw[:at])
    assert "call_incomplete" in [fix.code for fix in done.fixes]
    assert b"call_2" not in done.body


UNUSED = {
    "half a call's id": ("codex: a call", b'"call_'),
    "half an image": ("claude: a result of parts", b'"aG'),
    "half a parent": ("claude: an answer", b'"parentUuid": "a'),
}


@pytest.mark.parametrize(("name", "at"), UNUSED.values(), ids=UNUSED)
def test_half_an_id_or_an_image_is_not_used(name, at):
    head, raw = lines_of(*LAST[name])
    found = read(head + raw[: raw.rindex(at) + len(at)])
    assert not any(word in repr(shown(found)) for word in ("'call_'", "image"))
    assert len(about_lines(found)) == 1


MOVES = {
    "a replacement that was cut replaces nothing": (
        CODEX,
        rollout("compacted", {"message": "S", "replacement_history": [CODEX[1]["payload"]]}),
    ),
    "a setting that was cut sets nothing": (GEMINI, SET),
    "a rewind that was cut takes nothing": (GEMINI, {"$rewindTo": "m1"}),
}


@pytest.mark.parametrize(("before", "last"), MOVES.values(), ids=MOVES)
def test_a_line_that_would_take_others_away_is_not_read_up_to_its_cut(before, last):
    head, raw = lines_of(before, last)
    for size in range(1, len(raw) - 1):
        found = read(head + raw[:size])
        assert shown(found) == BEFORE
        assert about_lines(found) == [("line_unreadable", "lines.3")]


def test_the_line_that_was_cut_is_the_newest_although_its_time_is_lost():
    given, last = lines_of(
        [*CLAUDE, user_line("u2", "u1", "another branch")], user_line("u3", "a1", "Go on from here.")
    )
    found = read(given + last[: last.index(b" from here")])
    assert shown(found) == [*BEFORE, ("user", "Go on")]


def test_a_message_that_was_cut_does_not_replace_a_longer_one():
    longer = ANSWER | {"toolCalls": [CALL | {"id": "call_2"}], "model": "m"}
    head, raw = lines_of([*GEMINI, ANSWER], longer)
    answers = [shown(read(head + raw[:size]))[2] for size in range(1, len(raw) + 1)]
    assert answers[0] == ("assistant", "thought hm hm", WORDS)
    assert answers[-1] == ("assistant", "thought hm hm", WORDS, "call call_2")
    assert {answer[:3] for answer in answers} == {answers[0]}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_of_the_older_gemini_cli_is_read_up_to_its_cut(indent):
    _, raw = lines_of([], SESSION | {"messages": [GEMINI[1], ANSWER]}, indent=indent)
    whole = parts_of(read(raw, "gemini-chat"))
    longest = 0
    for size in range(raw.index(b"projectHash"), len(raw)):
        found = read(raw[:size], "gemini-chat")
        assert [code for code, _ in about_lines(found)] == ["line_cut"]
        assert len("".join(parts_of(found))) >= longest
        longest = len("".join(parts_of(found)))
    assert longest == len("".join(whole))


# -- damage anywhere else --


def text_of(lines):
    return b"\n".join(json.dumps(line, ensure_ascii=False).encode() for line in lines)


LONG = {
    "claude": [
        *CLAUDE,
        user_line("u2", "a1", [result("out")]),
        said("a2", "u2", text("answer")),
        user_line("u3", "a2", "more"),
        said("a3", "u3", text("done")),
    ],
    "codex": [*CODEX, rollout("response_item", OUTPUT), item("assistant", "answer"), item("user", "more")],
    "gemini": [*GEMINI, {"id": "m3", "timestamp": TIME, "type": "user", "content": [RESPONSE]}, ANSWER | {"id": "m4"}],
}
CORRUPT = {
    "cut": lambda raw: raw[: len(raw) // 2],
    "nothing but its end": lambda raw: raw[len(raw) // 2 :],
    "overwritten": lambda raw: raw[: len(raw) // 3] + b"\x00" * 9 + raw[len(raw) // 3 + 9 :],
    "not UTF-8": lambda raw: raw[: len(raw) // 2] + b"\xff" + raw[len(raw) // 2 :],
    "a number": lambda raw: b"5",
    "text": lambda raw: b"Killed",
}


@pytest.mark.parametrize("damage", CORRUPT.values(), ids=CORRUPT)
@pytest.mark.parametrize("name", LONG)
def test_a_corrupt_line_anywhere_is_a_fix_and_takes_no_other_line_with_it(name, damage):
    lines = text_of(LONG[name]).split(b"\n")
    parts = parts_of(read(b"\n".join(lines)))
    # The first line of the other two names the program.
    for at in range(0 if name == "claude" else 1, len(lines) - 1):
        of_others = parts_of(read(b"\n".join(lines[:at] + lines[at + 1 :]), f"{SHAPES[name]}"))
        found = read(b"\n".join([*lines[:at], damage(lines[at]), *lines[at + 1 :]]))
        assert about_lines(found) == [("line_unreadable", f"lines.{at}")]
        assert parts_of(found) == of_others
        assert set(of_others) < set(parts) or name != "claude"
        assert found.skipped["unreadable"] == 1


SHAPES = {"claude": "claude-code", "codex": "codex-rollout", "gemini": "gemini-chat"}


def test_a_corrupt_line_keeps_its_place_in_the_tree():
    lines = [
        user_line("u1", None, "q"),
        said("a1", "u1", text("abandoned")),
        said("a2", "u1", text("lost")),
        user_line("u2", "a2", "more"),
    ]
    raw = text_of(lines).split(b"\n")
    found = read(b"\n".join([raw[0], raw[1], raw[2].replace(b'"lost"', b'"lo\tst"'), raw[3]]))
    assert shown(found) == [("user", "q"), ("user", "more")]
    assert found.skipped == {"unreadable": 1, "assistant/off-path": 1}
    assert about_lines(found) == [("line_unreadable", "lines.2")]


@pytest.mark.parametrize("name", LONG)
def test_half_a_line_before_a_whole_one_takes_nothing_with_it(name):
    lines = text_of(LONG[name]).split(b"\n")
    parts = parts_of(read(b"\n".join(lines)))
    joined = 0
    for at in range(1, len(lines)):
        for size in range(1, len(lines[-1])):
            half = lines[-1][:size]
            found = read(b"\n".join([*lines[:at], half + lines[at], *lines[at + 1 :]]))
            assert ("line_unreadable", f"lines.{at}") in about_lines(found) or at == len(lines) - 1
            joined += parts_of(found) == parts
    # After a colon, an object is the value: the line is one that was cut, or corrupt.
    assert joined > 0.85 * (len(lines) - 1) * len(lines[-1])


ASIDE = {
    "claude": {"type": "aside", "uuid": "x", "message": {"role": "user", "content": "z"}, "sessionId": "s"},
    "codex": rollout("aside", {"type": "message", "content": [{"type": "input_text", "text": "z"}]}),
    "gemini": {"id": "x", "timestamp": TIME, "type": "aside", "content": "z"},
}


@pytest.mark.parametrize("name", LONG)
def test_a_line_of_an_unknown_type_anywhere_changes_nothing_else(name):
    lines = LONG[name]
    parts = parts_of(read(text_of(lines)))
    for at in range(1, len(lines) + 1):
        found = read(text_of([*lines[:at], ASIDE[name], *lines[at:]]))
        assert parts_of(found) == parts
        assert [(fix.code, fix.path) for fix in found.fixes] == [("line_skipped", f"lines.{at}")]


# -- the same lines in records --


def restored(text):
    """Return the result of a session whose history the records of a file restore."""
    session = Session(["anthropic"])
    for record in usable_records(text, 1, mirror=False):
        fields = msgspec.json.decode(record, type=dict[str, Raw])
        if b"history.restored" in bytes(fields["type"]):
            session.replace(bytes(fields["messages"]))
        elif b"session.opened" in bytes(fields["type"]):
            session.configure(model=msgspec.json.decode(fields["model"]))
    return session.request("anthropic")


DAMAGE = {
    "none": lambda lines: lines,
    "a cut": lambda lines: [*lines[:-1], lines[-1][: lines[-1].index(b"x\\")]],
    "a corrupt line": lambda lines: [*lines[:-1], lines[1][:-9], lines[-1]],
    "a first line that is corrupt": lambda lines: [lines[0][:-9], *lines],
    "blank lines": lambda lines: [lines[0], b"", b"  ", *lines[1:]],
    "a line that is not UTF-8": lambda lines: [lines[0], lines[1].replace(b'"q"', b'"q\xff"'), *lines[1:]],
    "half a surrogate pair": lambda lines: [*lines[:-1], lines[-1].replace(b"end", b"\\ud83d")],
    "half of one in a corrupt line": lambda lines: [lines[0], b'{"x":"\\ud83d', *lines[1:]],
    "an unknown type": lambda lines: [lines[0], b'{"type":"aside","content":"more"}', *lines[1:]],
}
FILES = {"claude": "claude: an answer", "codex": "codex: an answer", "gemini": "gemini: an answer"}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", FILES.values(), ids=FILES)
def test_the_lines_in_a_record_are_read_as_the_file_is(name, damage):
    before, last = LAST[name]
    text = b"\n".join(damage([json.dumps(line, ensure_ascii=False).encode() for line in (*before, last)]))
    whole, parts = normalize(text), restored(text)
    assert whole.body is not None
    assert parts.body == whole.body
    assert named(parts.fixes) == named(whole.fixes)
    assert read(msgspec.json.encode(as_items(text))).skipped == read(text).skipped


def test_the_lines_of_the_older_document_in_a_record():
    _, raw = lines_of([], SESSION | {"messages": [GEMINI[1], ANSWER]}, indent=2)
    assert restored(raw).body == normalize(raw).body


@pytest.mark.parametrize("document", [{"type": "history.restored", "messages": GEMINI}, {"messages": CLAUDE}, [*CODEX]])
def test_lines_that_are_messages_of_a_record_or_a_list_are_no_file(document):
    assert not holds_transcript(json.dumps(document).encode())
    assert usable_records(json.dumps(document).encode(), 1, mirror=True)


NEEDS = Needs(texts=frozenset({"text"}), types={}, members={"in": [frozenset({"text"})]}, opaque=frozenset({"input"}))
READINGS = {
    b'{"text":"a': b'{"text":"a"}',
    b'{"text":"a\\': b'{"text":"a"}',
    b'{"text":"a\\u00e': b'{"text":"a"}',
    b'{"text":"a\\\\': b'{"text":"a\\\\"}',
    b'{"text":"a\xc3': b'{"text":"a"}',
    b'{"text":"a\0\0': b'{"text":"a"}',
    b'{"text":"a","n': b'{"text":"a"}',
    b'{"text":"a","n":': b'{"text":"a"}',
    b'{"text":"a","n":12': b'{"text":"a"}',
    b'{"text":"a","n":tr': b'{"text":"a"}',
    b'{"text":"a","n":12,': b'{"text":"a","n":12}',
    b'{"text":"a","n":true ': b'{"text":"a","n":true}',
    b'{"text":"a","id":"b': b'{"text":"a"}',
    b'{"text":"a","in":{"x":1': b'{"text":"a"}',
    b'{"text":"a","in":{"text":"b': b'{"text":"a","in":{"text":"b"}}',
    b'{"text":"a","in":[{"text":"b"},{"te': b'{"text":"a","in":[{"text":"b"}]}',
    b'{"text":"a","input":{"b": [1, ': b'{"text":"a","input":"{\\"b\\": [1, "}',
    b'{"text":"a","input":{"b":1}': b'{"text":"a","input":{"b":1}}',
    b'{"text":"a"}': None,
    b'{"text":"a"': b'{"text":"a"}',
    b'{"text":"': None,
    b'{"text"': None,
    b"{": None,
    b"": None,
    b"5": None,
    b"not": None,
    b'{"text":"a" "b': None,
    b'{"text":"a\n': None,
    b'{"text":"a\\x': None,
    b'{"text":"a\xff"}': b'{"text":"a"}',
    b'{"text":tru,': None,
    b'{"text":"a"]': None,
    b'{"text":"a"}}': None,
}


@pytest.mark.parametrize(("raw", "data"), READINGS.items())
def test_the_longest_reading_of_a_cut_line(raw, data):
    cut = read_cut(raw, NEEDS)
    assert (cut and cut.data) == data
    assert cut is None or json.loads(cut.data)
