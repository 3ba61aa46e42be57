"""Runs of real CLI versions against an API that cuts, refuses and overloads, each with the expected screen.

The oracle is independent. In the first measurement, ``visible`` is what the CLI itself kept in the history of the rest
of that turn; a call that ran although its message was replaced (``executed_but_superseded``) may stay or not. In the
second, ``held`` is what the CLI sent with another prompt at the end, which is its permanent history.
"""

import json

import pytest
import stream_runs
from recorded import needs_corpus, rows
from recorded_streams import check_named

from reknit.pipeline.streams.session import Recovery, recover
from reknit.topics.items import ItemStarted, TurnResult, TurnStop
from reknit.topics.reducer import reduce

RUNS, HELD = rows("claude-cli-faults"), rows("claude-cli-held")

pytestmark = needs_corpus

CALLS = ("tool_use", "server_tool_use")
# Content that was confirmed here and then silently replaced is not in the rest of that turn, but the second measurement
# found that the program keeps it permanently.
KEPT = {(name, cli) for name in ("drop-in-second-tool", "drop-same-prefix") for cli in ("1.0.128", "2.1.50")}


def as_seen_for_good(run):
    if (run["name"], run["cli"]) not in KEPT:
        return run
    return run | {"visible": [block for line in run["lines"] for block in confirmed_in(line)]}


def confirmed_in(line):
    """The main turn's blocks that a line confirms, without what is no block of the screen."""
    read = json.loads(line)
    notice = read.get("error") or (read.get("message") or {}).get("model") == "<synthetic>"
    if read["type"] != "assistant" or read["parent_tool_use_id"] or notice:
        return []
    kept = ("type", "text", "id", "name", "input")
    blocks = [{name: block[name] for name in kept if name in block} for block in read["message"]["content"]]
    return [block for block in blocks if block["type"] in {"text", *CALLS}]


def named(run):
    return f"{run['name']}-{run['cli']}{'-' + run['mode'] if 'mode' in run else ''}"


each_run = pytest.mark.parametrize("run", [as_seen_for_good(run) for run in RUNS], ids=named)
each_held = pytest.mark.parametrize("run", HELD, ids=named)


def as_block(entry):
    if entry.item_type == "text":
        return {"type": "text", "text": entry.text}
    return {
        "type": entry.item_type,
        "id": entry.item_id,
        "name": entry.started.name,
        "input": json.loads(entry.text if entry.input is None else bytes(entry.input)),
    }


def complete(view, *, parent=False):
    return [as_block(entry) for entry in view.blocks("text", "tool_use", parent=parent) if not entry.incomplete]


def check_end(view, run):
    superseded = run["executed_but_superseded"]
    found = complete(view)
    assert run["visible"] in (found, [block for block in found if block not in superseded])
    incomplete = [entry for entry in view.blocks("text", "tool_use") if entry.incomplete]
    expected = [run["incomplete"]] if run["incomplete"] else []
    assert [{"type": entry.item_type, "text": entry.text} for entry in incomplete] == expected
    thinking = [entry.text for entry in view.blocks("thinking") if not entry.incomplete]
    assert [text for text in run["thinking"] if text not in thinking] == []
    assert complete(view, parent=True) == run["subagent"]
    assert all(entry.done for entry in view.entries)


def fed(lines, size):
    batches = ["\n".join(lines[first : first + size]).encode() for first in range(0, len(lines), size)]
    return stream_runs.items_of("claude-cli", batches, end="end of input")


@each_run
def test_what_disappears_is_named(run):
    check_named(fed(run["lines"], 1))


@each_run
def test_cut_after_any_line_it_ends_with_what_was_confirmed(run):
    recovery = Recovery("claude-cli")
    items = []
    confirmed = []
    # Which attempt each item belongs to: how many messages had started to stream when it appeared.
    attempts = 0
    attempt_of = {}
    for line in run["lines"]:
        attempts += '"message_start"' in line
        confirmed += confirmed_in(line)
        new = recovery.feed(line.encode())
        attempt_of |= {item.item_id: attempts for item in new if isinstance(item, ItemStarted)}
        items += new
        view = reduce([*items, *Recovery.restore(recovery.snapshot()).end_run("killed")])
        found = complete(view)
        assert [block for block in found if block not in confirmed] == []
        assert [block for block in run["visible"] if block in confirmed and block not in found] == []
        incomplete = [entry for entry in view.entries if entry.incomplete]
        assert len({attempt_of[entry.item_id] for entry in incomplete}) <= 1
        assert all(entry.done for entry in view.entries)


@each_run
def test_results_are_seen_unless_they_report_an_error(run):
    for result in reduce(recover(run["lines"])).results.values():
        assert result.unseen == result.is_error
        assert result.expanded == result.is_error


def as_turn_block(block):
    return {name: value for name, value in block.items() if name in {"type", "text", "id", "name", "input"}}


def turns_of(lines):
    return stream_runs.run("claude-cli", [line.encode() for line in lines], end="end of input").turns


def blocks_of(turns, role):
    return [block for turn in turns if turn.role == role for block in json.loads(turn.message)["content"]]


def is_killed(run):
    """Whether it ended without a result; a later measurement found that the program then loses its last message."""
    return not any('"type":"result"' in line for line in run["lines"])


def without_last_message(run):
    """The blocks that were confirmed before the last message began to stream."""
    starts = [number for number, line in enumerate(run["lines"]) if '"message_start"' in line]
    return [block for line in run["lines"][: starts[-1]] for block in confirmed_in(line)]


@each_run
def test_finished_turns_hold_what_is_visible_in_order(run):
    turns = turns_of(run["lines"])
    assert len({turn.id for turn in turns}) == len(turns)
    blocks = blocks_of(turns, "assistant")
    whole = [as_turn_block(block) for block in blocks if block["type"] in {"text", "tool_use"}]
    kept = run["visible"]
    if is_killed(run):
        kept = [block for block in kept if block in without_last_message(run)]
    elif run["incomplete"]:
        cut = whole.pop()
        assert run["incomplete"]["text"] == cut.get("text", cut.get("input"))
        assert turns[-1].incomplete
    assert kept in (whole, [block for block in whole if block not in run["executed_but_superseded"]])
    calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
    results = blocks_of(turns, "user")
    assert {block["tool_use_id"] for block in results if block["type"] == "tool_result"} <= calls


# -- the second measurement: the program's permanent history ------------------------------------------------------


def is_blank(block):
    return block["type"] == "text" and not block["text"].strip()


def likeness(block):
    return json.dumps([block.get("text"), block.get("name"), block.get("input")], sort_keys=True)


def held_once(run):
    """The program's history, without repetitions in a message that replaces a cut one, and without blank texts."""
    confirmed = {}
    in_place_of = {}
    started = set()
    streaming = ""
    for line in run["lines"]:
        read = json.loads(line)
        event = read.get("event") or {}
        if event.get("type") == "message_start":
            streaming = event["message"]["id"]
            started.add(streaming)
        elif event.get("type") == "message_stop" or read["type"] == "result":
            streaming = ""
        for block in confirmed_in(line):
            message_id = read["message"]["id"]
            confirmed.setdefault(message_id, []).append(block)
            if streaming and message_id not in started:
                in_place_of[message_id] = streaming
    # The program holds what it has confirmed, neither more nor less; only blank texts it keeps for itself.
    held = [block for blocks in confirmed.values() for block in blocks]
    renamed = [block | {"name": "Agent"} if block.get("name") == "Task" else block for block in held]
    assert [block for block in run["held"] if not is_blank(block)] in (held, renamed)
    for message_id, cut in in_place_of.items():
        for block in confirmed[message_id]:
            again = [before for before in confirmed.get(cut, []) if likeness(before) == likeness(block)]
            if again:
                confirmed[cut].remove(again[0])
    return [block for blocks in confirmed.values() for block in blocks]


def cut_for_good(run):
    """The text that a result cut off, which nothing came in place of."""
    streamed = ""
    left = []
    for line in run["lines"]:
        read = json.loads(line)
        event = read.get("event") or {}
        if event.get("type") == "message_start" or read["type"] == "assistant":
            streamed = ""
        streamed += (event.get("delta") or {}).get("text") or ""
        if read["type"] == "result" and streamed.strip():
            left.append(streamed)
    return left


def check_held(view, run):
    entries = view.blocks("text", *CALLS)
    assert [as_block(entry) for entry in entries if not entry.incomplete] == held_once(run)
    assert [entry.text for entry in entries if entry.incomplete] == cut_for_good(run)
    assert all(entry.done for entry in view.entries)


# A run's final screen, and its program's history.
each_end = pytest.mark.parametrize(
    ("check", "run"),
    [
        *(pytest.param(check_end, as_seen_for_good(run), id=named(run)) for run in RUNS),
        *(pytest.param(check_held, run, id=f"held-{named(run)}") for run in HELD),
    ],
)


@each_end
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_run_ends_with_what_it_is_to_show_each_once(run, check, size):
    check(reduce(fed(run["lines"], size)), run)


@each_end
def test_with_each_line_delivered_twice_it_ends_the_same(run, check):
    doubled = [line for line in run["lines"] for _ in range(2 if json.loads(line).get("uuid") else 1)]
    assert fed(doubled, 1) == fed(run["lines"], 1)
    check(reduce(fed(doubled, 10_000)), run)


@each_end
def test_with_each_item_delivered_twice_it_ends_the_same(run, check):
    check(reduce(item for item in fed(run["lines"], 1) for _ in range(2)), run)


@each_held
def test_what_is_held_does_not_depend_on_the_names_that_new_versions_give_events(run):
    lines = []
    for line in run["lines"]:
        read = json.loads(line)
        read.pop("api_message_id", None)
        lines.append(json.dumps(read))
    check_held(reduce(fed(lines, 1)), run)


@each_held
def test_finished_turns_hold_what_the_program_holds(run):
    turns = turns_of(run["lines"])
    assert len({turn.id for turn in turns}) == len(turns)
    whole = [as_turn_block(block) for block in blocks_of(turns, "assistant") if block["type"] in {"text", *CALLS}]
    cut = [{"type": "text", "text": text} for text in cut_for_good(run)]
    assert [block for block in whole if block not in cut] == held_once(run)
    assert [json.loads(turn.message)["content"] for turn in turns if turn.incomplete] == [[block] for block in cut]
    calls = {block["id"] for block in whole if block["type"] in CALLS}
    results = [block for block in blocks_of(turns, "user") if block["type"] == "tool_result"]
    assert {block["tool_use_id"] for block in results} <= calls


@each_held
def test_prompts_of_the_program_itself_are_marked(run):
    written = [json.loads(line) for line in run["lines"] if '"isSynthetic":true' in line]
    turns = [turn for turn in turns_of(run["lines"]) if turn.synthetic]
    assert [json.loads(turn.message)["content"] for turn in turns] == [line["message"]["content"] for line in written]


def check_cut(view, confirmed, expected):
    found = [as_block(entry) for entry in view.blocks("text", *CALLS) if not entry.incomplete]
    assert [block for block in found if block not in confirmed] == []
    assert [block for block in expected if block in confirmed and block not in found] == []
    incomplete = [entry for entry in view.entries if entry.incomplete]
    assert [entry for entry in incomplete if entry.item_type == "text" and not entry.text.strip()] == []
    assert all(entry.done for entry in view.entries)


@each_held
def test_cut_after_any_line_what_was_confirmed_is_there_and_nothing_blank(run):
    recovery = Recovery("claude-cli")
    items = []
    confirmed = []
    expected = held_once(run)
    for line in run["lines"]:
        confirmed += confirmed_in(line)
        items += recovery.feed(line.encode())
        check_cut(reduce([*items, *Recovery.restore(recovery.snapshot()).end_run("killed")]), confirmed, expected)


def is_stop(line, *kinds):
    return (json.loads(line).get("event") or {}).get("type") in kinds


@each_held
@pytest.mark.parametrize(
    "lost",
    [("content_block_stop",), ("message_delta", "message_stop"), ("content_block_stop", "message_delta")],
    ids="-".join,
)
def test_a_turn_that_succeeded_is_whole_whatever_stops_were_lost(run, lost):
    items = fed([line for line in run["lines"] if not is_stop(line, *lost)], 1)
    said = None
    for item in items:
        if isinstance(item, TurnStop) and item.parent_tool_use_id is None:
            said = item
        if isinstance(item, TurnResult):
            assert said is not None
            # It may say "success" and be none, and the other way round.
            if not item.is_error:
                assert said.incomplete == (item.subtype == "error_during_execution")


def is_uncut(run):
    """Whether no message of the run was cut, so that a lost stop hides nothing."""
    events = [event for line in run["lines"] if (event := json.loads(line).get("event"))]
    stops = [event for event in events if event["type"] == "message_stop"]
    starts = [event for event in events if event["type"] == "message_start"]
    return len(stops) == len(starts) and '"abandoned_blocks"' not in "".join(run["lines"])


@pytest.mark.parametrize("run", list(filter(is_uncut, HELD)), ids=lambda run: f"{run['name']}-{run['cli']}")
def test_whatever_stops_were_lost_a_run_without_a_cut_ends_the_same(run):
    lines = [line for line in run["lines"] if not is_stop(line, "content_block_stop", "message_delta", "message_stop")]
    check_held(reduce(fed(lines, 1)), run)


@each_held
def test_without_streamed_events_everything_that_is_held_is_promoted(run):
    lines = [line for line in run["lines"] if json.loads(line)["type"] != "stream_event"]
    view = reduce(fed(lines, 1))
    entries = view.blocks("text", *CALLS)
    assert [as_block(entry) for entry in entries] == [block for line in lines for block in confirmed_in(line)]
    assert {(entry.origin, entry.incomplete) for entry in entries} == {("promoted", False)}
