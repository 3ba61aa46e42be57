"""The space of a session in each place that stores it, and the processor time of a turn and an event, separately.

    python tests/benchmarks/bench_session.py [--sessions 1000] [--turns 50] [--bytes 300]

Needs no broker: the stages process records in batches as a worker's partitions do, and the stores are a worker's own.
Memory is the growth of the process; data for the brokers are compressed batch by batch, as producers do. The rows are
the unit costs of `deploy/capacity.py`.
"""

import gc
import json
import os
import random
import tempfile
import time
from itertools import count, islice
from pathlib import Path

import measure

# isort: split
import cramjam
import msgspec
import recorded
from build import said, user

from reknit.pipeline.engine.stores import Belonging, DiskRecords, PackedRecords
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage

HERE = Path(__file__).resolve().parent

A_BATCH = 20
NO_BOUND = 1 << 60
MOST_COLD = 1.5
DEFAULTS = Defaults(model="claude-sonnet-4-5", params={"max_tokens": msgspec.Raw(b"1024")})
WORDS = sorted(set(HERE.joinpath("peers.py").read_text().split()))


class Nowhere:
    """A store that keeps nothing, so that memory is that of the sessions at work alone."""

    def put(self, session, key, value):
        pass

    def read(self, _session):
        return {}


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def packed(values):
    """The bytes of a producer's batch."""
    return len(cramjam.zstd.compress(b"".join(values)))


def turns(sessions, length, size):
    """Turn by turn over all sessions."""
    chance = random.Random(1)  # noqa: S311  the same words in every run
    for at in range(length):
        for session in range(sessions):
            message = (said if at % 2 else user)(" ".join(chance.choices(WORDS, k=size // 6))[:size])
            yield b"session-%d" % session, json.dumps({"type": "turn.appended", "message": message}).encode()


class Work:
    """One stage that worked through everything, and what it took and gave."""

    def __init__(self, stage, rows):
        self.changelog = {}  # by session, what a compacted topic keeps
        self.records = self.seconds = 0
        self.written = {"input": 0, "state": 0, "output": 0}
        stage.keep_in(Nowhere())
        before, offsets, rows = resident(), count(), iter(rows)
        while rows_at_once := list(islice(rows, A_BATCH)):
            batch = [Record(partition=0, offset=next(offsets), key=k, value=v, timestamp=1) for k, v in rows_at_once]
            began = time.process_time()
            result = stage.process(batch)
            states = [change or b"" for change in result.changes.values()]
            self.written["state"] += packed(states)
            self.written["output"] += packed([output.value or b"" for output in result.outputs])
            self.live = stage.committed(result.changes, NO_BOUND)
            self.seconds += time.process_time() - began
            self.written["input"] += packed([record.value for record in batch])
            self.records += len(batch)
            for key, change in result.changes.items():
                self.changelog.setdefault(stage._states.session_of(key), {})[key] = change
        self.memory = resident() - before - sum(map(len, _values(self.changelog)))

    def a_record(self, what):
        return self.written[what] / self.records


def _values(changelog):
    return (value for records in changelog.values() for value in records.values() if value)


def stored(store, changelog):
    """Put all records into a store."""
    for session, records in changelog.items():
        for key, value in records.items():
            store.put(session, key, value)


def cold_bytes(changelog):
    store, before = PackedRecords(0), resident()
    stored(store, changelog)
    return max(store.size, resident() - before) / len(changelog)


def disk_bytes(changelog):
    with tempfile.TemporaryDirectory() as directory:
        store = DiskRecords(Path(directory) / "store", Belonging("", "", "", 0), range(1))
        stored(store, changelog)
        store.write(0, 0, 2)
        store.close()
        return sum(path.stat().st_size for path in Path(directory).rglob("*.sst")) / len(changelog)


def tell(what, ours, theirs, ratio="", budget="", *, met=None):
    measure.report(what=what, ours=ours, theirs=theirs, ratio=ratio, budget=budget, met=met)


def tell_costs(name, work, theirs):
    written = ", ".join(f"{what} {work.a_record(what):,.0f} B" for what in work.written)
    tell(
        f"{name}, one worker's stage alone, batches of {A_BATCH}",
        f"{work.seconds / work.records * 1e6:.0f} µs of CPU each, compression included",
        theirs,
        f"compressed, each: {written}",
    )


def sessions_take(options):
    rows = list(turns(options.sessions, options.turns, options.bytes))
    histories = {}
    for key, value in rows:
        histories.setdefault(key, []).append(value)
    history = sum(packed(values) for values in histories.values()) / len(histories)
    del histories
    work = Work(TurnsStage(DEFAULTS), rows)
    tell_costs(f"turns of {options.bytes} bytes, {options.turns} a session", work, "no Kafka client in it")
    hot, cold, disk = work.memory / options.sessions, cold_bytes(work.changelog), disk_bytes(work.changelog)
    what = f"a session of {options.turns} turns of {options.bytes} bytes"
    counted = work.live.memory_bytes / options.sessions
    tell(f"{what} at work, in memory", f"{hot:,.0f} B", f"counted as {counted:,.0f} B", f"{counted / hot:.2f} times")
    least = f"its compressed history {history:,.0f} B"
    budget = f"at most {MOST_COLD:g} times"
    tell(
        f"{what}, cold in memory",
        f"{cold:,.0f} B",
        least,
        f"{cold / history:.2f} times",
        budget,
        met=cold <= 1.5 * history,
    )
    tell(f"{what} in the disk store", f"{disk:,.0f} B", least, f"{disk / history:.2f} times")


def events_take(workload, options):
    events = recorded.backlog(workload, 0, options.sessions * 40)
    work = Work(EventsStage(DEFAULTS), ((one.key, one.value) for one in events))
    tell_costs(f"events of {workload} runs", work, "as above")


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--bytes", type=int, default=300)
    options = parser.parse_args()
    sessions_take(options)
    for workload in ("long", "recorded"):
        events_take(workload, options)


if __name__ == "__main__":
    main()
