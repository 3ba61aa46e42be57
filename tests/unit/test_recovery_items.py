"""Items of complete messages: ids, unknown content, and the flag of results that were not seen."""

import json

import pytest
import stream_runs
from claude_lines import (
    RETRY,
    answer,
    block_delta,
    block_start,
    call,
    end,
    event,
    finish,
    result,
    said,
    start,
    stop,
    used,
    whole,
)
from stream_runs import extras, only

from reknit.pipeline.streams.session import Recovery, recover
from reknit.topics.items import AgentError, ItemResult, ItemRetracted, TurnDelta, TurnResult
from reknit.topics.reducer import reduce


def encoded(line):
    return json.dumps(line).encode()


def called(message_id, tool_id):
    """A message with one call, streamed and complete."""
    streamed = [start(message_id), *call(tool_id, "{}"), whole(message_id, used(tool_id)), end()]
    return [*streamed, finish("tool_use"), stop()]


def recovered(*lines):
    return list(recover(json.dumps(line) for line in lines))


# -- ids ----------------------------------------------------------------------------------------------------------


def test_a_call_id_reused_in_another_run_gets_a_new_id_and_its_own_result():
    recovery = Recovery()
    runs = (
        ("r1", whole("m1", used("call_0")), answer("call_0", "one"), result()),
        ("r2", whole("m2", used("call_0")), answer("call_0", "two"), result()),
        ("r3", whole("m3", used("call_0~2")), result()),
    )
    view = reduce(item for run, *lines in runs for line in lines for item in recovery.feed(encoded(line), run))
    assert [(entry.item_id, entry.result and bytes(entry.result.content)) for entry in view.entries] == [
        ("call_0", b'[{"type":"text","text":"one"}]'),
        ("call_0~2", b'[{"type":"text","text":"two"}]'),
        ("call_0~2~2", None),
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [
            whole("m1", used("c")),
            answer("c", "one"),
            whole("m2", used("c")),
            answer("c", "two"),
            whole("m3", said("x")),
        ],
        [whole("m1", used("c"), used("c")), answer("c", "one"), answer("c", "two"), whole("m3", said("x"))],
        [*called("m1", "c"), answer("c", "one"), *called("m2", "c"), answer("c", "two"), whole("m3", said("x"))],
    ],
    ids=["messages", "one message", "streamed"],
)
def test_of_calls_with_one_id_in_a_run_the_first_stays(lines):
    run = stream_runs.run("claude-cli", *lines, result("x"))
    assert [(entry.item_type, entry.item_id) for entry in run.view.entries] == [
        ("tool_use", "c"),
        ("text", "cc-promoted-0"),
    ]
    assert only(run.items, ItemRetracted) == [ItemRetracted(item_id="c~2", reason="repeated id")]
    assert [block["type"] for block in run.blocks if block["type"] == "tool_use"] == ["tool_use"]


def test_the_id_of_a_retracted_call_is_not_reused():
    begun = block_start(0, used("t1"))
    items = recovered(start("m1"), begun, start("m2"), begun, whole("m2", used("t1")))
    assert ItemRetracted(item_id="t1") in items
    assert [entry.item_id for entry in reduce(items).entries] == ["t1~2"]


# -- unknown content ----------------------------------------------------------------------------------------------


def test_unknown_blocks_are_opaque_items_streamed_or_promoted():
    block = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    delta = block_delta(0, type="odd_delta", x=1)
    items = recovered(start("m1"), block_start(0, block), delta, whole("m1", block), whole("m1", block))
    raws = [json.loads(bytes(item.raw)) for item in items if getattr(item, "raw", None)]
    assert raws == [block, {"type": "odd_delta", "x": 1}, block, block, block]
    assert [entry.item_type for entry in reduce(items).entries] == ["web_search_tool_result"] * 2


@pytest.mark.parametrize("before", [[], [start("m1")], [whole("m1", said("a"))]], ids=["idle", "open", "promoted"])
def test_unknown_content_outside_a_block_is_passed_on(before):
    (item,) = [item for item in recovered(*before, block_delta(9, type="odd_delta")) if hasattr(item, "event")]
    assert (item.reason, bytes(item.event)) == ("unknown content outside a message", b'{"type": "odd_delta"}')


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mcp__files__read__all", ("read__all", "files", "mcp")),
        ("mcp____read", ("mcp____read", "", "")),
        ("mcp__files__", ("mcp__files__", "", "")),
        ("mcp__files", ("mcp__files", "", "")),
    ],
)
def test_a_servers_tool_name_is_split_into_its_parts(name, parts):
    (entry,) = reduce(recovered(whole("m1", used("t1") | {"name": name}))).entries
    assert (entry.started.name, entry.started.tool_server, entry.started.tool_source) == parts


def test_metadata_of_a_result_line_is_an_extra_of_the_result():
    items = recovered(whole("m1", used("t1")), answer("t1", "out") | {"request_id": "r1"})
    (told,) = only(items, ItemResult)
    assert {name: bytes(raw) for name, raw in told.extras.items()} == {"request_id": b'"r1"'}


def test_unknown_members_are_carried_as_extras():
    cited = {"type": "text", "text": "Hi", "citations": [1]}
    items = recovered(whole("m1", cited, request_id="r1"))
    assert extras(items) == [{"citations": [1]}]
    (delta,) = only(items, TurnDelta)
    assert {name: bytes(raw) for name, raw in delta.extras.items()} == {"request_id": b'"r1"'}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"type": "brand_new"}, "unknown event type: brand_new"),
        ({"no": "type"}, "no event type"),
        (event("brand_new"), "unknown stream event type: brand_new"),
        (event("content_block_stop", index="x"), "malformed stream_event"),
        (event("content_block_stop", index=10**30), "malformed stream_event"),
        (event("content_block_start", index=-1, content_block={"type": "text"}), "malformed stream_event"),
        (event("content_block_delta", index=2**31, delta={"type": "text_delta"}), "malformed stream_event"),
        ({"type": "stream_event"}, "malformed stream_event"),
        ({"type": "assistant", "message": 3}, "malformed assistant"),
        ({"type": "user", "message": {"content": 3}}, "malformed user"),
    ],
)
def test_unknown_lines_are_passed_on_whole(line, reason):
    (item,) = recovered(line)
    assert item.__struct_config__.tag == "agent/unrecognized"
    assert (item.reason, json.loads(bytes(item.event))) == (reason, line)


# -- results ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "text_", "unseen"),
    [
        ([said("Both done.")], "Both  done.\n", False),
        ([said("Both"), said("done.")], "Both\n\ndone.", False),
        ([said("Bo"), said("th done.")], "Both done.", False),
        ([said("First."), said("Second.")], "First.", False),
        ([said("Other.")], "Both done.", True),
        ([{"type": "thinking", "thinking": "Both done."}], "Both done.", True),
        ([said("x")], "   ", False),
        ([said("x")], None, False),
    ],
)
def test_a_result_is_unseen_if_the_last_main_message_does_not_show_it(*, blocks, text_, unseen):
    (outcome,) = only(recovered(whole("m1", *blocks), result(text_)), TurnResult)
    assert (outcome.unseen, outcome.expanded) == (unseen, unseen)


def test_an_error_result_is_expanded_although_it_is_seen():
    (outcome,) = only(recovered(whole("m1", said("Oh no.")), result("Oh no.", is_error=True)), TurnResult)
    assert (outcome.unseen, outcome.expanded) == (False, True)


def test_a_retracted_text_is_not_seen():
    cut = [start("m1"), block_start(0, said("")), block_delta(0, type="text_delta", text="The answ")]
    assert [item.unseen for item in only(recovered(*cut, start("m2"), result("The answ")), TurnResult)] == [True]


def test_a_retry_notice_reports_the_retry():
    assert recovered(RETRY) == [AgentError(message="API error: 529 x (attempt 1/10)", will_retry=True, seq=0)]
