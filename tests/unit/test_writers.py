"""Writers of frameworks' shapes: nothing is lost without a fix, and a shape that is read again is the same.

The samples were written by the frameworks' own packages.
"""

import json
from itertools import groupby

import msgspec
import pytest
import session_files
from framework_cases import MARK, cases, marked_blocks
from msgspec import UNSET

from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import WRITERS, messages_of, write
from reknit.pipeline.history.writers.kept import kept
from reknit.pipeline.model import Text, Turn

PNG = session_files.png(2, 2)
# Arguments that are a list or a number are a text in most shapes, and reading them says so.
REPEATED = {"input_parsed"}
FILES = {"claude-code": session_files.claude_code, "codex-rollout": session_files.codex}
SAMPLES = [case for case in cases() if "expect" in case] + [
    {"shape": shape, "case": case, "text": session_files.encoded(*lines(**members)).decode()}
    for shape, lines in FILES.items()
    for case, members in (("plain", {}), ("reasoning", {"reasoning": True}), ("media", {"image": PNG}))
]
NAMED = [pytest.param(case, id=f"{case['shape']}-{case['case']}") for case in SAMPLES]


def system_of(conversation):
    """Return the system prompt of a document as a turn."""
    given = conversation.system
    if given is None:
        return []
    texts = [given] if isinstance(given, str) else [block["text"] for block in msgspec.json.decode(given)]
    paths = ("system",) if isinstance(given, str) else tuple(f"system.{at}" for at in range(len(texts)))
    return [Turn(role="system", blocks=tuple(Text(text=text) for text in texts), index=0, paths=paths)]


def said(turns):
    """Return what turns hold: neighbours of one role are one message, and a text is a list of one text."""
    return [
        (role, [shown(block) for turn in group for block in turn.blocks])
        for role, group in groupby((turn for turn in turns if turn.blocks), key=lambda turn: turn.role)
    ]


def shown(block):
    kept = {name: value for name, value in msgspec.json.decode(msgspec.json.encode(block)).items() if name != "own"}
    own = getattr(block, "own", UNSET)
    if own is not UNSET and own.kind:
        kept["own"] = msgspec.json.decode(msgspec.json.encode(own.members)) | {"kind": own.kind}
    if kept["type"] == "tool_result":
        content = kept.get("content", "")
        kept["content"] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        kept["content"] = [without(part, "structured") for part in kept["content"]]
        for part in kept["content"]:
            if part["type"] == "text" and part["text"][:1] in ("{", "["):
                part["text"] = value_of(part["text"])
    return without(kept, "structured")


def without(members, *names):
    return {name: value for name, value in members.items() if name not in names}


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def written(found, name):
    return write(found.conversation, WRITERS[name])


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("case", NAMED)
def test_what_a_shape_holds_is_read_again(case, name):
    found, writer = read(case["text"]), WRITERS[name]
    conversation = found.conversation
    expected, fixes = kept([*system_of(conversation), *conversation.turns], writer.holds, conversation.model)
    done = written(found, name)
    again = read(done.data, writer.source)
    assert said(again.conversation.turns) == said(expected)
    assert {fix.code for fix in again.fixes} <= REPEATED
    if messages_of(done.data, lines=done.lines):
        assert said(read(done.data).conversation.turns) == said(again.conversation.turns)
    ids = [turn.id for turn in expected if turn.id]
    given = iter([turn.id for turn in again.conversation.turns])
    assert all(each in given for each in ids)
    assert set(fixes) <= set(done.fixes)


def covers(path, place):
    return place == path or place.startswith(f"{path}.") or path.startswith(f"{place}.")


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("case", NAMED)
def test_each_mark_is_written_or_has_a_fix_at_its_place(case, name):
    found = read(case["text"])
    done = written(found, name)
    lost = [fix.path for fix in done.fixes]
    for mark, place in marked_blocks(found):
        assert mark.encode() in done.data or any(covers(path, place) for path in lost), (mark, place)
    for mark in MARK.findall(msgspec.json.encode(found.conversation.system).decode()):
        assert mark.encode() in done.data or any(path.startswith("system") for path in lost)


OWN = {writer.source: name for name, writer in WRITERS.items()} | {"openai-responses": "openai-agents"}
PAIRS = [
    pytest.param(case, OWN[shape], other, id=f"{case['shape']}-{case['case']}-{other}")
    for case in SAMPLES
    if (shape := read(case["text"]).shape) in OWN
    for other in WRITERS
]


@pytest.mark.parametrize(("case", "first", "other"), PAIRS)
def test_a_history_that_is_converted_and_converted_back_is_what_both_shapes_hold(case, first, other):
    conversation = read(case["text"]).conversation
    expected = [*system_of(conversation), *conversation.turns]
    for name in (first, other, first):
        writer = WRITERS[name]
        expected, _ = kept(expected, writer.holds, conversation.model)
        conversation = read(write(conversation, writer).data, writer.source).conversation
    assert said(conversation.turns) == said(expected)


@pytest.mark.parametrize(("case", "first", "other"), PAIRS)
def test_what_is_converted_twice_loses_nothing_more(case, first, other):
    del first
    writer = WRITERS[other]
    once = write(read(case["text"]).conversation, writer)
    twice = write(read(once.data, writer.source).conversation, writer)
    assert [fix for fix in twice.fixes if not fix.detail.startswith("id: ")] == []
    assert messages_of(twice.data, lines=twice.lines) == messages_of(once.data, lines=once.lines)


def test_every_writer_has_samples_of_its_own_shape():
    assert {param.values[1] for param in PAIRS} == set(WRITERS)
