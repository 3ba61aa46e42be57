"""Recorded transcripts, agent histories and request bodies are read whole, without an error and without a loss.

Every transcript of Claude Code becomes a request for each target, whole or turn by turn; none is refused.
"""

import json
from collections import Counter, defaultdict

import pytest
from recorded import CORPUS, needs_corpus, unpacked

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.history.readers.shapes import read, read_message
from reknit.pipeline.model import Image, Text, Thinking, ToolResult, ToolUse, Unknown

pytestmark = needs_corpus
TRANSCRIPTS = sorted(CORPUS.glob("claude-code-sessions/*.jsonl.gz"))
TRAJECTORIES = sorted(CORPUS.glob("trajectories/*.json.gz"))


def wanted_lines(rows):
    """The numbers of the lines that make the conversation, found in the plainest way there is.

    The path from the newest message up through its parents; with it every line of a message on it, and every line
    that holds a result of a call on it and hangs on one of its lines.
    """

    def is_message(row):
        return row["type"] in ("user", "assistant")

    def is_notice(row):
        return row["type"] == "assistant" and (
            row.get("isApiErrorMessage") or row["message"].get("model") == "<synthetic>"
        )

    main = [row for row in rows if not row.get("isSidechain")]
    chain = main if any(is_message(row) for row in main) else rows
    talk = [row for row in chain if is_message(row)]
    by_uuid = {row["uuid"]: row for row in chain if "uuid" in row}
    if all(row["parentUuid"] is None for row in talk):
        path = talk
    elif any(row["parentUuid"] is not None and row["parentUuid"] not in by_uuid for row in talk):
        # A part of a larger tree: each such line follows the one before it, and nothing branches.
        assert not [row for row in talk if row["parentUuid"] is None]
        path = talk
    else:
        path, row = [], talk[-1]
        while row is not None:
            path.append(row)
            row = by_uuid.get(row["parentUuid"])
    spoken = {row["message"].get("id") for row in path if row["type"] == "assistant" and not is_notice(row)}
    wanted = {row["number"] for row in path if is_message(row) and not is_notice(row)}
    wanted |= {row["number"] for row in talk if row["type"] == "assistant" and row["message"].get("id") in spoken}
    uuids = {row["uuid"] for row in talk if row["number"] in wanted}
    for row in talk:
        content = row["message"]["content"]
        if row["parentUuid"] in uuids and isinstance(content, list) and content[0]["type"] == "tool_result":
            wanted.add(row["number"])
    return wanted


def text_of_result(content):
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part["type"] == "text")


def said(block):
    """Return the content of a block of the model, for comparison with the file's block."""
    match block:
        case Text():
            return "text", block.text
        case Thinking():
            return "thinking", block.thinking
        case ToolUse():
            return "tool_use", block.id, json.loads(bytes(block.input))
        case ToolResult(content=list()):
            return "tool_result", block.tool_use_id, "\n".join(p.text for p in block.content if isinstance(p, Text))
        case ToolResult():
            return "tool_result", block.tool_use_id, block.content if isinstance(block.content, str) else ""
        case Image():
            return ("image",)
        case Unknown():
            return ("unknown", block.kind)


def written(block):
    match block["type"]:
        case "text" | "thinking" as kind:
            return kind, block[kind]
        case "tool_use":
            return "tool_use", block["id"], block["input"]
        case "tool_result":
            return "tool_result", block["tool_use_id"], text_of_result(block.get("content"))
        case kind:
            return (kind,)


def test_there_are_transcripts():
    assert len(TRANSCRIPTS) == 30


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.name[-60:])
def test_a_transcript_is_read_without_loss(path):
    data = unpacked(path)
    rows = []
    for number, raw in enumerate(data.split(b"\n")):
        if raw.strip():
            rows.append(json.loads(raw) | {"number": number})
    result = read(data)
    assert result.shape == "claude-code"
    expected = {}
    wanted = wanted_lines(rows)
    for row in rows:
        if row["number"] in wanted:
            place = f"lines.{row['number']}.message.content"
            content = row["message"]["content"]
            if isinstance(content, str):
                expected[place] = ("text", content)
            else:
                expected |= {f"{place}.{i}": written(block) for i, block in enumerate(content)}
    turns = result.conversation.turns
    found = [(place, said(block)) for turn in turns for place, block in zip(turn.paths, turn.blocks, strict=True)]
    assert Counter(place for place, _ in found) == Counter(expected.keys())
    assert dict(found) == expected
    used = {place.split(".")[1] for place, _ in found}
    assert len(used) + sum(result.skipped.values()) == len(rows)
    assert [turn.index for turn in turns] == list(range(len(turns)))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.name[-60:])
def test_the_results_of_a_turn_follow_it(path):
    turns = read(unpacked(path)).conversation.turns
    open_calls = set()
    asked_at = defaultdict(list)
    for position, turn in enumerate(turns):
        for block in turn.blocks:
            if isinstance(block, ToolUse):
                asked_at[block.id].append(position)
                open_calls.add(block.id)
            elif isinstance(block, ToolResult):
                assert block.tool_use_id in open_calls, f"turn {position} answers what nobody asked"
    assert all(len(places) == 1 for places in asked_at.values())


def histories(value):
    if isinstance(value, dict):
        return [value]
    if "role" in value[0]:
        return [value]
    return [entry[key] for entry in value for key in ("traj", "messages") if key in entry]


@pytest.mark.parametrize("path", TRAJECTORIES, ids=lambda path: path.name[-60:])
def test_an_agents_history_is_read(path):
    for history in histories(json.loads(unpacked(path))):
        messages = history["messages"] if isinstance(history, dict) else history
        result = read(history)
        assert len(result.conversation.turns) == len(messages)
        assert {fix.code for fix in result.fixes} <= {"field_dropped"}
        for message, turn in zip(messages, result.conversation.turns, strict=True):
            texts = [block.text for block in turn.blocks if isinstance(block, Text)]
            calls = [block.id for block in turn.blocks if isinstance(block, ToolUse)]
            results = [block.tool_use_id for block in turn.blocks if isinstance(block, ToolResult)]
            content = message["content"]
            assert calls == [call["id"] for call in message.get("tool_calls") or ()]
            assert len(results) == (message["role"] == "tool")
            if message["role"] != "tool" and content and isinstance(content, str):
                assert texts == [content]


@pytest.mark.parametrize(
    ("provider", "bodies", "fixes"),
    [
        ("anthropic", 777, {}),
        ("openai-chat", 662, {"content_wrapped": 1}),
        ("bedrock-converse", 464, {}),
        ("bedrock-invoke", 108, {}),
        ("anthropic-compat", 61, {}),
        ("openai-compat", 361, {"field_dropped": 19, "field_missing": 2}),
    ],
)
def test_what_a_provider_accepted_is_read(provider, bodies, fixes):
    """Dropped in chat's kin: prefix, images, opaque reasoning details."""
    seen = 0
    found = Counter()
    for raw in unpacked(CORPUS / f"{provider}.jsonl.gz").splitlines():
        row = json.loads(raw)
        body = row["request"]
        if row["status"] != 200 or not isinstance(body, dict) or "messages" not in body:
            continue
        seen += 1
        result = read(body)
        found.update(fix.code for fix in result.fixes)
        assert len(result.conversation.turns) == len(body["messages"])
        singly = [read_message(message, index=i)[0][0] for i, message in enumerate(body["messages"])]
        assert singly == list(result.conversation.turns)
    assert seen == bodies
    assert found == fixes


# -- requests for each target --


TARGETS = ("anthropic", "claude-cli")
each_transcript = pytest.mark.parametrize("path", TRANSCRIPTS, ids=range(len(TRANSCRIPTS)))


@pytest.mark.parametrize("target", TARGETS)
@each_transcript
def test_no_transcript_is_rejected(path, target):
    done = normalize(unpacked(path), to=target, source="claude-code")
    assert done.body is not None
    assert [v for v in validate(done.body, target=target) if v.severity == "hard"] == []


@each_transcript
def test_turn_by_turn_gives_the_same_bytes(path):
    found = read(unpacked(path), "claude-code")
    session = Session(TARGETS, model=found.conversation.model, params=found.conversation.params)
    settled = dict.fromkeys(TARGETS, b"")
    for turn in found.conversation.turns:
        session.append(turn)
        for target in TARGETS:
            done = session.request(target)
            assert done.body is not None
            assert done.body.startswith(settled[target])
            settled[target] = done.body[: done.prefix_bytes]
    whole = normalize(unpacked(path), to="anthropic", source="claude-code")
    assert session.request("anthropic").body == whole.body


@each_transcript
def test_a_request_is_mended_only_once(path):
    first = normalize(unpacked(path), to="anthropic", source="claude-code")
    again = normalize(first.body, to="anthropic")
    assert again.fixes == []
    assert json.loads(again.body) == json.loads(first.body)
