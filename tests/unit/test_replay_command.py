"""What `reknit replay` says of its options and of how far it is; and that a dry run survives a stage's bug."""

from __future__ import annotations

import asyncio
import tempfile
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from msgspec import structs

from pipeline.cli import main
from pipeline.cli.replay import Bar
from pipeline.engine.batches import Span
from pipeline.engine.dry import _DryWriter
from pipeline.engine.partition import Partition
from pipeline.engine.runtime import NoMetrics, Runtime, Scope, Tuning
from pipeline.kafka import KafkaSettings
from pipeline.replay import Plan
from pipeline.settings import StateSettings
from pipeline.stages.base import Output, Record, Result, Stage, dead_letter
from topics import AGENT_TURNS, PROVIDER_EVENTS

PLAN = Plan(
    id="monday",
    version="0.4.0",
    created=0,
    source_prefix="live.",
    partitions=2,
    starts={AGENT_TURNS: [10, 0], PROVIDER_EVENTS: [0, 0]},
    ends={AGENT_TURNS: [110, 0], PROVIDER_EVENTS: [0, 900]},
)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--id", "Monday!"], "a name has lower-case letters"),
        (["--share", "1/4"], "processes share a replay by its --id"),
        (["--dry-run", "d", "--share", "5/4"], "'5/4' is no share"),
        (["--offsets", "agent.turns.v1/3"], "is not like agent.turns.v1/3/100-200"),
        (["--offsets", "agent.turn.v1/3/1"], "did you mean agent.turns.v1?"),
        (["--since", "yesterday"], "is neither so long ago"),
        (["lits"], "did you mean list?"),
    ],
)
def test_options_that_mean_nothing_are_refused_in_a_sentence(options, said):
    done = CliRunner().invoke(main, ["replay", *options])
    assert (done.exit_code, said in " ".join(done.output.replace("│", " ").split())) == (2, True), done.output


@pytest.mark.parametrize("command", ["", "--dry-run folder", "list", "delete x"])
def test_where_no_broker_answers_it_ends_with_75_and_one_sentence(tmp_path, monkeypatch, unused_tcp_port, command):
    monkeypatch.chdir(tmp_path)
    place = ["--bootstrap-servers", f"127.0.0.1:{unused_tcp_port}"]
    name, *more = command.split() if command[:1].isalpha() else ["", *command.split()]
    done = CliRunner().invoke(main, ["replay", *filter(None, [name]), *place, *more])
    assert (done.exit_code, done.output.count("\n")) == (75, 1), done.output
    assert done.output.startswith("reknit: no Kafka broker answers at 127.0.0.1:")
    assert list(tmp_path.iterdir()) == []


def test_the_bar_says_rate_lag_and_time_left_and_counts_from_where_it_began():
    now = [0.0]
    bar = Bar(PLAN, range(2), lambda: now[0])
    bar.note({(AGENT_TURNS, 0): 60, (AGENT_TURNS, 1): 0})  # done before by another process
    now[0] = 10.0
    bar.note({(PROVIDER_EVENTS, 1): 500})
    assert bar.line() == "[################--------------] 55 %  50/s  450 behind  9 s left"
    assert not bar.is_done()
    bar.note({(AGENT_TURNS, 0): 4_000, (PROVIDER_EVENTS, 1): 900})
    assert bar.line().endswith("100 %  95/s  0 behind  0 s left")
    assert bar.is_done()


class Buggy(Stage):
    """Counts records, and raises for one of them with its state half changed."""

    topic, state_topic = "in.v1", "state.v1"

    def __init__(self, _number):
        self.count = 0

    def restore(self, key, value):
        self.count = int(value)

    def process(self, records):
        result = Result()
        for record in records:
            self.count += 1
            if record.value == b"bug":
                raise RuntimeError
            result.outputs.append(Output("out.v1", record.key, b"%d:%d" % (record.offset, self.count)))
        result.changes[b"count"] = b"%d" % self.count
        return result

    def refuse(self, record, error):
        return Result(outputs=[dead_letter(record, self.topic, error)])

    def levels(self):
        return {}


class Outputs:
    def __init__(self):
        self.taken = []

    def take(self, outputs):
        self.taken += [(output.topic, output.value) for output in outputs]


async def opened(_position):
    return True


async def test_a_dry_run_makes_its_state_anew_after_a_bug():
    config = SimpleNamespace(
        bootstrap_servers="",
        kafka=KafkaSettings(),
        prefix="p.replay.r.",
        delivery="exactly-once",
        state_dir="/nowhere",
        metrics_port=0,
        state=StateSettings(),
    )
    scope = Scope(source_prefix="p.", ends={"in.v1": [5]})
    runtime = Runtime(config, {"in.v1": Buggy}, NoMetrics(), Tuning(batch_records=2), scope=scope)
    outputs = Outputs()
    with tempfile.TemporaryFile() as file:
        writer = _DryWriter(file, outputs)
        runtime.read_changelog = writer.read_changelog
        actor = Partition(
            runtime,
            "in.v1",
            0,
            writer=lambda _: writer,
            on_room=lambda: None,
            on_opened=opened,
            on_position=lambda _: None,
            is_ours=opened,
        )
        values = [b"v", b"v", b"v", b"bug", b"v"]
        records = [Record(partition=0, offset=at, key=b"k", value=value) for at, value in enumerate(values)]
        async with asyncio.timeout(10):
            while actor.phase.value != "working":  # noqa: ASYNC110  it opens by itself
                await asyncio.sleep(0.01)
            actor.offer(Span(0, 5, records, 5))
            while actor.done_to < 5 and runtime.failure is None:  # noqa: ASYNC110  as above
                await asyncio.sleep(0.01)
        await actor.close()
    assert runtime.failure is None
    assert outputs.taken == [
        ("out.v1", b"0:1"),
        ("out.v1", b"1:2"),
        ("out.v1", b"2:3"),
        ("pipeline.dead-letters.v1", b"bug"),
        ("out.v1", b"4:4"),
    ]


def test_a_plan_without_a_range_is_processed_as_live_work_is():
    assert PLAN.takes_everything()
    assert not structs.replace(PLAN, forgotten=["00"]).takes_everything()
