"""Faults of a pipeline: one table. Each fault proves that it happened."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import harness
import pipeline_lab as lab
from build import user
from chaos.trial import Pipeline, die_at
from chaos.worker import AFTER_A_SLICE, BEFORE_A_SLICE, WHILE_RESTORING
from msgspec import Struct

from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_REQUESTS, TURNS_STATE

_CHANCE = random.Random(5)  # noqa: S311  reproducible, not secret
# Longer than the workers' session (pipeline_lab.SETTINGS), so that the group continues without them.
_PAST_THE_SESSION = 7.0


class NotHereError(Exception):
    """This machine does not let it happen; the message says why."""


async def _away(pipeline: Pipeline, how: str, *, node: int = 1) -> None:
    """End a broker that leads partitions, and start it again once the others lead them."""
    broker = pipeline.cluster.brokers[node - 1]
    assert (await pipeline.leads())[node] > 0
    await asyncio.to_thread(getattr(broker, how))
    await pipeline.until(lambda: _follows(pipeline, node), "others lead")
    await asyncio.sleep(1)
    await _back(pipeline, node)


async def _back(pipeline: Pipeline, node: int) -> None:
    await asyncio.to_thread(pipeline.cluster.brokers[node - 1].start)
    await pipeline.until(lambda: _leads(pipeline, node), "it leads again, every copy is there")


async def _leads(pipeline: Pipeline, node: int) -> bool:
    leads = await pipeline.leads()
    return leads[0] == 0 and leads[node] > 0


async def _follows(pipeline: Pipeline, node: int) -> bool:
    return (await pipeline.leads())[node] == 0


async def stop_a_broker(pipeline: Pipeline) -> None:
    await _away(pipeline, "stop")


async def kill_a_broker(pipeline: Pipeline) -> None:
    await _away(pipeline, "kill", node=2)


async def kill_each_broker(pipeline: Pipeline) -> None:
    for node in (1, 2, 3):
        await _away(pipeline, "kill", node=node)


async def fill_a_disk(pipeline: Pipeline) -> None:
    cluster = pipeline.cluster
    if cluster.disk is None:
        raise NotHereError("mounting a file system needs a right that this process does not have")
    broker = cluster.brokers[-1]
    cluster.disk.fill()
    await pipeline.until(lambda: _follows(pipeline, len(cluster.brokers)), "it gives up")
    await asyncio.to_thread(broker.wait)
    said = broker.log.read_text()
    assert "No space left on device" in said, said[-4000:]
    broker.kill()
    cluster.disk.clear()
    await _back(pipeline, len(cluster.brokers))


async def cut_the_network(pipeline: Pipeline, *, every: bool) -> None:
    ports = list(pipeline.cluster.network.ways)
    pipeline.cluster.network.cut = frozenset(ports if every else ports[:1])
    try:
        await asyncio.sleep(_PAST_THE_SESSION)
        if every:
            await pipeline.until(lambda: _no_broker(pipeline), "each worker says that no broker answers")
    finally:
        pipeline.cluster.network.cut = frozenset()


async def _no_broker(pipeline: Pipeline) -> bool:
    pages = [await asyncio.to_thread(worker.ask, "/readyz") for worker in pipeline.workers if worker.running]
    return all("no broker has answered for" in text for _, text in pages)


async def slow_the_network(pipeline: Pipeline) -> None:
    pipeline.cluster.network.bytes_a_second = 20_000
    await asyncio.sleep(_PAST_THE_SESSION)
    pipeline.cluster.network.bytes_a_second = 0


async def kill_workers(pipeline: Pipeline, *, times: int) -> None:
    for _ in range(times):
        victim = _CHANCE.choice(pipeline.workers)
        victim.kill()
        # Sometimes the other worker takes over first, sometimes the group meets the newcomer at once.
        await asyncio.sleep(_CHANCE.choice([0.0, 5.0]))
        await victim.start().ready(90)


async def kill_at_the_commit(pipeline: Pipeline) -> None:
    victim = pipeline.workers[0]
    for point in ("killed before the commit", "killed after the commit"):
        victim.kill()
        await die_at(victim, point)


async def freeze_a_worker(pipeline: Pipeline) -> None:
    # It loses its partitions; if it wakes in the middle of a batch it is fenced.
    frozen = pipeline.workers[1]
    frozen.signal(signal.SIGSTOP)
    await asyncio.sleep(_PAST_THE_SESSION)
    frozen.signal(signal.SIGCONT)
    await asyncio.sleep(3)
    assert frozen.status in {None, 75}


async def starve_workers(pipeline: Pipeline, *, seconds: float) -> None:
    """Each gets a twentieth of the time, under a guard that would end it after a few seconds without progress."""
    with _environment(REKNIT_STALL_SECONDS="5"):
        await _restart(pipeline)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for number, stays in ((signal.SIGSTOP, 2.85), (signal.SIGCONT, 0.15)):
            for worker in pipeline.workers:
                worker.signal(number)
            await asyncio.sleep(stays)  # less than the session of a worker
    assert [worker.status for worker in pipeline.workers] == [None] * len(pipeline.workers), pipeline.said()[-4000:]
    await _restart(pipeline)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


async def _restart(pipeline: Pipeline) -> None:
    for worker in pipeline.workers:
        assert await worker.stop() == 0, worker.tail()
        worker.start()
    await pipeline.ready()


async def scale_out_and_in(pipeline: Pipeline) -> None:
    one, *others = pipeline.workers
    for worker in others:
        assert await worker.stop() == 0, worker.tail()
    more = [*(worker.start() for worker in others), pipeline.fleet.start(), pipeline.fleet.start()]
    await pipeline.ready()
    for worker in more:
        assert await worker.stop() == 0, worker.tail()
    del pipeline.workers[2:]
    assert one.running, one.tail()


async def interrupt_recovery(pipeline: Pipeline) -> None:
    # Its volume is lost, so that there is something to read back.
    victim = pipeline.workers[0]
    victim.kill()
    for _ in range(2):
        shutil.rmtree(pipeline.state_folder(victim))
        await die_at(victim, WHILE_RESTORING)


async def read_slowly(pipeline: Pipeline) -> None:
    topic = pipeline.prefix + PROVIDER_REQUESTS
    got: list[list[tuple[int, bytes | None]]] = [[] for _ in range(lab.PARTITIONS)]
    async with harness.reader(pipeline.cluster.through_the_network) as consumer:
        tps = [harness.TopicPartition(topic, number) for number in range(lab.PARTITIONS)]
        consumer.assign(tps)
        for _ in range(60):
            for tp, records in (await consumer.getmany(timeout_ms=100, max_records=5)).items():
                got[tp.partition].extend((record.offset, record.value) for record in records)
            await asyncio.sleep(0.1)
    whole = await harness.read_all(pipeline.cluster.direct, topic, lab.PARTITIONS)
    assert sum(map(len, got)) > 0
    for number, rows in enumerate(got):
        harness.compare((topic, number), [(r.offset, r.value) for r in whole[number]][: len(rows)], rows)


async def poison(pipeline: Pipeline) -> None:
    """Sessions are parked by a record that cannot be processed, and released, by two commands simultaneously, with a
    repaired one.
    """
    keys = [f"poisoned-{pipeline.prefix}{_CHANCE.randrange(1 << 30)}-{at}".encode() for at in range(8)]
    turns = [
        {"type": "turn.appended", "message": message} for message in (user("one"), {"role": "nobody"}, user("two"))
    ]
    released = {"type": "session.released", "record": {"type": "turn.appended", "message": user("mended")}}
    await pipeline.feed([(AGENT_TURNS, key, json.dumps(turn).encode(), []) for turn in turns for key in keys])
    pipeline.workers[0].kill()
    await pipeline.feed([(AGENT_TURNS, key, json.dumps(released).encode(), []) for _ in range(2) for key in keys])
    letters = partial(harness.read_all, pipeline.cluster.direct, pipeline.prefix + DEAD_LETTERS, lab.PARTITIONS)
    await pipeline.until(lambda: _are_among(keys, letters), "a dead letter of each")


async def release_under_load(pipeline: Pipeline, *, sessions: int, waiting: int, kills: int) -> None:
    """Sessions with many waiting records are released while records of others come; the workers die in the midst."""
    keys = [f"released-{pipeline.prefix}{_CHANCE.randrange(1 << 30)}-{at}".encode() for at in range(sessions)]
    await pipeline.feed(lab.parked(keys, waiting), 2_000)
    for worker in pipeline.workers:
        assert await worker.stop(30) == 0, worker.tail()
    await pipeline.feed(lab.released(keys, later=5), 2_000)
    victim = pipeline.workers[0]
    for point in (BEFORE_A_SLICE, AFTER_A_SLICE):
        await die_at(victim, point)
    for worker in pipeline.workers:
        worker.start()
    for _ in range(kills):
        await asyncio.sleep(_CHANCE.uniform(3, 8))
        victim = _CHANCE.choice(pipeline.workers)
        victim.kill()
        victim.start()
    await pipeline.ready()


async def _are_among(keys: list[bytes], letters: Callable[[], Awaitable[list]]) -> bool:
    return set(keys) <= {record.key for records in await letters() for record in records}


# A worker's message about a partition whose bodies cannot be written.
_NO_STORE = "is opened again: ConnectionError"


async def lose_the_object_store(pipeline: Pipeline) -> None:
    """A file replaces its folder. The workers are paused meanwhile: one that wrote then would create it again."""
    folder, away = pipeline.objects_folder, pipeline.directory / "objects-away"
    before = pipeline.said().count(_NO_STORE)

    def held(change: Callable[[], object]) -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for worker in pipeline.workers:
                worker.signal(number)
            if number == signal.SIGSTOP:
                change()

    held(lambda: (folder.rename(away), folder.touch()))
    try:
        await pipeline.until(lambda: _says(pipeline, _NO_STORE, before), "a body cannot be written")
        await asyncio.sleep(3)
    finally:
        held(lambda: (folder.unlink(), away.rename(folder)))


async def _says(pipeline: Pipeline, words: str, before: int) -> bool:
    return pipeline.said().count(words) > before


async def damage_the_disk_stores(pipeline: Pipeline) -> None:
    before = pipeline.said().count("the store on disk is not used")
    for worker in pipeline.workers:
        worker.kill()
        for path in sorted(pipeline.state_folder(worker).rglob("*")):
            if path.is_file() and (data := bytearray(path.read_bytes())):
                data[_CHANCE.randrange(len(data))] ^= 0xFF
                path.write_bytes(data[: _CHANCE.choice([len(data), len(data) // 2])])
    for worker in pipeline.workers:
        worker.start()
    await pipeline.until(lambda: _says(pipeline, "the store on disk is not used", before), "a store is thrown away")


async def remove_a_disk_store(pipeline: Pipeline) -> None:
    shutil.rmtree(pipeline.state_folder(pipeline.workers[0]))
    await asyncio.sleep(3)
    for worker in pipeline.workers:
        worker.kill()


async def replay(pipeline: Pipeline) -> None:
    """The log so far is replayed while the workers run, in small batches; the first process dies far from the end."""
    name = "beside"
    command = pipeline.command("replay", "--id", name, "--metrics-port", "0", batch_records=11)
    with harness.Fleet(lambda _: command, pipeline.directory, lambda: 0) as fleet:
        slow = harness.WorkerProcess("slow", [*command, "--rate", "100"], pipeline.directory / "slow.log", 0)
        fleet.workers.append(slow.start())
        await pipeline.until(lambda: _is_under_way(pipeline, name), "the replay is under way")
        assert slow.running, f"status {slow.status}: {slow.tail()}"
        slow.kill()
        for other in [fleet.start(), fleet.start()]:
            assert await other.wait(180) == 0, f"status {other.status}: {other.tail()}"
    replayed = f"{pipeline.prefix}replay.{name}."
    done = await pipeline.run("diff", pipeline.prefix, replayed, "--expect-none", "--json")
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert done.returncode == 0, (summary, done.stderr)
    # The workers continue meanwhile, and records after the replay's ends are not part of it.
    assert set(summary["not_compared"]) <= {"its events went on, and only one side has read them"}, summary
    assert summary["compared"]["sessions"] > 10, summary
    deleted = await pipeline.run("replay", "delete", name)
    assert deleted.returncode == 0, deleted.stderr


async def _is_under_way(pipeline: Pipeline, name: str) -> bool:
    """Whether something of the replay is published, and not all of it."""
    listed = (await pipeline.run("replay", "list")).stdout.splitlines()
    plan = next((each for each in map(json.loads, listed) if each["replay"] == name and "left" in each), None)
    if plan is None or not plan["left"]:
        return False
    requests = f"{plan['prefix']}{PROVIDER_REQUESTS}"
    return any(await harness.read_all(pipeline.cluster.direct, requests, lab.PARTITIONS))


async def recreate_a_changelog(pipeline: Pipeline) -> None:
    await pipeline.recreate(TURNS_STATE)
    done = await pipeline.run("topics", "rebuild", TURNS_STATE)
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["status"] for line in done.stdout.splitlines()} == {"rebuilt"}
    await pipeline.start_again()


async def recreate_an_input(pipeline: Pipeline) -> None:
    # Unprocessed records of the topic are lost with it, so there must be none.
    await pipeline.feeder.pause()
    await lab.drained(pipeline.cluster.direct, pipeline.prefix)
    before = await harness.read_all(pipeline.cluster.direct, pipeline.prefix + AGENT_TURNS, lab.PARTITIONS)
    recreated = asyncio.create_task(pipeline.recreate(AGENT_TURNS))
    await asyncio.sleep(1)
    pipeline.feeder.resume()
    await recreated
    done = await pipeline.run("topics", "accept", AGENT_TURNS, "--from", "earliest")
    assert done.returncode == 0, done.stderr
    outcomes = sorted(map(json.loads, done.stdout.splitlines()), key=lambda outcome: outcome["partition"])
    assert {outcome["status"] for outcome in outcomes} == {"accepted"}
    pipeline.former[AGENT_TURNS] = lab.Former(before, [outcome["base"] for outcome in outcomes])
    await pipeline.start_again()


class Fault(Struct, frozen=True):
    name: str
    does: str
    ends: str
    inflict: Callable[[Pipeline], Awaitable[None]]
    quick: bool = True
    """Whether the short form has it too."""


FAULTS = (
    Fault("worker killed", "kill -9 of one of two, now and then", "started again", partial(kill_workers, times=2)),
    Fault("worker killed often", "the same ten times", "started again", partial(kill_workers, times=10), quick=False),
    Fault(
        "killed at the commit",
        "kill -9 after a transaction's records were written: before its commit, and after it",
        "started again",
        kill_at_the_commit,
    ),
    Fault("worker frozen", "SIGSTOP past its session", "SIGCONT", freeze_a_worker),
    Fault(
        "worker starved",
        "both run for a twentieth of the time, with a guard of 5 s against stuck ones",
        "they run again; neither has ended",
        partial(starve_workers, seconds=20),
    ),
    Fault(
        "worker starved for long",
        "the same for two minutes",
        "they run again; neither has ended",
        partial(starve_workers, seconds=120),
        quick=False,
    ),
    Fault("scaled", "one worker, four, one", "two again", scale_out_and_in),
    Fault(
        "recovery interrupted",
        "a worker without its volume killed while it reads state back, twice",
        "started again",
        interrupt_recovery,
    ),
    Fault("broker stopped", "one of three ends in order, others lead", "back, leads again", stop_a_broker, quick=False),
    Fault("broker killed", "kill -9 of one of three", "back, leads again", kill_a_broker),
    Fault("brokers killed", "kill -9 of each, one after the other", "back each time", kill_each_broker, quick=False),
    Fault("disk full", "no byte is left on a broker's disk, it ends", "room again, started", fill_a_disk),
    Fault(
        "network cut",
        "no byte passes between workers and brokers past their session",
        "it passes",
        partial(cut_the_network, every=True),
    ),
    Fault(
        "one way cut",
        "the workers reach two brokers of three",
        "the third again",
        partial(cut_the_network, every=False),
        quick=False,
    ),
    Fault("network slow", "20 kB/s a connection", "as fast as ever", slow_the_network, quick=False),
    Fault(
        "slow consumer", "reads 25 requests a second while more are written", "stays behind", read_slowly, quick=False
    ),
    Fault(
        "poison",
        "sessions are parked by a record that cannot be processed; a worker is killed",
        "released twice at once, with a mended record",
        poison,
    ),
    Fault(
        "released under load",
        "sessions with 150 waiting records are released; kill -9 before and after a slice's commit",
        "started again",
        partial(release_under_load, sessions=4, waiting=150, kills=0),
    ),
    Fault(
        "large releases",
        "the same with 900 records each, and kill -9 every few seconds",
        "started again",
        partial(release_under_load, sessions=6, waiting=900, kills=6),
        quick=False,
    ),
    Fault("object store away", "a file stands in its folder's place", "the folder is back", lose_the_object_store),
    Fault("disk store damaged", "bytes flipped, files cut, workers killed", "read anew", damage_the_disk_stores),
    Fault("disk store removed", "the folder goes while a worker is at work; kill -9", "read anew", remove_a_disk_store),
    Fault(
        "replayed",
        "all that came before is replayed in small batches beside the workers; its process is killed",
        "two others go on, and `reknit diff` finds nothing",
        replay,
    ),
    # A rebuild needs the whole input, so the input is re-created last.
    Fault(
        "changelog re-created",
        "under workers and load; they end for a person",
        "`reknit topics rebuild`, started again",
        recreate_a_changelog,
    ),
    Fault(
        "input re-created",
        "under workers, and fed at once; they end for a person",
        "`reknit topics accept --from earliest`, started again",
        recreate_an_input,
    ),
)
