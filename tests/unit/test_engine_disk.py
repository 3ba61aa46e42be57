"""The store on disk: its content equals a full read of the changelog, or it is discarded."""

import asyncio
import shutil
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from build import said, user
from msgspec import Raw, structs
from stage_runs import records, turn
from stored import without_kinds

from reknit.pipeline.engine import partition
from reknit.pipeline.engine import state as module
from reknit.pipeline.engine.batches import Span
from reknit.pipeline.engine.partition import Partition, Phase
from reknit.pipeline.engine.runtime import NoMetrics, Runtime, Tuning
from reknit.pipeline.engine.state import PartitionState, Restored
from reknit.pipeline.engine.stores import Belonging, DiskRecords, StoreError
from reknit.pipeline.settings import Config, StateSettings
from reknit.pipeline.stages.base import POSITION, position_value, read_position
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, TURNS_STATE

DAY = 24 * 3600.0
DEFAULTS = Defaults(model="claude-sonnet-4-5", params={"max_tokens": Raw(b"1024")})
OURS = Belonging("cluster topic", "reknit", "state.v1", 0)
SESSIONS = [b"session-%d" % number for number in range(5)]


class Changelog:
    """A partition of a compacted topic, and how much of it was read."""

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
        """Return the state that a full read results in."""
        state = dict(self.records)
        return {key: value for key, value in state.items() if value is not None and key != POSITION}


class Counting(NoMetrics):
    def __init__(self):
        super().__init__()
        self.discarded = []

    def on_store_discarded(self, topic, reason):
        self.discarded.append(reason)


class Worker:
    """One partition's state in this directory, without a broker."""

    def __init__(self, directory, changelog, monkeypatch, topic_id="cluster topic"):
        monkeypatch.setattr(module, "restore", changelog.restore)
        config = Config(state_dir=str(directory), state=StateSettings(store="disk", memory_mib=1))
        self.metrics, self.changelog = Counting(), changelog
        self.runtime = Runtime(config, {AGENT_TURNS: lambda _: TurnsStage(DEFAULTS)}, self.metrics, Tuning())
        self.runtime.topic_ids = {TURNS_STATE: topic_id}
        self.state = PartitionState(self.runtime, AGENT_TURNS, 0)
        self.next = 0

    def work(self, turns, *, killed=False):
        """Process and commit some turns. With ``killed`` the worker ends between the commit and the write."""
        for _ in range(turns):
            message = (said if self.next % 2 else user)(f"{self.next} " + "x" * 3_000)
            session = SESSIONS[self.next % len(SESSIONS)]
            changes, behind = self._process(session, turn(message, id=f"t{self.next}"))
            if not killed:
                self.state.committed(changes, self.next, behind)

    def forget(self, session, *, killed=None):
        """Make a session forgotten. ``killed`` names the point at which the worker ends."""
        changes, behind = self._process(session, {"type": "session.forgotten"})
        if killed == "before the erasing":
            for key, change in changes.items():
                self.state.stage._states._put(key, change)
            self.state._disk.write(behind, self.next, self.state.format, erase=True)
        elif killed is None:
            self.state.committed(changes, self.next, behind)

    def _process(self, session, event):
        """Return the changes by a record, and the end of the changelog after them."""
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
    """Return a function that opens a worker and processes some turns."""
    pytest.importorskip("rocksdict")

    async def opened(changelog, turns=0, directory=tmp_path, **more):
        made = Worker(directory, changelog, monkeypatch, **more)
        made.next = await made.state.read() or 0
        made.work(turns)
        return made

    return opened


async def test_a_restart_reads_only_newer_records_and_has_all_state(worker):
    changelog = Changelog()
    first = await worker(changelog, 60)
    assert first.kept() == changelog.whole()
    first.close()
    again = await worker(changelog)
    assert (again.next, again.kept(), changelog.read_from) == (60, changelog.whole(), changelog.end)
    again.work(60)
    assert again.kept() == changelog.whole()
    assert again.close() == []


async def test_a_worker_killed_between_commit_and_write_reads_the_missing_records(worker):
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
async def test_no_file_has_anything_left_of_a_forgotten_session(worker, tmp_path, killed):
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
    assert again.kept() == without_kinds(changelog.whole(), "deadline", "marker", "time")
    assert files_with(tmp_path, SESSIONS[1])
    assert again.close() == []


def files_with(directory, words):
    return [path for path in directory.rglob("*") if path.is_file() and words in path.read_bytes()]


async def test_a_partition_that_comes_back_has_the_writes_and_deletions_of_other_workers(worker, tmp_path):
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
async def test_the_changelog_of_a_recreated_topic_is_read_from_its_beginning(worker, topic_id):
    changelog, anew = Changelog(), Changelog()
    for log, turns in ((changelog, 30), (anew, 45)):
        first = await worker(log, topic_id="cluster topic" if log is changelog else topic_id, turns=turns)
        first.close()
    back = await worker(changelog)
    assert (back.next, back.kept()) == (30, changelog.whole())
    assert back.close() == ["foreign"]


async def test_an_offset_outside_of_the_changelog_causes_a_full_read(worker):
    changelog = Changelog()
    first = await worker(changelog, 30)
    first.close()
    for other in (Changelog(), Changelog(first=changelog.end + 1)):
        other.append(changelog.whole(), 7)
        again = await worker(other)
        assert (again.next, again.kept(), other.read_from) == (7, changelog.whole(), other.first)
        assert again.close() == ["outside"]


async def test_a_store_locked_by_another_process_is_left_alone_and_memory_is_used(worker, tmp_path):
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


def flipped(data, at):
    """Flip one bit of a file."""
    where = int(at * (len(data) - 1))
    return data[:where] + bytes([data[where] ^ (1 << where % 8)]) + data[where + 1 :]


def cut(data, at):
    return data[: int(at * (len(data) - 1))]


# None removes the file. Each part of a manifest that ends with a record is a manifest, of fewer tables.
DAMAGES = [(flipped, at / 5) for at in range(6)] + [(cut, at / 12) for at in range(13)] + [(None, 0)]


@pytest.fixture
async def image(worker, tmp_path):
    """The files that a killed worker leaves, with merged tables, and the changelog. Paths contain "lock"."""
    changelog = Changelog()
    made = await worker(changelog, directory=tmp_path / "block")
    for _ in range(4):
        made.work(100)
        made.state._disk._db.flush()
    made.work(10)
    place = next((tmp_path / "block" / "sessions").iterdir())
    made.state._disk._db.cancel_all_background(wait=True)  # no file is deleted while they are copied
    shutil.copytree(place, tmp_path / "image")
    made.close()
    return changelog, tmp_path / "image", place


@pytest.mark.parametrize(
    ("kind", "is_damage"),
    [("*.sst", True), ("MANIFEST-*", True), ("CURRENT", True)]
    + [(kind, False) for kind in ("*.log", "OPTIONS-*", "IDENTITY", "LOCK", "LOG", "rocksdict-config.json")],
)
async def test_a_damaged_file_never_gives_wrong_state(worker, image, kind, is_damage):
    changelog, files, place = image
    found = set()
    names = [path.name for path in files.glob(kind)]
    assert names
    for name in names:
        for how, at in DAMAGES:
            shutil.rmtree(place)
            shutil.copytree(files, place)
            data = (place / name).read_bytes()
            if how is None:
                (place / name).unlink()
            elif data:
                (place / name).write_bytes(how(data, at))
            again = await worker(changelog, directory=place.parents[1])
            try:
                kept = again.kept()
            except StoreError as error:  # a table is only checked when it is read
                again.state.fail(error)
                again.next = await again.state.read()
                kept = again.kept()
            assert (again.next, kept) == (410, changelog.whole()), (name, how, at)
            found |= set(again.close())
    assert found == ({"damaged"} if is_damage else set())


def damage_tables(disk, directory):
    disk.erase_deleted()  # merges all tables, so that nothing is merged in the background
    for table in directory.rglob("*.sst"):
        table.write_bytes(flipped(table.read_bytes(), 0.1))


async def test_a_damaged_store_is_rebuilt_on_disk_once(worker, image):
    changelog, _, place = image
    again = await worker(changelog, directory=place.parents[1])
    for is_on_disk in (True, False):
        damage_tables(again.state._disk, place)
        with pytest.raises(StoreError) as damage:
            again.kept()
        again.state.fail(damage.value)
        assert (await again.state.read(), again.state._disk is not None) == (410, is_on_disk)
        assert all(again.state._store.read(session) for session in SESSIONS)
    assert again.close() == ["damaged", "damaged"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("IO error: While lock file: /s/LOCK: Resource temporarily unavailable", "locked"),
        ("IO error: lock hold by current process, acquire time 1 acquiring thread 2: /s/LOCK: No locks", "locked"),
        ("Corruption: block checksum mismatch: stored = 1, computed = 2 in /block/000009.sst", "damaged"),
        ("IO error: No such file or directory: While open a file for random read: /lock/000009.sst", "damaged"),
        ("NotFound: Missing configurable object: table_factory", "damaged"),
        ("IO error: No space left on device: While appending to file: /While lock file: /000012.sst", "failed"),
        ("IO error: Too many open files: While open a file for lock: /s/LOCK", "failed"),
    ],
)
def test_a_rocksdb_error_is_reported_by_its_status_alone(tmp_path, status, reason):
    class Db:
        def write(self, *_):
            raise Exception(status)  # noqa: TRY002  the library raises no other class

    pytest.importorskip("rocksdict")
    store = DiskRecords(tmp_path, OURS, range(10))
    store._db.close()
    store._db = Db()
    with pytest.raises(StoreError) as error:
        store.write(5, 3, 2)
    assert (error.value.reason, str(error.value)) == (reason, status)


def test_a_store_opened_twice_by_this_process_is_locked_too(tmp_path):
    pytest.importorskip("rocksdict")
    store = DiskRecords(tmp_path, OURS, range(10))
    with pytest.raises(StoreError) as error:
        DiskRecords(tmp_path, OURS, range(10))
    store.close()
    assert error.value.reason == "locked"


def test_the_library_writes_no_log_of_its_own(tmp_path):
    pytest.importorskip("rocksdict")
    store = DiskRecords(tmp_path, OURS, range(10))
    store.put(b"session", b"key", b"value")
    store.write(5, 3, 2)
    assert [path.stat().st_size for path in tmp_path.glob("*.log")] == [0]
    store.close()
    again = DiskRecords(tmp_path, OURS, range(10))
    assert (again.progress.offset, again.read(b"session")) == (5, {b"key": b"value"})
    again.close()


class Durable:
    """A writer to a changelog that records its writes, batch by batch."""

    def __init__(self, changelog):
        self.changelog = changelog
        self.written = []

    async def open(self):
        pass

    async def close(self):
        pass

    async def write(self, batch):
        outputs = [(output.topic, output.key, output.value) for output in batch.outputs]
        self.written.append((batch.position, outputs))
        return self.changelog.append(batch.changes, batch.position)


async def outputs_of(tmp_path, monkeypatch, log, *, damage=False):
    """Return the outputs of an actor for these records, a batch each, and the stores that it discarded.

    Before the last record all tables are damaged; that record's session is not in memory.
    """
    changelog = Changelog()
    writer = Durable(changelog)
    made = Worker(tmp_path, changelog, monkeypatch)
    made.close()
    monkeypatch.setattr(partition, "_REOPEN_SECONDS", 0.001)
    actor = Partition(
        made.runtime,
        AGENT_TURNS,
        0,
        writer=lambda _: writer,
        on_room=lambda: None,
        on_opened=nothing,
        on_position=lambda _: None,
        is_ours=always,
    )
    async with asyncio.timeout(60):
        for record in log:
            if record is log[-1] and damage:
                damage_tables(actor._kept._disk, tmp_path)
            while actor.next <= record.offset:
                if actor.phase is Phase.WORKING and actor.waits_for <= record.offset:
                    actor.offer(Span(actor.waits_for, record.offset + 1, [record], record.offset + 1))
                await asyncio.sleep(0.001)
        is_on_disk = actor._kept._disk is not None
        await actor.close()
    assert made.runtime.failure is None
    return writer.written, made.metrics.discarded, is_on_disk


async def nothing(_position):
    pass


async def always(_position):
    return True


async def test_damage_found_at_work_changes_no_output_and_no_position(tmp_path, monkeypatch):
    pytest.importorskip("rocksdict")
    events = [(SESSIONS[n % 5], turn(user(f"{n} " + "x" * 300_000), id=f"t{n}")) for n in range(20)]
    events += [(SESSIONS[0], turn(user("and now?"), id="last"))]
    log = [structs.replace(records([event], key=key)[0], offset=at) for at, (key, event) in enumerate(events)]
    undisturbed = await outputs_of(tmp_path / "undisturbed", monkeypatch, log)
    damaged = await outputs_of(tmp_path / "damaged", monkeypatch, log, damage=True)
    assert undisturbed[1:] == ([], True)
    assert damaged == (undisturbed[0], ["damaged"], True)


@pytest.mark.parametrize(("age", "reason"), [(3.4 * DAY, None), (3.6 * DAY, "old")])
def test_a_store_older_than_half_the_retention_of_deletions_is_discarded(tmp_path, age, reason):
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
