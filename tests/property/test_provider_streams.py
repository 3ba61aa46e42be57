"""Properties of provider streams over generated events, in any order and however they are cut."""

import json

import msgspec
import pytest
import stream_runs
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from stream_runs import check_well_formed, encoded, items_of, picture, stepped, without_deltas
from stream_strategies import CALL_IDS, INDEXES, LINES, NAMES, REASONS, STREAMS, marked

from reknit.pipeline.streams.events import (
    BlockDelta,
    BlockNoted,
    BlockStarted,
    BlockStopped,
    Failed,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    RunEnded,
    UsageKnown,
    WholeBlock,
    WholeMessage,
)
from reknit.pipeline.streams.recovery import Machine
from reknit.pipeline.streams.recovery.memory import Context, Ids, Memory
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import ItemRetracted, Usage
from reknit.topics.reducer import reduce

# -- the machine, fed with common events ----------------------------------------------------------------------------

KINDS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta", "odd": "odd_delta"}


def started(index, kind, tool_id, *, with_text):
    return lambda number: BlockStarted(
        index=index,
        kind=kind,
        tool_id=tool_id if kind == "tool_use" else None,
        text=marked(number) if with_text else "",
        raw=Raw(json.dumps({"type": kind, "n": marked(number)}).encode()) if kind == "odd" else msgspec.UNSET,
    )


def delta(index, kind):
    raw = kind == "odd_delta"
    return lambda number: BlockDelta(
        index,
        kind,
        "" if raw else marked(number),
        None,
        Raw(json.dumps(marked(number)).encode()) if raw else msgspec.UNSET,
    )


def whole(name, kinds, *, placed):
    def made(number):
        blocks = [
            WholeBlock(
                kind=kind,
                raw=Raw(json.dumps({"type": kind, kind: marked(number)}).encode()),
                text=marked(number) if kind != "tool_use" else "",
                tool_id="call_0" if kind == "tool_use" else None,
                input=Raw(json.dumps(marked(number)).encode()) if kind == "tool_use" else msgspec.UNSET,
                index=at if placed else None,
            )
            for at, kind in enumerate(kinds)
        ]
        return WholeMessage(message_id=name, blocks=tuple(blocks))

    return made


def plain(event):
    return lambda _number: event


EVENTS = st.one_of(
    st.builds(lambda name: plain(MessageStarted(name)), NAMES),
    st.builds(
        lambda index, kind, tool_id, text: started(index, kind, tool_id, with_text=text),
        INDEXES,
        st.sampled_from(sorted(KINDS)),
        CALL_IDS,
        st.booleans(),
    ),
    st.builds(delta, INDEXES, st.sampled_from(sorted(KINDS.values()))),
    st.builds(delta, INDEXES, st.sampled_from(sorted(KINDS.values()))),
    st.builds(lambda index: plain(BlockNoted(index, "citations", Raw(b"1"), appends=True)), INDEXES),
    st.builds(lambda index: plain(BlockStopped(index)), INDEXES),
    st.builds(lambda reason, cut: plain(MessageDelta(reason, cut=cut)), REASONS, st.booleans()),
    st.builds(lambda tokens: plain(UsageKnown(Usage(output_tokens=tokens))), st.integers(0, 2)),
    st.just(plain(MessageStopped())),
    st.just(plain(Failed("overloaded", "overloaded_error"))),
    st.builds(
        lambda name, kinds, placed: whole(name, kinds, placed=placed),
        st.sampled_from(["m1", "m2"]),
        st.lists(st.sampled_from(["text", "thinking", "tool_use"]), max_size=2),
        st.booleans(),
    ),
)
RUNS = st.lists(EVENTS, max_size=30).map(lambda makers: [make(number) for number, make in enumerate(makers)])


def ended(run):
    return stepped(*run, RunEnded("exit"), issuer="made-up")


def tokens(run):
    """Return the texts of the input without complete messages: a complete message may only repeat a complete block."""
    events = msgspec.json.encode([event for event in run if not isinstance(event, WholeMessage)]).decode()
    return {marked(number) for number in range(len(run)) if marked(number) in events}


class LookedUp(Machine):
    """A machine that looks up every pair in the table."""

    def _grow_newest_block(self, event):
        return None


@settings(max_examples=300)
@given(RUNS, st.booleans())
def test_the_fast_path_does_what_the_table_defines(run, complete_messages):
    machines = [
        kind(Context(memory=Memory(Ids("x")), complete_messages=complete_messages, records=True, issuer="made-up"))
        for kind in (Machine, LookedUp)
    ]
    for event in [*run, RunEnded("exit")]:
        short, long = (machine.apply(event) for machine in machines)
        assert short == long
    assert machines[0].memory == machines[1].memory


@settings(max_examples=300)
@given(RUNS)
def test_every_input_text_is_in_an_item(run):
    items, _ = ended(run)
    said = msgspec.json.encode(items).decode()
    assert {token for token in tokens(run) if token not in said} == set()


@settings(max_examples=300)
@given(RUNS)
def test_items_are_well_formed(run):
    check_well_formed(ended(run)[0])


@settings(max_examples=200)
@given(RUNS)
def test_the_recorded_history_equals_the_screen(run):
    items, machine = ended(run)
    content = [block for turn in machine.memory.finished for block in json.loads(turn.message)["content"]]
    shown = [entry for entry in reduce(items).entries if entry.item_type in {"text", "thinking", "tool_use"}]
    said = [entry for entry in shown if entry.text or entry.input is not None or entry.item_type == "tool_use"]
    known = [block for block in content if block["type"] in {"text", "thinking", "tool_use"}]
    assert [block["type"] for block in known] == [entry.item_type for entry in said]
    texts = [block[block["type"]] for block in known if block["type"] != "tool_use"]
    assert texts == [entry.text for entry in said if entry.item_type != "tool_use"]
    cut = [entry.text for entry in said if entry.incomplete and entry.item_type == "tool_use"]
    assert [block["input"] for block in known if block.get("incomplete")] == cut


# -- sources, fed with bytes ----------------------------------------------------------------------------------------


CUTS = st.lists(st.integers(1, 6), max_size=30)
each_source = pytest.mark.parametrize("source", sorted(STREAMS))


@pytest.mark.parametrize("source", sorted(STREAMS.keys() - {"claude-cli"}))
@settings(max_examples=150)
@given(data=st.data())
def test_every_text_of_a_source_is_in_an_item(source, data):
    run = [json.dumps(event).encode() for event in data.draw(st.lists(STREAMS[source], max_size=30))]
    items = items_of(source, *run)
    said = msgspec.json.encode(items).decode()
    sent = {part.split(">")[0] for part in b"".join(run).decode().split("<")[1:]}
    lost = {token for token in sent if f"<{token}>" not in said}
    withdrawn = any(isinstance(item, ItemRetracted) for item in items)
    assert {token for token in lost if not (withdrawn and token.endswith(", noted"))} == set()


@each_source
@settings(max_examples=200)
@given(data=st.data(), cuts=CUTS)
def test_batching_and_snapshots_change_nothing(source, data, cuts):
    run = [json.dumps(event).encode() for event in data.draw(st.lists(STREAMS[source], max_size=30))]
    batched, whole = stream_runs.run(source, *run, sizes=cuts), stream_runs.run(source, *run)
    assert without_deltas(batched.items) == without_deltas(whole.items)
    assert picture(batched.items) == picture(whole.items)
    assert batched.turns == whole.turns


@each_source
@settings(max_examples=100)
@given(data=st.data())
def test_repeated_items_change_nothing(source, data):
    run = [json.dumps(event).encode() for event in data.draw(st.lists(STREAMS[source], max_size=30))]
    items = items_of(source, *run)
    start = data.draw(st.integers(0, len(items)))
    end = data.draw(st.integers(start, len(items)))
    assert picture(items[:end] + items[start:]) == picture(items)


@each_source
@settings(max_examples=150)
@given(data=st.data(), cuts=CUTS)
def test_arbitrary_bytes_raise_no_error(source, data, cuts):
    events = STREAMS[source].map(lambda event: json.dumps(event).encode())
    parts = data.draw(st.lists(st.one_of(st.binary(max_size=60), events, events.map(lambda e: b"data: " + e + b"\n"))))
    stream = b"\n".join(parts)
    whole = Recovery(source)
    whole.feed(stream)
    whole.end_run("exit")
    recovery = Recovery(source)
    for size in [*(7 * cut for cut in cuts), len(stream)]:
        recovery.feed(stream[:size], framing="bytes")
        stream = stream[size:]
    recovery.end_run("exit")
    assert recovery.run is None


# -- the Claude CLI, fed with lines -----------------------------------------------------------------------------------

CLI_RUNS = st.lists(LINES, max_size=30)


def lines_of(run, *, uuids=False):
    return [json.dumps(line | ({"uuid": f"u{number}"} if uuids else {})).encode() for number, line in enumerate(run)]


@settings(max_examples=200)
@given(CLI_RUNS, st.data())
def test_repeated_lines_with_uuids_change_nothing(run, data):
    lines = lines_of(run, uuids=True)
    doubled = [line for line in lines for _ in range(data.draw(st.integers(1, 2)))]
    assert items_of("claude-cli", doubled) == items_of("claude-cli", lines)


@settings(max_examples=300)
@given(CLI_RUNS)
def test_items_of_lines_are_well_formed(run):
    check_well_formed(items_of("claude-cli", lines_of(run)))


@settings(max_examples=200)
@given(CLI_RUNS)
def test_the_text_of_the_last_complete_message_is_on_the_screen(run):
    """Nothing after the last message can remove it: no later attempt can replace it."""
    final = {"type": "assistant", "message": {"id": "final", "content": [{"type": "text", "text": "The end."}]}}
    view = reduce(items_of("claude-cli", lines_of([*run, final])))
    last = view.blocks("text")[-1]
    assert (last.text, last.done, last.incomplete) == ("The end.", True, False)


@settings(max_examples=200)
@given(LINES, LINES, st.data())
def test_a_line_interrupted_by_another_is_read(line, after, data):
    text = json.dumps(line).encode()
    place = data.draw(st.integers(1, len(text) - 1))
    foreign = b'{"type":"rate_limit_event","rate_limit_info":{"status":"allowed"}}'
    newline = data.draw(st.sampled_from([b"", b"\n"]))
    cut = items_of("claude-cli", [text[:place] + foreign + newline + text[place:], json.dumps(after).encode()])
    plain = items_of("claude-cli", [foreign, text, json.dumps(after).encode()])
    assert encoded(cut) == encoded(plain)
