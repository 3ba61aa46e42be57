"""Runs of real Codex versions against an API that cuts, refuses and resets: each ends with its rollout's content.

The oracle is Codex's own history, read here line by line: the items that it keeps, and for a text that older versions
kept only as an event, the event. The lines themselves show whether something repeats.
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import stream_runs
from recorded import rows, unpacked
from stream_runs import encoded, only, picture

from reknit.pipeline import Session, normalize
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.model import Text, Thinking
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentError, AgentUnrecognized, TurnDiagnosis, TurnResult, TurnStop
from reknit.topics.reducer import reduce

VECTORS = Path(__file__).parents[1] / "vectors" / "agent_cli_runs.jsonl.gz"
OWN = [json.loads(line) for line in unpacked(VECTORS).splitlines()]
RUNS = [row for row in [*OWN, *rows("agent-cli-runs")] if row["program"] == "codex-cli"]
each_run = pytest.mark.parametrize("row", RUNS, ids=lambda row: f"{row['version']}-{row['name']}")


def lines_of(row):
    return [line.encode() for line in row["lines"]]


def events_of(row):
    return [json.loads(line) for line in row["lines"]]


def run(row, lines=None):
    """The total result of a row's lines, with the state saved and restored after each."""
    lines = lines_of(row) if lines is None else lines
    return stream_runs.run("codex-cli", lines, sizes=[1] * len(lines), end="end of run")


def kept(row):
    """The rollouts' content: texts, thoughts, and the numbers of calls and results."""
    items, events, calls = Counter(), Counter(), Counter()
    for line in (json.loads(line) for transcript in row["transcripts"] for line in transcript):
        payload = line["payload"]
        match line["type"], payload.get("type"):
            case "response_item", "message" if payload["role"] == "assistant":
                items["text", "".join(part["text"] for part in payload["content"])] += 1
            case "response_item", "reasoning":
                items["thinking", "\n\n".join(part["text"] for part in payload["summary"])] += 1
            case "response_item", "function_call" | "web_search_call":
                calls["call"] += 1
            case "response_item", "function_call_output":
                calls["result"] += 1
            case "event_msg", "agent_message":
                events["text", payload["message"]] += 1
    return items | events, calls


def shown(blocks):
    return Counter((block["type"], block[block["type"]]) for block in blocks if block["type"] in ("text", "thinking"))


def repeats(events):
    """For each text and call, whether it was said before the last notice, and since the last result before that."""
    before, since, found = [], [], []
    for event in events:
        item = event.get("item", {})
        said = (item.get("type"), item.get("text"), item.get("command"))
        match event["type"], item.get("type"):
            case "error", _:
                before, since = before + since, []
            case "item.completed", "agent_message" | "reasoning":
                found.append(said in before)
                since.append(said)
            case "item.started", "command_execution":
                found.append(said in before)
            case "item.completed", "command_execution" | "file_change" | "web_search":
                before, since = [], []
                if item["type"] == "web_search":
                    found.append(False)
            case ("item.started", "file_change" | "mcp_tool_call") | ("item.started" | "item.updated", "todo_list"):
                before, since = [], []
                found.append(False)
    return found


@each_run
def test_a_run_ends_with_what_its_rollout_holds_as_often_as_it_does(row):
    found = run(row)
    texts, calls = kept(row)
    screen = Counter((e.item_type, e.text) for e in found.view.entries if e.item_type in ("text", "thinking"))
    assert screen == shown(found.blocks) == texts
    types = Counter(block["type"] for block in found.blocks)
    assert types["tool_use"] == len(found.view.blocks("tool_use")) == calls["call"]
    # A search is run by the API, and has no result of its own in the rollout.
    searches = sum(entry.started.name == "web_search" for entry in found.view.entries)
    assert types["tool_result"] == calls["result"] + searches
    assert not only(found.items, AgentUnrecognized)
    assert not found.view.retracted


@each_run
def test_what_a_retry_says_again_is_marked_and_nothing_else(row):
    entries = run(row).view.entries
    assert [bool(entry.repeats) for entry in entries] == repeats(events_of(row))
    said = {entry.item_id: entry.text for entry in entries}
    assert all(said[entry.repeats] == entry.text for entry in entries if entry.repeats)


@each_run
def test_a_turn_is_whole_only_by_its_own_word_and_notices_end_nothing(row):
    events, found = events_of(row), run(row)
    ends = [event["type"] for event in events if event["type"] in ("turn.completed", "turn.failed")]
    assert [result.subtype for result in only(found.items, TurnResult)] == ends
    turns = sum(event["type"] == "turn.started" for event in events)
    assert len(only(found.items, TurnDiagnosis)) == turns - len(ends)
    stops = only(found.items, TurnStop)
    assert not stops or stops[-1].incomplete == (events[-1]["type"] != "turn.completed")
    notices = sum(event["type"] == "error" or event.get("item", {}).get("type") == "error" for event in events)
    assert len(only(found.items, AgentError)) == notices


@each_run
def test_the_runs_own_share_of_tokens_adds_up_to_the_threads(row):
    totals = [event["usage"] for event in events_of(row) if event["type"] == "turn.completed"]
    shares = [result.usage for result in only(run(row).items, TurnResult) if not result.is_error]
    if row["version"] == "0.44.0":  # which reports each run's own
        totals = [{name: sum(total[name] for total in totals) for name in totals[0]}] if totals else []
    own = [share.input_tokens + share.cache_read_input_tokens + share.cache_creation_input_tokens for share in shares]
    assert (sum(own), sum(share.output_tokens for share in shares)) == (
        (totals[-1]["input_tokens"], totals[-1]["output_tokens"]) if totals else (0, 0)
    )


@each_run
def test_cut_at_any_line_it_holds_what_came_and_is_not_whole(row):
    events, lines = events_of(row), lines_of(row)
    for at in range(len(lines) + 1):
        found = run(row, lines[:at])
        done = [event["item"] for event in events[:at] if event["type"] == "item.completed"]
        said = Counter(item["text"] for item in done if item["type"] in ("agent_message", "reasoning"))
        assert Counter(entry.text for entry in found.view.entries if entry.item_type in ("text", "thinking")) == said
        begun = {event["item"]["id"] for event in events[:at] if event.get("item", {}).get("type") in CALLS}
        assert len(found.view.blocks("tool_use")) >= len(begun)
        words = [event["type"] for event in events[:at] if event["type"].startswith("turn.")]
        open_ = words[-1:] == ["turn.started"]
        # A warning before the turn shows that there was a run.
        warned = any(event.get("item", {}).get("type") == "error" for event in events[:at])
        assert bool(only(found.items, TurnDiagnosis)) == (open_ or (warned and not words))
        assert not open_ or only(found.items, TurnStop)[-1].incomplete


CALLS = ("command_execution", "file_change", "web_search")


@each_run
def test_state_batches_and_positions_change_nothing(row):
    found, lines = run(row), lines_of(row)
    assert encoded(stream_runs.items_of("codex-cli", lines, end="end of run")) == encoded(found.items)
    recovery = Recovery("codex-cli")
    whole = [*recovery.feed_each(lines), *recovery.end_run("end of run")]
    assert encoded(whole) == encoded(found.items)
    for at in range(len(found.items)):
        assert picture([*found.items, *found.items[at:]]) == picture(found.items)
    # From the state at any position on, the same items come again.
    recovery, items = Recovery("codex-cli"), []
    for line in lines:
        again = Recovery.restore(recovery.snapshot())
        new = recovery.feed(line)
        assert encoded(again.feed(line)) == encoded(new)
        items += new
    assert encoded([*items, *recovery.end_run("end of run")]) == encoded(found.items)


@each_run
@pytest.mark.parametrize("named", [True, False], ids=["its run is named", "it only begins"])
def test_a_following_run_changes_nothing_of_it(row, named):
    follower = next(each for each in OWN if each["program"] == "codex-cli" and each["name"] == "two-calls")
    recovery, items = Recovery("codex-cli"), []
    for name, lines in (("r1", lines_of(row)), ("r2", lines_of(follower))):
        for line in lines:
            items += recovery.feed(line, name if named else None)
    items += recovery.end_run("end of run")
    both = [entry.text or bytes(entry.input) for entry in reduce(items).entries]
    alone = [entry.text or bytes(entry.input) for each in (row, follower) for entry in run(each).view.entries]
    assert both == alone
    assert [result.subtype for result in only(items, TurnResult)] == [
        result.subtype for each in (row, follower) for result in only(run(each).items, TurnResult)
    ]


# Reasoning is sent to its own model only, and not without the items that it led to.
THOUGHT = re.compile("thinking_|reasoning_")


def stands_in(body, text):
    body = body.decode().replace("\u200b", "").replace("\\u200b", "")
    return any(each in body for each in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]))


@each_run
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_what_was_recorded_becomes_the_next_request_and_all_that_is_missing_has_its_fix(row, target):
    session = Session([target], model="m", params={"max_tokens": 64})
    session.append({"role": "user", "content": "Say hello"})
    fixes = [fix for turn in run(row).turns for fix in session.append(turn.message)]
    session.append({"role": "user", "content": "And now?"})
    request = session.request(target)
    assert request.body is not None, request.violations
    explained = [fix.code for fix in [*fixes, *request.fixes]]
    for kind, text in kept(row)[0]:
        assert stands_in(request.body, text) or (kind == "thinking" and any(map(THOUGHT.match, explained))), text


@each_run
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_its_rollout_goes_to_every_target_without_an_unexplained_loss(row, target):
    for transcript in row["transcripts"]:
        text = "\n".join(transcript)
        found = read(text)
        lines = {path.split(".")[1] for turn in found.conversation.turns for path in turn.paths}
        assert len(lines) + sum(found.skipped.values()) == len(transcript)
        done = normalize(text, to=target)
        assert done.body is not None, done.violations
        explained = [fix.code for fix in done.fixes]
        for block in [block for turn in found.conversation.turns for block in turn.blocks]:
            if isinstance(block, Thinking):
                assert stands_in(done.body, block.thinking) or any(map(THOUGHT.match, explained))
            elif isinstance(block, Text):
                assert stands_in(done.body, block.text.strip()), block.text
