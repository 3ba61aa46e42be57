"""State: the bytes written for a turn and a delta, and the number of sessions that one worker holds with the disk
store.

    python tests/benchmarks/bench_state.py [--sessions 100000] [--turns 50] [--only worker] [--keep DIRECTORY]

The first part needs no broker: bytes of the changelog for each record, one in a batch, the worst case. The second runs
a real worker on a real Kafka (Java 17, `deploy/kafka`) and measures its resident memory, and how soon it is ready again
with its volume and without, and in how much memory. At its full size it takes half an hour and 30 GB of disk; if its
directory was kept, the same command starts with its content and only measures restarts.
"""

import json
import os
import random
import shutil
import time
from pathlib import Path

import measure

# isort: split
import broker as kafka_broker
import pipeline_lab as lab
from build import said, user
from stage_runs import deltas, settling, turn, with_calls_open, written_bytes

from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS

SIZES = (10, 100, 1_000, 8_000)
MOST_BYTES_A_RECORD = 16 * 1024
MOST_RESIDENT_MIB = 2 * 1024
READY_SECONDS = 10.0
# A worker that reads all its state back may take no more memory than it takes while it works. Two runs differ a little.
MOST_RESTORING = 1.1
# Those of the tests are for workers that are killed; a busy machine is not to be taken for a dead one here.
GROUP = {"REKNIT_SESSION_SECONDS": "30", "REKNIT_HEARTBEAT_SECONDS": "3", "REKNIT_REBALANCE_SECONDS": "30"}
WORDS = sorted(set(Path(__file__).with_name("peers.py").read_text().split()))
chance = random.Random(1)  # noqa: S311  the same words in every run


TEXT = " ".join(chance.choices(WORDS, k=200_000))


def words(length, text=TEXT):
    at = chance.randrange(len(text) - length)
    return text[at : at + length]


def bytes_of_state(what, stage, made, length, sizes=SIZES):
    """Return the average bytes that each record with words of this length writes, by the number of records."""
    means = []
    for size in sizes:
        written = written_bytes(stage(), made(size, lambda _: words(length)))
        means.append(sum(written) // len(written))
    measure.report(
        what=f"{what}: bytes of state a record, one record a batch, {' / '.join(f'{size:,}' for size in sizes)}",
        ours=" / ".join(f"{mean:,}" for mean in means),
        theirs="no more for more of them",
        ratio=f"{max(means) / means[0]:.1f} times the first at most",
        budget=f"under {MOST_BYTES_A_RECORD:,} bytes",
        met=max(means) < MOST_BYTES_A_RECORD,
    )


def resident_mib(worker):
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


async def restarted(fleet):
    """How many seconds a worker takes to be ready, and how much memory it had at most then."""
    worker, began = fleet.start(), time.monotonic()
    await worker.ready(600)
    took, resident = time.monotonic() - began, resident_mib(worker)
    assert await worker.stop() == 0
    return took, resident


def rows_of(sessions, turns, restored, burst, text):
    """All sessions' records: a history, then more turns, some at a time; each session is cold when its next record
    arrives.

    Their words are parts of ``text``: the shorter it is, the better the changelog compresses.
    """
    for first in (0, *range(restored, turns, burst)):
        for session in range(sessions):
            key = b"session-%d" % session
            behind = min(first + burst, turns) if first else restored
            messages = [(said if at % 2 else user)(words(300, text)) for at in range(first, behind)]
            if first:
                events = [turn(message) for message in messages]
            else:
                events = [{"type": "history.restored", "messages": messages}]
            yield from ((AGENT_TURNS, key, json.dumps(event).encode(), []) for event in events)


async def resident_after(fleet, place, options):
    """How much memory one worker had at most while all sessions went through it."""
    worker = fleet.start()
    await worker.ready(60)
    rows = rows_of(options.sessions, options.turns, options.restored, options.burst, TEXT[: options.text])
    async with lab.Feeder(*place, 1_000_000, rows) as feeder:
        await feeder.wait()
    await lab.processed(*place, seconds=4 * 3_600)
    resident = resident_mib(worker)
    assert await worker.stop(120) == 0
    return resident


async def one_worker(options, server, directory):
    sessions, turns = options.sessions, options.turns
    os.environ.update(GROUP)
    port = kafka_broker.free_port()
    place = (server.bootstrap, "")
    found = directory / "resident"
    with (
        lab.make_fleet(*place, directory / "disk", lambda: port, more='[state]\nstore = "disk"\n') as disk,
        lab.make_fleet(*place, directory / "memory", lambda: port) as memory,
        lab.make_fleet(*place, directory / "lost", lambda: port, more='[state]\nstore = "disk"\n') as lost,
    ):
        shutil.rmtree(directory / "lost" / "state", ignore_errors=True)
        if not found.exists():
            await lab.make_topics(*place)
            found.write_text(str(await resident_after(disk, place, options)))
        resident = int(found.read_text())
        with_volume, _ = await restarted(disk)
        without, in_memory = await restarted(memory)
        _, on_disk = await restarted(lost)
    measure.report(
        what=f"{sessions:,} sessions of {turns} turns of 300 bytes through one worker with the disk store",
        ours=f"{resident:,} MiB resident at most; ready again in {with_volume:.1f} s",
        theirs=f"without its volume {without:.1f} s",
        ratio=f"{without / with_volume:.1f} times as soon",
        budget=f"{MOST_RESIDENT_MIB:,} MiB and {READY_SECONDS:.0f} s",
        met=resident < MOST_RESIDENT_MIB and with_volume < READY_SECONDS,
    )
    measure.report(
        what=f"{sessions:,} sessions read back without their volume",
        ours=f"{on_disk:,} MiB resident at most with the disk store, {in_memory:,} MiB in memory",
        theirs=f"{resident:,} MiB while the worker worked",
        ratio=f"{on_disk / resident:.2f} and {in_memory / resident:.2f} times as much",
        budget=f"at most {MOST_RESTORING:g} times",
        met=max(on_disk, in_memory) <= MOST_RESTORING * resident,
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--sessions", type=int, default=2_000, help="100000 is what the budget is for")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--restored", type=int, default=40, help="turns that come at once, as a history")
    parser.add_argument("--burst", type=int, default=10, help="turns of a session in a row behind them")
    parser.add_argument("--text", type=int, default=len(TEXT), help="length of the text of which all speak")
    parser.add_argument("--keep", type=Path, help="where all of it stays, and is found by a second call")
    parser.add_argument("--only", nargs="+", choices=["bytes", "worker"], default=["bytes", "worker"])
    options = parser.parse_args()
    if "bytes" in options.only:
        bytes_of_state("turns that settle", TurnsStage, settling, 300)
        # The work for a record grows with what is open: 8,000 results take half an hour.
        bytes_of_state("results of open calls", TurnsStage, with_calls_open, 100, SIZES[:-1])
        bytes_of_state("small deltas of one message", EventsStage, deltas, 20)
    if "worker" in options.only:
        measure.on_a_broker(lambda *place: one_worker(options, *place), options.keep)


if __name__ == "__main__":
    main()
