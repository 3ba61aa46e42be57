"""Generated chats in every way in which hosts stream the same answer: the displayed answer equals the original.

An answer is drawn first, then the way in which a host streams it: ids and names late, repeated, in pieces or missing,
roles in every chunk, whole calls without an index, refusals, audio transcripts, citations, a whole answer, an end
with an error.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec
import stream_runs
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_runs import only, without_deltas

from reknit.topics.items import AgentError, AgentUnrecognized, ItemRetracted, TurnStop
from reknit.topics.reducer import reduce

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=12)
NAMES = st.from_regex(r"[a-z]{2,4}_[a-z]{2,6}", fullmatch=True)
INPUTS = st.dictionaries(WORDS, st.integers() | WORDS | st.lists(WORDS, max_size=2), max_size=2).map(json.dumps)
NOTES = st.lists(st.builds(lambda words: {"url": f"https://{len(words)}.example", "title": words}, WORDS), max_size=2)
REASONS = st.sampled_from(["stop", "tool_calls", "length", "content_filter", "error", None])


class Answer(NamedTuple):
    """A model's answer in this order. ``end`` is its finish reason, None if only ``[DONE]`` ends it."""

    thought: str
    text: str
    refusal: str
    voice: str
    calls: list[tuple[str, str]]
    notes: list[dict[str, str]]
    end: str | None


ANSWERS = st.builds(
    Answer,
    st.just("") | WORDS,
    st.just("") | WORDS,
    st.just("") | WORDS,
    st.just("") | WORDS,
    st.lists(st.tuples(NAMES, INPUTS), max_size=3),
    NOTES,
    REASONS,
)


def cut(data, words):
    """Split the words into one to three non-empty pieces."""
    places = data.draw(st.lists(st.integers(1, max(1, len(words) - 1)), max_size=2, unique=True).map(sorted))
    ends = [place for place in places if place < len(words)]
    return [words[start:end] for start, end in zip([0, *ends], [*ends, len(words)], strict=True)]


def named(data, at, name, *, has_index, previous):
    """Return the deltas that identify a call before its input: late, repeated, or in pieces.

    Without an index, the name alone may also repeat that of the previous call, so then it does not come first if the
    previous call has the same name.
    """
    place = {"index": at} if has_index else {}
    first = place | {"id": f"t{at}"}
    ways = ["at once", "pieces", "again", "name last"]
    if has_index or name != previous:
        ways.append("id last")
    match data.draw(st.sampled_from(ways)):
        case "pieces":
            start, rest = name.split("_")
            more = [{"function": {"name": f"{start}_", "arguments": ""}}, {"function": {"name": rest}}]
            return [first | more[0], place | more[1]]
        case "again":
            return [first | {"function": {"name": name}}] * 2
        case "name last":
            return [first, place | {"function": {"name": name, "arguments": ""}}]
        case "id last":
            return [place | {"function": {"name": name}}, first]
        case _:
            return [first | {"function": {"name": name, "arguments": ""}}]


def deltas_of_calls(data, calls):
    """Return the deltas of all calls, one after the other or interleaved."""
    way = data.draw(st.sampled_from(["whole", "one list", "by index", "by id", "side by side"]))
    whole = [{"function": {"name": name, "arguments": given}} for name, given in calls]
    if way == "whole":
        return [{"tool_calls": [one]} for one in whole]
    if way == "one list":
        return [{"tool_calls": whole}] if whole else []
    grown = [
        [
            *named(data, at, name, has_index=way != "by id", previous=calls[at - 1][0] if at else ""),
            *({"index": at, "function": {"arguments": piece}} for piece in cut(data, given)),
        ]
        for at, (name, given) in enumerate(calls)
    ]
    if way == "by id":
        grown = [[{key: value for key, value in one.items() if key != "index"} for one in ones] for ones in grown]
    if way != "side by side":
        return [{"tool_calls": [one]} for ones in grown for one in ones]
    found, begun = [], 0
    while any(grown):
        # Calls begin in order and then grow in any order.
        at = data.draw(st.sampled_from([at for at, ones in enumerate(grown[: begun + 1]) if ones]))
        begun = max(begun, at + 1)
        found.append({"tool_calls": [grown[at].pop(0)]})
    return found


def chunk(choice, **members):
    body = {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0} | choice]}
    return json.dumps(body | members).encode()


def as_chunks(data, answer):
    deltas = []
    deltas += [{"reasoning": piece} for piece in cut(data, answer.thought) if piece]
    deltas += [{"content": piece} for piece in cut(data, answer.text) if piece]
    deltas += [{"refusal": piece} for piece in cut(data, answer.refusal) if piece]
    deltas += [{"audio": {"transcript": piece}} for piece in cut(data, answer.voice) if piece]
    deltas += deltas_of_calls(data, answer.calls)
    roles = data.draw(st.sampled_from(["first", "every", "some"]))
    chunks = []
    for at, delta in enumerate([{"content": ""}, *deltas]):
        is_told = roles == "every" or not at or (roles == "some" and data.draw(st.booleans()))
        chunks.append(({"delta": ({"role": "assistant"} if is_told else {}) | delta, "finish_reason": None}, {}))
    if answer.end is not None:
        chunks.append(({"delta": {}, "finish_reason": answer.end}, {}))
    if answer.notes:
        at = data.draw(st.integers(0, len(chunks) - 1))
        if data.draw(st.booleans()):
            chunks[at][1]["citations"] = answer.notes
        else:
            chunks[at][0]["delta"]["annotations"] = answer.notes
    return [*(chunk(choice, **members) for choice, members in chunks), b"data: [DONE]\n"]


def whole(answer):
    calls = [
        {"id": f"t{at}", "type": "function", "function": {"name": name, "arguments": given}}
        for at, (name, given) in enumerate(answer.calls)
    ]
    message = {"role": "assistant", "content": answer.text, "refusal": answer.refusal, "reasoning": answer.thought}
    message |= {"tool_calls": calls, "audio": {"transcript": answer.voice}, "annotations": answer.notes}
    body = {"id": "c1", "object": "chat.completion", "model": "m"}
    return [json.dumps(body | {"choices": [{"index": 0, "message": message, "finish_reason": answer.end}]}).encode()]


def run(records, sizes):
    """Return the items and the log's blocks for records in batches of these sizes, with the state saved in between."""
    found = stream_runs.run("openai-chat", records, sizes=sizes)
    return found.items, found.blocks


def check(answer, items, blocks):
    """Assert that the displayed and recorded answer equals the original, and is complete unless the server failed."""
    failed = answer.end == "error"
    texts = [text for text in (answer.text, answer.refusal, answer.voice) if text]
    entries = reduce(items).entries
    assert [entry.text for entry in entries if entry.item_type == "thinking"] == [answer.thought] * bool(answer.thought)
    assert [entry.text for entry in entries if entry.item_type == "text"] == texts
    calls = [entry for entry in entries if entry.item_type == "tool_use"]
    given = [entry.text if entry.input is None else bytes(entry.input).decode() for entry in calls]
    assert list(zip([entry.started.name for entry in calls], given, strict=True)) == answer.calls
    known = [entry for entry in entries if entry.item_type in {"thinking", "text", "tool_use"}]
    assert {entry.incomplete for entry in known} <= {failed}
    assert only(items, ItemRetracted | AgentUnrecognized) == []
    assert [item.code for item in items if isinstance(item, AgentError)] == ["error"] * failed
    said = json.dumps(json.loads(msgspec.json.encode(items)))
    assert all(json.dumps(word) in said for note in answer.notes for word in note.values())
    (stop,) = only(items, TurnStop)
    assert (stop.incomplete, stop.stop_reason) == (failed, None if failed else answer.end)
    assert [block["text"] for block in blocks if block["type"] == "text"] == texts
    assert [block["text"] for block in blocks if block.get("refusal")] == [answer.refusal] * bool(answer.refusal)
    recorded = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    assert recorded == [(name, text if failed else json.loads(text)) for name, text in answer.calls]


SIZES = st.lists(st.integers(1, 4), max_size=12)


@settings(max_examples=100, deadline=None)
@given(answer=ANSWERS, data=st.data(), sizes=SIZES)
def test_a_chat_is_the_same_however_it_is_streamed(answer, data, sizes):
    records = as_chunks(data, answer)
    items, blocks = run(records, sizes)
    check(answer, items, blocks)
    one_by_one, _ = run(records, [1] * len(records))
    assert without_deltas(items) == without_deltas(one_by_one)


@settings(max_examples=60, deadline=None)
@given(answer=ANSWERS)
def test_a_whole_chat_response_equals_a_streamed_one(answer):
    check(answer, *run(whole(answer), []))
