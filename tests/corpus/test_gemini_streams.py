"""Recorded streams of Gemini: items reduce to what was sent again and to a plain sum of the parts, damaged or not."""

import json
import re

import stream_runs
from recorded import needs_corpus
from recorded_streams import (
    check_named,
    cuts,
    errors,
    events,
    incomplete,
    next_request,
    parts_in,
    payloads,
    places,
    recordings,
    screen,
    shown,
    sse,
)
from stream_lab import fed
from stream_lab import sse as event_bytes
from stream_runs import only, picture

from reknit.topics.items import AgentUnrecognized, ItemRetracted, ItemStarted, TurnDelta, TurnStop
from reknit.topics.reducer import reduce

pytestmark = needs_corpus

# Turns that the client sent again in another form than the provider's: the end of the recording's id, and why.
SENT_OTHERWISE = {
    "google_gemini_2_5_flash.yaml#0": "Mirascope writes its output tool's call as text",
    "simonw/llm-gemini:tests/cassettes/test_gemini/test_tools.yaml#0": "only a call's answer is sent again",
    "simonw/llm-gemini:tests/cassettes/test_gemini/test_tools.yaml#1": "only a call's answer is sent again",
}
BESIDE = {"thought", "thoughtSignature"}


def put(root, path, value):
    """Write a value at a path such as ``$.operations[0].price``; text is added to text."""
    steps = [int(number) if number else name for name, number in re.findall(r"\.(\w+)|\[(\d+)\]", path)]
    at = root
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if isinstance(step, int) and step == len(at):
            at.append(None)
        held = at[step] if isinstance(step, int) else at.get(step)
        if following is None:
            at[step] = (held or "") + value if isinstance(value, str) else value
        elif held is None:
            at[step] = [] if isinstance(following, int) else {}
        at = at[step]


def plain(chunks):
    """Texts and calls, added up with no regard to anything else."""
    text = ""
    calls = []
    for part in parts_in(chunks):
        text += "" if part.get("thought") else part.get("text", "")
        call = part.get("functionCall")
        if call is None:
            continue
        if call.get("name"):
            calls.append((call["name"], call.get("args") or {}))
        for piece in call.get("partialArgs") or []:
            put(calls[-1][1], piece["jsonPath"], piece.get("stringValue", piece.get("numberValue")))
    return text, calls


def sent_again(row):
    return plain([{"candidates": [{"content": turn} for turn in row["followup_assistant"]]}])


def all_rows():
    return recordings("gemini")


# -- the undisturbed streams --------------------------------------------------------------------------------------


def test_a_stream_adds_up_to_what_its_parts_say():
    found = {row["id"] for row in all_rows() if shown("gemini", row)[:2] != plain(events(row))}
    assert all_rows()
    assert found == set()


def test_a_turn_is_what_the_client_sent_again():
    rows = [row for row in all_rows() if row.get("followup_assistant")]
    wrong = [row["id"] for row in rows if shown("gemini", row)[:2] != sent_again(row)]
    assert rows
    assert [row for row in wrong if not row.endswith(tuple(SENT_OTHERWISE))] == []


def test_every_part_has_its_place():
    """Thoughts, and code that the provider ran; a signature is before the part that it seals."""
    for row in all_rows():
        entries = reduce(fed("gemini", sse(row))).entries
        thoughts = [part["text"] for part in parts_in(events(row)) if part.get("thought")]
        assert "".join(entry.text for entry in entries if entry.item_type == "thinking") == "".join(thoughts), row["id"]
        own = [entry for entry in entries if entry.item_type not in {"text", "thinking", "tool_use"}]
        expected = [part for part in parts_in(events(row)) if not {"text", "functionCall"} & part.keys()]
        assert [json.loads(bytes(entry.started.raw)) for entry in own] == [
            {"type": next(iter(part.keys() - BESIDE))} | part for part in expected
        ], row["id"]


def test_the_turn_for_the_log_has_every_signature_in_front_of_its_part():
    for row in all_rows():
        content = stream_runs.run("gemini", *sse(row)).blocks
        signed = [block["signature"] for block in content if block["type"] == "thinking" and "signature" in block]
        sealed = [part for part in parts_in(events(row)) if "thoughtSignature" in part]
        seals = [part["thoughtSignature"] for part in sealed if {"text", "functionCall"} & part.keys()]
        assert signed == seals, row["id"]
        behind = [block for block, before in zip(content[1:], content, strict=False) if before.get("signature")]
        called = [block["name"] for block in behind if block["type"] == "tool_use"]
        assert called == [part["functionCall"]["name"] for part in sealed if "functionCall" in part], row["id"]
        issuers = {block["issuer"]["provider"] for block in content if block["type"] == "thinking"}
        assert issuers <= {"gemini"}


def test_the_next_request_to_gemini_has_every_signature_where_it_was():
    for row in all_rows():
        _, normalized = next_request("gemini", row, "gemini")
        assert [found.rule for found in normalized.violations if found.severity == "hard"] == [], row["id"]
        sealed = [part for part in parts_in(events(row)) if "thoughtSignature" in part]
        called = [part for part in sealed if "functionCall" in part]
        sent = [part for turn in json.loads(normalized.body)["contents"] for part in turn["parts"]]
        calls = [part for part in sent if "functionCall" in part and "thoughtSignature" in part]
        own = [part for part in calls if part["thoughtSignature"] != "skip_thought_signature_validator"]
        assert list(map(name_and_seal, own)) == list(map(name_and_seal, called)), row["id"]


def name_and_seal(part):
    return part["functionCall"]["name"], part["thoughtSignature"]


def test_nothing_is_withdrawn_incomplete_or_not_understood_where_nothing_went_wrong():
    for row in all_rows():
        items = fed("gemini", sse(row))
        assert only(items, ItemRetracted | AgentUnrecognized) == [], row["id"]
        assert incomplete(items) == [], row["id"]
        assert errors(items) == [], row["id"]
        check_named(items)


def test_tokens_are_reported_once_a_message():
    for row in all_rows():
        items = fed("gemini", sse(row))
        told = [item.usage for item in items if isinstance(item, TurnStop | TurnDelta) and item.usage]
        said = [chunk["usageMetadata"] for chunk in events(row) if "usageMetadata" in chunk]
        stops = only(items, TurnStop)
        assert len(told) == (len(stops) if said else 0), row["id"]
        if said:
            output = said[-1].get("candidatesTokenCount", 0) + said[-1].get("thoughtsTokenCount", 0)
            assert told[-1].output_tokens == output, row["id"]


# -- cut ----------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_cut_has_all_that_came_and_nothing_whole():
    for row in all_rows():
        raws = payloads(row)
        for count, view in cuts("gemini", row):
            came = [json.loads(raw) for raw in raws[:count]]
            text, calls = plain(came)
            found = screen(view)
            assert found.text == text, (row["id"], count)
            assert [name for name, _ in found.calls + found.cut_calls] == [name for name, _ in calls]
            reasons = [candidate.get("finishReason") for chunk in came for candidate in chunk.get("candidates") or []]
            if not any(reasons):
                assert all(entry.incomplete for entry in view.entries), (row["id"], count)
            assert all(entry.done for entry in view.entries)


def test_an_array_may_be_laid_out_and_cut_in_any_way():
    for row in all_rows():
        whole = picture(fed("gemini", sse(row)))
        elements = payloads(row)
        for text in (f"[{','.join(elements)}]", "[" + ",\r\n".join(elements) + "\n]\n", "\n".join(elements)):
            data = text.encode()
            assert picture(fed("gemini", [data])) == whole, row["id"]
            for size in (1021, 53):
                pieces = [data[first : first + size] for first in range(0, len(data), size)]
                assert picture(fed("gemini", pieces, framing="bytes")) == whole, row["id"]
        assert picture(fed("gemini", [element.encode() for element in elements])) == whole, row["id"]
        spread = json.dumps([json.loads(element) for element in elements], indent=2).encode()
        assert screen(reduce(fed("gemini", [spread]))) == screen(reduce(fed("gemini", sse(row)))), row["id"]


# -- tried again --------------------------------------------------------------------------------------------------


def test_another_attempt_takes_the_place_of_the_first():
    """An attempt is known by its ``responseId``; streams of old models, and fixtures, have none."""
    rows = [row for row in all_rows() if events(row)[0].get("responseId")]
    assert rows
    for row in rows:
        chunks = events(row)
        clean = shown("gemini", row)
        reasons = [at for at, raw in enumerate(payloads(row)) if '"finishReason"' in raw]
        for count in places(min(reasons, default=len(chunks))):
            first = [chunk | {"responseId": "first-" + chunk["responseId"]} for chunk in chunks[:count]]
            pieces = [event_bytes(json.dumps(chunk)) for chunk in first]
            items = fed("gemini", [*pieces, *sse(row)])
            assert screen(reduce(items)) == clean, (row["id"], count)
            withdrawn = {item.item_id for item in items if isinstance(item, ItemRetracted)}
            before = {item.item_id for item in fed("gemini", pieces) if isinstance(item, ItemStarted)}
            assert withdrawn == before, (row["id"], count)
            check_named(items)
