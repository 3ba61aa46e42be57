"""Chat chunks become items: growing blocks, their ends, and the signs of another attempt."""

import json

import pytest
import stream_runs
from build import call as tool_use
from build import text, thinking
from stream_runs import entries, errors, extras, items_of, only, shown, stop_reasons

from reknit.topics.items import AgentUnrecognized, ItemCompleted, ItemRetracted, ItemStarted, TurnStop, Usage

DONE = b"data: [DONE]\n\n"


def chunk(*choices, id="c1", **members):  # noqa: A002  the member's name
    body = {"id": id, "object": "chat.completion.chunk", "model": "m", "choices": list(choices)} | members
    return f"data: {json.dumps(body)}\n\n".encode()


def choice(finish_reason=None, index=0, **delta):
    return {"index": index, "delta": delta, "finish_reason": finish_reason}


def call(index, id=None, name=None, arguments=None):  # noqa: A002  the same
    function = {"name": name, "arguments": arguments}
    return {key: value for key, value in {"index": index, "id": id, "function": function}.items() if value is not None}


BEGIN = chunk(choice(role="assistant", content=""))
END = chunk(choice("stop"))


def run(*pieces):
    return items_of("openai-chat", *pieces)


def turn(*pieces, source="openai-chat"):
    return stream_runs.run(source, *pieces).blocks


def whole(items):
    return [entry for entry in entries(items) if not entry.incomplete]


def calls_of(items):
    """Return the complete calls: id, name and input."""
    return [(entry.item_id, entry.started.name, entry.text) for entry in whole(items)]


def calling(*calls, reason="tool_calls"):
    """Each call in a chunk of its own, and the end."""
    return [*(chunk(choice(tool_calls=[one])) for one in calls), chunk(choice(reason))]


def test_a_text_grows_and_ends_with_its_reason():
    items = run(BEGIN, chunk(choice(content="Hel")), chunk(choice(content="lo")), END, DONE)
    assert shown(items) == [("text", "Hello")]
    assert items[-1] == TurnStop(model="m", stop_reason="stop")
    assert [entry.text for entry in whole(items)] == ["Hello"]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_is_thinking_under_any_of_its_names(name):
    pieces = [chunk(choice(**{name: "Let me"})), chunk(choice(**{name: " see."})), chunk(choice(content="Two."))]
    assert shown(run(BEGIN, *pieces, END)) == [("thinking", "Let me see."), ("text", "Two.")]
    issuer = {"provider": "vllm", "model": "m"}
    assert turn(BEGIN, *pieces, END, source="vllm")[0] == thinking("Let me see.", issuer=issuer)


def test_duplicate_reasoning_is_shown_once():
    details = [{"type": "reasoning.text", "text": "Hm.", "index": 0}]
    piece = chunk(choice(reasoning_content="Hm.", reasoning="Hm.", reasoning_details=details))
    assert shown(run(BEGIN, piece, END)) == [("thinking", "Hm.")]
    assert shown(run(BEGIN, chunk(choice(reasoning_details=details)), END)) == [("thinking", "Hm.")]


def test_signatures_and_encrypted_reasoning_are_in_the_turn():
    pieces = [
        chunk(choice(reasoning="Hm.")),
        chunk(choice(content="Two.")),
        chunk(choice(reasoning_details=[{"type": "reasoning.text", "signature": "sig"}])),
        chunk(choice(reasoning_details=[{"type": "reasoning.encrypted", "data": "sealed"}])),
    ]
    issuer = {"provider": "openai-chat", "model": "m"}
    assert turn(BEGIN, *pieces, END) == [
        thinking("Hm.", signature="sig", issuer=issuer),
        text("Two."),
        {"type": "redacted_thinking", "data": "sealed", "issuer": issuer},
    ]


def test_content_may_be_a_list_of_parts():
    odd = {"type": "reference", "reference_ids": [1]}
    pieces = [chunk(choice(content=parts)) for parts in ([thinking([text("Hm.")])], [text("Two."), odd])]
    assert shown(run(BEGIN, *pieces, END)) == [("thinking", "Hm."), ("text", "Two."), ("content", "")]
    assert turn(BEGIN, *pieces, END)[-1] == {"type": "content", "content": [odd]}


def test_a_refusal_is_a_separate_text():
    items = run(BEGIN, chunk(choice(content="I")), chunk(choice(refusal="No")), chunk(choice(refusal="pe.")), END)
    assert shown(items) == [("text", "I"), ("text", "Nope.")]


def test_parallel_calls_grow_independently():
    items = run(
        BEGIN,
        chunk(choice(tool_calls=[call(0, "t0", "one", "")])),
        chunk(choice(tool_calls=[call(1, "t1", "two", '{"b"')])),
        chunk(choice(tool_calls=[call(0, arguments='{"a": 1}'), call(1, arguments=": 2}")])),
        chunk(choice("tool_calls")),
    )
    assert calls_of(items) == [("t0", "one", '{"a": 1}'), ("t1", "two", '{"b": 2}')]


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([call(0, "t0", "f", "{}"), call(0, "t1", "g", "{}")], id="all-with-index-0"),
        pytest.param(
            [call(None, "t0", "f", "{"), call(None, "t0", None, "}"), call(None, "t1", "g", "{}")], id="by-id"
        ),
        pytest.param(
            [call(None, "t0", "f", "{"), call(None, arguments="}"), call(None, "t1", "g", "{}")], id="the-last"
        ),
        pytest.param([call(0, "t0", "f", "{"), call(0, "t0", "f", "}"), call(1, "t1", "g", "{}")], id="name-repeated"),
        pytest.param([call(0, "t0", "f", "{"), call(0, "other", None, "}"), call(1, "t1", "g", "{}")], id="id-changes"),
    ],
)
def test_calls_are_distinguished_by_index_and_by_id(calls):
    assert calls_of(run(BEGIN, *calling(*calls))) == [("t0", "f", "{}"), ("t1", "g", "{}")]


def test_a_call_without_an_id_gets_one_from_its_name():
    assert turn(BEGIN, *calling(call(0, None, "get_weather", "{}")))[0]["id"] == "call_get_weather"


def test_arguments_may_be_an_object():
    assert turn(BEGIN, *calling(call(0, "t0", "f", {"a": [1.0]}))) == [tool_use("t0", "f", a=[1.0])]


def test_the_old_function_call_is_a_call():
    old = [{"name": "f", "arguments": ""}, {"name": None, "arguments": "{}"}]
    items = run(BEGIN, *(chunk(choice(function_call=one)) for one in old), chunk(choice("function_call")))
    assert calls_of(items) == [("call_f", "f", "{}")]


def test_a_custom_tools_text_is_an_object_of_one_member():
    first = {"index": 0, "id": "t0", "type": "custom", "custom": {"name": "run", "input": 'echo "'}}
    second = {"index": 0, "custom": {"input": 'é"\n'}}
    assert turn(BEGIN, *calling(first, second))[0]["input"] == {"input": 'echo "é"\n'}
    (cut,) = turn(BEGIN, *calling(first, second, reason="length"))
    assert (cut["incomplete"], cut["input"]) == (True, '{"input":"echo \\"é\\"\\n')


@pytest.mark.parametrize("raw", ["", '{"a": 1', '{"a": 1}x'])
def test_a_call_cut_by_the_token_limit_is_incomplete(raw):
    pieces = [BEGIN, *calling(call(0, "t0", "f", raw), reason="length"), DONE]
    assert whole(run(*pieces)) == []
    assert turn(*pieces) == [{"type": "tool_use", "id": "t0", "name": "f", "input": raw, "incomplete": True}]


def test_a_call_without_arguments_has_none():
    assert turn(BEGIN, *calling(call(0, "t0", "f", "")))[0]["input"] == {}


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "eos"])
def test_the_stop_reason_is_the_servers(reason):
    items = run(BEGIN, chunk(choice(content="Hi")), chunk(choice(reason)), DONE)
    assert (stop_reasons(items), shown(items)) == ([reason], [("text", "Hi")])


def test_done_ends_a_message_without_an_end():
    assert len(whole(run(chunk(choice(content="4"), id=""), DONE))) == 1
    assert whole(run(chunk(choice(content="4"), id=""))) == []


def test_done_may_be_followed_by_blanks():
    items = run(BEGIN, chunk(choice(content="Hi")), END, b"data: [DONE] \n\n")
    assert items[-1] == TurnStop(model="m", stop_reason="stop")
    assert only(items, AgentUnrecognized) == []


def test_azure_begins_with_an_empty_chunk():
    first = chunk(id="", model="", prompt_filter_results=[{"prompt_index": 0}])
    items = run(first, BEGIN, chunk(choice(content="Hi")), END)
    assert shown(items) == [("text", "Hi")]
    assert only(items, ItemRetracted | AgentUnrecognized) == []


def test_tokens_come_after_the_reason_or_with_every_chunk():
    def usage(output):
        return {"prompt_tokens": 10, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": 4}}

    expected = Usage(input_tokens=6, output_tokens=2, cache_read_input_tokens=4)
    for pieces in (
        [chunk(choice(content="Hi"), usage=None), END, chunk(usage=usage(2)), DONE],
        [chunk(choice(content="Hi"), usage=usage(1)), chunk(choice("stop"), usage=usage(2)), DONE],
    ):
        told = [item.usage for item in run(BEGIN, *pieces) if getattr(item, "usage", None)]
        assert told == [expected]


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "message", "code"),
    [
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, "Overloaded", "overloaded_error"),
        ({"error": {"message": "Upstream", "code": 502}}, "Upstream", "502"),
        ({"object": "error", "message": "Too long", "type": "BadRequestError"}, "Too long", "BadRequestError"),
        ({"error": "no such model"}, "no such model", ""),
        ({"error": "Bad Gateway", "message": "Upstream is down", "code": "x"}, "Upstream is down", "x"),
        ({"error": "Bad Gateway", "detail": "Upstream is down"}, "Upstream is down", ""),
        ({"id": "c1", "choices": [choice("error")], "error": {"message": "Lost", "code": "x"}}, "Lost", "x"),
    ],
)
def test_an_error_cuts_the_message(payload, message, code):
    error = f"data: {json.dumps(payload)}\n\n".encode()
    items = run(BEGIN, chunk(choice(tool_calls=[call(0, "t0", "f", '{"a')])), error, DONE)
    assert errors(items) == [(message, code)]
    assert [entry.text for entry in entries(items) if entry.incomplete] == ['{"a']


def test_an_error_before_the_first_chunk_is_reported():
    assert errors(run(b'data: {"choices": [], "error": {"message": "Full"}}\n\n')) == [("Full", "")]


def test_after_an_error_another_attempt_begins_although_it_looks_the_same():
    error = b'data: {"error": {"message": "Lost"}}\n\n'
    items = run(chunk(choice(content="He")), error, chunk(choice(content="Hello")), END)
    assert shown(items) == [("text", "Hello")]


# -- attempts -----------------------------------------------------------------------------------------------------

HELLO = [chunk(choice(content="Hel"), id="c2"), chunk(choice(content="lo"), id="c2"), chunk(choice("stop"), id="c2")]


@pytest.mark.parametrize(
    "again",
    [
        pytest.param([chunk(choice(role="assistant", content=""), id="c2"), *HELLO], id="new-id-and-role"),
        pytest.param(HELLO, id="new-id"),
    ],
)
def test_another_attempt_replaces_an_unfinished_one(again):
    items = run(BEGIN, chunk(choice(content="Hel")), *again)
    assert shown(items) == [("text", "Hello")]
    assert only(items, ItemRetracted) == [ItemRetracted(item_id="chat-block-0")]


def test_without_ids_a_repeated_role_begins_another_attempt():
    begin, end = chunk(choice(role="assistant", content=""), id=""), chunk(choice("stop"), id="")
    items = run(begin, chunk(choice(content="Hel"), id=""), begin, chunk(choice(content="Hello"), id=""), end)
    assert shown(items) == [("text", "Hello")]
    assert only(items, ItemRetracted) == [ItemRetracted(item_id="chat-block-0")]


def test_one_id_is_one_message_whatever_its_roles():
    roles = [{}, {"role": "assistant"}, {}, {"role": "assistant"}, {}]
    pieces = [chunk(choice(content=part, **role)) for part, role in zip("Hello", roles, strict=True)]
    items = run(BEGIN, *pieces, chunk(choice("stop", role="assistant", content="")), DONE)
    assert shown(items) == [("text", "Hello")]
    assert only(items, ItemRetracted | AgentUnrecognized) == []


def test_a_finished_message_stays_when_the_next_begins():
    for end in ([END], [END, DONE], [chunk(choice(content="!")), DONE]):
        items = run(BEGIN, chunk(choice(content="One")), *end, *HELLO)
        assert "".join(text for _, text in shown(items)).startswith("One")
        assert only(items, ItemRetracted) == []


LAST = chunk(choice("stop", role="assistant", content=""), id="c9")


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [
                *(chunk(choice(content=part), id=f"c{number}") for number, part in enumerate("Hello")),
                chunk(choice("stop"), id="c9"),
            ],
            id="ids that change with every chunk",
        ),
        pytest.param([BEGIN, chunk(choice(content="Hel")), chunk(choice(content="lo")), LAST], id="a last one"),
        pytest.param(
            [*(chunk(choice(role="assistant", content=part)) for part in "Hello"), END], id="roles in every chunk"
        ),
    ],
)
def test_these_begin_no_new_attempt(pieces):
    items = run(*pieces)
    assert shown(items) == [("text", "Hello")]
    assert [entry.text for entry in whole(items)] == ["Hello"]


def test_a_chunk_of_an_ended_message_is_passed_on():
    late = chunk(choice(content="lo"), id="c1")
    items = run(BEGIN, chunk(choice(content="Hel")), chunk(choice(content="!")), HELLO[0], late, *HELLO[1:])
    assert shown(items) == [("text", "Hello")]
    (item,) = only(items, AgentUnrecognized)
    assert json.loads(bytes(item.event)) == json.loads(late[6:])


# -- unknown and invalid members ----------------------------------------------------------------------------------


def test_unknown_members_are_one_block_per_name():
    pieces = [chunk(choice(content="Hi", audio={"data": part})) for part in ("a", "b")]
    items = run(BEGIN, *pieces, END)
    assert shown(items) == [("text", "Hi" + "Hi"), ("audio", "")]
    assert extras(items) == [{"audio": [{"data": "a"}, {"data": "b"}]}]


def test_a_member_named_like_a_block_is_not_that_block():
    (block,) = turn(BEGIN, chunk(choice(text={"x": 1})), END)
    assert block == {"type": "unknown", "came": {}, "text": [{"x": 1}]}


def test_a_member_of_a_wrong_type_is_passed_on_and_the_others_are_read():
    items = run(BEGIN, chunk(choice(content="Hi", refusal={"no": 1}, reasoning=7), usage="x"), END)
    assert shown(items) == [("text", "Hi"), ("refusal", ""), ("reasoning", "")]


@pytest.mark.parametrize(
    "line", [b'{"choices": 3}', b'{"object": "list"}', b"[1]", b'data: {"choices": [7]}', b"\xff{"]
)
def test_input_that_is_not_a_chunk_is_passed_on(line):
    (item,) = run(line)
    assert isinstance(item, AgentUnrecognized)


def test_other_choices_are_shown_separately():
    first = chunk(choice(role="assistant", content="A"), choice(index=1, role="assistant", content="B"))
    items = run(first, chunk(choice("stop", content="a")), chunk(choice("length", index=1, content="b")))
    assert shown(items) == [("text", "Aa"), ("choice", "Bb")]
    assert stop_reasons(items) == ["stop"]
    assert [entry.incomplete for entry in entries(items)] == [False, False]


def test_other_choices_are_not_in_the_history_of_the_model():
    calls = [choice(index=index, tool_calls=[call(0, f"t{index}", "f", "{}")]) for index in (0, 1)]
    said = [choice(index=index, content=words) for index, words in ((0, "A"), (1, "B"))]
    blocks = turn(chunk(*said), chunk(*calls), chunk(choice("tool_calls"), choice("tool_calls", index=1)))
    assert [block for block in blocks if block["type"] != "choice"] == [text("A"), tool_use("t0", "f")]
    assert [block for block in blocks if block["type"] == "choice"] == [
        {"type": "choice", "choice": 1, "of": "text"},
        {"type": "choice", "choice": 1, "of": "tool_use", "id": "t1", "name": "f"},
    ]


def test_the_call_of_another_choice_ends_with_its_input():
    calls = [choice(index=index, tool_calls=[call(0, f"t{index}", "f", '{"a":1}')]) for index in (0, 1)]
    items = run(chunk(*calls), chunk(choice("tool_calls"), choice("tool_calls", index=1)))
    begun = [(item.name, json.loads(bytes(item.raw))) for item in only(items, ItemStarted) if item.raw]
    assert begun == [("f", {"type": "choice", "choice": 1, "of": "tool_use", "id": "t1", "name": "f"})]
    raws = [json.loads(bytes(item.raw)) for item in only(items, ItemCompleted) if item.raw]
    assert raws == [{"type": "choice", "choice": 1, "of": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]


def test_content_after_the_end_of_its_choice_is_passed_on():
    first = chunk(choice(role="assistant", content="A"), choice(index=1, role="assistant", content="B"))
    late = chunk(choice(content="a", audio={"data": "x"}))
    items = run(first, chunk(choice("stop")), late, chunk(choice("stop", index=1)))
    assert shown(items) == [("text", "A"), ("choice", "B")]
    (item,) = only(items, AgentUnrecognized)
    assert json.loads(bytes(item.event)) == {"content": "a", "audio": {"data": "x"}}
