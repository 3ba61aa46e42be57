"""State of a recovery between feeds: runs, redelivery, framing, snapshots, finished turns."""

import json

import pytest
from build import call as tool_use
from build import result, text, thinking, user
from stream_runs import only, run, texts, without_deltas

from reknit.pipeline.errors import InputError, UnknownTargetError
from reknit.pipeline.streams import framing
from reknit.pipeline.streams.recovery.message import Block
from reknit.pipeline.streams.session import Recovery, recover
from reknit.topics.items import ItemCompleted, ItemDelta, ItemStarted, SessionInit
from reknit.topics.reducer import reduce


def line(uuid=None, **members):
    return json.dumps(members | ({} if uuid is None else {"uuid": uuid})).encode()


def event(uuid=None, **members):
    return line(uuid, type="stream_event", event=members)


def answer(message_id, *blocks, uuid=None):
    content = [text(block) if isinstance(block, str) else block for block in blocks]
    return line(uuid, type="assistant", message={"id": message_id, "model": "m", "content": content})


def streamed(message_id, *parts, uuids=""):
    def named(n):
        return f"{uuids}{n}" if uuids else None

    return [
        event(named(0), type="message_start", message={"id": message_id}),
        event(named(1), type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        *[
            event(named(2 + n), type="content_block_delta", index=0, delta={"type": "text_delta", "text": part})
            for n, part in enumerate(parts)
        ],
    ]


def feed(recovery, *lines, **options):
    return [item for one in lines for item in recovery.feed(one, **options)]


DONE = [
    event(type="content_block_stop", index=0),
    event(type="message_delta", delta={"stop_reason": "end_turn"}),
    event(type="message_stop"),
]


# -- redelivery ---------------------------------------------------------------------------------------------------


def test_a_repeated_line_is_skipped_within_two_messages():
    first = [*streamed("m1", "a", "a", uuids="x"), answer("m1", "aa", uuid="x9"), *DONE]
    second = [*streamed("m2", "b", uuids="y"), answer("m2", "b", uuid="y9")]
    items = feed(Recovery(), *first, *second, *first[:5], *second)
    assert texts(items) == ["aa", "b"]
    assert not any(item.__struct_config__.tag == "item/retracted" for item in items)


def test_lines_with_the_same_uuid_and_different_content_are_different():
    lines = [answer("m2", words, uuid="u") for words in ("one", "two", "one")]
    assert texts(feed(Recovery(), *lines)) == ["one", "two"]


def test_a_line_without_a_uuid_is_never_skipped():
    assert texts(feed(Recovery(), answer("m1", "a"), answer("m1", "a"))) == ["a", "a"]
    delta = streamed("m1", "a")
    assert texts(feed(Recovery(), *delta, delta[2])) == ["aa"]


def test_after_two_messages_and_in_another_run_a_line_is_new():
    old = answer("m1", "a", uuid="u")
    assert texts(feed(Recovery(), old, answer("m2", "b"), answer("m3", "c"), old)) == ["a", "b", "c", "a"]
    recovery = Recovery()
    assert texts(recovery.feed(old, "r1") + recovery.feed(old, "r2")) == ["a", "a"]


# -- runs ---------------------------------------------------------------------------------------------------------


def test_a_new_run_ends_the_previous_one_and_ids_continue():
    recovery = Recovery()
    items = feed(recovery, *streamed("m1", "cut"), run="r1") + feed(recovery, *streamed("m1", "again"), run="r2")
    assert ItemCompleted(item_id="cc-block-0", incomplete=True, reason="next run") in items
    assert [item.item_id for item in only(items, ItemStarted)] == ["cc-block-0", "cc-block-1"]
    # Events without a run belong to the current run.
    more = recovery.feed(streamed("", "!")[2])
    assert ItemDelta(item_id="cc-block-1", delta_type="text_delta", content="!", at=5) in more


def test_ending_a_run_twice_reports_nothing_twice():
    recovery = Recovery()
    feed(recovery, *streamed("m1", "cut"))
    assert len(recovery.end_run("exit 137")) == 3
    assert recovery.end_run("exit 137") == []


def test_a_block_that_the_end_of_its_run_leaves_open_names_the_reason_or_the_end():
    for arguments, reason in (((), "end of run"), (("exit 137",), "exit 137")):
        recovery = Recovery()
        feed(recovery, *streamed("m1", "cut"))
        assert [item.reason for item in only(recovery.end_run(*arguments), ItemCompleted)] == [reason]


def test_another_source_ends_the_run_and_its_last_items_come_with_the_next_feed():
    recovery = Recovery()
    feed(recovery, *streamed("m1", "cut"))
    recovery.switch_source("claude-cli")
    recovery = Recovery.restore(recovery.snapshot())
    first, *_ = recovery.feed(answer("m2", "next"))
    last = ItemCompleted(item_id="cc-block-0", incomplete=True, reason="next source")
    assert first == last
    assert last not in recovery.feed(answer("m3", "more")) + recovery.end_run()


def test_the_last_items_of_a_replaced_source_come_with_the_end_if_nothing_follows():
    recovery = Recovery()
    feed(recovery, *streamed("m1", "cut"))
    recovery.switch_source("claude-cli")
    items = recovery.end_run() + recovery.end_run()
    assert [item.reason for item in only(items, ItemCompleted)] == ["next source"]


def test_the_next_source_may_be_one_whose_text_has_filters():
    recovery = Recovery()
    recovery.switch_source("cascade")
    assert texts([*recovery.feed(line(text="Hello")), *recovery.end_run()]) == ["Hello"]


def test_an_unknown_source_is_rejected():
    with pytest.raises(UnknownTargetError, match="got 'x'"):
        Recovery("x")
    with pytest.raises(UnknownTargetError):
        list(recover([], source="x"))


def test_recover_takes_lines_or_the_whole_and_ends_the_run():
    lines = [*streamed("m1", "Grü", "ße"), b""]
    for given in (lines, [one.decode() for one in lines], b"\n".join(lines), b"\n".join(lines).decode()):
        items = list(recover(given))
        assert texts(items) == ["Grüße"]
        assert ItemCompleted(item_id="cc-block-0", incomplete=True, reason="end of input") in items


# -- joining and framing ------------------------------------------------------------------------------------------


def test_adjacent_deltas_of_one_feed_are_joined_and_positions_count_code_points():
    lines = streamed("m1", "👩‍👩‍👧", "é", "x")
    joined = only(Recovery().feed(b"\n".join(lines)), ItemDelta)
    assert joined == [ItemDelta(item_id="cc-block-0", delta_type="text_delta", content="👩‍👩‍👧éx")]
    assert [item.at for item in only(feed(Recovery(), *lines), ItemDelta)] == [0, 5, 6]


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_bytes_may_end_inside_an_event(size):
    data = b"\n".join([*streamed("m1", "Grü", "ße"), answer("m1", "Grüße"), *DONE])
    recovery = Recovery()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    items = feed(recovery, *pieces, framing="bytes") + recovery.end_run()
    whole = Recovery()
    expected = whole.feed(data) + whole.end_run()
    assert without_deltas(items) == without_deltas(expected)
    assert texts(items) == ["Grüße"]


def test_the_partial_event_is_saved():
    data = b"\n".join([*streamed("m1", "Hello"), answer("m1", "Hello")])
    recovery, items = Recovery(), []
    for start in range(0, len(data), 33):
        items += recovery.feed(data[start : start + 33], framing="bytes")
        recovery = Recovery.restore(recovery.snapshot())
    assert texts(items + recovery.end_run()) == ["Hello"]


def test_an_endless_event_is_dropped_and_the_next_line_read(monkeypatch):
    monkeypatch.setattr(framing, "MOST_TAIL", 1000)
    recovery = Recovery()
    items = feed(recovery, *[b"x" * 300] * 8, b"xxx\n" + answer("m1", "Hi") + b"\n", framing="bytes")
    assert [item.reason for item in reduce(items).unrecognized.values()] == ["event longer than 64 MiB"]
    assert texts(items) == ["Hi"]


def test_a_record_of_whole_events_ends_a_partial_event():
    recovery = Recovery()
    recovery.feed(answer("m1", "cut")[:-5], framing="bytes")
    items = recovery.feed(answer("m1", "Hi"))
    assert [item.reason for item in reduce(items).unrecognized.values()] == ["non-JSON output"]
    assert texts(items) == ["Hi"]


# -- snapshots ----------------------------------------------------------------------------------------------------


def test_a_snapshot_is_small_however_long_the_session():
    recovery = Recovery()
    sizes = []
    for number in range(200):
        lines = streamed(f"m{number}", *["word "] * 50, uuids=f"u{number}-")
        recovery.feed(b"\n".join([*lines, answer(f"m{number}", "word " * 50), *DONE, line(type="result", result="")]))
        recovery.take_finished()
        sizes.append(len(recovery.snapshot()))
    assert max(sizes[10:]) < sizes[10] + 50
    assert sizes[-1] < 3000


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        (["ab"] * 3000, [1024] * 5 + [2] * 440),
        (["é" * 600] * 4, [1200, 1200]),
        (["x" * 5000, "y"] * 2, [5000, 5001, 1]),
        (["x" * 1023, "y"], [1024]),
        (["x" * 1023], [1023]),
    ],
)
def test_a_long_text_is_kept_in_few_parts(pieces, kept):
    block = Block(item_id="a", kind="text")
    for piece in pieces:
        block.append(piece)
    assert [len(part) for part in block.parts] == kept
    assert (block.text(), block.length) == ("".join(pieces), sum(kept))


def test_an_invalid_snapshot_is_rejected():
    with pytest.raises(InputError, match="not a snapshot") as raised:
        Recovery.restore(b"\x93\x01\x02\x03")
    assert raised.value.code == "bad_snapshot"


# -- finished turns -----------------------------------------------------------------------------------------------


def call(tool_id, **arguments):
    return tool_use(tool_id, "mcp__files__read", **arguments)


def tool_result(tool_id, **members):
    return line(type="user", message=user(result(tool_id, "out")), **members)


def turns(*lines):
    """Return the turns of a run that ends with a result."""
    return run("claude-cli", *lines, line(type="result", is_error=True)).turns


def content(turn):
    message = json.loads(turn.message)
    assert message["role"] == turn.role
    return message["content"]


def answered(*turns):
    """Return the ids of the calls whose results these are."""
    return [block["tool_use_id"] for turn in turns for block in content(turn)]


def test_a_turn_is_finished_by_the_next_message_and_followed_by_its_results():
    thought = thinking("Hm.", signature="sig")
    lines = [answer("m1", thought, "Let me look.", call("t1", n=1.0)), tool_result("t1")]
    lines += [answer("m1", call("t2")), tool_result("t2")]
    recovery = Recovery()
    feed(recovery, *lines)
    assert recovery.take_finished() == []
    assistant, first, second, last = turns(*lines, answer("m2", "Done."))
    assert (assistant.message_id, assistant.model, assistant.incomplete) == ("m1", "m", False)
    assert b'"input": {"n": 1.0}' in assistant.message
    assert content(assistant) == [thought, text("Let me look."), call("t1", n=1.0), call("t2")]
    assert (answered(first), answered(second)) == (["t1"], ["t2"])
    assert content(last) == [text("Done.")]


REPLACED = [*streamed("m1", "cut"), answer("m1", call("t1")), tool_result("t1"), answer("m2", "Done.")]


def test_replaced_content_and_results_of_retracted_calls_are_in_no_turn():
    made, results = turns(*REPLACED, answer("m2", call("t2")), tool_result("t2"))
    assert (content(made), answered(results)) == ([text("Done."), call("t2")], ["t2"])


def test_confirmed_content_of_a_replaced_attempt_is_a_turn_before_its_replacement():
    made, results, late, done = turns(*REPLACED, tool_result("t1"))
    assert (made.message_id, content(made), made.incomplete) == ("m1", [call("t1")], False)
    assert answered(results, late) == ["t1", "t1"]
    assert (done.message_id, content(done)) == ("m2", [text("Done.")])


def test_results_are_kept_if_a_retracted_call_had_the_same_id():
    made, results = turns(*streamed("m1", "cut"), answer("m1", call("t1")), answer("m2", call("t1")), tool_result("t1"))
    assert (made.message_id, content(made), answered(results)) == ("m2", [call("t1")], ["t1"])


def test_unknown_blocks_and_members_are_kept_unchanged():
    odd = {"type": "odd", "x": [1.50]}
    (turn,) = turns(answer("m1", odd, text("Hi", citations=[{"a": 1}])))
    expected = b'[{"type": "odd", "x": [1.5]},{"type": "text", "text": "Hi", "citations": [{"a": 1}]}]}'
    assert turn.message.endswith(expected)


def test_a_cut_call_is_marked_and_its_json_left_unchanged():
    begun = {"type": "tool_use", "id": "t1", "name": "Bash"}
    start = event(type="content_block_start", index=0, content_block=begun)
    piece = {"type": "input_json_delta", "partial_json": '{"cmd": "ls'}
    (turn,) = turns(streamed("m1")[0], start, event(type="content_block_delta", index=0, delta=piece))
    assert turn.incomplete
    assert content(turn) == [begun | {"input": '{"cmd": "ls', "incomplete": True}]


def test_of_user_lines_only_results_and_synthetic_ones_are_recorded():
    said = line(type="user", message={"role": "user", "content": "Hello"})
    own = line(type="user", message={"role": "user", "content": "Go on."}, isSynthetic=True)
    sub = tool_result("s1", parent_tool_use_id="t0")
    (turn,) = turns(said, own, sub)
    assert (turn.role, turn.synthetic, content(turn)) == ("user", True, [text("Go on.")])


def test_turn_ids_are_unique_and_reproducible():
    lines = [answer("m1", "a"), answer("m2", "a"), line(type="result", result="a"), answer("m1", "a")]
    first, again = turns(*lines), turns(b"\n".join(lines))
    assert first == again
    assert len({turn.id for turn in first}) == 3
    own = [line(type="user", message={"role": "user", "content": "Go on."}, isSynthetic=True)] * 2
    assert [turn.id.rpartition("-")[0] for turn in turns(*own)] == ["cc-turn-0", "cc-turn-1"]


def test_without_records_no_finished_turns_are_kept():
    recovery = Recovery(records=False)
    recovery.feed(answer("m1", "a") + b"\n" + answer("m2", "b"))
    assert recovery.take_finished() == []


def test_the_init_line_is_the_first_item():
    (item,) = Recovery().feed(line(type="system", subtype="init", session_id="s", model="m", tools=["Bash"], fast=True))
    assert isinstance(item, SessionInit)
    assert (item.session_id, item.model, bytes(item.tools), item.seq) == ("s", "m", b'["Bash"]', 0)
    assert {name: bytes(raw) for name, raw in item.extras.items()} == {"fast": b"true"}
