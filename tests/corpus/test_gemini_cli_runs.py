"""Runs of the real Gemini CLI against an API that cuts, refuses and resets: each ends with what its transcript holds.

The oracle is the program's own transcript, which holds the attempt that it took. Some runs are vectors, the others come
from the recordings.
"""

import json
from collections import Counter
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest
from recorded import rows, unpacked

from reknit.pipeline import normalize
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.streams.session import Recovery, recover
from reknit.topics import AGENT_TURNS, SESSION_ITEMS
from reknit.topics.items import AnyItem
from reknit.topics.reducer import reduce

VECTORS = Path(__file__).parents[1] / "vectors"
LINES = (VECTORS / "gemini_cli_runs.jsonl").read_text(encoding="utf-8").splitlines()
RUNS = {run["name"]: run for run in map(json.loads, LINES)}
MORE = map(json.loads, unpacked(VECTORS / "agent_cli_runs.jsonl.gz").splitlines())
for row in [*MORE, *rows("agent-cli-runs")]:
    if row["program"] == "gemini-cli":
        name = f"{row['name']}-{row['version']}"
        RUNS.setdefault(name, {"name": name, "lines": row["lines"], "transcript": "\n".join(row["transcripts"][0])})
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def said_in(transcript):
    """The messages that a transcript comes down to, in the plainest way there is."""
    if is_document(transcript):
        return json.loads(transcript)["messages"]
    messages = {}
    for line in map(json.loads, transcript.splitlines()):
        if "messages" in line.get("$set", {}):
            messages = {message["id"]: message for message in line["$set"]["messages"]}
        elif "id" in line:
            messages[line["id"]] = line
    return list(messages.values())


def is_document(transcript):
    """Whether it is of an older version, which keeps one JSON document."""
    return '"messages"' in transcript and "$set" not in transcript


def held_in(transcript):
    """Count each text and call in it."""
    answers = [message for message in said_in(transcript) if message["type"] == "gemini"]
    calls = [call for message in answers for call in message.get("toolCalls", [])]
    texts = [message["content"] for message in answers if message["content"]]
    return Counter([*texts, *((call["id"], json.dumps(call["args"])) for call in calls)])


def as_held(entry):
    if entry.item_type == "text":
        return entry.text
    given = entry.text if entry.input is None else entry.input
    return (entry.item_id, json.dumps(msgspec.json.decode(given)))


def shown(items):
    return Counter(as_held(entry) for entry in reduce(items).blocks("text", "tool_use"))


def logged(turns):
    """Count each text and call in turns for the log."""
    blocks = [block for turn in turns if turn["role"] == "assistant" for block in turn["content"]]
    calls = [(block["id"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
    return Counter([*(block["text"] for block in blocks if block["type"] == "text"), *calls])


def finished(recovery):
    return [json.loads(turn.message) for turn in recovery.take_finished()]


@each_run
def test_it_ends_with_what_its_transcript_holds(run):
    items = list(recover(run["lines"], "gemini-cli", transcript=run["transcript"]))
    assert shown(items) == held_in(run["transcript"])
    view = reduce(items)
    assert [entry.incomplete for entry in view.blocks("text", "tool_use") if entry.incomplete] == []
    # If no call ends an answer, its end is unknown, also to the program.
    answers = [message for message in said_in(run["transcript"]) if message["type"] == "gemini"]
    ends = [message["content"] for message in answers if message["content"] and not message.get("toolCalls")]
    marked = [(entry.text, entry.doubtful) for entry in view.blocks("text", "tool_use") if entry.doubtful]
    assert Counter(marked) == Counter((text, "end") for text in ends)


@each_run
def test_without_its_transcript_nothing_is_lost_and_what_is_not_held_is_marked(run):
    items = list(recover(run["lines"], "gemini-cli"))
    lines = list(map(json.loads, run["lines"]))
    texts = [entry.text for entry in reduce(items).blocks("text")]
    assert "".join(texts) == "".join(line["content"] for line in lines if line.get("role") == "assistant")
    calls = [entry.item_id for entry in reduce(items).blocks("tool_use")]
    assert calls == [line["tool_id"] for line in lines if line["type"] == "tool_use"]
    entries = reduce(items).blocks("text", "tool_use")
    unmarked = Counter(as_held(entry) for entry in entries if not (entry.incomplete or entry.doubtful))
    assert unmarked <= held_in(run["transcript"])
    # The last item of a run is never presented as whole.
    assert [bool(entry.incomplete or entry.doubtful) for entry in entries[-1:]] == [True] * bool(entries)


@each_run
def test_it_does_whatever_is_cut_from_its_stream(run):
    for cut in range(len(run["lines"])):
        items = recover(run["lines"][:cut], "gemini-cli", transcript=run["transcript"])
        assert shown(items) == held_in(run["transcript"]), cut


@each_run
def test_it_does_whatever_is_cut_from_its_transcript(run):
    lines = run["transcript"].split("\n")
    if is_document(run["transcript"]):
        lines = []  # a document is there, or it is not
    for cut in range(1, len(lines) + 1):
        part = "\n".join(lines[:cut])
        assert shown(recover(run["lines"], "gemini-cli", transcript=part)) == held_in(part), cut


def lines_of(run):
    """The lines of both files, each with what feeds it to a recovery."""
    stream = [(Recovery.feed, line.encode()) for line in run["lines"]]
    return stream, [(Recovery.feed_transcript, line) for line in run["transcript"].encode().split(b"\n")]


@each_run
def test_it_does_wherever_it_is_put_down_and_taken_up_again(run):
    """The items and the turns are equal with a snapshot after every line, in any order of the two files."""
    stream, transcript = lines_of(run)

    def outcome(lines, *, restored):
        recovery, items = Recovery("gemini-cli"), []
        for feed, line in lines:
            items += feed(recovery, line, "r")
            recovery.expect_transcript()
            assert finished(recovery) == []
            recovery = Recovery.restore(recovery.snapshot()) if restored else recovery
        items += recovery.end_run()
        return items, finished(recovery)

    by_turns = [line for pair in zip_longest(stream, transcript) for line in pair if line]
    expected = outcome([*stream, *transcript], restored=False)
    assert logged(expected[1]) == held_in(run["transcript"])
    for lines in ([*stream, *transcript], [*transcript, *stream], by_turns):
        assert outcome(lines, restored=True) == expected


@each_run
def test_what_comes_again_from_any_position_on_changes_nothing(run):
    """From the state after any line the same items follow; applied again from any of them on, they show the same."""
    stream, transcript = lines_of(run)
    recovery, items = Recovery("gemini-cli"), []
    for feed, line in [*stream, *transcript]:
        again = Recovery.restore(recovery.snapshot())
        made = feed(recovery, line, "r")
        assert feed(again, line, "r") == made
        items += made
    items += recovery.end_run()
    for at in range(len(items)):
        assert shown([*items, *items[at:]]) == shown(items) == held_in(run["transcript"])


@each_run
def test_a_transcript_that_comes_after_the_end_still_corrects_the_screen(run):
    recovery = Recovery("gemini-cli")
    items = recovery.feed("\n".join(run["lines"]).encode(), "r") + recovery.end_run()
    items += recovery.feed_transcript(run["transcript"].encode(), "r") + recovery.end_transcript("r")
    assert shown(items) == held_in(run["transcript"])


@each_run
@pytest.mark.parametrize("together", [1, 3, 1000])
def test_the_pipeline_records_the_transcripts_turns_and_continues_with_the_next_run(run, together):
    following = RUNS["rst-after-call-0.61.0"]
    records = []

    def send(source, name, value, *headers):
        described = (("source", source), ("run", name), *headers)
        records.append(Record(partition=0, offset=len(records), key=b"s", value=value, headers=described))

    for name, sent in ((b"r1", run), (b"r2", following)):
        for line in sent["lines"]:
            send(b"gemini-cli", name, line.encode(), ("transcript", b"expected"))
        for line in sent["transcript"].split("\n"):
            send(b"gemini-cli-transcript", name, line.encode())
        ends = b"gemini-cli-transcript" if name == b"r1" else b"gemini-cli"
        send(ends, name, None, ("exit", b"0"))
    policy = (("policy", b'{"record_assistant":true}'),)
    records.insert(0, Record(partition=0, offset=0, key=b"s", value=None, headers=policy))
    stage, outputs = EventsStage(Defaults()), []
    for at in range(0, len(records), together):
        outputs += stage.process(records[at : at + together]).outputs
    decoded = [msgspec.json.decode(output.value, type=AnyItem) for output in outputs if output.topic == SESSION_ITEMS]
    both = held_in(run["transcript"]) + held_in(following["transcript"])
    assert sum(shown(decoded).values()) == sum(both.values())
    turns = [json.loads(output.value) for output in outputs if output.topic == AGENT_TURNS]
    assert all(turn["self_driving"] for turn in turns)
    assert logged([turn["message"] for turn in turns]) == both


@each_run
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_its_transcript_goes_to_every_target_without_an_unexplained_loss(run, target):
    done = normalize(run["transcript"], to=target)
    assert done.body is not None
    # Thoughts are for their own model only; a target's additional requirements are synthesised.
    lossy = {fix.code for fix in done.fixes if not fix.lossless}
    assert lossy <= {"thinking_foreign", "thinking_dropped", "tail_continued", "tools_stubbed"}
