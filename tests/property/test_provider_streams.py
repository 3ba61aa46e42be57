"""Properties of provider streams over made-up events: whatever comes, in whatever order and however cut."""

import json
from itertools import count

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from pipeline.streams import Recovery
from pipeline.streams.events import (
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
from pipeline.streams.recovery.machine import Machine
from pipeline.streams.recovery.memory import Ids, Memory
from topics.items import ItemDelta, ItemRetracted, ItemStarted, Usage
from topics.reducer import reduce

INDEXES = st.integers(0, 2)
CALL_IDS = st.sampled_from(["call_0", "call_1"])
REASONS = st.sampled_from([None, "end_turn", "tool_use", "max_tokens", "refusal"])

# -- the machine, fed with common events ----------------------------------------------------------------------------

KINDS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta", "odd": "odd_delta"}


def marked(number):
    """A text that no other event of the run has."""
    return f"<{number}>"


def told_at_the_end(number):
    """The same for what only the end of an item tells; one that is withdrawn has none."""
    return f"<{number}, noted>"


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


NAMES = st.sampled_from([None, "m1", "m2"])
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


def stepped(run):
    machine = Machine(Memory(Ids("x")), "stop", records=True, issuer="made-up")
    return [item for event in [*run, RunEnded("exit")] for item in machine.apply(event)], machine


def tokens(run):
    """The texts that came in, complete messages apart: what one of those repeats of a complete block is not new."""
    events = msgspec.json.encode([event for event in run if not isinstance(event, WholeMessage)]).decode()
    return {marked(number) for number in range(len(run)) if marked(number) in events}


class LookedUp(Machine):
    """A machine that looks every pair up in the table."""

    def _grow_newest_block(self, event):
        return None


@settings(max_examples=300)
@given(RUNS, st.sampled_from(["stop", "message"]))
def test_the_pair_that_is_not_looked_up_does_what_the_table_has(run, proof):
    machines = [kind(Memory(Ids("x")), proof, records=True, issuer="made-up") for kind in (Machine, LookedUp)]
    for event in [*run, RunEnded("exit")]:
        short, long = (machine.apply(event) for machine in machines)
        assert short == long
    assert machines[0].memory == machines[1].memory


@settings(max_examples=300)
@given(RUNS)
def test_every_text_that_came_in_is_in_an_item(run):
    items, _ = stepped(run)
    said = msgspec.json.encode(items).decode()
    assert {token for token in tokens(run) if token not in said} == set()


@settings(max_examples=300)
@given(RUNS)
def test_items_are_well_formed(run):
    items, _ = stepped(run)
    lengths = {}
    withdrawn = set()
    for item in items:
        if isinstance(item, ItemStarted):
            assert item.item_id not in lengths
            lengths[item.item_id] = len(item.text)
            continue
        item_id = getattr(item, "item_id", None)
        if item_id is None:
            continue
        assert item_id in lengths
        assert item_id not in withdrawn
        if isinstance(item, ItemDelta):
            assert item.at == lengths[item_id] or item.raw is not msgspec.UNSET
            lengths[item_id] += len(item.content)
        if isinstance(item, ItemRetracted):
            withdrawn.add(item_id)
    assert all(entry.done for entry in reduce(items).entries)


@settings(max_examples=200)
@given(RUNS)
def test_the_history_has_no_more_and_no_less_than_the_screen(run):
    items, machine = stepped(run)
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


def anthropic_events():
    number = count()
    text = st.builds(lambda: marked(next(number)))
    noted = st.builds(lambda: told_at_the_end(next(number)))
    block = st.one_of(
        st.builds(lambda kind: {"type": kind, "text": "", "thinking": ""}, st.sampled_from(["text", "thinking"])),
        st.builds(lambda id_: {"type": "tool_use", "id": id_, "name": "a", "input": {}}, CALL_IDS),
        st.builds(lambda words: {"type": "odd", "odd": words}, text),
        st.builds(
            lambda cited: {"type": "text", "text": "", "citations": [{"title": title} for title in cited]},
            st.lists(noted, max_size=2),
        ),
        st.builds(lambda words: {"type": "web_search_tool_result", "content": [{"title": words}]}, text),
        st.just({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
    )
    piece = st.one_of(
        st.builds(lambda words: {"type": "text_delta", "text": words}, text),
        st.builds(lambda words: {"type": "thinking_delta", "thinking": words}, text),
        st.builds(lambda words: {"type": "input_json_delta", "partial_json": words}, text),
        st.builds(lambda words: {"type": "citations_delta", "citation": {"cited_text": words}}, text),
        st.just({"type": "signature_delta", "signature": "s"}),
        st.builds(lambda words: {"type": "odd_delta", "odd": words}, text),
    )
    return st.one_of(
        st.builds(lambda id_: {"type": "message_start", "message": {"id": id_, "model": "m"}}, NAMES),
        st.builds(lambda at, made: {"type": "content_block_start", "index": at, "content_block": made}, INDEXES, block),
        st.builds(lambda at, made: {"type": "content_block_delta", "index": at, "delta": made}, INDEXES, piece),
        st.builds(lambda at, made: {"type": "content_block_delta", "index": at, "delta": made}, INDEXES, piece),
        st.builds(lambda at: {"type": "content_block_stop", "index": at}, INDEXES),
        st.builds(lambda reason: {"type": "message_delta", "delta": {"stop_reason": reason}}, REASONS),
        st.just({"type": "message_stop"}),
        st.just({"type": "ping"}),
        st.just({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        st.builds(lambda words: {"type": "unheard of", "words": words}, text),
        st.builds(
            lambda id_, made, reason: {"type": "message", "id": id_, "content": made, "stop_reason": reason},
            NAMES,
            st.lists(block, max_size=2),
            REASONS,
        ),
    )


def converse_events():
    number = count()
    text = st.builds(lambda: marked(next(number)))
    piece = st.one_of(
        st.builds(lambda words: {"text": words}, text),
        st.builds(lambda words: {"toolUse": {"input": words}}, text),
        st.builds(lambda words: {"reasoningContent": {"text": words}}, text),
        st.builds(lambda words: {"reasoningContent": {"signature": "s"}, "p": words}, st.just("p")),
        st.builds(lambda words: {"citation": {"title": words}}, text),
        st.builds(lambda words: {"odd": {"odd": words}}, text),
        st.builds(lambda words: {"toolResult": [{"text": words}]}, text),
        st.builds(lambda words: {"image": {"source": {"bytes": words}}}, text),
    )
    call = st.builds(lambda id_: {"toolUse": {"toolUseId": id_, "name": "a"}}, CALL_IDS)
    own = st.builds(lambda kind, words: {kind: {"a": words}}, st.sampled_from(["odd", "toolResult", "image"]), text)
    start = st.one_of(call, st.just({}), own)
    # Content of an answer that was not streamed, citations and blocks that nobody knows among it.
    content = st.one_of(
        st.builds(lambda words: {"text": words}, text),
        st.builds(lambda words, kind: {"reasoningContent": {"reasoningText": {kind: words}}}, text, st.just("text")),
        st.just({"reasoningContent": {"reasoningText": {"signature": "s"}}}),
        st.builds(
            lambda a, b: {"citationsContent": {"content": [{"text": a}], "citations": [{"title": b}]}}, text, text
        ),
        st.builds(
            lambda id_, words: {"toolUse": {"toolUseId": id_, "name": "a", "input": {"a": words}}}, CALL_IDS, text
        ),
        st.builds(lambda words: {"odd": {"odd": words}}, text),
    )
    return st.one_of(
        st.just({"messageStart": {"role": "assistant"}}),
        st.builds(lambda at, made: {"contentBlockStart": {"contentBlockIndex": at, "start": made}}, INDEXES, start),
        st.builds(lambda at, made: {"contentBlockDelta": {"contentBlockIndex": at, "delta": made}}, INDEXES, piece),
        st.builds(lambda at, made: {"contentBlockDelta": {"contentBlockIndex": at, "delta": made}}, INDEXES, piece),
        st.builds(lambda at: {"contentBlockStop": {"contentBlockIndex": at}}, INDEXES),
        st.builds(lambda why: {"messageStop": {"stopReason": why}}, st.sampled_from(["end_turn", "max_tokens"])),
        st.just({"metadata": {"usage": {"inputTokens": 1, "outputTokens": 2}}}),
        st.just({"throttlingException": {"message": "slow down"}}),
        st.builds(lambda words: {"unheardOf": {"words": words}}, text),
        st.builds(
            lambda made: {"output": {"message": {"content": made}}, "stopReason": "end_turn"},
            st.lists(content, max_size=3),
        ),
    )


def gemini_events():
    number = count()
    text = st.builds(lambda: marked(next(number)))
    noted = st.builds(lambda: told_at_the_end(next(number)))
    unknown = st.one_of(st.just({}), st.builds(lambda words: {"brandNew": words}, text))
    odd = st.one_of(st.just({}), st.builds(lambda words: {"brandNew": words}, noted))
    call = st.builds(lambda words, new: {"functionCall": {"name": "a", "args": {"a": words}} | new}, text, odd)
    part = st.one_of(
        st.builds(lambda words, new: {"text": words} | new, text, unknown),
        st.builds(lambda words, new: {"text": words, "thought": True} | new, text, unknown),
        st.builds(lambda new: {"text": "", "thoughtSignature": "s"} | new, unknown),
        call,
        st.builds(lambda made: made | {"thoughtSignature": "s"}, call),
        st.builds(lambda words: {"executableCode": {"code": words}}, text),
        st.builds(lambda words: {"brandNew": {"a": words}}, text),
    )
    beside = st.one_of(
        st.just({}),
        st.just({"groundingMetadata": {}}),
        st.builds(lambda words: {"groundingMetadata": {"groundingChunks": [{"web": {"title": words}}]}}, noted),
        st.builds(lambda words: {"urlContextMetadata": {"urlMetadata": [{"retrievedUrl": words}]}}, noted),
        st.builds(lambda words: {"citationMetadata": {"citationSources": [{"uri": words}]}}, noted),
    )
    reason = st.sampled_from([{}, {}, {}, {"finishReason": "STOP"}, {"finishReason": 1}, {"finishReason": 2}])
    zero = st.sampled_from([{}, {"finishReason": 0}, {"index": 0}, {"index": 1}])
    candidate = st.builds(
        lambda parts, more, said, end: {"content": {"parts": parts}} | more | said | end,
        st.lists(part, max_size=3),
        zero,
        beside,
        reason,
    )
    named = st.sampled_from([{}, {"responseId": "r1"}, {"responseId": "r2"}])
    counts = {"promptTokenCount": 1, "promptTokensDetails": [{"modality": 1, "tokenCount": 1}]}
    return st.one_of(
        st.builds(lambda made, name: {"candidates": [made]} | name, candidate, named),
        st.builds(lambda made, name: {"candidates": [made]} | name, candidate, named),
        st.builds(lambda made, name: {"candidates": made} | name, st.lists(candidate, max_size=2), named),
        st.builds(lambda name: {"usageMetadata": counts} | name, named),
        st.builds(lambda why: {"promptFeedback": {"blockReason": why}}, st.sampled_from([0, 1, "SAFETY", 99])),
        st.just({"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}}),
        st.builds(lambda words: {"unheardOf": {"words": words}}, text),
    )


STREAMS = {"anthropic": anthropic_events(), "bedrock-converse": converse_events(), "gemini": gemini_events()}
CUTS = st.lists(st.integers(1, 6), max_size=30)
each_source = pytest.mark.parametrize("source", sorted(STREAMS))


def fed(source, records):
    recovery = Recovery(source)
    return [item for record in records for item in recovery.feed(record)] + recovery.end_run("exit")


def picture(view):
    return msgspec.json.encode(
        [view.entries, sorted(view.retracted), view.notices, view.results, view.diagnoses, view.unrecognized]
    )


def without_deltas(items):
    return [msgspec.json.encode(item) for item in items if not isinstance(item, ItemDelta)]


@each_source
@settings(max_examples=150)
@given(data=st.data())
def test_every_text_of_a_source_is_in_an_item(source, data):
    run = [json.dumps(event).encode() for event in data.draw(st.lists(STREAMS[source], max_size=30))]
    items = fed(source, run)
    said = msgspec.json.encode(items).decode()
    sent = {part.split(">")[0] for part in b"".join(run).decode().split("<")[1:]}
    lost = {token for token in sent if f"<{token}>" not in said}
    withdrawn = any(isinstance(item, ItemRetracted) for item in items)
    assert {token for token in lost if not (withdrawn and token.endswith(", noted"))} == set()


@each_source
@settings(max_examples=150)
@given(data=st.data(), cuts=CUTS)
def test_batching_and_snapshots_change_nothing(source, data, cuts):
    run = [json.dumps(event).encode() for event in data.draw(st.lists(STREAMS[source], max_size=30))]
    recovery, items, turns, rest = Recovery(source), [], [], list(run)
    for size in [*cuts, len(run)]:
        items += recovery.feed(b"\n".join(rest[:size]))
        turns += recovery.take_finished()
        rest = rest[size:]
        recovery = Recovery.restore(recovery.snapshot())
    items += recovery.end_run("exit")
    turns += recovery.take_finished()
    whole = Recovery(source)
    expected = [item for record in run for item in whole.feed(record)] + whole.end_run("exit")
    assert without_deltas(items) == without_deltas(expected)
    assert picture(reduce(items)) == picture(reduce(expected))
    assert turns == whole.take_finished()


@each_source
@settings(max_examples=100)
@given(data=st.data())
def test_items_that_come_again_change_nothing(source, data):
    run = [json.dumps(event).encode() for event in data.draw(st.lists(STREAMS[source], max_size=30))]
    items = fed(source, run)
    start = data.draw(st.integers(0, len(items)))
    end = data.draw(st.integers(start, len(items)))
    assert picture(reduce(items[:end] + items[start:])) == picture(reduce(items))


@each_source
@settings(max_examples=150)
@given(data=st.data(), cuts=CUTS)
def test_no_bytes_are_an_error(source, data, cuts):
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
