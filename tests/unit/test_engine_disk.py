"""The store on disk: what it holds equals a full read of the changelog, or it is thrown away."""

import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from build import said, user
from staged import records, turn

from pipeline.engine import state as module
from pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from pipeline.engine.state import PartitionState, Restored
from pipeline.engine.stores import Belonging, DiskRecords, StoreError
from pipeline.settings import Config, StateSettings
from pipeline.stages.base import POSITION, position_value, read_position
from pipeline.stages.kept import KINDS
from pipeline.stages.turns import TurnsStage
from topics import AGENT_TURNS, TURNS_STATE

DAY = 24 * 3600.0
OURS = Belonging("cluster topic", "reknit", "state.v1", 0)
SESSIONS = [b"session-%d" % number for number in range(5)]


class Changelog:
    """A compacted topic's partition, and how much of it was read."""

    def __init__(self, first=0):
        self.records = []
        self.first = first
        self.read_from = None

    @property
    def end(self):
        return self.first + len(self.records)

    async def restore(self, connection, topic, number, apply, *, start, on_progress, **_):
        self.read_from = at = start(self.first, self.end)
        position, state_format = None, 1
        for key, value in self.records[at - self.first :]:
            if key == POSITION:
                position, state_format = read_position(value)
            else:
                apply(key, value)
        on_progress(self.end, position, state_format)
        return Restored(position, state_format, self.end - at, 0.0)

    def append(self, changes, position):
        self.records += [*changes.items(), (POSITION, position_value(position, 2))]
        return self.end

    def whole(self):
        """What a full read keeps."""
        state = dict(self.records)
        return {key: value for key, value in state.items() if value is not None and key != POSITION}


class Counting(NoMetrics):
    def __init__(self):
        super().__init__()
        self.discarded = []

    def on_store_discarded(self, topic, reason):
        self.discarded.append(reason)


class Worker:
    """One partition's state on this directory, without a broker."""

    def __init__(self, directory, changelog, monkeypatch, topic_id="cluster topic"):
        monkeypatch.setattr(module, "restore", changelog.restore)
        config = Config(state_dir=str(directory), state=StateSettings(store="disk", memory_mib=1))
        self.metrics, self.changelog = Counting(), changelog
        self.runtime = Runtime(config, {AGENT_TURNS: lambda _: TurnsStage()}, self.metrics, Tuning())
        self.runtime.topic_ids = {TURNS_STATE: topic_id}
        self.state = PartitionState(self.runtime, AGENT_TURNS, 0)
        self.next = 0

    def work(self, turns, *, killed=False):
        """Process and commit some turns; one that is killed ends between the commit and the write."""
        for _ in range(turns):
            message = (said if self.next % 2 else user)(f"{self.next} " + "x" * 3_000)
            session = SESSIONS[self.next % len(SESSIONS)]
            changes, behind = self._process(session, turn(message, id=f"t{self.next}"))
            if not killed:
                self.state.committed(changes, self.next, behind)

    def forget(self, session, *, killed=None):
        """Have a session forgotten; ``killed`` says where the worker ends on the way."""
        changes, behind = self._process(session, {"type": "session.forgotten"})
        if killed == "before the erasing":
            for key, change in changes.items():
                self.state.stage._states._put(key, change)
            self.state._disk.write(behind, self.next, self.state.format, erase=True)
        elif killed is None:
            self.state.committed(changes, self.next, behind)

    def _process(self, session, event):
        """The changes by a record, and where the changelog ends once it has them."""
        changes = self.state.stage.process(records([event], key=session, first=self.next)).changes
        self.next += 1
        return changes, self.changelog.append(changes, self.next)

    def kept(self):
        return {key: value for session in SESSIONS for key, value in self.state._disk.read(session).items()}

    def close(self):
        self.state.close()
        return self.metrics.discarded


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Opens one, and has it do some turns."""
    pytest.importorskip("rocksdict")

    async def opened(changelog, turns=0, directory=tmp_path, **more):
        made = Worker(directory, changelog, monkeypatch, **more)
        made.next = await made.state.read() or 0
        made.work(turns)
        return made

    return opened


async def test_a_restart_reads_only_what_came_since_and_has_all(worker):
    changelog = Changelog()
    first = await worker(changelog, 60)
    assert first.kept() == changelog.whole()
    first.close()
    again = await worker(changelog)
    assert (again.next, again.kept(), changelog.read_from) == (60, changelog.whole(), changelog.end)
    again.work(60)
    assert again.kept() == changelog.whole()
    assert again.close() == []


async def test_a_worker_that_was_killed_between_commit_and_write_reads_what_it_missed(worker):
    changelog = Changelog()
    first = await worker(changelog, 30)
    behind = changelog.end
    first.work(1, killed=True)
    first.close()
    again = await worker(changelog)
    assert (again.next, changelog.read_from) == (31, behind)
    assert again.kept() == changelog.whole()
    assert again.close() == []


@pytest.mark.parametrize("killed", [None, "before the write", "before the erasing"])
async def test_no_file_has_anything_left_of_a_session_that_was_forgotten(worker, tmp_path, killed):
    changelog, gone = Changelog(), SESSIONS[0]
    first = await worker(changelog, 60)
    first.state._disk._db.flush()
    assert files_with(tmp_path, gone)
    first.forget(gone, killed=killed)
    if killed:
        first.close()
        again = await worker(changelog)
    else:
        again = first
    assert files_with(tmp_path, gone) == []
    assert again.kept() == {key: value for key, value in changelog.whole().items() if key[:1] not in KINDS}
    assert files_with(tmp_path, SESSIONS[1])
    assert again.close() == []


def files_with(directory, words):
    return [path for path in directory.rglob("*") if path.is_file() and words in path.read_bytes()]


async def test_a_partition_that_comes_back_has_what_others_wrote_and_deleted(worker, tmp_path):
    changelog = Changelog()
    here = await worker(changelog, 30)
    here.close()
    elsewhere = await worker(changelog, directory=tmp_path / "elsewhere", turns=30)
    changelog.append({key: None for key in changelog.whole() if SESSIONS[0] in key}, elsewhere.next)
    elsewhere.close()
    back = await worker(changelog)
    assert back.next == 60
    assert back.kept() == changelog.whole()
    assert not back.state._disk.read(SESSIONS[0])
    assert back.close() == []


@pytest.mark.parametrize("topic_id", ["another topic", "cluster another"])
async def test_a_topic_that_was_made_anew_is_read_anew(worker, topic_id):
    changelog, anew = Changelog(), Changelog()
    for log, turns in ((changelog, 30), (anew, 45)):
        first = await worker(log, topic_id="cluster topic" if log is changelog else topic_id, turns=turns)
        first.close()
    back = await worker(changelog)
    assert (back.next, back.kept()) == (30, changelog.whole())
    assert back.close() == ["foreign"]


async def test_an_offset_outside_of_the_changelog_has_it_read_anew(worker):
    changelog = Changelog()
    first = await worker(changelog, 30)
    first.close()
    for other in (Changelog(), Changelog(first=changelog.end + 1)):
        other.append(changelog.whole(), 7)
        again = await worker(other)
        assert (again.next, again.kept(), other.read_from) == (7, changelog.whole(), other.first)
        assert again.close() == ["outside"]


async def test_a_store_of_another_process_is_left_alone_and_memory_taken(worker, tmp_path):
    changelog = Changelog()
    first = await worker(changelog, 10)
    directory = next((tmp_path / "sessions").iterdir())
    first.close()
    hold = f"import rocksdict as r; d = r.Rdict({str(directory)!r}, options=r.Options(raw_mode=True)); input(1)"
    process = subprocess.Popen(  # noqa: ASYNC220  nothing else runs meanwhile
        [sys.executable, "-uc", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        process.stdout.read(1)
        second = await worker(changelog)
        assert second.state._disk is None
        second.work(10)
        assert second.close() == ["locked"]
        process.communicate(b"\n")
    third = await worker(changelog)
    assert third.kept() == changelog.whole()
    assert third.close() == []


def damaged(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        for at in range(len(data) // 7, len(data), max(1, len(data) // 7)):
            data[at] ^= 0xFF
        path.write_bytes(data)
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["cut", "flipped", "removed"])
async def test_files_that_were_damaged_make_no_wrong_state(worker, tmp_path, how):
    changelog = Changelog()
    first = await worker(changelog, 400)
    first.state._disk._db.flush()
    first.work(10)
    first.close()
    directory = next((tmp_path / "sessions").iterdir())
    names = sorted(path.name for path in directory.iterdir() if path.stat().st_size and path.name != "LOCK")
    assert any(name.endswith(".sst") for name in names)
    for name in names:
        if not (directory / name).exists():
            continue  # thrown away with a former one, and named otherwise now
        damaged(directory / name, how)
        again = await worker(changelog)
        try:
            kept = again.kept()
        except StoreError as error:
            again.state.fail(error)
            await again.state.read()
            kept = {key: value for session in SESSIONS for key, value in again.state._store.read(session).items()}
        assert kept == changelog.whole(), name
        assert again.next == 410
        again.close()
        refill = await worker(changelog)
        refill.state._disk._db.flush()
        refill.close()


@pytest.mark.parametrize(("age", "reason"), [(3.4 * DAY, None), (3.6 * DAY, "old")])
def test_a_store_that_is_older_than_half_of_what_deletions_are_kept_is_thrown_away(tmp_path, age, reason):
    pytest.importorskip("rocksdict")
    clock = SimpleNamespace(now=1e9)
    store = DiskRecords(tmp_path, OURS, range(10), lambda: clock.now)
    store.write(5, 3, 2)
    store.close()
    clock.now += age
    with nullcontext() if reason is None else pytest.raises(StoreError) as error:
        store = DiskRecords(tmp_path, OURS, range(10), lambda: clock.now)
        assert store.progress.offset == 5
        store.close()
    assert reason is None or error.value.reason == reason
