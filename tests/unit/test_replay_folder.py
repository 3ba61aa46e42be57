"""What a dry run writes, read again; what was interrupted is not there."""

import subprocess

import cramjam
import msgspec
import pytest
from msgspec import structs

from pipeline.errors import InputError
from pipeline.replay import Place, Plan, Selection, Uncompared
from pipeline.replay.folder import PartitionFiles, begin, is_done, plan_of, read_partition, unfinished
from pipeline.stages.base import Output, Record
from topics import AGENT_TURNS, PROVIDER_EVENTS, PROVIDER_REQUESTS

NOW = 1_700_000_000_000
OFFSETS = {AGENT_TURNS: [4, 0], PROVIDER_EVENTS: [9, 2]}
PLAN = Plan(
    id="monday",
    version="0.4.0",
    created=NOW,
    source_prefix="live.",
    partitions=2,
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
    files = PartitionFiles(folder, number, lambda: NOW / 1000)
    files.take(rows)
    files.finish(OFFSETS)
    files.close()


def test_records_come_back_as_they_were(tmp_path):
    begin(tmp_path / "dry", PLAN)
    written(tmp_path / "dry", ROWS)
    assert list(read_partition(tmp_path / "dry", PROVIDER_REQUESTS, 1)) == [
        Record(partition=1, offset=at, key=row.key, value=row.value, headers=row.headers, timestamp=NOW)
        for at, row in enumerate(ROWS)
    ]
    assert list(read_partition(tmp_path / "dry", AGENT_TURNS, 1)) == []


def test_other_programs_read_the_lines(tmp_path):
    begin(tmp_path / "dry", PLAN)
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
    place.write_bytes(bytes(cramjam.zstd.compress(b"\n".join(lines))))  # as one of them writes it
    assert [record.key for record in read_partition(tmp_path / "dry", PROVIDER_REQUESTS, 1)] == [b"s", b"\xfe", None]


def test_many_records_are_several_frames_and_one_order(tmp_path):
    begin(tmp_path / "dry", PLAN)
    written(tmp_path / "dry", (Output(PROVIDER_REQUESTS, b"s", b"%d" % at * 100_000) for at in range(40)))
    found = [record.value[:2] for record in read_partition(tmp_path / "dry", PROVIDER_REQUESTS, 1)]
    assert found == [(b"%d" % at * 2)[:2] for at in range(40)]


def test_what_was_interrupted_is_not_there_and_begins_anew(tmp_path):
    folder = tmp_path / "dry"
    begin(folder, PLAN)
    files = PartitionFiles(folder, 0)
    files.take(ROWS[:1])
    assert (unfinished(folder), list(read_partition(folder, PROVIDER_REQUESTS, 0))) == ([0, 1], [])
    files.close()
    written(folder, ROWS[1:2], number=0)
    assert [record.key for record in read_partition(folder, PROVIDER_REQUESTS, 0)] == [b"\xfe"]
    assert (unfinished(folder), is_done(folder, 0)) == ([1], True)


def test_what_was_renamed_before_the_end_of_a_process_does_not_count(tmp_path):
    begin(tmp_path, PLAN)
    written(tmp_path, ROWS)
    (tmp_path / "positions" / "1.json").unlink()
    assert list(read_partition(tmp_path, PROVIDER_REQUESTS, 1)) == []


def test_the_first_process_settles_the_plan_and_a_folder_holds_one(tmp_path):
    assert begin(tmp_path, PLAN) == PLAN
    later = structs.replace(PLAN, id="tuesday", ends={AGENT_TURNS: [5, 5], PROVIDER_EVENTS: [9, 9]})
    assert begin(tmp_path, later) == PLAN == plan_of(tmp_path)
    with pytest.raises(InputError, match="holds a dry run of something else"):
        begin(tmp_path, structs.replace(PLAN, selection=Selection()))
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(InputError, match="holds something else"):
        begin(tmp_path / "else", PLAN)
    with pytest.raises(InputError, match="holds no dry run"):
        plan_of(tmp_path / "else")


def test_a_damaged_file_is_said(tmp_path):
    begin(tmp_path, PLAN)
    written(tmp_path, ROWS)
    place = tmp_path / PROVIDER_REQUESTS / "1.jsonl.zst"
    place.write_bytes(place.read_bytes()[:-5])
    with pytest.raises(InputError, match=r"1.jsonl.zst cannot be read"):
        list(read_partition(tmp_path, PROVIDER_REQUESTS, 1))
