"""Runs of real CLI versions against an API that cuts, refuses and overloads, each with what must be on screen.

The oracle is not ours: ``visible`` is what the CLI itself kept in the history of its next request. A call that ran
although its message was replaced (``executed_but_superseded``) may stay or go.
"""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.streams import Recovery, recover
from topics.items import Item, ItemRetracted, ItemStarted
from topics.reducer import Entry, View, reduce

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("REKNIT_CORPUS", ROOT.parent / "shared" / "corpus"))
RUNS = CORPUS / "claude-cli-faults.jsonl.gz"

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not RUNS.is_file(), reason=f"no recorded runs at {RUNS}; set REKNIT_CORPUS"),
]


@cache
def runs() -> list[dict[str, Any]]:
    if not RUNS.is_file():
        return []
    with gzip.open(RUNS, "rt", encoding="utf-8") as rows:
        return [json.loads(row) for row in rows]


each_run = pytest.mark.parametrize("run", runs(), ids=lambda run: f"{run['name']}-{run['cli']}")


def as_block(entry: Entry) -> dict[str, Any]:
    if entry.item_type == "text":
        return {"type": "text", "text": entry.text}
    return {
        "type": "tool_use",
        "id": entry.item_id,
        "name": entry.started.name,
        "input": json.loads(entry.text if entry.input is None else bytes(entry.input)),
    }


def complete(view: View, *, parent: bool = False) -> list[dict[str, Any]]:
    return [as_block(entry) for entry in view.blocks("text", "tool_use", parent=parent) if not entry.incomplete]


def check_end(view: View, run: dict[str, Any]) -> None:
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


def fed(lines: list[str], size: int) -> list[Item]:
    recovery = Recovery("claude-cli")
    items: list[Item] = []
    for first in range(0, len(lines), size):
        items += recovery.feed("\n".join(lines[first : first + size]).encode())
    return items + recovery.end_run("end of input")


@each_run
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_run_ends_with_its_visible_blocks_each_once(run: dict[str, Any], size: int) -> None:
    check_end(reduce(fed(run["lines"], size)), run)


@each_run
def test_with_each_line_delivered_twice_it_ends_the_same(run: dict[str, Any]) -> None:
    doubled = [line for line in run["lines"] for _ in range(2 if json.loads(line).get("uuid") else 1)]
    assert fed(doubled, 1) == fed(run["lines"], 1)
    check_end(reduce(fed(doubled, 10_000)), run)


@each_run
def test_with_each_item_delivered_twice_it_ends_the_same(run: dict[str, Any]) -> None:
    check_end(reduce(item for item in fed(run["lines"], 1) for _ in range(2)), run)


@each_run
def test_what_disappears_is_named(run: dict[str, Any]) -> None:
    items = fed(run["lines"], 1)
    started = {item.item_id for item in items if isinstance(item, ItemStarted)}
    retracted = {item.item_id for item in items if isinstance(item, ItemRetracted)}
    assert started - {entry.item_id for entry in reduce(items).entries} == retracted


def confirmed_in(line: str) -> list[dict[str, Any]]:
    """The main turn's blocks that a line confirms, without what is no block of the screen."""
    read = json.loads(line)
    notice = read.get("error") or (read.get("message") or {}).get("model") == "<synthetic>"
    if read["type"] != "assistant" or read["parent_tool_use_id"] or notice:
        return []
    kept = ("type", "text", "id", "name", "input")
    blocks = [{name: block[name] for name in kept if name in block} for block in read["message"]["content"]]
    return [block for block in blocks if block["type"] in {"text", "tool_use"}]


@each_run
def test_cut_after_any_line_it_ends_with_what_was_confirmed(run: dict[str, Any]) -> None:
    recovery = Recovery("claude-cli")
    items: list[Item] = []
    confirmed: list[dict[str, Any]] = []
    # Which attempt each item belongs to: how many messages had started to stream when it appeared.
    attempts = 0
    attempt_of: dict[str, int] = {}
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
def test_results_are_seen_unless_they_tell_an_error(run: dict[str, Any]) -> None:
    for result in reduce(recover(run["lines"])).results.values():
        assert result.unseen == result.is_error
        assert result.expanded == result.is_error


def as_turn_block(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name in {"type", "text", "id", "name", "input"}}


@each_run
def test_finished_turns_hold_what_is_visible_in_order(run: dict[str, Any]) -> None:
    recovery = Recovery("claude-cli")
    turns = []
    for line in run["lines"]:
        recovery.feed(line.encode())
        turns += recovery.take_finished()
    recovery.end_run("end of input")
    turns += recovery.take_finished()
    assert len({turn.id for turn in turns}) == len(turns)
    blocks = [block for turn in turns if turn.role == "assistant" for block in json.loads(turn.message)["content"]]
    whole = [as_turn_block(block) for block in blocks if block["type"] in {"text", "tool_use"}]
    if run["incomplete"]:
        cut = whole.pop()
        assert run["incomplete"]["text"] == cut.get("text", cut.get("input"))
        assert turns[-1].incomplete
    assert run["visible"] in (whole, [block for block in whole if block not in run["executed_but_superseded"]])
    calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
    results = [block for turn in turns if turn.role == "user" for block in json.loads(turn.message)["content"]]
    assert {block["tool_use_id"] for block in results if block["type"] == "tool_result"} <= calls
