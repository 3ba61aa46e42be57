"""Properties of recovery over made-up runs: whatever the stream does, and however it is cut into records."""

import json

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.streams import Recovery
from topics.items import ItemDelta, ItemRetracted, ItemStarted
from topics.reducer import reduce

MESSAGE_IDS = st.sampled_from(["m1", "m2", "m3"])
# With a name, as new versions write it, or without, as old ones do.
NAMED = st.one_of(st.none(), MESSAGE_IDS)
INDEXES = st.integers(0, 2)
TEXTS = st.one_of(st.sampled_from(["", "\n\n", " "]), st.text(max_size=6))
CALL_IDS = st.sampled_from(["call_0", "call_1"])


def stream_event(kind, name, **members):
    named = {} if name is None else {"api_message_id": name}
    return {"type": "stream_event", "event": {"type": kind} | members} | named


def content_block(kind, text, tool_id):
    if kind == "tool_use":
        return {"type": kind, "id": tool_id, "name": "mcp__a__b", "input": {"text": text}}
    return {"type": kind, {"text": "text", "thinking": "thinking"}.get(kind, "data"): text}


BLOCKS = st.builds(content_block, st.sampled_from(["text", "thinking", "tool_use", "odd"]), TEXTS, CALL_IDS)
DELTAS = st.one_of(
    st.builds(lambda text: {"type": "text_delta", "text": text}, TEXTS),
    st.builds(lambda text: {"type": "thinking_delta", "thinking": text}, TEXTS),
    st.builds(lambda text: {"type": "input_json_delta", "partial_json": text}, TEXTS),
    st.builds(lambda text: {"type": "odd_delta", "odd": text}, TEXTS),
)
STREAMED = st.one_of(
    st.builds(lambda id_: stream_event("message_start", id_, message={"id": id_}), MESSAGE_IDS),
    st.builds(
        lambda name, index, block: stream_event("content_block_start", name, index=index, content_block=block),
        NAMED,
        INDEXES,
        BLOCKS,
    ),
    st.builds(
        lambda name, index, delta: stream_event("content_block_delta", name, index=index, delta=delta),
        NAMED,
        INDEXES,
        DELTAS,
    ),
    st.builds(lambda name, index: stream_event("content_block_stop", name, index=index), NAMED, INDEXES),
    st.builds(
        lambda name, reason: stream_event("message_delta", name, delta={"stop_reason": reason}),
        NAMED,
        st.sampled_from([None, "end_turn", "tool_use"]),
    ),
    st.builds(lambda name: stream_event("message_stop", name), NAMED),
    st.builds(
        lambda name, index: (
            stream_event("message_stop", name)
            | {"abandoned_blocks": {"api_message_id": name, "from_block_index": index}}
        ),
        MESSAGE_IDS,
        INDEXES,
    ),
)
WHOLE = st.builds(
    lambda id_, blocks, parent: {
        "type": "assistant",
        "message": {"id": id_, "model": "m", "content": blocks},
        "parent_tool_use_id": parent,
    },
    NAMED,
    st.lists(BLOCKS, max_size=2),
    st.sampled_from([None, None, None, "call_0"]),
)
ANSWERS = st.builds(
    lambda id_, text: {
        "type": "user",
        "message": {"content": [{"type": "tool_result", "tool_use_id": id_, "content": text}]},
    },
    CALL_IDS,
    TEXTS,
)
REST = st.one_of(
    st.just({"type": "system", "subtype": "api_retry", "error": "overloaded"}),
    st.just({"type": "system", "subtype": "init", "session_id": "s"}),
    st.builds(lambda text: {"type": "result", "is_error": False, "result": text}, TEXTS),
    st.builds(lambda text: {"type": "user", "isSynthetic": True, "message": {"content": text}}, TEXTS),
    st.just({"type": "assistant", "error": "x", "message": {"content": "notice"}}),
    st.just({"type": "unheard of"}),
)
LINES = st.one_of(STREAMED, STREAMED, STREAMED, WHOLE, WHOLE, ANSWERS, REST)
RUNS = st.lists(LINES, max_size=30)
# Where a run is cut into records.
CUTS = st.lists(st.integers(1, 6), max_size=30)


def encoded(run, *, uuids=False):
    return [json.dumps(line | ({"uuid": f"u{number}"} if uuids else {})).encode() for number, line in enumerate(run)]


def fed(lines):
    recovery = Recovery("claude-cli")
    return [item for line in lines for item in recovery.feed(line)] + recovery.end_run("exit")


def picture(view):
    """Everything on the screen, as one value."""
    return msgspec.json.encode(
        [view.entries, sorted(view.retracted), *map(list, (view.notices, view.results, view.unrecognized))]
    )


@settings(max_examples=300)
@given(RUNS, CUTS)
def test_batching_and_snapshots_change_neither_ids_nor_order_nor_texts(run, cuts):
    lines = encoded(run)
    recovery, items, turns = Recovery("claude-cli"), [], []
    rest = list(lines)
    for size in [*cuts, len(lines)]:
        items += recovery.feed(b"\n".join(rest[:size]))
        turns += recovery.take_finished()
        rest = rest[size:]
        recovery = Recovery.restore(recovery.snapshot())
    items += recovery.end_run("exit")
    turns += recovery.take_finished()

    one_by_one = Recovery("claude-cli")
    expected = [item for line in lines for item in one_by_one.feed(line)] + one_by_one.end_run("exit")
    assert [bytes_of(item) for item in items if not isinstance(item, ItemDelta)] == [
        bytes_of(item) for item in expected if not isinstance(item, ItemDelta)
    ]
    assert picture(reduce(items)) == picture(reduce(expected))
    assert turns == one_by_one.take_finished()


def bytes_of(item):
    return msgspec.json.encode(item)


@settings(max_examples=200)
@given(RUNS, st.data())
def test_lines_with_uuids_may_come_again(run, data):
    lines = encoded(run, uuids=True)
    doubled = [line for line in lines for _ in range(data.draw(st.integers(1, 2)))]
    assert fed(doubled) == fed(lines)


@settings(max_examples=200)
@given(RUNS, st.data())
def test_items_that_come_again_change_nothing(run, data):
    items = fed(encoded(run))
    start = data.draw(st.integers(0, len(items)))
    end = data.draw(st.integers(start, len(items)))
    assert picture(reduce(items[:end] + items[start:])) == picture(reduce(items))


@settings(max_examples=300)
@given(RUNS)
def test_ids_are_unique_and_nothing_is_left_open_or_said_of_the_withdrawn(run):
    items = fed(encoded(run))
    started = [item.item_id for item in items if isinstance(item, ItemStarted)]
    assert len(started) == len(set(started))
    assert all(entry.done for entry in reduce(items).entries)
    known = set()
    withdrawn = set()
    for item in items:
        item_id = getattr(item, "item_id", None)
        if item_id is None or type(item).__name__ == "ItemResult":
            continue
        assert item_id not in withdrawn
        if isinstance(item, ItemStarted):
            known.add(item_id)
        assert item_id in known
        if isinstance(item, ItemRetracted):
            withdrawn.add(item_id)


@settings(max_examples=200)
@given(RUNS)
def test_deltas_follow_one_another_without_gap_or_overlap(run):
    lengths = {}
    for item in fed(encoded(run)):
        if isinstance(item, ItemDelta):
            assert item.at == lengths.get(item.item_id, 0)
            lengths[item.item_id] = item.at + len(item.content)


@settings(max_examples=200)
@given(RUNS)
def test_what_complete_messages_say_last_is_on_the_screen(run):
    """Nothing that comes after the last message can take it away: there is no attempt that could replace it."""
    final = {"type": "assistant", "message": {"id": "final", "content": [{"type": "text", "text": "The end."}]}}
    view = reduce(fed(encoded([*run, final])))
    last = view.blocks("text")[-1]
    assert (last.text, last.done, last.incomplete) == ("The end.", True, False)


@settings(max_examples=200)
@given(
    st.lists(st.one_of(st.binary(max_size=60), LINES.map(lambda line: json.dumps(line).encode())), max_size=12), CUTS
)
def test_no_bytes_are_an_error(parts, cuts):
    data = b"\n".join(parts)
    recovery = Recovery("claude-cli")
    for size in [*(7 * cut for cut in cuts), len(data)]:
        recovery.feed(data[:size], framing="bytes")
        data = data[size:]
    recovery.end_run("exit")


@settings(max_examples=200)
@given(LINES, LINES, st.data())
def test_a_line_that_another_was_written_into_is_read(line, after, data):
    text = json.dumps(line).encode()
    place = data.draw(st.integers(1, len(text) - 1))
    foreign = b'{"type":"rate_limit_event","rate_limit_info":{"status":"allowed"}}'
    newline = data.draw(st.sampled_from([b"", b"\n"]))
    cut = fed([text[:place] + foreign + newline + text[place:], json.dumps(after).encode()])
    plain = fed([foreign, text, json.dumps(after).encode()])
    assert [bytes_of(item) for item in cut] == [bytes_of(item) for item in plain]
