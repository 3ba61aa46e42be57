"""Calls of tools that accept no object, on every path: declared wrapped, shown unwrapped, and kept in the history."""

import json

import msgspec
import pytest
import stage_runs
from build import result, said, user
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from stream_runs import entries, only

from reknit import Session, normalize, recover
from reknit.pipeline.cli.offline import recover_command
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.wrapped_inputs import unwrapped_input, wrapped_input
from reknit.pipeline.model import Tool
from reknit.pipeline.policy import Policy
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.streams.session import Recovery
from reknit.pipeline.targets.schemas import COMBINATORS, WRAPPER, accepts_objects, object_schema
from reknit.pipeline.targets.wrapped_tools import wrapped_tools
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_EVENTS, SESSION_ITEMS
from reknit.topics.items import AnyItem, ItemCompleted, ItemStarted
from reknit.topics.reducer import reduce

LIST = {"type": "array", "items": {"type": "string"}}
TOOLS = [{"name": "sort", "input_schema": LIST}]
HELD = '{"_raw": ["b","a"]}'
MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai-chat": "gpt-5",
    "openai-responses": "gpt-5",
    "bedrock-converse": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "gemini": "gemini-3-pro-preview",
    "mistral": "mistral-large-latest",
    "deepseek": "deepseek-chat",
    "moonshot": "kimi-k2.5",
}


def chat(name, words):
    calls = [{"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": ""}}]
    chunks = [{"delta": {"role": "assistant", "tool_calls": calls}}]
    chunks += [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}} for piece in halves(words)]
    chunks.append({"delta": {}, "finish_reason": "tool_calls"})
    return [{"id": "m1", "object": "chat.completion.chunk", "choices": [{"index": 0} | chunk]} for chunk in chunks]


def anthropic(name, words):
    block = {"type": "tool_use", "id": "c1", "name": name, "input": {}}
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in halves(words)]
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": piece} for piece in pieces),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def responses(name, words):
    item = {"type": "function_call", "id": "fc1", "call_id": "c1", "name": name, "arguments": "", "status": "completed"}
    done = item | {"arguments": words}
    at = {"item_id": "fc1", "output_index": 0}
    return [
        {"type": "response.created", "response": {"id": "r1", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item | {"status": "in_progress"}},
        *({"type": "response.function_call_arguments.delta", "delta": piece} | at for piece in halves(words)),
        {"type": "response.function_call_arguments.done", "arguments": words} | at,
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": {"id": "r1", "status": "completed", "output": [done]}},
    ]


def gemini(name, words):
    call = {"functionCall": {"id": "c1", "name": name, "args": json.loads(words)}}
    content = {"role": "model", "parts": [call]}
    return [{"candidates": [{"content": content, "finishReason": "STOP", "index": 0}], "modelVersion": "gemini-3-pro"}]


def converse(name, words):
    pieces = [{"toolUse": {"input": piece}} for piece in halves(words)]
    return [
        {"messageStart": {"role": "assistant"}},
        {"contentBlockStart": {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "c1", "name": name}}}},
        *({"contentBlockDelta": {"contentBlockIndex": 0, "delta": piece}} for piece in pieces),
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"messageStop": {"stopReason": "tool_use"}},
    ]


def halves(words):
    return [words[:4], words[4:]]


EVENTS = {
    "anthropic": anthropic,
    "openai-chat": chat,
    "openai-responses": responses,
    "bedrock-converse": converse,
    "gemini": gemini,
    "mistral": chat,
    "deepseek": chat,
    "moonshot": chat,
    "vllm": chat,
}


def events(source, name="sort", words=HELD):
    return [json.dumps(event).encode() for event in EVENTS[source](name, words)]


def shown(items):
    """The input of each call on the screen."""
    calls = [entry for entry in entries(items) if entry.item_type == "tool_use"]
    return [json.loads(bytes(entry.input or entry.text.encode())) for entry in calls]


# Values and schemas.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_any_value_comes_back_as_it_was_wrapped(value):
    written = msgspec.json.encode(value)
    assert bytes(unwrapped_input(wrapped_input(written))) == written
    assert bytes(unwrapped_input(json.dumps({WRAPPER: value}).encode())) == json.dumps(value).encode()


@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_an_object_with_other_members_is_never_unwrapped(members):
    unwrapped = unwrapped_input(json.dumps(members).encode())
    assert (unwrapped is not None) is (members.keys() == {WRAPPER})


@pytest.mark.parametrize(
    "words",
    [b"", b"{", b"[1]", b'"_raw"', b"null", b"{}", b'{"_raw":}', b'{"_raw":1', b"\xff", b'{"_raw":' + b"[" * 9999],
)
def test_other_texts_are_never_unwrapped(words):
    assert unwrapped_input(words) is None


@pytest.mark.parametrize(
    ("schema", "wrapped"),
    [
        (LIST, True),
        ({"type": "string"}, True),
        ({"type": ["string", "null"]}, True),
        ({"const": 3}, True),
        ({"enum": ["a", "b"]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, True),
        ({"$defs": {"L": LIST}, "$ref": "#/$defs/L"}, True),
        ({"type": "STRING"}, True),  # as Gemini spells it
        ({"type": "OBJECT", "properties": {"_raw": {"type": "STRING"}}}, False),
        ({}, False),
        ({"properties": {}}, False),
        ({"type": "object", "properties": {"_raw": LIST}, "required": ["_raw"]}, False),
        ({"type": ["array", "object"]}, False),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, False),
        ({"$ref": "https://example.org/s.json"}, False),
    ],
)
def test_only_a_tool_that_accepts_no_object_is_wrapped(schema, wrapped):
    tool = Tool(name="t", input_schema=msgspec.Raw(json.dumps(schema).encode()))
    assert (wrapped_tools([tool]) == {"t"}) is wrapped
    done = normalize({"tools": [{"name": "t", "input_schema": schema}], "messages": [user("Go.")]}, to="openai-chat")
    assert ("schema_wrapped" in [fix.code for fix in done.fixes]) is wrapped


def test_a_call_is_known_by_the_name_under_which_its_tool_is_sent():
    tools = [Tool(name="my sort", input_schema=msgspec.Raw(json.dumps(LIST).encode()))]
    done = normalize(
        {"tools": [{"name": "my sort", "input_schema": LIST}], "messages": [user("Go.")]}, to="openai-chat"
    )
    (sent,) = json.loads(done.body)["tools"]
    assert sent["function"]["name"] != "my sort"
    assert {"my sort", sent["function"]["name"]} <= wrapped_tools(tools)


def test_a_name_of_two_tools_is_not_unwrapped():
    schemas = [LIST, {"type": "object"}]
    tools = [Tool(name="t", input_schema=msgspec.Raw(json.dumps(schema).encode())) for schema in schemas]
    assert wrapped_tools(tools) == wrapped_tools(tools[::-1]) == frozenset()


def test_a_schema_is_wrapped_whatever_the_target_refuses():
    schema = {"anyOf": [{"type": "string"}]}
    assert not accepts_objects(schema)
    assert object_schema(schema, frozenset()) == object_schema(schema, COMBINATORS)
    assert object_schema(schema)["required"] == [WRAPPER]


# Streams.


@pytest.mark.parametrize("source", EVENTS)
def test_a_call_in_a_stream_is_shown_as_its_value(source):
    assert shown(list(recover(events(source), source, tools=TOOLS))) == [["b", "a"]]
    assert shown(list(recover(events(source), source))) == [json.loads(HELD)]


def test_a_call_that_is_complete_when_it_starts_is_shown_as_its_value_from_the_start():
    call = {"id": "t1", "type": "function", "function": {"name": "sort", "arguments": HELD}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"id": "c", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    items = list(recover([json.dumps(answer).encode()], "openai-chat", tools=TOOLS))
    inputs = [bytes(item.input) for item in only(items, ItemStarted, ItemCompleted)]
    assert list(map(json.loads, inputs)) == [["b", "a"]] * 2


@pytest.mark.parametrize("source", EVENTS)
@pytest.mark.parametrize(
    ("name", "words"),
    [("other", HELD), ("sort", '{"_raw": 1, "a": 2}'), ("sort", '{"list": ["b","a"]}'), ("sort", "{}")],
)
def test_other_calls_stay_as_they_came(source, name, words):
    tools = [*TOOLS, {"name": "other", "input_schema": {"type": "object", "properties": {"_raw": {}}}}]
    with_tools = list(recover(events(source, name, words), source, tools=tools))
    assert with_tools == list(recover(events(source, name, words), source))


@pytest.mark.parametrize("source", EVENTS)
def test_the_turn_keeps_the_object_and_one_fix_names_the_item(source):
    found = []
    for restarts in (False, True):
        recovery = Recovery(source)
        recovery.unwrap(frozenset({"sort"}))
        items, fixes, turns = [], [], []
        for event in events(source):
            items += recovery.feed(event)
            if restarts:
                recovery = Recovery.restore(recovery.snapshot())
                recovery.unwrap(frozenset({"sort"}))
        items += recovery.end_run("exit")
        fixes, turns = recovery.take_fixes(), recovery.take_finished()
        (call,) = [entry for entry in entries(items) if entry.item_type == "tool_use"]
        assert [(fix.code, fix.path, fix.lossless) for fix in fixes] == [("call_unwrapped", call.item_id, True)]
        (block,) = json.loads(turns[0].message)["content"]
        assert block["input"] == json.loads(HELD)
        found.append((items, fixes, turns))
    assert found[0] == found[1]


def test_a_call_that_was_cut_keeps_what_arrived():
    cut = events("anthropic")[:3]
    items = list(recover(cut, "anthropic", tools=TOOLS))
    (call,) = [entry for entry in entries(items) if entry.item_type == "tool_use"]
    assert (call.incomplete, call.text, call.input) == (True, HELD[:4], None)


@pytest.mark.parametrize("tools", [[7], [None], ["sort"]])
def test_tools_that_cannot_be_read_are_an_error(tools):
    with pytest.raises(InputError):
        list(recover([], "anthropic", tools=tools))


def recovered(folder, given, lines):
    (folder / "tools.json").write_text(given)
    (folder / "events.jsonl").write_bytes(b"\n".join(lines))
    places = ["--tools", str(folder / "tools.json"), str(folder / "events.jsonl")]
    return CliRunner().invoke(recover_command, ["--from", "anthropic", *places])


@pytest.mark.parametrize(
    ("given", "expected", "code"),
    [
        (json.dumps(TOOLS), ["b", "a"], 3),
        (json.dumps({"tools": TOOLS, "messages": []}), ["b", "a"], 3),
        ("{}", json.loads(HELD), 0),
    ],
)
def test_the_command_takes_a_file_of_tools(tmp_path, given, expected, code):
    done = recovered(tmp_path, given, events("anthropic"))
    items = [msgspec.json.decode(line, type=AnyItem) for line in done.stdout.splitlines()]
    assert (shown(items), done.exit_code) == ([expected], code)


@pytest.mark.parametrize("given", ["", "{", "7", '{"tools": {}}', "[7]"])
def test_the_command_refuses_a_file_without_tools(tmp_path, given):
    done = recovered(tmp_path, given, [])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "tools" in done.stderr


# Requests.


def called(body):
    """The input of the only call in a body of any target."""
    for message in body.get("messages") or body.get("input") or body["contents"]:
        for call in (message.get("tool_calls") or []) + [message] + list(message.get("parts") or []):
            inner = call.get("function") or call.get("functionCall") or call
            given = inner.get("arguments", inner.get("args"))
            if given is not None:
                return json.loads(given) if isinstance(given, str) else given
        for block in message["content"] if isinstance(message.get("content"), list) else []:
            inner = block.get("toolUse", block)
            if "input" in inner:
                return inner["input"]
    raise AssertionError(body)


@pytest.mark.parametrize("target", MODELS)
def test_a_session_shows_the_model_its_calls_as_the_tool_is_declared(target):
    tools = [{"name": "sort", "input_schema": LIST}]
    session = Session([target], tools=tools, model=MODELS[target], params={"max_tokens": 100})
    session.append(user("Sort it."))
    assert f'"{WRAPPER}"' in session.request(target).body.decode()
    call = {"type": "tool_use", "id": "c1", "name": "sort", "input": ["b", "a"]}
    session.append(said(call))
    session.append(user(result("c1", "a b")))
    body = json.loads(session.request(target).body)
    assert called(body) == {WRAPPER: ["b", "a"]}


# The topics.

OPENED = {"type": "session.opened", "tools": TOOLS, "params": {"max_tokens": 100}}


@pytest.mark.parametrize("source", MODELS)
@pytest.mark.parametrize("by_default", [False, True])
def test_the_stream_side_knows_the_tools_of_a_session(source, by_default):
    raw = tuple(msgspec.Raw(json.dumps(tool).encode()) for tool in TOOLS)
    policy = Policy(record_assistant=True)
    defaults = Defaults(targets=(source,), model=MODELS[source], policy=policy, tools=raw if by_default else ())
    opened = [] if by_default else [OPENED]
    turns = TurnsStage(defaults).process(stage_runs.records([*opened, stage_runs.turn(user("Sort it."))]))
    told = [output for output in turns.outputs if output.topic == PROVIDER_EVENTS]
    headers = (("source", source.encode()), ("run", b"r1"))
    log = [*(stage_runs.records([None], each.headers)[0] for each in told)]
    log += stage_runs.records(events(source), headers, first=len(log))
    log += stage_runs.records([None], (*headers, ("exit", b"0")), first=len(log))
    for restart in (False, True):
        outputs = EventsStage(defaults).process(log).outputs if not restart else restarted(defaults, log)
        items = [msgspec.json.decode(each.value, type=AnyItem) for each in outputs if each.topic == SESSION_ITEMS]
        assert shown(items) == [["b", "a"]]
        assert len(reduce(items).entries) == 1
        codes = [json.loads(each.value)["code"] for each in outputs if each.topic == HISTORY_FIXES]
        assert codes == ["call_unwrapped"]
        (turn,) = [json.loads(each.value) for each in outputs if each.topic == AGENT_TURNS]
        assert turn["message"]["content"][0]["input"] == json.loads(HELD)


def restarted(defaults, log):
    """The outputs of a stage that is restored from its changelog before each record."""
    outputs, state = [], {}
    for record in log:
        stage = stage_runs.restored(EventsStage(defaults), state)
        found = stage.process([record])
        outputs += found.outputs
        state.update(found.changes)
        state = {key: value for key, value in state.items() if value is not None}
    return outputs
