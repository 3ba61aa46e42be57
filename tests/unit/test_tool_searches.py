"""References to tools, and searches for tools, as Anthropic takes them."""

import json

import pytest

from reknit.pipeline import normalize, validate
from reknit.pipeline.testing import Kit

SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
TIME = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}, "defer_loading": True}
FIND = {"name": "find", "input_schema": {"type": "object", "properties": {}}}
ADDED = {
    "role": "system",
    "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "get_time"}}],
}


def references(*names):
    return [{"type": "tool_reference", "tool_name": name} for name in names]


def round_of(*names):
    found = {"type": "tool_search_tool_search_result", "tool_references": references(*names)}
    return [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "time"}},
        {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found},
    ]


def servers(*names):
    said = [*round_of(*names), {"type": "text", "text": "Found."}]
    return [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "Go on."},
    ]


def clients(*names):
    return [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": references(*names)}],
        },
    ]


def written(tools, messages, model="claude-sonnet-4-5"):
    body = {"model": model, "max_tokens": 100, "tools": tools, "messages": messages}
    done = normalize(json.dumps(body).encode(), to="anthropic", source="anthropic")
    assert validate(done.body, "anthropic") == []
    assert normalize(done.body, to="anthropic").body == done.body
    Kit("anthropic", setting={"model": model, "tools": tools}).incremental(messages)
    return json.loads(done.body), [(fix.code, fix.path, fix.detail) for fix in done.fixes]


UNCHANGED = [
    ("a server's search", [SEARCH, TIME], servers("get_time")),
    ("a client's search", [FIND, TIME], clients("get_time")),
    ("an empty search", [SEARCH, TIME], servers()),
    ("tools of a server", [SEARCH, {"type": "mcp_toolset", "mcp_server_name": "clock"}], servers("get_date")),
    ("the search tool itself", [SEARCH, TIME], servers("tool_search_tool_bm25")),
]


@pytest.mark.parametrize(("tools", "messages"), [pytest.param(*case, id=name) for name, *case in UNCHANGED])
def test_a_reference_to_a_known_tool_stays(tools, messages):
    body, fixes = written(tools, messages)
    assert (body["tools"], body["messages"], fixes) == (tools, messages, [])


def test_a_tool_that_a_message_adds_is_known_from_there_on():
    messages = [
        *servers()[:1],
        {"role": "assistant", "content": "Hello."},
        servers()[0],
        ADDED,
        *clients("get_time")[1:],
    ]
    body, fixes = written([FIND], messages, model="claude-opus-4-8")
    assert (body["messages"], fixes) == (messages, [])


def test_a_tool_that_a_later_message_adds_is_not_known_before():
    messages = [*clients("get_time"), {"role": "assistant", "content": "Found."}, servers()[0], ADDED]
    body, fixes = written([FIND], messages, model="claude-opus-4-8")
    assert body["messages"][2]["content"][0]["content"] == [{"type": "text", "text": "[Tools found: get_time]"}]
    assert body["messages"][3:] == messages[3:]
    assert fixes == [("tool_reference_dropped", "messages.2.content.0", "get_time")]


def test_a_lost_reference_goes_and_the_others_stay():
    body, fixes = written([SEARCH, TIME], servers("get_time", "get_date"))
    assert body["messages"] == servers("get_time")
    assert fixes == [("tool_reference_dropped", "messages.1.content.1", "get_date")]
    body, fixes = written([FIND, TIME], clients("get_date", "get_time"))
    assert body["messages"] == clients("get_time")
    assert fixes == [("tool_reference_dropped", "messages.2.content.0", "get_date")]


@pytest.mark.parametrize(
    ("tools", "name"), [([SEARCH, TIME], "get_date"), ([TIME], "get_time"), ([TIME], "get_date"), ([FIND], "get_time")]
)
def test_a_search_without_a_reference_or_without_its_tool_is_text(tools, name):
    body, fixes = written(tools, servers(name))
    assert body["messages"][1]["content"] == [
        {"type": "text", "text": '[Search for tools: {"query":"time"}]'},
        {"type": "text", "text": f"[Tools found: {name}]"},
        {"type": "text", "text": "Found."},
    ]
    assert [code for code, *_ in fixes] == ["tool_search_as_text", "tool_search_as_text"]


def test_the_result_of_a_clients_search_says_what_it_found():
    body, fixes = written([FIND], clients("get_date", "get_time"))
    assert body["messages"][2]["content"][0]["content"] == [
        {"type": "text", "text": "[Tools found: get_date, get_time]"}
    ]
    assert fixes == [("tool_reference_dropped", "messages.2.content.0", "get_date, get_time")]


def test_a_failed_search_without_a_search_tool_is_text():
    messages = servers()
    failed = {"type": "tool_search_tool_result_error", "error_code": "unavailable"}
    messages[1]["content"][1]["content"] = failed
    body, _ = written([TIME], messages)
    assert (
        body["messages"][1]["content"][1]["text"] == f"[Search for tools: {json.dumps(failed, separators=(',', ':'))}]"
    )


def test_a_reference_among_the_tools_goes_if_its_tool_is_not_declared():
    body, fixes = written([TIME, *references("get_date", "get_time")], [{"role": "user", "content": "hi"}])
    assert body["tools"] == [TIME, *references("get_time")]
    assert [(code, path) for code, path, _ in fixes] == [("tool_reference_dropped", "tools.1")]


def test_a_reference_follows_the_name_of_its_tool():
    body, fixes = written([SEARCH, TIME | {"name": "get time"}], servers("get time"))
    assert body["messages"] == servers(body["tools"][1]["name"])
    assert [code for code, *_ in fixes] == ["tool_name_rewritten", "tool_name_rewritten"]


def searched(call_id, references):
    """A search that its provider ran, with these references."""
    found = {"type": "tool_search_tool_search_result", "tool_references": references}
    call = {"type": "server_tool_use", "id": call_id, "name": "tool_search_tool_regex", "input": {"query": "x"}}
    answer = {"type": "tool_search_tool_result", "tool_use_id": call_id, "content": found}
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    messages = [
        {"role": "user", "content": "Find."},
        {"role": "assistant", "content": [call, answer, {"type": "text", "text": "ok"}]},
        {"role": "user", "content": "Go on."},
    ]
    tools = [search, {"name": "find", "input_schema": {"type": "object"}}]
    return {"model": "claude-sonnet-4-5", "max_tokens": 9, "tools": tools, "messages": messages}


@pytest.mark.parametrize("references", ["x", 7, {}, {"type": "tool_reference", "tool_name": "find"}])
def test_a_search_whose_references_are_no_list_is_written_as_text(references):
    done = normalize(searched("srvtoolu_1", references), to="anthropic", source="anthropic")
    assert [fix.code for fix in done.fixes] == ["tool_search_as_text"] * 2
    texts = [block["text"] for block in json.loads(done.body)["messages"][1]["content"]]
    assert texts == ['[Search for tools: {"query":"x"}]', "[Tools found: none]", "ok"]


@pytest.mark.parametrize("call_id", [[1], {}, None, 7])
def test_a_search_with_an_id_of_another_type_is_refused_in_the_providers_words(call_id):
    history = searched(call_id, [{"type": "tool_reference", "tool_name": "nope"}])
    done = normalize(history, to="anthropic", source="anthropic")
    assert (done.body, {each.rule for each in done.violations}) == (None, {"ANT-35"})
