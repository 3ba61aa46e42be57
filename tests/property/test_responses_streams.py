"""Properties of Responses streams: generated answers that lose pieces, arrive out of order, fail and follow each
other.

The expected result is the answer itself: it is complete as long as one event still contains it.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import count
from typing import Any, NamedTuple

import stream_runs
from hypothesis import given, settings
from hypothesis import strategies as st
from responses_events import event, numbered, response

from reknit.topics.items import AgentError, ItemCompleted, ItemDelta, ItemStarted, TurnStop
from reknit.topics.reducer import reduce

Event = dict[str, Any]

WORDS = st.text(st.sampled_from('ab \né\U0001f600"\\'), min_size=1, max_size=6)


def message(words, *, refused, cited):
    cites = [{"type": "url_citation", "url": "https://example.com", "title": words}] if cited else []
    part = {"type": "output_text", "text": words, "annotations": cites}
    if refused:
        part = {"type": "refusal", "refusal": words}
    return {"type": "message", "status": "completed", "role": "assistant", "content": [part]}


def reasoning(parts, *, sealed):
    summary = [{"type": "summary_text", "text": part} for part in parts]
    return {"type": "reasoning", "summary": summary} | ({"encrypted_content": "sealed"} if sealed else {})


def function_call(words):
    return {"type": "function_call", "status": "completed", "name": "f", "arguments": json.dumps({"a": words})}


def custom_call(words):
    return {"type": "custom_tool_call", "status": "completed", "name": "c", "input": words}


def own(words):
    return {"type": "web_search_call", "status": "completed", "action": {"query": words, "url": "https://example.com"}}


ITEMS = st.one_of(
    st.builds(
        lambda words, refused, cited: message(words, refused=refused, cited=cited), WORDS, st.booleans(), st.booleans()
    ),
    st.builds(lambda parts, sealed: reasoning(parts, sealed=sealed), st.lists(WORDS, max_size=3), st.booleans()),
    st.builds(function_call, WORDS),
    st.builds(custom_call, WORDS),
    st.builds(own, WORDS),
)


class Answer(NamedTuple):
    """A response: its id, its output, and how its events are shuffled and numbered."""

    name: str
    output: list[Event]
    order: list[int]
    numbered: bool


def pieces(item, at):
    def about(kind, **members):
        return event(kind, at, item_id=item["id"], **members)

    def split(kind, words, **members):
        half = len(words) // 2
        return [about(f"{kind}.delta", delta=part, **members) for part in (words[:half], words[half:])]

    empty = item | {"status": "in_progress", "content": [], "summary": [], "input": "", "arguments": ""}
    found = [about("output_item.added", item=empty)]
    if item["type"] == "message":
        (part,) = item["content"]
        kind, key = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
        found += [
            about("content_part.added", content_index=0, part=part | {key: ""}),
            *split(kind, part[key], content_index=0),
            about(f"{kind}.done", content_index=0) | {key: part[key]},
            about("content_part.done", content_index=0, part=part),
        ]
    for number, part in enumerate(item.get("summary", [])):
        found += split("reasoning_summary_text", part["text"], summary_index=number)
        found.append(about("reasoning_summary_text.done", summary_index=number, text=part["text"]))
    for kind, key in (("function_call", "arguments"), ("custom_tool_call", "input")):
        if item["type"] == kind:
            found += [*split(f"{kind}_{key}", item[key]), about(f"{kind}_{key}.done", **{key: item[key]})]
    return [*found, about("output_item.done", item=item)]


def events(answer, last):
    """Return all events of a response, with the events of its items interleaved."""
    streams = [pieces(item, at) for at, item in enumerate(answer.output)]
    found = [response("created", id=answer.name, model="m")]
    turns = iter([*answer.order, *(at for at, stream in enumerate(streams) for _ in stream)])
    for turn in turns:
        stream = streams[turn % len(streams)] if streams else []
        if stream:
            found.append(stream.pop(0))
    found.append(last)
    return numbered(found) if answer.numbered else found


@st.composite
def answers(draw, name="r1"):
    numbers = count()
    output = draw(st.lists(ITEMS, min_size=1, max_size=4))
    named = [item | {"id": f"{name}-{next(numbers)}"} for item in output]
    called = [item | ({"call_id": f"call-{item['id']}"} if "name" in item else {}) for item in named]
    return Answer(name, called, draw(st.lists(st.integers(0, 3), max_size=12)), draw(st.booleans()))


def completed(answer):
    return response("completed", *answer.output, id=answer.name, model="m", status="completed")


def thought(item):
    return "\n\n".join(part["text"] for part in item["summary"])


def block(item):
    issuer = {"issuer": {"provider": "openai-responses", "model": "m"}}
    if item["type"] == "message":
        (part,) = item["content"]
        if "refusal" in part:
            return {"type": "text", "text": part["refusal"], "refusal": True}
        return {"type": "text", "text": part["text"]}
    if item["type"] == "reasoning":
        seal = item.get("encrypted_content")
        if seal and not item["summary"]:
            return {"type": "redacted_thinking", "data": seal} | issuer
        return {"type": "thinking", "thinking": thought(item)} | ({"signature": seal} if seal else {}) | issuer
    if item["type"] in {"function_call", "custom_tool_call"}:
        given = {"input": item["input"]} if "input" in item else json.loads(item["arguments"])
        return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": given}
    return item


def on_screen(output):
    """Return the displayed part of an output: a type and a text, an input, or the whole item."""
    blocks = map(block, output)
    shown = [found for found in blocks if found["type"] != "redacted_thinking" and found.get("thinking") != ""]
    return [json.dumps(found.get("text") or found.get("thinking") or found.get("input") or found) for found in shown]


def screen(items):
    done = {item.item_id: item for item in items if isinstance(item, ItemCompleted)}
    found = []
    for entry in reduce(items).entries:
        assert not entry.incomplete, entry
        if entry.item_type in {"text", "thinking"}:
            found.append(entry.text)
        elif entry.item_type == "tool_use":
            found.append(json.loads(entry.text if entry.input is None else bytes(entry.input)))
        else:
            found.append(json.loads(bytes(done[entry.item_id].raw)))
    return [json.dumps(one) for one in found]


def recovered(run, sizes):
    """Return the items of a run in batches of these sizes, with a restart after each, and the turns for the log."""
    found = stream_runs.run("openai-responses", run, sizes=sizes)
    return found.items, found.contents


SIZES = st.lists(st.integers(1, 5), max_size=20)


@settings(max_examples=200)
@given(answers(), st.randoms(use_true_random=False), st.sampled_from(["items", "output", "both"]), SIZES)
def test_content_that_one_event_still_contains_is_shown(answer, chance, teller, sizes):
    kept = []
    for each in events(answer, completed(answer)):
        is_piece = not each["type"].endswith(("created", "completed", "output_item.done"))
        if (is_piece and chance.random() < 0.5) or (teller == "output" and each["type"].endswith("output_item.done")):
            continue
        kept.append(each)
    if teller == "items":
        kept[-1] = kept[-1] | {"response": kept[-1]["response"] | {"output": []}}
    items, turns = recovered(kept, sizes)
    assert sorted(screen(items)) == sorted(on_screen(answer.output))
    expected = [found for item in answer.output if (found := block(item))]
    assert turns == [expected]
    (stop,) = stream_runs.only(items, TurnStop)
    assert (stop.stop_reason, stop.incomplete) == ("completed", False)
    assert screen(items) == screen(recovered(kept, [])[0])


@settings(max_examples=200)
@given(answers(), st.randoms(use_true_random=False), SIZES)
def test_complete_parts_make_up_for_lost_deltas(answer, chance, sizes):
    told = [item for item in answer.output if item["type"] != "web_search_call"]
    shown = answer._replace(output=told)
    ending = completed(shown._replace(output=[]))
    kept = [
        each
        for each in events(shown, ending)
        if not each["type"].endswith("output_item.done")
        and not (each["type"].endswith(".delta") and chance.random() < 0.5)
    ]
    assert sorted(screen(recovered(kept, sizes)[0])) == sorted(on_screen(told))


@settings(max_examples=150)
@given(answers(), st.data(), SIZES)
def test_a_failure_is_reported_once_and_retracts_nothing(answer, data, sizes):
    failed = response("failed", *answer.output, id=answer.name, model="m", error={"code": "e", "message": "Oh."})
    run = events(answer, failed)
    said = [each for each in run[:-1] if not each["type"].endswith("done")]
    cut = data.draw(st.integers(1, len(said)))
    errors = data.draw(st.sampled_from([[], [{"type": "error", "code": "e", "message": "Oh."}]]))
    items, turns = recovered([*said[:cut], *errors, failed], sizes)
    assert [item.message for item in items if isinstance(item, AgentError)] == ["Oh."]
    assert sorted(screen(items)) == sorted(on_screen(answer.output))
    assert turns == [[block(item) for item in answer.output]]
    assert [stop.incomplete for stop in items if isinstance(stop, TurnStop)] == [True]


@settings(max_examples=150)
@given(answers(), st.lists(st.booleans(), min_size=1, max_size=3), SIZES, st.data())
def test_consecutive_responses_are_all_shown(answer, streams, sizes, data):
    """Each response has the same words, streamed or whole. Where events are numbered, any range of them is repeated."""
    run = []
    for number, is_stream in enumerate(streams):
        one = answer._replace(name=f"r{number}", numbered=True)
        whole = completed(one)["response"] | {"object": "response"}
        run += events(one, completed(one)) if is_stream else [whole]
    if all(streams):
        last = data.draw(st.integers(0, len(run)))
        first = data.draw(st.integers(max(0, last - 3), last))
        run = [*run[:last], *run[first:]]
    items, turns = recovered(run, sizes)
    assert sorted(screen(items)) == sorted(on_screen(answer.output) * len(streams))
    contents = [[found | ({"id": None} if "id" in found else {}) for found in turn] for turn in turns]
    expected = [block(item) | ({"id": None} if "id" in block(item) else {}) for item in answer.output]
    assert contents == [expected] * len(streams)
    assert len({item.item_id for item in items if isinstance(item, ItemStarted)}) == len(reduce(items).entries)
    # Not only because the last event repeats it.
    shown = "".join(item.content for item in stream_runs.only(items, ItemDelta) if item.delta_type == "text_delta")
    said = "".join(block(item)["text"] for item in answer.output if item["type"] == "message")
    assert Counter(shown) == Counter(said * sum(streams))
