"""Chat calls whose ids and names arrive late, in pieces, repeatedly, or never; and linear work for many calls."""

import json

import msgspec
import pytest
from build import call as tool_use
from stream_runs import entries, items_of
from stream_runs import shown as on_screen
from work_counter import lines

from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import ItemStarted


def call(index=None, id=None, name=None, arguments=None):  # noqa: A002  the member's name
    function = {key: value for key, value in {"name": name, "arguments": arguments}.items() if value is not None}
    found = {"index": index, "id": id, "function": function or None}
    return {key: value for key, value in found.items() if value is not None}


def chunk(finish_reason=None, **delta):
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"id": "c1", "model": "m", "choices": [choice]}).encode() + b"\n\n"


def pieces(*lists):
    return [*(chunk(tool_calls=calls) for calls in lists), chunk("tool_calls")]


def run(records):
    """Feed records one by one, with the state saved and restored in between."""
    return items_of("openai-chat", *records, sizes=[1] * len(records))


def shown(items):
    return [(entry.item_id, entry.started.name, entry.text) for entry in entries(items) if not entry.incomplete]


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param([[call(0, "t0", "get_weather", "{}")]], id="whole"),
        pytest.param([[call(0, "t0", "get_")], [call(0, name="weather")], [call(0, arguments="{}")]], id="name-pieces"),
        pytest.param([[call(0, "t0", "get_", "")], [call(0, None, "weather", "{}")]], id="last-piece-with-input"),
        pytest.param([[call(0, "t0", "get_weather", "")]] * 2 + [[call(0, "t0", "get_weather", "{}")]], id="repeated"),
        pytest.param([[call(0, "t0", "get_weather", "{")], [call(0, "t0", "get_weather", "}")]], id="repeated-behind"),
        pytest.param([[call(0, "t0")], [call(0, name="get_weather")], [call(0, arguments="{}")]], id="late-name"),
        pytest.param([[call(0, "t0", None, "{")], [call(0, None, "get_weather", "}")]], id="name-behind-the-input"),
        pytest.param([[call(0, None, "get_weather")], [call(0, "t0")], [call(0, arguments="{}")]], id="late-id"),
        pytest.param([[call(0, None, "get_weather", "{")], [call(0, "t0", None, "}")]], id="id-behind-the-input"),
        pytest.param([[call(0, "t")], [call(0, "0")], [call(0, None, "get_weather", "{}")]], id="id-pieces"),
        pytest.param([[call(None, None, "get_")], [call(None, None, "weather")], [call(None, "t0")],
                      [call(None, None, None, "{}")]], id="without-index"),
        pytest.param([[call(None, "t0")], [call(None, None, "get_weather", "{}")]], id="without-index-id-first"),
    ],
)  # fmt: skip
def test_ids_and_names_may_arrive_late_in_pieces_or_repeatedly(lists):
    assert shown(run(pieces(*lists))) == [("t0", "get_weather", "{}")]


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param([[call(None, None, "f", '{"a":1}'), call(None, None, "f", '{"a":2}')]], id="one-list"),
        pytest.param([[call(0, None, "f", '{"a":1}'), call(0, None, "f", '{"a":2}')]], id="one-list-index-0"),
        pytest.param([[call(None, None, "f", '{"a":1}')], [call(None, None, "f", '{"a":2}')]], id="one-by-one"),
        pytest.param([[call(0, None, "f", '{"a":1}')], [call(0, None, "f", '{"a":2}')]], id="one-by-one-index-0"),
        pytest.param([[call(None, None, "f", '{"a"'), call(None, None, None, ":1}")],
                      [call(None, None, "f", '{"a":2}')]], id="in-pieces"),
        pytest.param([[call(None, None, "f", '{"a"')], [call(None, None, "f", ":1}")],
                      [call(None, None, "f", '{"a":2}')]], id="name-repeated-in-pieces"),
    ],
)  # fmt: skip
def test_whole_calls_without_index_or_id_are_several(lists):
    items = run(pieces(*lists))
    assert [(name, text) for _, name, text in shown(items)] == [("f", '{"a":1}'), ("f", '{"a":2}')]
    assert len({item.item_id for item in items if isinstance(item, ItemStarted)}) == 2


def test_another_name_after_the_input_is_another_call():
    lists = [[call(0, None, "f", "{}")], [call(0, None, "g", "{}")], [call(None, None, "h", '"}{\\""')]]
    found = [(name, text) for _, name, text in shown(run(pieces(*lists)))]
    assert found == [("f", "{}"), ("g", "{}"), ("h", '"}{\\""')]


def test_calls_with_the_same_id_are_distinguished_by_index_or_place():
    for lists in (
        [[call(0, "t0", "f", "{}")], [call(1, "t0", "f", "{}")], [call(0, "t0", None, " ")]],
        [[call(None, "t0", "f", "{} "), call(None, "t0", "f", "{}")]],
    ):
        assert [(name, text) for _, name, text in shown(run(pieces(*lists)))] == [("f", "{} "), ("f", "{}")]


def test_names_in_pieces_may_be_interleaved():
    lists = [
        [call(0, "t0", "get_"), call(1, "t1", "set_")],
        [call(0, name="weather"), call(1, name="time")],
        [call(1, arguments="[1]"), call(0, arguments="[0]")],
    ]
    assert shown(run(pieces(*lists))) == [("t0", "get_weather", "[0]"), ("t1", "set_time", "[1]")]


def test_waiting_calls_are_shown_incomplete_at_the_end_of_the_run():
    items = run([chunk(tool_calls=[call(0, "t0", "get_")]), chunk(tool_calls=[call(1, None, "f", '{"a')])])
    found = [(entry.started.name, entry.text, entry.incomplete) for entry in entries(items)]
    assert found == [("get_", "", True), ("f", '{"a', True)]


def test_calls_begin_before_the_text_after_them():
    items = run([chunk(tool_calls=[call(0, "t0", "f")]), chunk(content="Done."), chunk("stop")])
    assert on_screen(items) == [("tool_use", ""), ("text", "Done.")]


def test_state_saved_before_calls_could_wait_still_works():
    """Such versions began a call with its first chunk and saved a block, an index, an id, and a flag for free calls."""
    recovery = Recovery("openai-chat")
    recovery.feed(chunk(tool_calls=[call(0, "t0", "f", '{"a"')]))
    saved = msgspec.msgpack.decode(recovery.snapshot())
    decoder = msgspec.msgpack.decode(saved[7])
    choice = decoder["choices"][0]
    decoder["choices"][0] = [*choice[:4], [one[:4] for one in choice[4]], *choice[5:8]]
    del decoder["noted"]
    saved[7] = msgspec.msgpack.encode(decoder)
    old = Recovery.restore(msgspec.msgpack.encode(saved))
    for piece in pieces([call(0, arguments=":1}")], [call(1, "t1", "g", "{}")]):
        old.feed(piece)
    old.end_run("exit")
    (turn,) = old.take_finished()
    assert json.loads(turn.message)["content"] == [tool_use("t0", "f", a=1), tool_use("t1", "g")]


@pytest.mark.parametrize("kind", ["by index", "by nothing", "side by side"])
def test_the_work_is_linear_in_the_number_of_calls(kind):
    def work(count):
        if kind == "by nothing":
            lists = [[call(None, None, "f", "{}")] for _ in range(count)]
        else:
            lists = [[call(at, f"t{at}", "f", "" if kind == "side by side" else "{}")] for at in range(count)]
        if kind == "side by side":
            lists += [[call(at, arguments="{}")] for at in range(count)]
        records, recovery = pieces(*lists), Recovery("openai-chat", records=False)
        return lines(lambda: [recovery.feed(record) for record in records])

    once, twice, thrice = (work(count) for count in (100, 200, 300))
    # Equal growth for equal increments, except for work that is done only now and then.
    assert abs((thrice - twice) - (twice - once)) <= (twice - once) // 20
