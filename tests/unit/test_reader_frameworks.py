"""Histories of agent frameworks: each is read as expected, reaches every target, and is refused with a sentence or not.

The samples were written by the frameworks' own packages; broken ones were left broken.
"""

import json

import msgspec
import pytest
from framework_cases import (
    MARK,
    SHARED,
    TARGETS,
    cases,
    compared,
    marked_blocks,
    read_as_expected,
    shared_cases,
    with_readers_ids,
)
from reader_results import hard

from reknit.pipeline.cli.turns import records_of
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.frameworks import FRAMEWORKS
from reknit.pipeline.history.readers.shapes import SHAPES, read
from reknit.pipeline.session import Session, normalize

ALL = cases()
READ = [pytest.param(case, id=f"{case['shape']}-{case['case']}") for case in ALL if "expect" in case]
REFUSED = [pytest.param(case, id=case["case"]) for case in ALL if "refused" in case]
# What is decided by the whole list: what was taken back, compacted, or is on another branch of a tree; the order of
# rows; approvals, and instructions that only the last request has.
BY_THE_WHOLE = {
    ("adk-events", "rewind-compaction"),
    ("adk-events", "plain"),
    ("adk-events", "plain-snake"),
    ("roo-api", "condensed"),
    ("pydantic-ai", "plain"),
    # A summary repeats the calls of the messages before it.
    ("autogen-agentchat", "summary"),
}


def same(case):
    found = read(case["text"])
    system, model, messages = read_as_expected(found)
    expect = case["expect"]
    expected = with_readers_ids(compared(expect["messages"]), messages)
    return (system, model, messages), (expect["system"], expect["model"], expected)


@pytest.mark.parametrize("case", READ)
def test_a_history_of_a_framework_is_read_as_expected(case):
    given, expected = same(case)
    assert given == expected


# All that reading each history loses: the place and the name of it. Every other member of a message is read, or
# describes the run and is ignored.
LOSSES = {
    "acp-media": ["messages.2.update.content.2 diff"],
    "acp-plain": ["messages.7 plan"],
    "adk-events-broken": [
        "messages.6.content.parts.0 question",
        "messages.7 partial",
        "messages.8.errorCode errorCode: a string",
        "messages.8.errorMessage errorMessage: a string",
    ],
    "adk-events-plain-snake": ["messages.2.actions.state_delta state_delta: an object"],
    "adk-events-plain": ["messages.2.actions.stateDelta stateDelta: an object"],
    "adk-events-reasoning": ["state state: an object"],
    "adk-events-rewind-compaction": ["messages.2 rewound", "messages.3 rewound", "messages.4 rewound"],
    "ag-ui-plain": ["messages.6 activity"],
    "ag-ui-reasoning": ["messages.3.toolCalls.0.encryptedValue encryptedValue: a string", "state state: an object"],
    "ai-sdk-model-reasoning-v5": ["messages.1.content.3.providerOptions thoughtSignature"],
    "ai-sdk-model-reasoning-v6": ["messages.1.content.3.providerOptions thoughtSignature"],
    "ai-sdk-model-reasoning-v7": ["messages.1.content.3.providerOptions thoughtSignature"],
    "ai-sdk-ui-media-v5": ["messages.0.parts.4 data-note", "messages.1.parts.4 source-url"],
    "ai-sdk-ui-media-v6": ["messages.0.parts.4 data-note", "messages.1.parts.4 source-url"],
    "ai-sdk-ui-media-v7": ["messages.0.parts.4 data-note", "messages.1.parts.4 source-url"],
    "autogen-agentchat-broken": ["messages.4 ModelClientStreamingChunkEvent", "messages.5.context context: a list"],
    "autogen-agentchat-media": ["messages.2 UserInputRequestedEvent"],
    "cline-api-plain": ["messages.1.content.1.call_id call_id: a string"],
    "cline-api-reasoning": [
        "messages.1.content.0.summary summary: a list",
        "messages.1.content.1.reasoning_details reasoning_details: a list",
        "messages.1.content.2.signature signature: a string",
    ],
    "copilot-events-broken": ["messages.9.data subagent"],
    "copilot-events-media": ["messages.1.data.attachments.1 file"],
    "goose-broken": [
        "messages.1.content.1.toolCall.error error: a string",
        "messages.2.content.0 actionRequired",
        "messages.5.content.1 toolConfirmationRequest",
    ],
    "goose-plain": ["messages.4 hidden"],
    "goose-reasoning": ["messages.1.content.3.metadata thoughtSignature"],
    "langchain-dumpd-broken": ["messages.7.kwargs remove"],
    "langchain-dumpd-plain": ["messages.3.kwargs.artifact artifact: an object"],
    "langchain-messages_to_dict-broken": ["messages.7.data remove"],
    "langchain-messages_to_dict-plain": ["messages.3.data.artifact artifact: an object"],
    "langchain-model_dump-broken": ["messages.7 remove"],
    "langchain-model_dump-plain": ["messages.3.artifact artifact: an object"],
    "langgraph-state-broken": ["interrupts interrupts: a list"],
    "letta-broken": ["messages.5 event_message"],
    "mastra-errors": ["messages.1.content.parts.3 error"],
    "opencode-v2-broken": ["messages.1.error error: an object"],
    "opencode-v2-media": ["messages.2 shell"],
    "opencode-broken": ["messages.2 failed", "messages.2.parts.0 step-start", "messages.2.parts.1 reasoning"],
    "opencode-media": ["messages.0.parts.2 file", "messages.1.parts.1.state.output output"],
    "opencode-plain": ["messages.0.parts.1 ignored", "messages.2.parts.2 patch"],
    "pi-session-broken": ["messages.1 message", "messages.2 message", "messages.6 message"],
    "pi-session-plain": ["messages.5.message.details details: an object"],
    "pydantic-ai-plain": ["messages.2.parts.0.metadata metadata: an object"],
    "roo-api-condensed": ["messages.0 condensed", "messages.1 condensed", "messages.3 condensed"],
    "roo-api-reasoning": ["messages.2.reasoning_details reasoning_details: a list"],
    "strands-session-reasoning": ["messages.3.message message_redacted"],
}


@pytest.mark.parametrize("case", READ)
def test_only_what_no_provider_takes_is_lost_in_reading(case):
    lost = [f"{fix.path} {fix.detail or fix.code}" for fix in read(case["text"]).fixes]
    assert lost == LOSSES.get(f"{case['shape']}-{case['case']}", [])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", READ)
def test_a_request_is_valid_and_has_each_mark_or_a_fix_at_its_place(case, target):
    found = read(case["text"])
    done = normalize(case["text"], to=target)
    assert hard(done) == []
    body = bytes(done.body).decode()
    lost = [fix.path for fix in done.fixes]
    for mark, place in marked_blocks(found):
        assert mark in body or any(_covers(path, place) for path in lost), (mark, place)


def _covers(path, place):
    return place == path or place.startswith(f"{path}.") or path.startswith(f"{place}.")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_history_is_refused(case):
    with pytest.raises(InputError):
        normalize(case["text"])


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no histories in {SHARED}")
def test_histories_that_the_project_has_no_copy_of_are_read_as_expected():
    for case in shared_cases():
        given, expected = same(case)
        assert given == expected, (case["shape"], case["case"])


def _messages(case):
    """Return the messages of a history that is a list; None for one in a frame."""
    try:
        found = json.loads(case["text"])
    except ValueError:
        return None
    return found if isinstance(found, list) else None


LISTS = [param for param in READ if _messages(param.values[0]) is not None]


@pytest.mark.parametrize(
    "case", [each for each in LISTS if (each.values[0]["shape"], each.values[0]["case"]) not in BY_THE_WHOLE]
)
def test_a_history_that_grows_message_by_message_is_read_as_the_whole(case):
    items = _messages(case)
    whole, growing = Session(("anthropic",)), Session(("anthropic",))
    whole.replace(items)
    for item in items:
        growing.append(item)
    assert [_said(turn) for turn in growing.turns] == [_said(turn) for turn in whole.turns]
    assert growing.request().body == whole.request().body
    assert growing.count == whole.count == len(items)


def _said(turn):
    return turn.role, turn.index, turn.id, [msgspec.json.encode(block) for block in turn.blocks]


@pytest.mark.parametrize("case", [each for each in LISTS if read(each.values[0]["text"]).shape in FRAMEWORKS])
def test_messages_of_a_named_shape_decide_nothing(case):
    items, shape = _messages(case), read(case["text"]).shape
    session = Session(("anthropic",))
    for item in items:
        session.append(item, source=shape)
    before = session.count
    fixes = session.append({"role": "user", "content": "x", "odd": 1})
    assert [fix.path for fix in fixes if fix.code == "field_dropped"] == [f"messages.{before}.odd"]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_shape_can_be_named(name):
    assert name in SHAPES
    case = next(case for case in ALL if "expect" in case and _shape(case) == name)
    assert read(case["text"], name) == read(case["text"])


def _shape(case):
    return read(case["text"]).shape


def test_every_framework_has_a_history():
    assert set(FRAMEWORKS) <= {_shape(case) for case in ALL if "expect" in case}


@pytest.mark.parametrize("case", LISTS)
@pytest.mark.parametrize("other", [None, 7, "x", [], {}, [1], {"x": [1]}], ids=str)
def test_a_bad_member_is_repaired_or_refused(case, other):
    """Each member of each message is replaced by a value of another type."""
    items = _messages(case)
    for at, item in enumerate(items):
        for changed in _changed(item, other):
            history = [*items[:at], changed, *items[at + 1 :]]
            try:
                found = read(history)
            except InputError:
                continue
            assert found.conversation is not None


def _changed(value, other, depth=0):
    """Yield the value with one member replaced, at every depth."""
    if depth > 4:
        return
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in members:
        copy = {**value} if isinstance(value, dict) else [*value]
        copy[key] = other
        yield copy
        for changed in _changed(inner, other, depth + 1):
            copy = {**value} if isinstance(value, dict) else [*value]
            copy[key] = changed
            yield copy


def _records(document):
    return [json.loads(record) for record in records_of(json.dumps(document).encode())]


def test_ingest_takes_a_message_of_a_framework_and_a_history_in_a_frame():
    message = {"type": "human", "data": {"content": "Hi"}}
    assert _records(message) == [{"type": "turn.appended", "message": message}]
    messages = [{"id": "u", "role": "user", "content": "Hi"}]
    tool = {"name": "read", "description": "reads", "parameters": {"type": "object"}}
    run = {"threadId": "t", "runId": "r", "state": {"a": 1}, "messages": messages, "tools": [tool]}
    assert _records(run) == [
        {"type": "session.opened", "tools": [tool]},
        {"type": "history.restored", "messages": messages},
        {"type": "request.wanted"},
    ]


def test_a_session_remembers_the_shape_when_it_is_loaded():
    session = Session(("anthropic",))
    session.append({"type": "human", "data": {"content": "Hi", "additional_kwargs": {}}})
    loaded = Session.load(session.head(), [])
    # Without the memory of the shape this is no message: it has neither a role nor a known type.
    loaded.append({"type": "ai", "content": "Yes."})
    assert [turn.role for turn in loaded.turns] == ["user", "assistant"]
    with pytest.raises(InputError):
        Session(("anthropic",)).append({"type": "ai", "content": "Yes."})


def test_a_history_that_is_restored_decides_the_shape_of_the_next_message():
    session = Session(("anthropic",))
    session.replace([{"type": "human", "data": {"content": "Hi", "additional_kwargs": {}}}])
    session.append({"type": "ai", "content": "Yes."})
    assert [turn.role for turn in session.turns] == ["user", "assistant"]


def test_a_message_that_a_framework_does_not_send_has_no_turn_and_is_counted():
    session = Session(("anthropic",))
    session.append({"id": "u", "role": "user", "content": "Hi"})
    plan = {"id": "x", "role": "activity", "activityType": "PLAN", "content": {"steps": ["a"]}}
    fixes = session.append(plan)
    assert [(fix.code, fix.path, fix.detail) for fix in fixes] == [("field_dropped", "messages.1", "activity")]
    assert (session.count, len(session.turns)) == (2, 1)
    session.append({"id": "v", "role": "user", "content": "And?"})
    assert session.turns[-1].index == 2
    session.rewind(2)
    assert (session.count, len(session.turns)) == (2, 1)


def test_a_part_of_a_provider_goes_back_in_its_own_form_only():
    metadata = {"model_provider": "anthropic", "model_name": "claude-sonnet-4-5"}
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    standard = {"type": "server_tool_call", "id": "srvtoolu_1", "name": "web_search", "args": {}}

    def body(*content):
        data = {"content": [*content, {"type": "text", "text": "So."}], "response_metadata": metadata}
        history = [
            {"role": "user", "content": "Search."},
            {"type": "ai", "data": data},
            {"role": "user", "content": "Ok."},
        ]
        done = normalize(history)
        assert hard(done) == []
        return json.loads(done.body)["messages"][1]["content"], [fix.code for fix in done.fixes]

    assert body(search, found)[0][:2] == [search, found]
    assert body(standard) == ([{"type": "text", "text": "So."}], ["native_dropped"])


def test_a_compaction_of_pydantic_ai_is_not_sent_as_anthropics():
    part = {"part_kind": "compaction", "content": "so far", "provider_name": "anthropic"}
    history = [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]},
        {"kind": "response", "parts": [part, {"part_kind": "text", "content": "So."}], "provider_name": "anthropic"},
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "And?"}]},
    ]
    done = normalize(history)
    assert b"compaction" not in done.body
    assert "native_dropped" in [fix.code for fix in done.fixes]


def test_media_of_ag_ui_are_not_taken_for_anthropics():
    source = {"type": "data", "value": "aGk=", "mimeType": "image/png"}
    message = {"id": "u", "role": "user", "content": [{"type": "image", "source": source}]}
    expected = b'{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}}'
    for given in (message, [message], json.dumps([message], indent=1)):
        found = read(given)
        assert found.shape == "ag-ui"
        assert msgspec.json.encode(found.conversation.turns[0].blocks[0]) == expected


def test_two_shapes_in_one_history_are_refused_with_both_places():
    langchain = {"type": "human", "data": {"content": "Hi"}}
    pydantic = {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}]}
    with pytest.raises(InputError) as caught:
        read([langchain, {"role": "user", "content": "Hi"}, pydantic])
    assert caught.value.code == "unknown_shape"
    assert "messages.0 is a message of langchain" in str(caught.value)
    assert "messages.2 one of pydantic-ai" in str(caught.value)


UNSUITABLE = {
    "tickets": (
        [{"id": n, "title": "Login", "status": "open", "body": "It fails."} for n in range(3)],
        "messages.0: a message with the members id, title, status, body, and no shape that Reknit reads has such",
    ),
    "mail": (
        [{"from": "a@example.com", "to": "b@example.com", "subject": "Hi", "content": "Hello."}],
        "messages.0: a message with the members from, to, subject, content, and no shape that Reknit reads has such",
    ),
    "an invented framework": (
        [{"role": "user", "content": "Hi"}, {"role": "assistant", "say": "x", "actions": [{"do": "read"}]}],
        "messages.1: a message with the members role, say, actions, and no shape that Reknit reads has such",
    ),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_a_history_of_no_known_shape_is_refused_in_one_sentence(name):
    history, said = UNSUITABLE[name]
    for given in (history, {"messages": history}, json.dumps(history, indent=1)):
        with pytest.raises(InputError) as caught:
            normalize(given)
        assert caught.value.code == "unknown_shape"
        assert str(caught.value).startswith(said)
        assert "; the nearest are " in str(caught.value)
        assert "docs/works-with.md" in str(caught.value)
        assert "\n" not in str(caught.value)
    session = Session(("anthropic",))
    with pytest.raises(InputError):
        session.replace(history)
    assert session.count == 0


def test_blocks_of_unknown_types_are_left_out():
    block = {"type": "hologram", "at": 1}
    assert "unknown_dropped" in [fix.code for fix in normalize([{"role": "user", "content": ["Hi", block]}]).fixes]
    history = [{"role": "user", "content": [block, "Hi"]}, {"role": "assistant", "content": ["So", block]}]
    assert normalize(history).body == normalize(history, source="anthropic").body is not None
    # The types of one of the providers are known, whoever is asked.
    history = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://e.com/a.mp4"}}] * 3}]
    assert normalize(history).body is not None


STRANGE = {
    "messages of other types": [
        {"role": "user", "content": [{"type": "speech", "value": "Hi"}]},
        {"role": "assistant", "content": [{"type": "deed", "run": "x"}]},
    ],
    "many blocks of other types": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}] * 8},
        {"role": "assistant", "content": [{"type": "hologram", "at": at} for at in range(3)]},
    ],
    "items of other types": {"input": [{"role": "user", "content": "Hi"}, {"type": "deed"}, {"type": "scent"}]},
    "parts of other kinds": {"contents": [{"role": "user", "parts": [{"words": "Hi"}]}]},
    "parts of mail": [{"headers": {"From": "a@example.com"}, "parts": [{"mimeType": "text/plain", "body": "Hi"}]}],
    "calls in a member of no shape": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "actions": [{"tool": "read", "args": {}}]},
    ],
}


def assert_refused_in_one_sentence(history, words):
    """Assert that a history of no known shape is refused, as a list and as its JSON."""
    for given in (history, json.dumps(history, indent=1)):
        with pytest.raises(InputError) as caught:
            normalize(given)
        assert caught.value.code == "unknown_shape"
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", STRANGE)
def test_a_history_that_only_looks_like_a_providers_is_refused_in_one_sentence(name):
    assert_refused_in_one_sentence(STRANGE[name], "docs/works-with.md")


def test_a_message_with_a_member_of_no_content_is_read():
    history = [{"role": "user", "content": "Hi", "actions": []}, {"role": "user", "content": "Go", "steps": ["a"]}]
    assert [fix.path for fix in read(history).fixes] == ["messages.1.steps"]


def test_an_info_next_to_messages_of_another_shape_is_not_opencodes():
    found = read({"info": {"exit_status": "ok"}, "messages": [{"role": "user", "content": "Hi"}]})
    assert found.shape == "anthropic"


def test_marks_are_in_the_vectors():
    assert all(MARK.search(case["text"]) for case in ALL)


def _text(text, **members):
    return {"type": "text", "text": text, **members}


def _tool(state, **members):
    return {"type": "tool-read", "toolCallId": "c1", "state": state, **members}


def _answer(*parts):
    return {"id": "a", "role": "assistant", "parts": list(parts)}


STEP = {"type": "step-start"}
GROWING = {
    "ai-sdk-ui": [
        {"id": "u", "role": "user", "parts": [_text("Hi")]},
        _answer(_text("Le", state="streaming")),
        _answer(_text("Let me"), _tool("input-streaming", rawInput='{"p')),
        _answer(_text("Let me"), _tool("input-available", input={"p": 1})),
        _answer(_text("Let me"), _tool("output-available", input={"p": 1}, output="x")),
        _answer(_text("Let me"), _tool("output-available", input={"p": 1}, output="x"), STEP, _text("So")),
        {"id": "v", "role": "user", "parts": [_text("Go")]},
    ],
    "ag-ui": [
        {"id": "u", "role": "user", "content": "Hi"},
        {"id": "r", "role": "reasoning", "content": "I"},
        {"id": "r", "role": "reasoning", "content": "I think"},
        {"id": "a", "role": "assistant", "content": "Let"},
        {
            "id": "a",
            "role": "assistant",
            "content": "Let me",
            "toolCalls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"p'}}],
        },
        {
            "id": "a",
            "role": "assistant",
            "content": "Let me",
            "toolCalls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"p": 1}'}}],
        },
        {"id": "t", "role": "tool", "toolCallId": "c1", "content": "x"},
    ],
    "adk-events": [
        {"author": "user", "invocationId": "i", "id": "u", "content": {"role": "user", "parts": [{"text": "Hi"}]}},
        {"author": "bot", "invocationId": "i", "id": "a", "content": {"role": "model", "parts": [{"text": "Le"}]}},
        {"author": "bot", "invocationId": "i", "id": "a", "content": {"role": "model", "parts": [{"text": "Let"}]}},
    ],
}  # fmt: skip
EXTENDED = {"ai-sdk-ui": [1, 2, 3, 4], "ag-ui": [1, 3, 4], "adk-events": [1]}


@pytest.mark.parametrize("shape", GROWING)
def test_a_message_that_comes_again_with_more_takes_the_place_of_the_earlier_one(shape):
    items = GROWING[shape]
    final = [item for at, item in enumerate(items) if at not in EXTENDED[shape]]
    found = read(items, shape)
    assert [fix.path for fix in found.fixes] == [f"messages.{at}" for at in EXTENDED[shape]]
    assert {fix.code for fix in found.fixes} == {"message_extended"}
    whole, growing = Session(("anthropic",)), Session(("anthropic",))
    whole.replace(items, shape)
    for item in items:
        growing.append(item, shape)
    assert growing.request().body == whole.request().body == normalize(final, source=shape).body
    assert growing.request().fixes == whole.request().fixes
    assert growing.count == whole.count == len(items)
    loaded = Session.load(growing.head(), [])
    assert loaded.request().body == growing.request().body


def test_a_session_whose_log_is_in_segments_replaces_its_last_message():
    session, segments = Session(("anthropic",)), {}
    for item in GROWING["ai-sdk-ui"]:
        session.append(item)
        segments |= dict(session.take_segments(flush=True))
    assert session.request().body == normalize(GROWING["ai-sdk-ui"]).body
    kept = [segments[number] for number in session.segments]
    assert Session.load(session.head(), kept).request().body == session.request().body


@pytest.mark.parametrize(
    "later",
    [
        _answer(_text("Other")),
        _answer(_text("Le", state="streaming") | {"type": "reasoning"}),
        {**_answer(_text("Let")), "id": "b"},
        {**_answer(_text("Let")), "role": "user"},
    ],
    ids=["other words", "another type", "another id", "another role"],
)
def test_a_message_that_does_not_extend_the_one_before_it_replaces_nothing(later):
    items = [GROWING["ai-sdk-ui"][0], _answer(_text("Le")), later]
    assert [turn.index for turn in read(items).conversation.turns] == [0, 1, 2]
    session = Session(("anthropic",))
    for item in items:
        session.append(item)
    assert [turn.index for turn in session.turns] == [0, 1, 2]


def test_a_message_that_was_followed_by_another_one_stays():
    user, first, *_, whole, last = GROWING["ai-sdk-ui"]
    assert [turn.index for turn in read([user, first, last, whole]).conversation.turns] == [0, 1, 2, 3, 3, 3]


HOLOGRAM = {"type": "hologram", "at": 1}
MOSTLY_UNKNOWN = {
    "ai-sdk-ui": [
        {"id": "u", "role": "user", "parts": [_text("Hi"), HOLOGRAM]},
        {"id": "a", "role": "assistant", "parts": [HOLOGRAM, _text("So")]},
    ],
    "otel-genai": [
        {"role": "user", "parts": [{"type": "text", "content": "Hi"}, HOLOGRAM]},
        {"role": "assistant", "parts": [HOLOGRAM]},
    ],
    "pydantic-ai": [
        {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Hi"}, {"part_kind": "hologram"}]},
        {"kind": "response", "parts": [{"part_kind": "hologram"}], "provider_name": "openai"},
    ],
    "a call of an unknown kind": [
        {"id": "u", "role": "user", "parts": [_text("Hi")] * 9},
        {"id": "a", "role": "assistant", "parts": [{"type": "function_invocation", "name": "f"}, _text("So")]},
    ],
}


@pytest.mark.parametrize("name", MOSTLY_UNKNOWN)
def test_a_framework_history_of_mostly_unknown_blocks_is_refused_in_one_sentence(name):
    assert_refused_in_one_sentence(MOSTLY_UNKNOWN[name], "blocks are of types that")


def test_a_few_blocks_that_a_framework_has_added_are_left_out():
    history = [{"id": "u", "role": "user", "parts": [*[_text("Hi")] * 9, HOLOGRAM]}]
    fixes = normalize(history).fixes
    assert [(fix.code, fix.path) for fix in fixes] == [("unknown_dropped", "messages.0.parts.9")]


def test_sound_is_a_known_type():
    sound = {"type": "audio", "source": {"type": "data", "value": "aGk=", "mimeType": "audio/wav"}}
    history = [{"id": "u", "role": "user", "content": [sound, {"type": "text", "text": "Hi"}]}]
    assert [fix.code for fix in normalize(history, source="ag-ui").fixes] == ["unknown_dropped"]


def test_reasoning_without_a_signature_is_of_the_ai_sdk():
    asked = {"role": "user", "content": "Hi"}
    thought = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "So."}]
    found = read([asked, {"role": "assistant", "content": thought}])
    assert (found.shape, found.fixes) == ("ai-sdk-model", ())
    others = ({"type": "reasoning", "summary": []}, {"type": "reasoning", "reasoning": "hm"})
    assert all(read([asked, {"role": "assistant", "content": [part]}]).shape != "ai-sdk-model" for part in others)


def test_calls_in_a_member_of_no_known_shape_are_named_in_the_refusal():
    answer = {"role": "assistant", "content": "x", "tool_uses_made": [{"name": "f"}]}
    with pytest.raises(InputError, match=r"the nearest are anthropic \(it has no tool_uses_made\) and") as caught:
        normalize([{"role": "user", "content": "Hi"}, answer])
    assert (caught.value.code, caught.value.path) == ("unknown_shape", "messages.1")
