"""Whole chat answers, metadata of a chat's text, and answers that have no end."""

import json

import pytest
import stream_runs
from build import call, result, said, text, thinking, user
from stream_runs import errors, extras, only, stop_reasons

from reknit.pipeline import normalize
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentUnrecognized, ItemRetracted, ItemStarted, TurnStop, Usage
from reknit.topics.reducer import reduce

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def event(**members):
    return b"data: " + json.dumps({"id": "c1", "model": "m"} | members).encode() + b"\n\n"


def chunk(finish_reason=None, *, members=None, **delta):
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish_reason}], **(members or {}))


def answer(reason="stop", *, id="c1", **message):  # noqa: A002  the member's name
    message = {"role": "assistant", "content": None} | message
    choices = [{"index": 0, "message": message, "finish_reason": reason}]
    body = {"id": id, "object": "chat.completion", "model": "m", "choices": choices, "usage": USAGE}
    return json.dumps(body).encode()


def run(*records):
    found = stream_runs.run("openai-chat", *records)
    return found.items, found.blocks


def shown(items):
    return [(entry.item_type, entry.text, entry.incomplete) for entry in reduce(items).entries]


# -- whole answers --------------------------------------------------------------------------------------------------

CALL = {"id": "t0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
NOTE = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}
ISSUER = {"provider": "openai-chat", "model": "m"}


def test_a_whole_answer_is_promoted_with_all_its_content():
    details = [
        {"type": "reasoning.text", "text": "Hm.", "signature": "s"},
        {"type": "reasoning.encrypted", "data": "d"},
    ]
    items, blocks = run(
        answer(content="Two.", reasoning="Hm.", reasoning_details=details, tool_calls=[CALL], annotations=[NOTE])
    )
    started = only(items, ItemStarted)
    shown_at_once = [("thinking", "Hm."), ("redacted_thinking", ""), ("text", "Two."), ("tool_use", "")]
    assert [(item.item_type, item.text) for item in started] == shown_at_once
    assert {item.origin for item in started} == {"promoted"}
    assert blocks == [
        thinking("Hm.", signature="s", issuer=ISSUER),
        {"type": "redacted_thinking", "data": "d", "issuer": ISSUER},
        text("Two."),
        call("t0", "f", a=1),
    ]
    assert {"annotations": [NOTE]} in extras(items)
    assert items[-1] == TurnStop(model="m", stop_reason="stop", usage=Usage(input_tokens=7, output_tokens=3))


@pytest.mark.parametrize("reason", ["stop", None])
def test_a_whole_answer_has_its_own_reason(reason):
    items, _ = run(answer(reason, content="Hi"))
    assert [(item.stop_reason, item.incomplete) for item in only(items, TurnStop)] == [(reason, False)]
    assert shown(items) == [("text", "Hi", False)]


def test_a_whole_refusal_and_a_whole_transcript_are_text():
    items, blocks = run(answer(refusal="No."))
    assert (shown(items), extras(items)) == ([("text", "No.", False)], [{"refusal": True}])
    assert blocks == [{"type": "text", "text": "No.", "refusal": True}]
    items, _ = run(answer(audio={"id": "a1", "transcript": "Hi.", "data": "AAAA"}))
    assert shown(items) == [("text", "Hi.", False), ("audio", "", False)]
    assert extras(items) == [{"audio": [{"id": "a1", "data": "AAAA"}]}]


def test_a_cut_call_in_a_whole_answer_is_incomplete():
    cut = {"id": "t0", "type": "function", "function": {"name": "f", "arguments": '{"a'}}
    items, blocks = run(answer("length", content="So", tool_calls=[cut]))
    assert shown(items) == [("text", "So", False), ("tool_use", '{"a', True)]
    assert blocks[1] == {"type": "tool_use", "id": "t0", "name": "f", "input": '{"a', "incomplete": True}


def test_whole_answers_follow_each_other_and_replace_a_cut_stream():
    items, _ = run(answer(content="One"), answer(content="Two"), answer(content="Three", id="c2"))
    assert [text for _, text, _ in shown(items)] == ["One", "Two", "Three"]
    items, _ = run(chunk(role="assistant", content="On"), answer(content="One", id="c2"))
    assert shown(items) == [("text", "One", False)]
    assert len(only(items, ItemRetracted)) == 1


def test_a_whole_answer_completes_the_stream_of_its_own_id():
    items, blocks = run(chunk(role="assistant", content="On"), answer(content="One, two.", tool_calls=[CALL]))
    assert shown(items)[0] == ("text", "One, two.", False)
    assert only(items, ItemRetracted) == []
    assert [block["type"] for block in blocks] == ["text", "tool_use"]


def test_the_old_completions_are_read_whole_and_streamed():
    def completion(text, reason):
        return event(object="text_completion", choices=[{"text": text, "index": 0, "finish_reason": reason}])

    whole, _ = run(completion("Hello", "stop"))
    streamed, _ = run(completion("Hel", None), completion("lo", "length"), DONE)
    assert shown(whole) == shown(streamed) == [("text", "Hello", False)]
    assert [item.origin for item in only(whole, ItemStarted)] == ["promoted"]
    assert stop_reasons(streamed) == ["length"]


def test_a_cumulative_message_next_to_its_deltas_is_not_repeated():
    def piece(delta, message, reason=None):
        both = {"delta": {"role": "assistant", "content": delta}, "message": {"content": message}}
        return event(choices=[{"index": 0, "finish_reason": reason} | both])

    items, _ = run(piece("", ""), piece("Hel", "Hel"), piece("lo", "Hello"), piece("", "Hello", "stop"))
    assert shown(items) == [("text", "Hello", False)]
    only_the_end, _ = run(piece("", "Hello", "stop"))
    assert shown(only_the_end) == [("text", "Hello", False)]


def test_calls_of_a_whole_answer_with_the_same_id_are_all_kept():
    items, blocks = run(answer("tool_calls", tool_calls=[CALL, CALL]))
    assert [(entry.item_type, entry.item_id) for entry in reduce(items).entries] == [
        ("tool_use", "t0"),
        ("tool_use", "t0~2"),
    ]
    assert [block["type"] for block in blocks] == ["tool_use", "tool_use"]


def test_other_choices_of_a_whole_answer_are_shown_separately():
    choices = [{"index": at, "message": {"content": text}, "finish_reason": "stop"} for at, text in enumerate("AB")]
    items, blocks = run(event(choices=choices))
    assert shown(items) == [("text", "A", False), ("choice", "B", False)]
    assert blocks[0] == {"type": "text", "text": "A"}


# -- metadata of the text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["citations", "search_results", "annotations", "moderation"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_metadata_of_a_chunk_belongs_to_the_text(name, place):
    pieces = [("assistant", "", None), (None, "Hello", None), (None, "", "stop")]
    records = [
        chunk(reason, members={name: ["https://a.example"]} if at >= place else None, role=role, content=words)
        for at, (role, words, reason) in enumerate(pieces)
    ]
    items, _ = run(*records, DONE)
    assert extras(items) == [{name: ["https://a.example"]}]
    assert shown(items) == [("text", "Hello", False)]


def test_metadata_without_a_text_or_after_the_end_is_a_separate_block():
    late = event(choices=[], citations=["https://a.example"])
    items, _ = run(chunk(content="Hi"), chunk("stop"), late, late, DONE)
    assert shown(items) == [("text", "Hi", False), ("citations", "", False)]
    (started,) = [item for item in items if isinstance(item, ItemStarted) and item.item_type == "citations"]
    assert json.loads(bytes(started.raw)) == {"type": "citations", "citations": ["https://a.example"]}
    items, _ = run(chunk(members={"citations": ["https://a.example"]}, refusal=None), chunk("stop"), DONE)
    assert shown(items) == [("citations", "", False)]


def test_annotations_of_a_delta_are_appended_to_its_text():
    items, blocks = run(chunk(annotations=[NOTE]), chunk(content="Hi"), chunk(annotations=[NOTE]), chunk("stop"))
    assert extras(items) == [{"annotations": [NOTE, NOTE]}]
    assert blocks == [{"type": "text", "text": "Hi"}]


def test_the_transcript_of_audio_is_text():
    sound = [{"id": "a1", "transcript": "Hel"}, {"transcript": "lo"}, {"data": "AA"}, {"expires_at": 1}]
    items, _ = run(*(chunk(audio=piece) for piece in sound), chunk("stop"))
    assert shown(items) == [("text", "Hello", False), ("audio", "", False)]
    assert extras(items) == [{"audio": [{"id": "a1"}, {"data": "AA"}, {"expires_at": 1}]}]


def test_a_streamed_refusal_is_marked_text():
    items, blocks = run(chunk(content="I"), chunk(refusal="No"), chunk(refusal="pe."), chunk("stop"))
    assert shown(items) == [("text", "I", False), ("text", "Nope.", False)]
    assert extras(items) == [{"refusal": True}]
    assert blocks == [{"type": "text", "text": "I"}, {"type": "text", "text": "Nope.", "refusal": True}]


def test_content_parts_may_be_reasoning_or_refusals_and_have_extra_members():
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm.", "signature": "s"}]}
    parts = [reasoning, {"type": "text", "text": "Two.", "annotations": [NOTE]}, {"type": "refusal", "refusal": "No."}]
    items, blocks = run(chunk(content=parts), chunk("stop"))
    assert shown(items) == [("thinking", "Hm.", False), ("text", "Two.", False), ("text", "No.", False)]
    assert blocks[0]["signature"] == "s"
    assert extras(items) == [{"annotations": [NOTE]}, {"refusal": True}]


def request(blocks, target):
    return normalize([user("Forge it."), said(*blocks), user("Then write a letter.")], to=target)


def hard(sent):
    return [found.rule for found in sent.violations if found.severity == "hard"]


@pytest.mark.parametrize("records", [[chunk(refusal="No."), chunk("stop")], [answer(refusal="No.")]])
def test_a_refusal_is_sent_back_as_one(records):
    """From the stream through the log into the next request. Other providers get text, with a fix."""
    _, blocks = run(*records)
    back = request(blocks, "openai-chat")
    assert json.loads(back.body)["messages"][1] == {"role": "assistant", "content": None, "refusal": "No."}
    assert (back.fixes, hard(back)) == ([], [])
    again = normalize(json.loads(back.body), to="openai-chat")
    assert json.loads(again.body)["messages"] == json.loads(back.body)["messages"]
    assert again.fixes == []
    responses = request(blocks, "openai-responses")
    refused = json.loads(responses.body)["input"][1]
    assert (refused["content"], responses.fixes) == ([{"type": "refusal", "refusal": "No."}], [])
    assert hard(responses) == []
    for target in ("anthropic", "bedrock-converse", "gemini", "vllm"):
        sent = request(blocks, target)
        assert [(fix.code, fix.path) for fix in sent.fixes] == [("refusal_as_text", "messages.1.content.0")], target
        assert b'"refusal"' not in sent.body
        assert hard(sent) == []


def test_urls_are_not_sent_as_anthropic_citations():
    """Perplexity's citations are in the item and not in the log, because no request accepts them.

    Logs of earlier versions contain them.
    """
    cited = {"citations": ["https://a.example"]}
    items, blocks = run(chunk(content="Hi", members=cited), chunk("stop"))
    assert (extras(items), blocks) == ([cited], [{"type": "text", "text": "Hi"}])
    assert request(blocks, "openai-chat").fixes == []
    blocks = [{"type": "text", "text": "Hi"} | cited]
    for target in ("anthropic", "openai-chat", "bedrock-converse", "gemini"):
        sent = request(blocks, target)
        assert [fix.code for fix in sent.fixes] == ["citations_dropped"], target
        assert b"a.example" not in sent.body
    own = [{"type": "char_location", "cited_text": "a", "document_index": 0}]
    kept = request([{"type": "text", "text": "Hi", "citations": own}], "anthropic")
    assert (kept.fixes, json.loads(kept.body)["messages"][1]["content"][0]["citations"]) == ([], own)


def test_only_the_model_refuses():
    """A refusal in a user message, a tool result or a system message becomes text, with a fix."""
    refusal = text("No.", refusal=True)
    messages = [user(refusal), said(call("t0", "f")), user(result("t0", [refusal]))]
    for target in ("anthropic", "openai-chat", "openai-responses", "gemini"):
        sent = normalize(messages, to=target)
        assert [fix.code for fix in sent.fixes] == ["refusal_as_text"] * 2, target
        assert b'"refusal"' not in sent.body


# -- ends -----------------------------------------------------------------------------------------------------------


def test_an_answer_that_ends_with_an_error_is_incomplete():
    for records in ([chunk(content="Hel"), chunk("error"), DONE], [answer("error", content="Hel")]):
        items, _ = run(*records)
        assert shown(items) == [("text", "Hel", True)]
        assert [code for _, code in errors(items)] == ["error"]
        assert [(item.incomplete, item.stop_reason) for item in only(items, TurnStop)] == [(True, None)]


def test_one_failure_is_reported_once():
    items, _ = run(chunk(content="Hel"), chunk("error", members={"error": {"message": "Lost", "code": 502}}), DONE)
    assert errors(items) == [("Lost", "502")]


def test_an_end_without_a_reason_has_none():
    items, _ = run(chunk(content="Hello"), DONE)
    assert shown(items) == [("text", "Hello", False)]
    assert [(item.incomplete, item.stop_reason) for item in items if isinstance(item, TurnStop)] == [(False, None)]


@pytest.mark.parametrize("end", [[], [DONE], [chunk("stop"), DONE]])
def test_content_after_the_end_with_the_same_id_is_of_the_same_message(end):
    items, blocks = run(chunk(content="Hel"), chunk("stop"), chunk(content="lo"), chunk(content="!"), *end)
    assert shown(items) == [("text", "Hel", False), ("text", "lo!", False)]
    assert [block["text"] for block in blocks] == ["Hel", "lo!"]
    assert only(items, AgentUnrecognized) == []
    assert set(stop_reasons(items)) == {"stop"}


def test_groqs_counts_may_be_outside_of_usage():
    items, _ = run(chunk(content="Hi"), chunk("stop", members={"x_groq": {"id": "r", "usage": USAGE}}), DONE)
    assert [item.usage for item in items if isinstance(item, TurnStop)] == [Usage(input_tokens=7, output_tokens=3)]


def test_token_counts_are_bounded_by_the_largest_portable_json_number():
    recovery = Recovery("openai-chat")
    recovery.feed(chunk("stop", members={"usage": {"prompt_tokens": 10**30, "completion_tokens": -5}}, content="Hi"))
    items = Recovery.restore(recovery.snapshot()).end_run("exit")
    assert [item.usage for item in items if isinstance(item, TurnStop)] == [Usage(input_tokens=2**53 - 1)]
