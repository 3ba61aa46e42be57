"""The Messages API: repairs of requests that it would reject, and the head of a request."""

from __future__ import annotations

import json

import msgspec
import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from build import call, image, png, result, said, session_of, text, user

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.providers.anthropic.writer.parameters import PARAMETERS

MARK = {"type": "ephemeral"}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}


def made(*messages, policy=None, **head):
    done = normalize({"messages": list(messages), **head}, policy=policy)
    assert done.body is not None, done.violations
    return json.loads(done.body), [fix.code for fix in done.fixes]


# Thinking.


@pytest.mark.parametrize("after", [[user(result())], [user(result(), "b")], [user(result()), user("b")]])
def test_a_loop_without_its_thinking_is_continued_without_it_whatever_follows_the_result(after):
    params = {"model": "claude-sonnet-4-20250514", "thinking": {"type": "enabled", "budget_tokens": 1024}}
    body, codes = made(user("q"), said(call()), *after, max_tokens=2048, **params)
    assert "thinking" not in body
    assert codes == ["thinking_disabled"]
    body, codes = made(user("q"), said(call()), *after, said("a"), user("c"), max_tokens=2048, **params)
    assert ("thinking" in body, codes) == (True, [])


@pytest.mark.parametrize("thought", [SIGNED, REDACTED])
def test_signed_reasoning_is_sent_back_unchanged(thought):
    history = [user("q"), said(thought, "a", call()), user(result())]
    assert made(*history) == ({"messages": history}, [])


@pytest.mark.parametrize(
    ("thought", "code"),
    [
        ({"type": "thinking", "thinking": "hm"}, "thinking_unsigned"),
        ({"type": "thinking", "thinking": "hm", "signature": ""}, "thinking_unsigned"),
        ({"type": "thinking", "thinking": " ", "signature": "c2ln"}, "thinking_empty"),
        ({**SIGNED, "issuer": {"provider": "openai-chat"}}, "thinking_foreign"),
        ({**SIGNED, "issuer": {"provider": "anthropic", "model": "claude-opus-4-1"}}, "thinking_foreign"),
    ],
)
def test_reasoning_that_cannot_be_sent_back_is_dropped(thought, code):
    body, codes = made(user("q"), said(thought, "a"), user("b"), model="claude-sonnet-4-5", max_tokens=9)
    assert body["messages"][1] == said("a")
    assert codes == [code]


def test_a_model_and_its_alias_are_one_issuer():
    thought = {**SIGNED, "issuer": {"provider": "anthropic", "model": "claude-sonnet-4-5-20250929"}}
    body, codes = made(user("q"), said(thought, "a"), user("b"), model="claude-sonnet-4-5", max_tokens=9)
    assert body["messages"][1] == said(SIGNED, "a")
    assert codes == []


def test_models_that_write_empty_reasoning_accept_it_back():
    empty = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    history = [user("q"), said(empty, "a"), user("b")]
    assert made(*history, model="claude-opus-4-7", max_tokens=9)[1] == []
    assert made(*history, model="claude-sonnet-4-5", max_tokens=9)[1] == ["thinking_empty"]


def test_a_turn_keeps_all_of_its_reasoning_or_none():
    unsigned = {"type": "thinking", "thinking": "more"}
    body, codes = made(user("q"), said(SIGNED, "a", unsigned, call()), user(result()))
    assert body["messages"][1] == said("a", call())
    assert codes == ["thinking_of_changed_turn", "thinking_unsigned"]


def test_a_turn_that_lost_a_call_has_no_reasoning():
    history = [user("q"), said(SIGNED, "a", call("x")), user("stop")]
    body, codes = made(*history, policy={"missing_result": "drop"})
    assert body["messages"][1] == said("a")
    assert codes == ["call_unanswered", "thinking_of_changed_turn"]


def test_of_merged_turns_the_unchanged_one_keeps_its_reasoning():
    body, codes = made(user("q"), said(SIGNED, "a"), said(SIGNED, "b", call(), call()), user(result()))
    assert body["messages"][1:3] == [said(SIGNED, "a"), said("b", call())]
    assert codes == ["call_repeated", "thinking_of_changed_turn"]


def test_reasoning_does_not_end_a_turn():
    body, codes = made(user("q"), said("a", SIGNED), user("b"))
    assert body["messages"][1] == said("a")
    assert codes == ["thinking_trailing"]


# Blocks.


def test_names_are_rewritten_in_tools_choice_and_history_together():
    tools = [{"name": "mcp.server/read file", "input_schema": {"type": "object"}}]
    body, codes = made(
        user("q"),
        said(call(name="mcp.server/read file")),
        user(result()),
        tools=tools,
        tool_choice={"type": "tool", "name": "mcp.server/read file"},
    )
    name = body["tools"][0]["name"]
    assert name == body["messages"][1]["content"][0]["name"] == body["tool_choice"]["name"]
    assert codes == ["tool_name_rewritten", "tool_name_rewritten"]


def test_similar_names_stay_distinct():
    history = [user("q"), said(call("a", "x.y"), call("b", "x y"), call("c", "x_y"))]
    body, _ = made(*history, user(result("a"), result("b"), result("c")))
    assert len({block["name"] for block in body["messages"][1]["content"]}) == 3


def test_media_of_an_error_result_are_moved_after_the_results():
    broken = result("a", [text("failed"), image()], is_error=True)
    body, codes = made(user("q"), said(call("a"), call("b")), user(broken, result("b"), "so?"))
    assert body["messages"][2] == user(result("a", [text("failed")], is_error=True), result("b"), image(), "so?")
    assert codes == ["error_media_moved"]


def test_an_images_type_is_corrected_by_its_bytes():
    body, codes = made(user(image(media_type="image/jpeg")))
    assert body["messages"][0] == user(image(media_type="image/png"))
    assert codes == ["image_type_corrected"]


@pytest.mark.parametrize(
    "bad",
    [image("SUkqAAAAAAAAAAAA", "image/tiff"), image("not base64!"), image(png()[:16]), image(png() + "A" * 5_242_880)],
)
def test_an_invalid_image_becomes_a_line_of_text(bad):
    body, codes = made(user("see", bad))
    assert body["messages"][0]["content"][1]["text"].startswith("[Image left out: ")
    assert codes == ["image_stubbed"]


def test_an_image_in_a_tools_row_is_named_by_its_place_there():
    called = {"id": "a", "type": "function", "function": {"name": "see", "arguments": "{}"}}
    shown = {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,SUkqAAAAAAAAAAAA"}}
    row = {"role": "tool", "tool_call_id": "a", "content": [text("seen"), shown]}
    done = normalize([{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [called]}, row])
    assert [(fix.code, fix.path) for fix in done.fixes] == [("image_stubbed", "messages.2.content.1")]


def test_a_large_image_is_rejected_only_among_many():
    wide, small = image(png(2001, 10)), image()
    many = [user(small), said("ok")] * 20
    reject = {"media": "reject"}
    assert made(user(wide, *[small] * 19))[1] == []
    assert made(*many, user(wide), policy=reject)[1] == ["image_stubbed"]
    # The new image is dropped, the older ones stay.
    body, codes = made(user(wide, *[small] * 19), said("ok"), user(small), policy=reject)
    assert body["messages"][0]["content"][0] == wide
    assert codes == ["image_stubbed"]


def test_provider_run_calls_and_results_are_kept_or_dropped_together():
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    assert made(user("q"), said(search, found, "so"), user("on"))[1] == []
    assert made(user("q"), said(search, "so"), user("on"))[1] == ["server_tool_unpaired"]
    assert made(user("q"), said(found, "so"), user("on"))[1] == ["server_tool_unpaired"]
    prefill = {"policy": {"tail": "prefill"}, "model": "claude-opus-4-1", "max_tokens": 9}
    assert made(user("q"), said("let me see", search), **prefill)[1] == []


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}


def kinds(done, at):
    return [block["type"] for block in json.loads(done.body)["messages"][at]["content"]]


def test_a_search_in_flight_settles_once_the_next_turn_is_known():
    session = session_of(user("q"), said(SEARCH, call()), user(result()))
    waiting = session.request()
    assert kinds(waiting, 1) == ["server_tool_use", "tool_use"]
    assert waiting.unjudged[: waiting.prefix_bytes].endswith(b'"q"}]}')
    session.append(said(FOUND, "so"))
    answered = session.request()
    assert answered.unjudged[: answered.prefix_bytes].endswith(b'"content":"files"}]}')
    assert (kinds(answered, 1), kinds(answered, 3), [fix.code for fix in answered.fixes]) == (
        ["server_tool_use", "tool_use"],
        ["web_search_tool_result", "text"],
        ["tail_continued"],
    )


def test_a_lost_search_is_dropped_once_the_loop_has_ended():
    session = session_of(user("q"), said(SEARCH, call()), user(result()))
    assert session.request().fixes == []
    session.append(said("so"))
    session.append(user("on"))
    lost = session.request()
    assert kinds(lost, 1) == ["tool_use"]
    assert [(fix.code, fix.path) for fix in lost.fixes] == [("server_tool_unpaired", "messages.1.content.0")]


@pytest.mark.parametrize(
    ("caller", "first", "codes"),
    [
        ({}, ["tool_use"], ["server_tool_unpaired"]),
        # Without the code's own call, the calls that it made would have no caller.
        ({"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}, ["server_tool_use", "tool_use"], []),
    ],
)
def test_a_search_in_flight_is_waited_for_as_long_as_a_result(caller, first, codes):
    loop = [message for at in range(3) for message in (said(call(f"more_{at}")), user(result(f"more_{at}")))]
    history = [user("q"), said(SEARCH, call() | caller), user(result()), *loop]
    expired = normalize(history, policy={"open_exchanges": 2})
    assert (kinds(expired, 1), [fix.code for fix in expired.fixes]) == (first, codes)
    patient = normalize(history, policy={"open_exchanges": 8})
    assert (kinds(patient, 1), patient.fixes) == (["server_tool_use", "tool_use"], [])


def test_an_emptied_turn_is_replaced_by_a_line_of_text():
    body, codes = made(user("q"), said({"type": "hologram", "depth": 3}), user("on"))
    assert body["messages"][1] == said("[Nothing of this turn can be shown to this model.]")
    assert codes == ["unknown_dropped", "turn_stubbed"]


def test_a_prefill_ends_without_whitespace():
    body, codes = made(user("q"), said("{ \n"), policy={"tail": "prefill"}, model="claude-opus-4-1", max_tokens=9)
    assert body["messages"][1] == said("{")
    assert codes == ["prefill_trimmed"]


# Cache breakpoints.


def marks(body):
    return [at for at, message in enumerate(body["messages"]) if "cache_control" in json.dumps(message)]


def test_up_to_four_breakpoints_stay_in_place():
    history = [user(text("a", cache_control=MARK)), said("b"), user(text("c", cache_control=MARK))]
    body, codes = made(*history, system=[text("s", cache_control=MARK)])
    assert marks(body) == [0, 2]
    assert codes == []


def test_the_heads_and_the_newest_breakpoints_stay():
    history = [message for n in range(5) for message in (user(text(f"u{n}", cache_control=MARK)), said("ok"))]
    tools = [{"name": "ls", "input_schema": {"type": "object"}, "cache_control": MARK}]
    body, codes = made(*history, user("on"), system=[text("s", cache_control=MARK)], tools=tools)
    assert marks(body) == [6, 8]
    assert body["system"][0]["cache_control"] == MARK
    assert body["tools"][0]["cache_control"] == MARK
    assert codes == ["cache_control_dropped"] * 3


def test_moving_breakpoints_are_the_same_turn_by_turn():
    session = Session()
    history = []
    for number in range(12):
        for message in (user(text(f"u{number}", cache_control=MARK)), said(text("ok", cache_control=MARK))):
            history.append(message)
            session.append(message)
            done, whole = session.request(), normalize(msgspec.json.encode(history))
            assert done.body == whole.body
            assert done.sha256 == whole.sha256
            assert sorted(done.fixes, key=repr) == sorted(whole.fixes, key=repr)


def test_one_turn_with_many_breakpoints_keeps_the_newest():
    body, codes = made(user(*[text(str(n), cache_control=MARK) for n in range(6)]))
    assert [("cache_control" in block) for block in body["messages"][0]["content"]] == [False] * 2 + [True] * 4
    assert codes == ["cache_control_dropped"]


def test_a_breakpoint_of_null_stays_and_counts_as_none():
    session = Session()
    for message in (user("a"), said(text("b", cache_control=None)), user(text("c", cache_control=MARK)), said("d")):
        session.append(message)
    session.append(user("e"))
    done = session.request()
    assert done.body[: done.prefix_bytes].endswith(b'[{"type":"text","text":"b","cache_control":null}]}')
    assert done.fixes == []


# The head.


def test_the_head_comes_first_so_that_requests_share_a_prefix():
    body = normalize(
        {"messages": [user("q")], "max_tokens": 5, "system": "s", "model": "m", "params": {"top_k": 3}}
    ).body
    assert body == (
        b'{"model":"m","system":"s","max_tokens":5,"top_k":3,'
        b'"messages":[{"role":"user","content":[{"type":"text","text":"q"}]}]}'
    )


@pytest.mark.parametrize(
    "given",
    [
        {"max_tokens": 5, "top_p": 0.5, "stop_sequences": ["x"]},
        {"max_completion_tokens": 5, "top_p": 0.5, "stop": "x"},
        {"max_output_tokens": 5, "top_p": 0.5, "stop": ["x"]},
        {"inferenceConfig": {"maxTokens": 5, "topP": 0.5, "stopSequences": ["x"]}},
        {"generationConfig": {"maxOutputTokens": 5, "topP": 0.5, "stopSequences": ["x"]}},
    ],
)
def test_parameters_of_other_providers_are_translated(given):
    body, codes = made(user("q"), **given)
    del body["messages"]
    assert (body, codes) == ({"max_tokens": 5, "top_p": 0.5, "stop_sequences": ["x"]}, [])


def test_an_unsupported_parameter_is_dropped_and_recorded():
    done = normalize({"messages": [user("q")], "max_tokens": 5, "seed": 7, "generationConfig": {"speechConfig": {}}})
    assert [(fix.code, fix.path, fix.detail) for fix in done.fixes] == [
        ("param_dropped", "params.seed", "seed"),
        ("param_dropped", "params.generationConfig.speechConfig", "generationConfig.speechConfig"),
    ]
    assert json.loads(done.body).keys() == {"messages", "max_tokens"}
    assert [violation.rule for violation in validate(done.body)] == ["ANT-37"]


def test_native_parameters_stay_unchanged():
    own = b'{"stop_sequences":null,"thinking":{"type": "disabled"},"top_k":3,"tool_choice":{"type": "auto"}}'
    body = normalize(b'{"messages":[{"role":"user","content":"q"}],"params":%b}' % own).body
    assert body == own[:-1] + b',"messages":[{"role":"user","content":"q"}]}'


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ({"type": "function", "function": {"name": "ls"}}, {"type": "tool", "name": "ls"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"type": "any", "disable_parallel_tool_use": True}),
    ],
)
def test_the_tool_choice_is_translated(given, written):
    body, codes = made(user("q"), tools=[{"name": "ls", "input_schema": {"type": "object"}}], tool_choice=given)
    assert (body["tool_choice"], codes) == (written, [])


@pytest.mark.parametrize("given", ["sometimes", 7, {"type": "tool"}, {"type": "file_search"}])
def test_an_invalid_tool_choice_is_dropped(given):
    body, codes = made(user("q"), tools=[{"name": "ls", "input_schema": {"type": "object"}}], tool_choice=given)
    assert ("tool_choice" in body, codes) == (False, ["param_dropped"])


def test_the_parameters_are_those_that_the_library_knows():
    known = set(MessageCreateParamsBase.__annotations__) - {"messages", "model", "system", "tools"}
    assert known <= PARAMETERS


def test_a_provider_specific_tool_is_sent_to_its_issuer_only():
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    body, codes = made(user("q"), tools=[search, {"type": "web_search_preview"}])
    assert body["tools"] == [search]
    assert codes == ["tool_foreign"]


def test_tools_of_other_shapes_are_translated():
    function = {"name": "ls", "description": "List.", "parameters": {"type": "object"}, "prompt": "?"}
    body, codes = made(user("q"), tools=[{"type": "function", "function": function}])
    assert body["tools"] == [{"name": "ls", "description": "List.", "input_schema": {"type": "object"}}]
    assert codes == ["field_dropped"]
    del function["prompt"]
    assert made(user("q"), tools=[{"type": "function", "function": function}])[1] == []


def test_a_second_tool_with_a_name_is_dropped():
    tool = {"name": "ls", "input_schema": {"type": "object"}}
    body, codes = made(user("q"), tools=[tool, tool])
    assert body["tools"] == [tool]
    assert codes == ["tool_repeated"]


def test_numbers_in_tool_inputs_keep_their_digits():
    history = b'[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f",'
    history += b'"input":{"a":1.0,"b":1e400}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}]'
    assert b'"input":{"a":1.0,"b":1e400}' in normalize(history).body


# Unchanged content.


def test_a_string_stays_a_string_and_blocks_stay_blocks():
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        user("more"),
        said("yes", call()),
        user(result()),
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "last"},
    ]
    body, fixes = made(*messages)
    assert (body["messages"], fixes) == (messages, [])


@pytest.mark.parametrize("upto", range(1, 8))
def test_a_string_is_written_the_same_whole_and_turn_by_turn(upto):
    messages = [{"role": "assistant" if at % 2 else "user", "content": f"said {at}"} for at in range(upto)]
    done = session_of(*messages).request()
    assert done.body == normalize(messages).body
    assert json.loads(done.body)["messages"][:upto] == messages


def test_consecutive_strings_stay_strings():
    strings = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    body, fixes = made(*strings)
    assert (body["messages"], fixes) == (strings, [])


def test_a_marked_system_text_inside_the_history_is_a_string_too():
    later = {"role": "system", "content": "be brief"}
    body, fixes = made({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, later)
    assert body["messages"][-1] == {"role": "user", "content": "[System message]\nbe brief"}
    assert fixes == ["system_inlined"]


def test_a_trimmed_prefill_is_still_a_string():
    body, fixes = made(
        {"role": "user", "content": "q"}, {"role": "assistant", "content": "Answer: "}, policy={"tail": "prefill"}
    )
    assert body["messages"][-1] == {"role": "assistant", "content": "Answer:"}
    assert fixes == ["prefill_trimmed"]
