"""Counters that rates are computed from exist before their first event."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from build import answered, called, said, user
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from stage_runs import OPENED, records, turn

from reknit.pipeline import __version__, errors
from reknit.pipeline.metrics import DEAD_LETTER_CODES, MOST_PRODUCERS, Metrics
from reknit.pipeline.stages.base import Record, Result
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.kept import Why
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS

# Error codes that only the configuration of a worker or the registration of a target can cause.
NOT_OF_RECORDS = {"bad_marker", "bad_root", "name_taken", "unknown_rule", "wrong_rules"}
# Codes without a bad record: an expired session, a provider's refusal, a stage that raised, an oversized record.
OF_NO_ERROR = {"internal", "rejected", "size", "state_size", *get_args(Why)}
OF_NO_ERROR |= {"refused_foreseen", "refused_missed", "refused_unknown"}


def stage_modules():
    """Return the files of a worker's stages, as a fresh interpreter loads them."""
    script = (
        "import sys, reknit.pipeline.stages.events, reknit.pipeline.stages.turns\n"
        "print(*[module.__file__ for name, module in sys.modules.items()"
        " if name.startswith(('reknit.pipeline', 'reknit.topics'))], sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [Path(line) for line in done.stdout.splitlines()]


def raised_in(path):
    """Yield the codes of Reknit's errors that a module raises."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(code)), *_]) if name in KINDS:
                yield code


KINDS = {name for name in vars(errors) if name.endswith("Error")} | {
    "LimitError",
    "ParkedFullError",
    "QuarantinedError",
}


def test_every_code_that_a_dead_letter_can_have_is_listed():
    found = {code for path in stage_modules() for code in raised_in(path)}
    assert set(DEAD_LETTER_CODES) == (found - NOT_OF_RECORDS) | OF_NO_ERROR
    assert found >= NOT_OF_RECORDS


TURNS = [
    OPENED,
    turn(user("one"), id="u1"),
    turn(user("one"), id="u1"),
    turn(called("a")),
    turn(user("no result")),
    turn({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "nobody", "content": "x"}]}),
    {**OPENED, "system": "Be brief."},
    turn(user("two")),
    {"type": "history.rewound", "to": 1},
    turn(user("three")),
    {"type": "history.restored", "messages": [user("a"), called("a"), answered("a"), said("b")]},
    turn(user("four")),
    b'{"type":"turn.appended","message":{"role":"user","content":"\xff"}}',
    turn({"role": "user", "content": 17}),
    {"type": "history.rewound", "to": 99},
    {"type": "session.closed"},
]
EVENTS = [
    b"no JSON",
    json.dumps({"type": "assistant", "message": said("answer") | {"id": "m"}}).encode(),
    json.dumps({"type": "result", "subtype": "error", "is_error": True, "result": "unseen"}).encode(),
]


def series(metrics):
    found = {}
    for family in metrics.registry.collect():
        if family.name.startswith("reknit_"):
            found |= {(one.name, *sorted(one.labels.items())): one.value for one in family.samples}
    return found


RUN = (("source", b"claude-cli"), ("run", b"r1"))


@pytest.mark.parametrize(
    ("stage", "topic", "given", "counted"),
    [
        (
            TurnsStage(Defaults()),
            AGENT_TURNS,
            records(TURNS),
            {
                "reknit_dead_letters_total",
                "reknit_fixes_lossy_total",
                "reknit_fixes_total",
                "reknit_producer_fixes_total",
                "reknit_sessions_mended_total",
                "reknit_prefix_resets_total",
                "reknit_requests_total",
                "reknit_turns_total",
            },
        ),
        (
            EventsStage(Defaults()),
            PROVIDER_EVENTS,
            [
                *records(EVENTS, RUN, key=b"s"),
                Record(partition=0, offset=9, key=b"s", value=None, headers=(("exit", b"1"),)),
            ],
            {"reknit_items_total", "reknit_events_unrecognised_total", "reknit_results_unseen_total"},
        ),
    ],
    ids=["turns", "events"],
)
def test_counters_of_stages_exist_from_the_start(stage, topic, given, counted):
    metrics = Metrics(targets=["anthropic"])
    metrics.on_partitions(topic, 1, 1)
    before = series(metrics)
    result = stage.process(given)
    metrics.on_commit(topic, 0, result, len(given))
    after = series(metrics)
    moved = {name[0] for name, value in after.items() if before.get(name, 0) != value}
    assert counted <= moved
    assert [name for name in after if name not in before] == []


def test_a_session_that_needs_fixes_again_is_counted_once():
    stage, metrics = TurnsStage(Defaults()), Metrics(targets=["anthropic"])
    broken = [turn(user("one")), turn(called("a")), turn(user("no result"))]
    for value in records([OPENED, turn(user("fine")), *broken, *broken]):
        metrics.on_commit(AGENT_TURNS, 0, stage.process([value]), 1)
    counted = series(metrics)
    assert counted["reknit_sessions_mended_total", ("target", "anthropic")] == 1
    assert sum(value for (name, *_), value in counted.items() if name == "reknit_fixes_total") > 1


def test_every_sample_names_its_pipeline():
    metrics = Metrics(targets=["anthropic"], pipeline="live.")
    metrics.on_partitions(AGENT_TURNS, 1, 2)
    metrics.on_working(AGENT_TURNS, {1}, 2)
    metrics.on_lag(AGENT_TURNS, 1, 7)
    metrics.on_position(AGENT_TURNS, 1, 17)
    pages = [generate_latest(metrics.registry).decode() for _ in range(2)]
    families = [family for page in pages for family in text_string_to_metric_families(page)]
    samples = [sample for family in families for sample in family.samples]
    assert [sample.name for sample in samples if sample.labels.get("pipeline") != "live."] == []
    # Including those of the process.
    assert {"process_start_time_seconds", "python_info", "reknit_build_info"} <= {sample.name for sample in samples}
    assert len(samples) > 1000


@pytest.mark.parametrize("pipeline", ["", "a.b_c-d."])
def test_the_label_is_the_unchanged_prefix(pipeline):
    metrics = Metrics(pipeline=pipeline)
    assert metrics.registry.get_sample_value("reknit_build_info", {"version": __version__, "pipeline": pipeline}) == 1


def test_metrics_of_partitions_are_removed_with_them():
    metrics = Metrics()
    shown = metrics.registry.get_sample_value
    metrics.on_position(AGENT_TURNS, 1, None)  # it was never opened
    metrics.on_position(AGENT_TURNS, 1, 17)
    metrics.on_working(AGENT_TURNS, {1}, 3)
    before = [shown("reknit_partition_working", place(number)) for number in range(3)]
    assert (before, shown("reknit_source_position", place(1))) == ([0, 1, 0], 17)
    metrics.on_position(AGENT_TURNS, 1, None)
    metrics.on_working(AGENT_TURNS, (), 3)
    after = [shown("reknit_partition_working", place(number)) for number in range(3)]
    assert (after, shown("reknit_source_position", place(1))) == ([0, 0, 0], None)


def place(number):
    return {"topic": AGENT_TURNS, "partition": str(number)}


def test_producers_beyond_the_bound_and_odd_names_are_counted_as_others():
    metrics = Metrics()
    names = [*(f"agent-{number}/1.0" for number in range(MOST_PRODUCERS + 2)), "agent-0/1.0", "", "two words", "n" * 99]
    tally = [{("reknit_producer_fixes_total", name, "result_moved"): 1} for name in names]
    for each in tally:
        metrics.on_commit(AGENT_TURNS, 0, Result(tally=each), 1)
    found = {
        dict(labels)["producer"]: value
        for (name, *labels), value in series(metrics).items()
        if name == "reknit_producer_fixes_total" and ("code", "result_moved") in labels
    }
    assert found == {"": 1, "other": 4, "agent-0/1.0": 2, **{f"agent-{n}/1.0": 1 for n in range(1, MOST_PRODUCERS)}}
