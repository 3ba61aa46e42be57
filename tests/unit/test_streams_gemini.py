"""Gemini's chunks become items: parts and their signatures, calls in pieces, premature ends, and rejected input."""

import json

import pytest
from build import call as tool_use
from build import result, said, user
from gemini_chunks import END, call, chunk, extras, run, text, turn
from msgspec import Raw
from stream_runs import entries, errors, items_of, marked, only, shown, stop_reasons

from reknit.pipeline import normalize
from reknit.pipeline.providers.gemini.stream.wire import Arguments, PartialArg, steps
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentUnrecognized, ItemDelta, ItemRetracted, ItemStarted, TurnStop, Usage

ISSUER = {"provider": "gemini", "model": "gemini-3-pro"}


def test_text_of_one_kind_is_joined():
    first, second = chunk(text("Let", thought=True)), chunk(text(" me.", thought=True), text("Tw"))
    items = run(first, second, chunk(text("o."), reason="STOP"))
    assert shown(items) == [("thinking", "Let me."), ("text", "Two.")]
    assert items[-1] == TurnStop(model="gemini-3-pro", stop_reason="STOP")
    assert not any(entry.incomplete for entry in entries(items))


def test_without_a_reason_nothing_is_complete():
    assert marked(run(chunk(text("Two.")))) == [("Two.", True)]


def test_a_call_is_complete_immediately():
    parts = [call("f", args={"a": 1.0}), call("g", id="t1", args={}), call("f")]
    items = run(chunk(*parts, reason="STOP"))
    found = [(entry.item_id, entry.started.name, entry.text) for entry in entries(items)]
    assert found == [("call_f", "f", '{"a": 1.0}'), ("t1", "g", "{}"), ("call_f~2", "f", "")]
    assert [block["input"] for block in turn(chunk(*parts, reason="STOP"))] == [{"a": 1.0}, {}, {}]


def test_a_signature_precedes_its_part_and_is_sent_back_on_it():
    chunks = [
        chunk(text("Hm.", thought=True)),
        chunk(call("f", args={}) | {"thoughtSignature": "one"}, call("g", args={})),
        chunk(text("", thoughtSignature="two"), reason="STOP"),
    ]
    blocks = turn(*chunks)
    assert [(block["type"], block.get("signature")) for block in blocks] == [
        ("thinking", None),
        ("thinking", "one"),
        ("tool_use", None),
        ("tool_use", None),
        ("thinking", "two"),
    ]
    assert blocks[1] == {"type": "thinking", "thinking": "", "signature": "one", "issuer": ISSUER}
    results = [result(block["id"], "x") for block in blocks if block["type"] == "tool_use"]
    history = [user("Go."), said(*blocks), user(*results)]
    normalized = normalize({"messages": history, "model": "gemini-3-pro"}, to="gemini")
    parts = json.loads(normalized.body)["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [None, "one", None, "two"]
    assert normalized.violations == []


def test_a_signed_text_after_another_is_a_separate_block():
    blocks = turn(chunk(text("Hel")), chunk(text("lo", thoughtSignature="s")), END)
    assert [block.get("text", block.get("signature")) for block in blocks] == ["Hel", "s", "lo"]


def test_gemini_specific_parts_stay_unchanged():
    code = {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s"}
    image = {"inlineData": {"mimeType": "image/png", "data": "eA=="}}
    items = run(chunk(text("A"), code, text("B"), image, reason="STOP"))
    assert [kind for kind, _ in shown(items)] == ["text", "executableCode", "text", "inlineData"]
    assert not any(entry.incomplete for entry in entries(items))
    assert turn(chunk(code, image), END) == [{"type": "executableCode"} | code, {"type": "inlineData"} | image]


def test_extra_members_of_a_text_part_do_not_hide_its_text():
    about = {"partMetadata": {"x": 1}, "mediaResolution": {"level": "LOW"}}
    items = run(chunk(text("A") | about), chunk(text("B") | {"brandNew": {"x": 1}}), chunk(text("C")), END)
    assert shown(items) == [("text", "ABC")]
    assert extras(items) == [about | {"brandNew": {"x": 1}}]
    assert raws_of(items) == [{name: value} for name, value in (about | {"brandNew": {"x": 1}}).items()]
    assert shown(run(chunk(text("") | {"brandNew": {"x": 1}}), END)) == [("brandNew", "")]
    items = run(chunk(text("A") | {"inlineData": {"mimeType": "image/png", "data": "eA=="}, "new": 1}), END)
    assert shown(items) == [("text", "A"), ("inlineData", "")]


def raws_of(items):
    return [json.loads(bytes(item.raw)) for item in only(items, ItemDelta) if item.raw]


@pytest.mark.parametrize("where", ["call", "part"])
def test_extra_members_of_a_call_are_kept_with_it(where):
    new = {"brandNew": {"x": 1}, "type": "function"}
    part = call("f", id="t1", args={"a": 1}) | (new if where == "part" else {})
    part["functionCall"] |= new if where == "call" else {}
    kept = {"brandNew": {"x": 1}, "part.type": "function"}
    # Gemini does not accept it back.
    assert turn(chunk(part), END) == [tool_use("t1", "f", a=1)]
    items = run(chunk(part), END)
    (entry,) = entries(items)
    assert (entry.item_type, entry.text, entry.incomplete) == ("tool_use", '{"a": 1}', False)
    assert extras(items) == [kept]


def test_a_call_in_pieces_keeps_the_unknown_members_of_each():
    items = run(*PIECES[:2], chunk(call(odd=1)), END)
    assert [(entry.started.name, entry.incomplete) for entry in entries(items)] == [("f", False)]
    assert extras(items) == [{"odd": 1}]


def test_an_unknown_part_is_passed_on_and_the_others_are_read():
    odd = {"brandNew": {"x": 1}, "thought": False}
    items = run(chunk(text("A"), odd, {"text": 7}, text("B")), END)
    assert shown(items) == [("text", "A"), ("brandNew", ""), ("unknown", ""), ("text", "B")]
    assert [json.loads(bytes(entry.started.raw)) for entry in entries(items)[1:3]] == [
        {"type": "brandNew"} | odd,
        {"type": "unknown", "came": {"text": 7}},
    ]


@pytest.mark.parametrize("part", [7, None, {}, {"text": 7}, {"thought": True}])
def test_an_invalid_part_is_never_taken_for_a_block(part):
    blocks = turn(chunk(text("A"), part), END)
    assert {block["type"] for block in blocks} <= {"text", "unknown", "part"}
    assert normalize([user("Go."), said(*blocks)], to="gemini").body


# -- calls in pieces ----------------------------------------------------------------------------------------------


def piece(path, **value):
    return {"jsonPath": path} | value


PIECES = [
    chunk(call("f", willContinue=True)),
    chunk(call(partialArgs=[piece("$.a", stringValue='x"', willContinue=True)], willContinue=True)),
    chunk(call(partialArgs=[piece("$.a", stringValue="y"), piece("$.b[0].c", numberValue=1.0)], willContinue=True)),
]


@pytest.mark.parametrize(
    "last", [call(), call(partialArgs=[piece("$.b[0].c2", boolValue=True)])], ids=["empty", "full"]
)
def test_a_call_may_arrive_in_pieces(last):
    given = {"a": 'x"y', "b": [{"c": 1.0} | ({"c2": True} if last["functionCall"] else {})]}
    found = entries(run(*PIECES, chunk(last), chunk(call("g", args={})), END))
    assert [(entry.started.name, json.loads(entry.text)) for entry in found] == [("f", given), ("g", {})]
    assert not any(entry.incomplete for entry in found)


@pytest.mark.parametrize("after", [[], [END], [chunk(text("Oh.")), END], [chunk(call("g", args={})), END]])
def test_a_call_with_missing_pieces_is_incomplete(after):
    entry = entries(run(*PIECES, *after))[0]
    assert (entry.text, entry.incomplete) == ('{"a":"x\\"y","b":[{"c":1.0', True)
    assert turn(*PIECES, *after)[0]["input"] == '{"a":"x\\"y","b":[{"c":1.0'


def test_a_piece_for_an_earlier_path_is_passed_on_and_the_call_is_incomplete():
    back = piece("$.a", stringValue="z")
    items = run(*PIECES, chunk(call(partialArgs=[back], willContinue=True)), chunk(call()), END)
    assert raws_of(items) == [back]
    assert entries(items)[0].incomplete


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([("$.a", 1), ("$.b", 2)], {"a": 1, "b": 2}),
        ([("$.a[0][0]", 1), ("$.a[0][1]", 2), ("$.a[1][0]", 3)], {"a": [[1, 2], [3]]}),
        ([("$['a b'].c", 1), ('$["d.e"]', 2)], {"a b": {"c": 1}, "d.e": 2}),
        ([("$.a.b.c", 1), ("$.d", 2)], {"a": {"b": {"c": 1}}, "d": 2}),
    ],
)
def test_nested_paths_are_written_in_order(paths, expected):
    arguments = Arguments()
    written = [arguments.write_piece(PartialArg(path, number=Raw(str(value).encode()))) for path, value in paths]
    assert json.loads("".join(filter(None, written)) + arguments.close_object()) == expected


@pytest.mark.parametrize("path", ["", "$", "a", "$a", "$.a[", "$[0]", "$.a..b"])
def test_an_invalid_path_is_rejected(path):
    assert steps(path) is None
    assert Arguments().write_piece(PartialArg(path, "x")) is None


@pytest.mark.parametrize("second", ["$.a", "$.a.b", "$.b.c", "$.b", "$.b[0]"])
def test_no_path_is_written_twice(second):
    arguments = Arguments()
    for path in ("$.a", "$.b.c", "$.d"):
        assert arguments.write_piece(PartialArg(path, "x")) is not None
    assert arguments.write_piece(PartialArg(second, "y")) is None


# -- ends ---------------------------------------------------------------------------------------------------------


def test_a_stream_may_continue_after_its_end():
    result = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "63"}}
    items = run(chunk(text("One."), reason="STOP"), chunk(result), chunk(text("Two."), reason="STOP"))
    assert [(entry.item_type, entry.text, entry.incomplete) for entry in entries(items)] == [
        ("text", "One.", False),
        ("codeExecutionResult", "", False),
        ("text", "Two.", False),
    ]
    assert only(items, ItemRetracted) == []


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "PROHIBITED_CONTENT", "MAX_TOKENS"])
def test_the_stop_reason_is_reported(reason):
    last = {"candidates": [{"finishReason": reason, "finishMessage": "Because."}], "responseId": "r1"}
    items = run(chunk(text("Hi")), last)
    assert shown(items) == [("text", "Hi")]
    assert (stop_reasons(items), errors(items)) == ([reason], [("Because.", reason)])


def test_a_blocked_prompt_is_an_error():
    feedback = {"blockReason": "SAFETY", "safetyRatings": []}
    blocked = [("the prompt was blocked: SAFETY", "SAFETY")]
    assert errors(run({"promptFeedback": feedback, "responseId": "r1"})) == blocked
    assert errors(run({"promptFeedback": {"safetyRatings": []}, "responseId": "r1"})) == []


@pytest.mark.parametrize("wrap", [False, True], ids=["sse", "array"])
def test_an_error_cuts_the_message(*, wrap):
    error = {"error": {"code": 503, "message": "Overloaded.", "status": "UNAVAILABLE"}}
    items = items_of("gemini", chunk(text("Hi")), json.dumps([error] if wrap else error).encode())
    assert (errors(items), marked(items)) == ([("Overloaded.", "UNAVAILABLE")], [("Hi", True)])


def test_tokens_are_reported_once_and_the_last_count_is_used():
    first = {"promptTokenCount": 10, "totalTokenCount": 10}
    last = {"promptTokenCount": 10, "candidatesTokenCount": 2, "thoughtsTokenCount": 3, "cachedContentTokenCount": 4}
    items = run(chunk(text("H"), usageMetadata=first), chunk(text("i"), reason="STOP", usageMetadata=last))
    told = [item.usage for item in items if getattr(item, "usage", None)]
    assert told == [Usage(input_tokens=6, output_tokens=5, cache_read_input_tokens=4)]


def test_another_response_replaces_an_unfinished_one_and_follows_a_finished_one():
    again = [chunk(text("Hello"), id="r2"), chunk(text("!"), reason="STOP", id="r2")]
    assert shown(run(chunk(text("Hel")), *again)) == [("text", "Hello!")]
    assert shown(run(chunk(text("Hel")), chunk(text("lo")), END, *again)) == [("text", "Hello"), ("text", "Hello!")]


def test_a_chunk_of_an_ended_response_is_passed_on():
    late = chunk(text("late"))
    items = run(chunk(text("Hel")), chunk(text("Hello"), id="r2"), late)
    assert shown(items) == [("text", "Hello")]
    assert [json.loads(bytes(item.event)) for item in only(items, AgentUnrecognized)] == [late]


def test_code_assist_wraps_its_chunks():
    assert marked(run({"response": chunk(text("Hi")), "traceId": "x"}, {"response": END})) == [("Hi", False)]


def test_other_candidates_are_shown_as_choices():
    def candidate(index, words, reason=None):
        ended = {"finishReason": reason} if reason else {}
        return {"index": index, "content": {"parts": [text(words)]}} | ended

    first = {"candidates": [candidate(0, "A"), candidate(1, "B")], "responseId": "r1"}
    last = {"candidates": [candidate(0, "a", "STOP"), candidate(1, "b", "MAX_TOKENS")], "responseId": "r1"}
    items = run(first, last)
    assert shown(items) == [("text", "Aa"), ("choice", "Bb")]
    assert [block for block in turn(first, last) if block["type"] != "choice"] == [{"type": "text", "text": "Aa"}]
    assert stop_reasons(items) == ["STOP"]


# -- bytes --------------------------------------------------------------------------------------------------------


def test_a_truncated_line_affects_no_other():
    first, cut, *rest = map(json.dumps, (chunk(text("A")), chunk(text("B")), chunk(text("C")), END))
    items = items_of("gemini", "\n".join([first, cut[:40], *rest]).encode())
    assert shown(items) == [("text", "AC")]
    assert [item.text for item in only(items, AgentUnrecognized)] == [cut[:40]]


@pytest.mark.parametrize("data", [b"{}", b"[1, 2]", b"\xff\xfe", b'data: {"x": 1}\n\n', b"not json"])
def test_input_that_is_not_a_chunk_is_passed_on(data):
    items = items_of("gemini", data)
    assert items
    assert only(items, AgentUnrecognized) == items


# -- ended attempts -------------------------------------------------------------------------------------------------

# The number of ended messages whose ids are remembered: a saved state must not grow without end.
REMEMBERED = 8
LAST = REMEMBERED + 1


def attempted(attempt, words, reason=None):
    return json.dumps(chunk(text(words), reason=reason, id=f"r{attempt}")).encode()


def after_attempts():
    """Feed a run of attempts, each cut after its first words by the next one; the last one is streaming."""
    recovery = Recovery("gemini", records=False)
    for attempt in range(LAST + 1):
        recovery.feed(attempted(attempt, "words"))
    return recovery


@pytest.mark.parametrize("back", range(1, REMEMBERED + 1))
def test_a_late_chunk_of_an_ended_attempt_does_not_affect_the_streaming_one(back):
    recovery = after_attempts()
    late = recovery.feed(attempted(LAST - back, " that come late"))
    assert [type(item) for item in late] == [AgentUnrecognized]
    assert late[0].reason == "a chunk of a message that is over"
    rest = recovery.feed(attempted(LAST, ", whole", "STOP")) + recovery.end_run("exit")
    assert [item.content for item in only(rest, ItemDelta)] == [", whole"]
    assert [item.incomplete for item in only(rest, TurnStop)] == [False]


def test_an_old_attempt_is_forgotten():
    items = after_attempts().feed(attempted(LAST - REMEMBERED - 1, "words again"))
    assert [type(item) for item in items] == [ItemRetracted, TurnStop, ItemStarted, ItemDelta]


def test_a_message_that_continues_after_its_end_does_not_count_as_ended():
    """The same id is the same attempt, however often it continues."""
    recovery = Recovery("gemini", records=False)
    recovery.feed(attempted(0, "words"))
    said = [recovery.feed(attempted(1, f"answer {number}", "STOP")) for number in range(REMEMBERED + 1)]
    deltas = [item.content for items in said for item in items if isinstance(item, ItemDelta)]
    assert deltas == [f"answer {number}" for number in range(REMEMBERED + 1)]
    late = recovery.feed(attempted(0, " that come late"))
    assert [type(item) for item in late] == [AgentUnrecognized]
