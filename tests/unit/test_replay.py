"""A replay: the scope of its plan, the files of a dry run, and the messages of `reknit replay`."""

import asyncio
import itertools
import json
import subprocess
import tempfile

import cramjam
import msgspec
import pytest
from aiokafka import TopicPartition
from build import user
from click.testing import CliRunner
from msgspec import structs

from reknit.pipeline.cli import main
from reknit.pipeline.cli.replay import Bar
from reknit.pipeline.engine.batches import Span
from reknit.pipeline.engine.dry import Fetched, _DryWriter
from reknit.pipeline.engine.partition import Partition
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Scope, Tuning
from reknit.pipeline.errors import InputError
from reknit.pipeline.replay import Place, Plan, PlannedStage, Selection, Uncompared, digest_of
from reknit.pipeline.replay.folder import PartitionFiles, begin, is_done, plan_of, read_partition, unfinished
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Output, Record, Result, Stage, dead_letter
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS

PLAN = Plan(
    id="monday",
    version="0.4.0",
    created=0,
    source_prefix="live.",
    partitions=2,
    starts={AGENT_TURNS: [10, 0], PROVIDER_EVENTS: [0, 0]},
    ends={AGENT_TURNS: [110, 0], PROVIDER_EVENTS: [0, 900]},
)
ONE = structs.replace(
    PLAN,
    partitions=1,
    starts={AGENT_TURNS: [0], PROVIDER_EVENTS: [0]},
    ends={AGENT_TURNS: [100], PROVIDER_EVENTS: [100]},
)
DEFAULTS = Defaults(model="claude-sonnet-4-5", params={"max_tokens": msgspec.Raw(b"64")})


def turns(*sessions):
    rows = [
        (key, json.dumps({"type": "turn.appended", "message": user(f"{key} {at}")})) for at, key in enumerate(sessions)
    ]
    return [Record(partition=0, offset=at, key=key.encode(), value=row.encode()) for at, (key, row) in enumerate(rows)]


def requests(plan, records, at_once=100):
    stage = PlannedStage(TurnsStage(DEFAULTS), plan)
    parts = [records[at : at + at_once] for at in range(0, len(records), at_once)]
    outputs = [output for part in parts for output in stage.process(part).outputs if output.topic == PROVIDER_REQUESTS]
    return [(output.key.decode(), dict(output.headers)["cause"].decode().rpartition("/")[2]) for output in outputs]


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ((), ["a1", "a2", "b[1]"]),
        (("a1",), ["a1"]),
        (("a?", "b"), ["a1", "a2"]),
        (("b[1]",), ["b[1]"]),
    ],
)
def test_sessions_are_selected_by_ids_and_patterns(asked, taken):
    plan = structs.replace(ONE, selection=Selection(sessions=asked))
    assert [key for key, _ in requests(plan, turns("a1", "a2", "b[1]"))] == taken


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_a_range_selects_outputs_and_sessions_are_read_from_their_beginning(at_once):
    given = turns("a", "b", "a", "b", "a", "b")
    plan = structs.replace(ONE, ranges={AGENT_TURNS: [[(2, 3), (4, 5)]]}, chosen={"a": []})
    assert requests(plan, given, at_once) == [("a", "2"), ("a", "4")]
    alone = TurnsStage(DEFAULTS).process([record for record in given if record.key == b"a"])
    bodies = [output.value for output in alone.outputs if output.topic == PROVIDER_REQUESTS]
    shown = PlannedStage(TurnsStage(DEFAULTS), plan).process(given)
    assert [output.value for output in shown.outputs if output.topic == PROVIDER_REQUESTS] == bodies[1:]
    assert shown.changes == alone.changes


def test_incomparable_and_forgotten_sessions_are_not_processed():
    plan = structs.replace(ONE, uncompared=[Uncompared("a", AGENT_TURNS, "expired")], forgotten=[digest_of(b"b")])
    assert requests(plan, turns("a", "b", "c")) == [("c", "2")]


def test_a_plan_without_a_range_is_processed_like_live_work():
    assert PLAN.takes_everything()
    assert not structs.replace(PLAN, forgotten=["00"]).takes_everything()
    assert not structs.replace(PLAN, uncompared=[Uncompared("a", AGENT_TURNS, "expired")]).takes_everything()


def events(*rows):
    headers = [(() if run is None else (("run", run.encode()),)) for _, run in rows]
    return [
        Record(partition=0, offset=at, key=b"s", value=b'{"type":"system","subtype":"%d"}' % at, headers=named)
        for (at, _), named in zip(rows, headers, strict=True)
    ]


@pytest.mark.parametrize(
    ("runs", "shown"),
    [(["two"], [2, 3, 4]), ([None], [0, 1, 2, 3, 4]), ([], [3, 4])],
)
def test_items_are_those_of_whole_runs(runs, shown):
    plan = structs.replace(ONE, ranges={PROVIDER_EVENTS: [[(3, 4)]]}, chosen={"s": runs})
    stage = PlannedStage(EventsStage(DEFAULTS), plan)
    given = events((0, "one"), (1, "one"), (2, "two"), (3, "two"), (4, None))
    made = [record.offset for record in given if any(o.topic == SESSION_ITEMS for o in stage.process([record]).outputs)]
    assert made == shown


def test_dead_letters_without_a_key_belong_to_no_session():
    nobody = [Record(partition=0, offset=at, key=None, value=b"{}") for at in range(2)]
    plan = structs.replace(ONE, ranges={AGENT_TURNS: [[(1, 2)]]}, chosen={})
    assert len(PlannedStage(TurnsStage(DEFAULTS), plan).process(nobody).outputs) == 1
    named = structs.replace(ONE, selection=Selection(sessions=("a",)))
    assert PlannedStage(TurnsStage(DEFAULTS), named).process(nobody).outputs == []


# The folder of a dry run.

NOW = 1_700_000_000_000
OFFSETS = {AGENT_TURNS: [4, 0], PROVIDER_EVENTS: [9, 2]}
FULL = structs.replace(
    PLAN,
    created=NOW,
    starts={AGENT_TURNS: [0, 0], PROVIDER_EVENTS: [3, 0]},
    ends=OFFSETS,
    selection=Selection(sessions=("a*",), since=NOW, offsets=(Place(AGENT_TURNS, 0, 1, 2),)),
    ranges={AGENT_TURNS: [[(1, 3)], []], PROVIDER_EVENTS: [[(3, 9)], []]},
    chosen={"a1": ["run", None]},
    uncompared=[Uncompared("a2", PROVIDER_EVENTS, "expired")],
    forgotten=["00" * 32],
)
ROWS = [
    Output(PROVIDER_REQUESTS, b"s", b'{"a": "\xe2\x80\xa8 \\n"}', (("target", b"anthropic"), ("raw", b"\xff"))),
    Output(PROVIDER_REQUESTS, b"\xfe", b"\x00\xff"),
    Output(PROVIDER_REQUESTS, None, None, (("twice", b"1"), ("twice", b""))),
]


def written(folder, rows, number=1):
    begin(folder, FULL)
    files = PartitionFiles(folder, number)
    files.take(rows, NOW)
    files.finish(OFFSETS)
    files.close()


def test_records_are_read_back_unchanged(tmp_path):
    written(tmp_path / "dry", ROWS)
    assert list(read_partition(tmp_path / "dry", PROVIDER_REQUESTS, 1)) == [
        Record(partition=1, offset=at, key=row.key, value=row.value, headers=row.headers, timestamp=NOW)
        for at, row in enumerate(ROWS)
    ]
    assert list(read_partition(tmp_path / "dry", AGENT_TURNS, 1)) == []


def test_other_programs_read_the_lines(tmp_path):
    written(tmp_path / "dry", ROWS)
    place = tmp_path / "dry" / PROVIDER_REQUESTS / "1.jsonl.zst"
    lines = subprocess.run(["zstd", "-dc", place], check=True, capture_output=True).stdout.splitlines()
    assert msgspec.json.decode(lines[1]) == {
        "partition": 1,
        "offset": 1,
        "timestamp": NOW,
        "key": {"base64": "/g=="},
        "headers": [],
        "value": {"base64": "AP8="},
    }
    place.write_bytes(bytes(cramjam.zstd.compress(b"\n".join(lines))))  # as another program writes it
    assert [record.key for record in read_partition(tmp_path / "dry", PROVIDER_REQUESTS, 1)] == [b"s", b"\xfe", None]


def test_many_records_are_several_frames_and_one_order(tmp_path):
    written(tmp_path / "dry", (Output(PROVIDER_REQUESTS, b"s", b"%d" % at * 100_000) for at in range(40)))
    found = [record.value[:2] for record in read_partition(tmp_path / "dry", PROVIDER_REQUESTS, 1)]
    assert found == [(b"%d" % at * 2)[:2] for at in range(40)]


def test_an_interrupted_partition_is_ignored_and_restarted(tmp_path):
    folder = tmp_path / "dry"
    begin(folder, FULL)
    files = PartitionFiles(folder, 0)
    files.take(ROWS[:1], NOW)
    assert (unfinished(folder), list(read_partition(folder, PROVIDER_REQUESTS, 0))) == ([0, 1], [])
    files.close()
    written(folder, ROWS[1:2], number=0)
    assert [record.key for record in read_partition(folder, PROVIDER_REQUESTS, 0)] == [b"\xfe"]
    assert (unfinished(folder), is_done(folder, 0)) == ([1], True)


def test_files_renamed_before_the_process_finished_do_not_count(tmp_path):
    written(tmp_path, ROWS)
    (tmp_path / "positions" / "1.json").unlink()
    assert list(read_partition(tmp_path, PROVIDER_REQUESTS, 1)) == []


def test_the_first_process_determines_the_plan_and_a_folder_holds_one(tmp_path):
    assert begin(tmp_path, FULL) == FULL
    later = structs.replace(FULL, id="tuesday", ends={AGENT_TURNS: [5, 5], PROVIDER_EVENTS: [9, 9]})
    assert begin(tmp_path, later) == FULL == plan_of(tmp_path)
    with pytest.raises(InputError, match="holds a dry run of something else"):
        begin(tmp_path, structs.replace(FULL, selection=Selection()))
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(InputError, match="holds something else"):
        begin(tmp_path / "else", FULL)
    with pytest.raises(InputError, match="holds no dry run"):
        plan_of(tmp_path / "else")


def test_a_damaged_file_is_reported(tmp_path):
    written(tmp_path, ROWS)
    place = tmp_path / PROVIDER_REQUESTS / "1.jsonl.zst"
    place.write_bytes(place.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"1.jsonl.zst cannot be read"):
        list(read_partition(tmp_path, PROVIDER_REQUESTS, 1))


# The command.


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
def test_invalid_options_are_rejected_in_a_sentence(options, said):
    done = CliRunner().invoke(main, ["replay", *options])
    assert (done.exit_code, said in " ".join(done.output.replace("│", " ").split())) == (2, True), done.output


@pytest.mark.parametrize("command", ["", "--dry-run folder", "list", "delete x"])
def test_if_no_broker_answers_it_ends_with_75_and_one_sentence(tmp_path, monkeypatch, unused_tcp_port, command):
    monkeypatch.chdir(tmp_path)
    place = ["--bootstrap-servers", f"127.0.0.1:{unused_tcp_port}"]
    name, *more = command.split() if command[:1].isalpha() else ["", *command.split()]
    done = CliRunner().invoke(main, ["replay", *filter(None, [name]), *place, *more])
    assert (done.exit_code, done.output.count("\n")) == (75, 1), done.output
    assert done.output.startswith("reknit: no Kafka broker answers at 127.0.0.1:")
    assert list(tmp_path.iterdir()) == []


def test_the_bar_shows_rate_lag_and_time_left_and_counts_from_its_start():
    now = [0.0]
    bar = Bar(PLAN, range(2), lambda: now[0])
    bar.note({(AGENT_TURNS, 0): 60, (AGENT_TURNS, 1): 0})  # done earlier by another process
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

    def take(self, outputs, timestamp):
        self.taken += [(output.topic, output.value) for output in outputs]


async def opened(_position):
    return True


async def test_a_dry_run_rebuilds_its_state_after_a_bug():
    scope = Scope(source_prefix="p.", ends={"in.v1": [5]})
    runtime = Runtime(Config(prefix="p.replay.r."), {"in.v1": Buggy}, NoMetrics(), Tuning(batch_records=2), scope=scope)
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
        async with asyncio.timeout(60):
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


class Arriving:
    """A consumer whose fetches return records in groups of the given sizes, with transaction markers in between."""

    def __init__(self, offsets, sizes, end):
        self._records = [Record(partition=0, offset=at, key=b"k", value=b"v" * 700) for at in offsets]
        self._sizes = itertools.cycle(sizes)
        self._end = end
        self._at = 0

    def seek(self, _place, offset):
        self._at = offset

    async def position(self, _place):
        return self._at

    async def getmany(self, place, *, timeout_ms, max_records):
        size = min(next(self._sizes), max_records)
        if not size:
            return {}  # nothing arrived in time
        found = [record for record in self._records if record.offset >= self._at][:size]
        self._at = found[-1].offset + 1 if found else self._end
        return {place: found} if found else {}


@pytest.mark.parametrize("sizes", [[1], [7, 0, 1900], [5000]])
async def test_chunks_of_a_dry_run_do_not_depend_on_how_records_arrive(sizes):
    # Every tenth offset is a transaction marker; a chunk has 2,000 records.
    offsets = [at for at in range(6700) if at % 10]
    fetched = Fetched(Arriving(offsets, sizes, 6700), TopicPartition("t", 0), 6700, 2000)
    fetched.seek(0)
    chunks = []
    while not chunks or chunks[-1].end < 6700:
        chunks.append(await fetched.next_chunk())
    assert [(len(chunk.records), chunk.records[0].offset) for chunk in chunks] == [
        (2000, 1), (2000, 2223), (2000, 4445), (30, 6667)
    ]  # fmt: skip
    assert [record.offset for chunk in chunks for record in chunk.records] == offsets
    assert all(chunk.end == after.start for chunk, after in itertools.pairwise(chunks))
