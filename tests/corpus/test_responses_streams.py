"""Recorded Responses streams that lost what a later event says again, whole answers that never streamed, and the log.

The oracle is the final event, or the whole answer itself.
"""

import json
import random
from functools import cache

import pytest
import stream_runs
from recorded import needs_corpus, rows
from recorded_streams import errors, events, payloads, recordings, sse, thought
from stream_lab import fed
from stream_lab import sse as event_bytes
from stream_runs import only

from reknit.pipeline.history.call_ids import derived_id
from reknit.topics.items import AgentUnrecognized, ItemCompleted, TurnDelta, TurnStop, Usage
from reknit.topics.reducer import reduce

pytestmark = needs_corpus

each = pytest.mark.parametrize("provider", ["openai-responses", "responses-compat"])
TEXTS = {"output_text": "text", "refusal": "refusal", "text": "text"}
ENDS = {"response.completed", "response.incomplete"}
# Events that say a piece once more, or its item.
DELTAS = (".delta", "content_part.added", "reasoning_summary_part.added")
OWN_DELTAS = ("code_interpreter_call_code.delta", "mcp_call_arguments.delta")


# -- a response in the log and on the screen -----------------------------------------------------------------------


def part_in_log(part):
    if part["type"] not in TEXTS:
        return [part]
    words = part[TEXTS[part["type"]]]
    mark = {"refusal": True} if part["type"] == "refusal" else {}
    return [{"type": "text", "text": words} | mark] if words else []


def in_log(item, model):
    if item["type"] == "message":
        return [block for part in item["content"] for block in part_in_log(part)]
    if item["type"] == "reasoning":
        issuer = {"issuer": {"provider": "openai-responses"} | ({"model": model} if model else {})}
        sealed, words = item.get("encrypted_content"), thought(item)
        if sealed and not words:
            return [{"type": "redacted_thinking", "data": sealed} | issuer]
        return [{"type": "thinking", "thinking": words} | ({"signature": sealed} if sealed else {}) | issuer]
    if item["type"] in {"function_call", "custom_tool_call"}:
        name = item["name"]
        call = {"type": "tool_use", "id": item.get("call_id") or derived_id(name), "name": name}
        if item.get("status") == "incomplete":
            return [call | {"input": item["arguments"], "incomplete": True}]
        is_custom = item["type"] == "custom_tool_call"
        return [call | {"input": {"input": item["input"]} if is_custom else json.loads(item["arguments"] or "{}")}]
    return [item]


def on_screen(item):
    if item["type"] == "reasoning":
        return [("thinking", thought(item))] if thought(item) else []
    if item["type"] == "message":
        known = [(part, TEXTS.get(part["type"])) for part in item["content"]]
        return [(part["type"], part) if key is None else ("text", part[key]) for part, key in known]
    if item["type"] in {"function_call", "custom_tool_call"}:
        (block,) = in_log(item, None)
        return [("tool_use", (block["name"], block["input"]))]
    return [(item["type"], item)]


def entry_shown(entry, done):
    if entry.item_type in {"text", "thinking"}:
        return entry.item_type, entry.text
    if entry.item_type == "tool_use":
        raw = entry.text if entry.input is None else bytes(entry.input)
        return "tool_use", (entry.started.name, raw if entry.incomplete else json.loads(raw or "{}"))
    return entry.item_type, json.loads(bytes(done[entry.item_id].raw))


def shown(items):
    done = {item.item_id: item for item in items if isinstance(item, ItemCompleted)}
    return [entry_shown(entry, done) for entry in reduce(items).entries]


def usage(response):
    tokens = response.get("usage")
    if not tokens:
        return None
    cached = (tokens.get("input_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(
        input_tokens=(tokens.get("input_tokens") or 0) - cached,
        output_tokens=tokens.get("output_tokens") or 0,
        cache_read_input_tokens=cached,
    )


def reason(response):
    return (response.get("incomplete_details") or {}).get("reason") or str(response["status"])


def first_told(row):
    """Return the output of the responses in a stream, as each item was first reported whole.

    The final event has the same, except for content that the provider encrypts again for it: reasoning and compactions,
    and the fingerprint of a program. GitHub Copilot changes ids, too.
    """
    found = []
    items = {}
    for event in events(row):
        if event["type"] == "response.output_item.done" and "output_index" in event:
            items[event["output_index"]] = event["item"]
        if event["type"] in ENDS:
            final = enumerate(event["response"]["output"] or items.values())
            found += [items.get(at, item) for at, item in final]
            items = {}
    return found


def ends(row):
    return [event["response"] for event in events(row) if event["type"] in ENDS]


# -- log turns, stop reasons, usage ---------------------------------------------------------------------------------


@each
def test_log_turns_stop_reasons_and_usage_are_those_of_the_final_event(provider):
    rows = [row for row in recordings(provider) if ends(row)]
    assert rows
    for row in rows:
        found, finals = stream_runs.run("openai-responses", sse(row)), ends(row)
        expected = [block for item in first_told(row) for block in in_log(item, finals[0].get("model"))]
        assert found.blocks == expected, row["id"]
        stops = only(found.items, TurnStop)
        assert [stop.stop_reason for stop in stops] == [reason(final) for final in finals], row["id"]
        assert [stop.usage or None for stop in stops] == [usage(final) for final in finals], row["id"]
        assert [stop.incomplete for stop in stops] == [False] * len(finals), row["id"]
        begun = [event["response"]["id"] for event in events(row) if event["type"] == "response.created"]
        assert [turn.message_id for turn in found.turns] == begun[: len(found.turns)], row["id"]


# -- lost content is repeated --------------------------------------------------------------------------------------


def without(row, chance, *, done):
    """A stream that lost some of its pieces; with ``done`` its whole items, too, and its final output."""
    kept = []
    for raw in payloads(row):
        event = json.loads(raw) if raw.lstrip()[:1] == "{" else {"type": raw}
        kind = event["type"]
        if kind.endswith(DELTAS) and not kind.endswith(OWN_DELTAS) and chance.random() < 0.4:
            continue
        if done and kind == "response.output_item.done" and event["item"]["type"] in {"message", "reasoning"}:
            continue
        if done and kind in ENDS:
            event["response"]["output"] = []
            raw = json.dumps(event)  # noqa: PLW2901 - the same event without its output
        kept.append(raw)
    return kept


def texts_told(row):
    """Return the texts that a stream has whole in one event, or in pieces."""
    return [event["text"] for event in events(row) if event["type"] == "response.output_text.done"]


@each
@pytest.mark.parametrize("done", [False, True], ids=["with whole items", "with whole pieces"])
def test_pieces_that_are_lost_are_made_up_for(provider, *, done):
    for row in recordings(provider):
        told = first_told(row)
        texts = [words for item in told for kind, words in on_screen(item) if kind == "text"]
        if done and (texts_told(row) != texts or len(ends(row)) != 1 or reason(ends(row)[0]) != "completed"):
            continue
        items = fed("openai-responses", [event_bytes(raw) for raw in without(row, random.Random(1), done=done)])  # noqa: S311 - nothing is secret here
        if not ends(row):
            continue
        entries = reduce(items).entries
        if done:
            assert [entry.text for entry in entries if entry.item_type == "text"] == texts, row["id"]
            assert [entry.incomplete for entry in entries if entry.item_type == "text"] == [False] * len(texts)
        else:
            expected = [found for item in told for found in on_screen(item)]
            assert sorted(map(repr, shown(items))) == sorted(map(repr, expected)), row["id"]
        assert only(items, AgentUnrecognized) == []


@each
def test_a_response_that_fails_has_what_its_last_event_says(provider):
    """The same streams with a failure at their end: nothing is lost, and the failure is reported once."""
    for row in recordings(provider):
        if len(ends(row)) != 1 or not ends(row)[0]["output"]:
            continue
        if "in_progress" in {item.get("status") for item in ends(row)[0]["output"]}:
            continue  # a fixture's call, which would not be whole if its response had failed
        raws = [raw for raw in payloads(row) if raw[:1] == "{" and json.loads(raw)["type"] not in ENDS]
        failed = ends(row)[0] | {"error": {"code": "server_error", "message": "Oh."}, "status": "failed"}
        raws = [raw for raw in raws if '"response.output_item.done"' not in raw and "output_text.delta" not in raw]
        ending = [
            {"type": "error", "code": "server_error", "message": "Oh."},
            {"type": "response.failed", "response": failed},
        ]
        items = fed("openai-responses", [event_bytes(raw) for raw in [*raws, *map(json.dumps, ending)]])
        assert errors(items) == ["Oh."], row["id"]
        expected = [found for item in failed["output"] for found in on_screen(item)]
        assert sorted(map(repr, shown(items))) == sorted(map(repr, expected)), row["id"]
        assert [item.incomplete for item in items if isinstance(item, TurnStop)] == [True], row["id"]


# -- whole answers --------------------------------------------------------------------------------------------------


@cache
def answers(provider):
    found = [(row["id"], row["response"]) for row in rows(provider) if not row.get("stream")]
    return tuple((name, answer) for name, answer in found if isinstance(answer, dict) and "output" in answer)


@each
def test_a_whole_answer_is_promoted(provider):
    found = answers(provider)
    assert found
    for name, answer in found:
        items, turns = stream_runs.run("openai-responses", json.dumps(answer).encode())
        assert shown(items) == [one for item in answer["output"] for one in on_screen(item)], name
        content = [block for turn in turns for block in json.loads(turn.message)["content"]]
        expected = [block for item in answer["output"] for block in in_log(item, answer.get("model"))]
        assert content == expected, name
        assert {entry.origin for entry in reduce(items).entries} <= {"promoted", "stream"}
        status = answer.get("status")
        stops = only(items, TurnStop)
        if status in {"queued", "in_progress"}:
            continue
        assert [(stop.incomplete, stop.stop_reason) for stop in stops] == [(False, reason(answer) if status else None)]
        told = [item.usage for item in only(items, TurnStop | TurnDelta) if item.usage]
        assert told == ([] if usage(answer) is None else [usage(answer)]), name


@each
def test_a_whole_answer_after_its_stream_adds_nothing(provider):
    for row in recordings(provider):
        if len(ends(row)) != 1:
            continue
        again = json.dumps(ends(row)[0]).encode()
        assert fed("openai-responses", [*sse(row), again]) == fed("openai-responses", sse(row)), row["id"]
