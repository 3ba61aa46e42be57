"""Gemini's metadata: sources, enums as numbers, other candidates, and whole answers."""

import json

import pytest
from gemini_chunks import END, call, chunk, extras, run, text, turn
from stream_runs import entries, errors, items_of, marked, only, shown, stop_reasons, texts

from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import ItemCompleted, ItemRetracted, ItemStarted, SessionSystem, TurnStop, Usage


def system(items):
    """Return the metadata that belongs to no item."""
    return [(item.subtype, json.loads(bytes(item.event))) for item in only(items, SessionSystem)]


# -- metadata of texts ----------------------------------------------------------------------------------------------


def source(name):
    return {"web": {"uri": f"https://{name}.example", "title": name}}


def grounded(*names, **members):
    return {"groundingChunks": [source(name) for name in names]} | members


def said(*parts, reason=None, **beside):
    made = chunk(*parts, reason=reason)
    made["candidates"][0] |= beside
    return made


def test_sources_belong_to_the_text_wherever_they_arrive():
    grounding, pages = grounded("a"), {"urlMetadata": [{"retrievedUrl": "https://b.example"}]}
    told = {"groundingMetadata": grounding, "urlContextMetadata": pages}
    empty = {"groundingMetadata": {}}
    for chunks in (
        [said(text("A"), **told), said(text("B"), reason="STOP", **empty)],
        [said(text("A"), **empty), said(text("B")), said(text(""), reason="STOP", **told)],
        [said(**told), said(text("A"), **empty), said(text("B"), **empty), END],
        [said(text("A")), said(text("B")), {"candidates": [told | {"finishReason": "STOP"}], "responseId": "r1"}],
        [said(text("AB")), said(call("f", args={}), reason="STOP", **told)],
    ):
        items = run(*chunks)
        assert shown(items)[0] == ("text", "AB")
        assert (extras(items)[0], system(items)) == (told, [])
        assert turn(*chunks)[0] == {"type": "text", "text": "AB"}  # Gemini does not accept it back


def test_sources_add_up_and_repeated_ones_are_listed_once():
    first, second, third = (grounded(*names, webSearchQueries=["q"]) for names in ("a", "ab", "c"))
    entry = {"searchEntryPoint": {"renderedContent": "<a>"}}
    last = said(text("C"), reason="STOP", groundingMetadata=third | entry)
    items = run(said(text("A"), groundingMetadata=first), said(text("B"), groundingMetadata=second), last)
    assert extras(items) == [{"groundingMetadata": grounded("a", "b", "c", webSearchQueries=["q"]) | entry}]
    cited = [{"citationSources": [{"startIndex": at, "uri": f"https://{at}.example"}]} for at in (0, 5)]
    items = run(*(said(text("A"), citationMetadata=one) for one in cited), END)
    assert extras(items) == [{"citationMetadata": {"citationSources": [one["citationSources"][0] for one in cited]}}]


@pytest.mark.parametrize(
    "name", ["groundingMetadata", "urlContextMetadata", "citationMetadata", "groundingAttributions"]
)
def test_each_kind_of_source_is_read_in_the_middle_of_a_text(name):
    told = {name: [{"sourceId": "https://a.example"}]}
    assert extras(run(chunk(text("A")), said(text("B"), **told), chunk(text("C")), END)) == [told]


def test_sources_of_a_text_belong_to_that_text():
    last = said(text("B"), reason="STOP", groundingMetadata=grounded("b"))
    items = run(said(text("A"), groundingMetadata=grounded("a")), chunk(call("f", args={})), last)
    assert texts(items) == ["A", "{}", "B"]
    assert extras(items) == [{"groundingMetadata": grounded("a")}, {}, {"groundingMetadata": grounded("b")}]


def test_sources_of_a_cut_text_belong_to_it():
    items = run(said(text("A"), groundingMetadata=grounded("a")))
    assert (entries(items)[0].incomplete, extras(items)) == (True, [{"groundingMetadata": grounded("a")}])


@pytest.mark.parametrize("part", [text("Hm.", thought=True), {"inlineData": {"mimeType": "image/png", "data": "eA=="}}])
@pytest.mark.parametrize("last", [[END], []], ids=["whole", "cut"])
def test_sources_without_a_text_are_reported_separately(part, last):
    items = run(said(part, groundingMetadata=grounded("a")), *last)
    assert system(items) == [("groundingMetadata", grounded("a"))]
    assert len(entries(items)) == 1


def test_sources_after_the_end_are_reported_separately():
    items = run(said(text("A"), reason="STOP", groundingMetadata=grounded("a")), said(groundingMetadata=grounded("b")))
    assert extras(items) == [{"groundingMetadata": grounded("a")}]
    assert system(items) == [("groundingMetadata", grounded("b"))]
    again = run(said(text("A"), reason="STOP"), said(text(""), reason="STOP", groundingMetadata=grounded("b")))
    assert system(again) == [("groundingMetadata", grounded("b"))]
    assert stop_reasons(again) == ["STOP"]


def test_each_candidate_has_its_own_sources():
    def candidate(index, words):
        return {"index": index, "content": {"parts": [text(words)]}, "groundingMetadata": grounded(words)}

    items = run({"candidates": [candidate(0, "A"), candidate(1, "B")], "responseId": "r1"}, END, ONE_END)
    assert extras(items) == [{"groundingMetadata": grounded("A")}, {"groundingMetadata": grounded("B")}]
    (_, other) = only(items, ItemCompleted)
    whole = {"type": "choice", "choice": 1, "of": "text", "text": "B", "groundingMetadata": grounded("B")}
    assert json.loads(bytes(other.raw)) == whole


def test_gemini_specific_parts_of_another_candidate_are_kept_unchanged():
    code = {"executableCode": {"language": "PYTHON", "code": "1"}}
    items = run({"candidates": [{"index": 1, "content": {"parts": [code]}}], "responseId": "r1"}, ONE_END)
    (entry,) = entries(items)
    block = {"type": "executableCode"} | code
    assert json.loads(bytes(entry.started.raw)) == {"type": "choice", "choice": 1, "of": block["type"], "block": block}


ONE_END = {"candidates": [{"index": 1, "finishReason": "MAX_TOKENS"}], "responseId": "r1"}


def test_a_huge_number_is_no_error():
    huge = {"groundingChunks": [10**30], "score": 10**40}
    items = run(said(text("A"), groundingMetadata=huge), said(text("B"), groundingMetadata=huge | {"score": 1}), END)
    assert extras(items) == [{"groundingMetadata": huge | {"score": 1}}]


# -- enums as numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "name", "cut"),
    [
        (1, "STOP", False),
        (2, "MAX_TOKENS", True),
        (3, "SAFETY", True),
        (5, "OTHER", True),
        (12, None, True),
        (99, "99", True),
    ],
)
def test_a_finish_reason_may_be_a_number(number, name, *, cut):
    details = [{"modality": 1, "tokenCount": 3}]
    last = chunk(call("f"), reason=number, usageMetadata={"promptTokenCount": 3, "promptTokensDetails": details})  # type: ignore[arg-type]  # as a number
    items = run(chunk(text("A")), last)
    (stop,) = only(items, TurnStop)
    assert (stop.stop_reason, stop.usage) == (name or "UNEXPECTED_TOOL_CALL", Usage(input_tokens=3))
    assert [entry.incomplete for entry in entries(items)] == [False, cut]


@pytest.mark.parametrize(
    ("number", "name"), [(1, "STOP"), (9, "MALFORMED_FUNCTION_CALL"), (16, "NO_IMAGE"), (17, "17")]
)
def test_vertex_numbers_its_reasons_differently(number, name):
    for part in (text("A"), text("A") | {"odd": 1}):
        made = said(part, finishReason=number) | {"createTime": "2025-12-19T23:45:36.565494Z"}
        assert stop_reasons(run(made)) == [name]


def test_a_reason_of_zero_is_ignored():
    nothing = {"finishReason": 0}
    items = run(said(text("A"), **nothing), said(text("B"), **nothing))
    assert (marked(items), stop_reasons(items)) == ([("AB", True)], [None])
    assert marked(run(said(text("A"), **nothing), said(text("B"), reason="STOP"))) == [("AB", False)]


@pytest.mark.parametrize(("number", "name"), [(1, "SAFETY"), (4, "PROHIBITED_CONTENT"), (77, "77")])
def test_the_block_reason_of_a_prompt_may_be_a_number(number, name):
    for reason, codes in ((number, [name]), (0, [])):
        items = run({"promptFeedback": {"blockReason": reason}, "responseId": "r1"})
        assert [code for _, code in errors(items)] == codes


def test_numbers_are_read_in_chunks_with_odd_parts():
    rating = {"category": 7, "probability": 1}
    items = run(said(text("A") | {"odd": 1}, finishReason=1, safetyRatings=[rating], groundingMetadata=grounded("a")))
    assert (marked(items), extras(items)) == ([("A", False)], [{"odd": 1, "groundingMetadata": grounded("a")}])
    broken = said(text("A"), finishReason=1, groundingMetadata=grounded("a")) | {"modelVersion": 7}
    assert extras(run(broken)) == [{"groundingMetadata": grounded("a")}]


# -- signatures, and whole answers
# ------------------------------------------------------------------------------------


def test_a_signature_alone_is_in_the_log_and_not_an_item():
    chunks = [
        chunk(call("f", args={}) | {"thoughtSignature": "s"}),
        chunk(text("", thoughtSignature="t"), reason="STOP"),
    ]
    items = run(*chunks)
    assert [item.item_type for item in only(items, ItemStarted)] == ["tool_use"]
    assert [item.item_id for item in only(items, ItemCompleted)] == ["call_f"]
    assert [block.get("signature") for block in turn(*chunks)] == ["s", None, "t"]
    retried = run(chunks[0], chunk(text("A"), reason="STOP", id="r2"))
    assert only(retried, ItemRetracted) == [ItemRetracted(item_id="call_f")]


def test_gemini_specific_parts_end_with_their_whole_json():
    code = {"executableCode": {"language": 1, "code": "1"}, "thoughtSignature": "s"}
    items = run(chunk(code), END)
    (done,) = only(items, ItemCompleted)
    assert json.loads(bytes(done.raw)) == {"type": "executableCode"} | code


@pytest.mark.parametrize("indexed", [True, False])
def test_the_reason_of_the_first_candidate_is_the_messages(*, indexed):
    answers = [
        {"content": {"parts": [text(words)]}, "finishReason": why} for words, why in (("A", "STOP"), ("B", "SAFETY"))
    ]
    numbered = [answer | ({"index": at} if indexed else {}) for at, answer in enumerate(answers)]
    items = run({"candidates": numbered, "responseId": "r1"})
    assert shown(items) == [("text", "A"), ("choice", "B")]
    assert stop_reasons(items) == ["STOP"]
    apart = [{"candidates": [answer | {"index": at}], "responseId": "r1"} for at, answer in enumerate(answers)]
    begun = {"candidates": [{"index": at} for at in range(2)], "responseId": "r1"}
    assert stop_reasons(run(begun, *apart)) == ["STOP"]


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_whole_answer_is_read_like_a_stream_of_one_chunk(*, as_array, indent):
    parts = [text("Hm.", thought=True), text("A"), call("f", args={"a": 1})]
    whole = said(*parts, reason="STOP", groundingMetadata=grounded("a"))
    items = Recovery("gemini").feed(json.dumps([whole] if as_array else whole, indent=indent).encode())
    assert [entry.item_type for entry in entries(items)] == ["thinking", "text", "tool_use"]
    assert {(entry.done, entry.incomplete) for entry in entries(items)} == {(True, False)}
    assert extras(items)[1] == {"groundingMetadata": grounded("a")}


def test_a_chunk_with_broken_bytes_is_repaired_once():
    sound = json.dumps(said(text("A"), groundingMetadata=grounded("a"))).encode()
    items = items_of("gemini", sound.replace(b'"title": "a"', b'"title": "\xff"'), END)
    assert texts(items) == ["A"]
    assert extras(items)[0]["groundingMetadata"]["groundingChunks"][0]["web"]["title"] == "\ufffd"
