"""Runs of real CLI versions under signals, commands and compaction, each with what the program holds afterwards.

``held`` is what the CLI sent to its API with a later prompt. A stage is one process; its exit status says whether it
was killed.
"""

import json

import pytest
from recorded import needs_corpus, rows

from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentUnrecognized
from reknit.topics.reducer import reduce

RUNS = rows("claude-cli-signals")

pytestmark = needs_corpus

# The program's own text for a missing answer, and the scripted API's answers to its own prompts.
FILLERS = ("No response requested.", "(mock: plan is over)")
KINDS = ("text", "tool_use", "server_tool_use")


def stages_of(run):
    """The lines of each process, with the words for its end."""
    lines, found = run["lines"], []
    counts = run["stages"] or [len(lines)]
    statuses = run["rcs"] or [0] * len(counts)
    for count, status in zip(counts, statuses, strict=True):
        found.append((lines[:count], f"exit {status}" if status in {0, 1} else f"killed ({status})"))
        lines = lines[count:]
    return found


def recovered(run, *, one_pipe=False):
    """The items of all processes, and the turns for the log; in one pipe only the lines show where a process ends."""
    recovery, items, turns = Recovery("claude-cli"), [], []
    for number, (lines, reason) in enumerate(stages_of(run)):
        for line in lines:
            items += recovery.feed(line.encode(), None if one_pipe else f"r{number}")
        if not one_pipe:
            items += recovery.end_run(reason)
        turns += recovery.take_finished()
    items += recovery.end_run("exit 0")
    return items, turns + recovery.take_finished()


def as_held(entry):
    return ["text", entry.text] if entry.item_type == "text" else ["tool_use", entry.item_id]


def held_of(run):
    blocks = [block[:2] for block in run["held"] if block[0] in KINDS and block[1] not in FILLERS]
    return [["tool_use", block[1]] if block[0] in KINDS[1:] else block for block in blocks]


each_run = pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['name']}-{run['version']}")


@each_run
@pytest.mark.parametrize("one_pipe", [False, True], ids=["a run each", "one pipe"])
def test_what_is_shown_as_sure_is_held_and_the_rest_is_marked(run, one_pipe):
    items, _ = recovered(run, one_pipe=one_pipe)
    entries = [entry for entry in reduce(items).blocks(*KINDS) if entry.text not in FILLERS]
    sure = [as_held(entry) for entry in entries if not (entry.incomplete or entry.doubtful or entry.outside)]
    held = held_of(run)
    # Of what compaction left out the program keeps its newest messages as they are; their marks name the boundary.
    marked = [as_held(entry) for entry in entries if entry.incomplete or entry.doubtful or entry.outside]
    assert [block for block in held if block not in marked] == sure
    assert all(entry.done for entry in entries)


@each_run
def test_the_log_has_each_call_with_its_result_and_nothing_of_a_killed_message(run):
    items, turns = recovered(run)
    doubtful = {entry.text for entry in reduce(items).blocks("text") if entry.doubtful == "kept"}
    blocks = [block for turn in turns if not turn.resets for block in json.loads(turn.message)["content"]]
    assert [block for block in blocks if block.get("text") in doubtful] == []
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert len(set(calls)) == len(calls)
    assert set(results) <= set(calls)
    assert sum(turn.resets for turn in turns) == sum('"type":"conversation_reset"' in line for line in run["lines"])


@each_run
def test_every_line_is_recognised_and_estimates_are_dropped(run):
    items, _ = recovered(run)
    assert [item for item in items if isinstance(item, AgentUnrecognized)] == []
    assert [item for item in items if getattr(item, "subtype", "") == "thinking_tokens"] == []


@each_run
def test_a_result_that_repeats_what_is_shown_is_not_unseen(run):
    items, _ = recovered(run)
    for result in reduce(items).results.values():
        repeats = "Prompt is too long" in (result.result or "") or not result.is_error
        assert not (repeats and result.unseen)


@each_run
def test_with_each_item_delivered_twice_it_ends_the_same(run):
    items, _ = recovered(run)
    once, again = reduce(items), reduce([*items, *items])
    twice = reduce(item for item in items for _ in range(2))
    assert again.entries == once.entries
    assert twice.entries == once.entries
