"""Sessions that are forgotten, exported, imported and rebuilt, with large values, on a real broker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import harness
import pipeline_lab as lab
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from build import said, user

from reknit.pipeline.client import Brokers, Events, Turns
from reknit.pipeline.client.consumers import Requests
from reknit.pipeline.objects import ObjectSettings
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, EVENTS_STATE, PROVIDER_REQUESTS, REPLAY_PLAN, TOPICS, TURNS_STATE

pytestmark = pytest.mark.broker

WHISPERED = "whispered-words"
GONE, KEPT = "session-to-forget", "session-that-stays"
LARGE = "many words " * 300


class Pipeline:
    """A worker with an object store, and the other commands."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path, free_port) -> None:
        self.bootstrap, self.prefix, self.directory = bootstrap, prefix, directory
        self.objects = ObjectSettings(url=f"file://{directory}/objects", threshold_bytes=2_000)
        self.brokers = Brokers(bootstrap_servers=bootstrap, prefix=prefix, objects=self.objects)
        self._env = os.environ | {
            "REKNIT_BOOTSTRAP_SERVERS": bootstrap,
            "REKNIT_PREFIX": prefix,
            "REKNIT_PARTITIONS": str(lab.PARTITIONS),
            "REKNIT_OBJECTS__URL": self.objects.url,
            "REKNIT_OBJECTS__THRESHOLD_BYTES": "2000",
        }
        settings = directory / "reknit.toml"
        settings.write_text(lab.SETTINGS + "[session.policy]\nrecord_assistant = true\n" + self._store_settings())
        place = {"--config": settings, "--bootstrap-servers": bootstrap, "--prefix": prefix}
        place["--state-dir"] = directory / "state"
        options = [str(part) for pair in place.items() for part in pair]
        worker = [sys.executable, "-m", "reknit", "worker", *options, "--metrics-port"]
        self.fleet = harness.Fleet(lambda port: [*worker, str(port)], directory, free_port)

    def _store_settings(self) -> str:
        objects = f'[objects]\nurl = "{self.objects.url}"\nthreshold_bytes = {self.objects.threshold_bytes}\n'
        return f'[state]\nstore = "disk"\n{objects}'

    async def run(self, *arguments: str, given: bytes = b"", code: int = 0) -> list[dict]:
        command = [sys.executable, "-m", "reknit", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, command, input=given, capture_output=True, env=self._env, timeout=240, check=False
        )
        assert done.returncode == code, done.stderr.decode()
        return [json.loads(line) for line in done.stdout.splitlines()]

    async def records(self, topic: str) -> list:
        parts = await harness.read_all(self.bootstrap, self.prefix + topic, lab.PARTITIONS)
        return [record for part in parts for record in part]

    async def requests(self, session: str, least: int) -> list:
        """Return the requests of a session, once there are N, with their bodies."""
        async with asyncio.timeout(240), Requests(self.brokers) as requests:
            found = []
            async for request in requests:
                found += [request] if request.session == session else []
                if len(found) >= least:
                    break
        return found

    def stored(self) -> list[str]:
        return sorted(str(path.relative_to(self.directory / "objects")) for path in self._files("objects"))

    def _files(self, folder: str) -> list[Path]:
        return [path for path in (self.directory / folder).rglob("*") if path.is_file()]

    def files_that_tell(self) -> list[Path]:
        """Everything on disk but the configuration that has something of the session in its name or its bytes."""
        told = [GONE.encode(), WHISPERED.encode(), hashlib.sha256(GONE.encode()).hexdigest().encode()]
        every = [*self._files("state"), *self._files("objects"), *self.directory.glob("*.log")]
        return [path for path in every if any(word in path.read_bytes() + bytes(path) for word in told)]


@pytest.fixture
async def pipeline(broker, prefix, tmp_path, free_port):
    pipeline = Pipeline(broker.bootstrap, prefix, tmp_path, free_port)
    await pipeline.run("topics", "apply")
    try:
        await pipeline.fleet.start().ready(60)
        yield pipeline
    finally:
        pipeline.fleet.end()


def of_session(record) -> bool:
    told = b"".join(value or b"" for _, value in record.headers)
    return any(word.encode() in (record.key or b"") + (record.value or b"") + told for word in (GONE, WHISPERED))


async def test_nothing_is_left_of_a_forgotten_session_but_what_the_receipt_names(pipeline):
    async with Turns(pipeline.brokers) as turns, Events(pipeline.brokers, "anthropic") as events:
        for session, word in ((GONE, WHISPERED), (KEPT, "spoken-words")):
            await turns.append(session, user(f"{word} once"))
            await turns.append(session, user(f"{word} " * 300))
            await events.feed(session, json.dumps({"type": "error", "error": {"message": word}}).encode(), run="r")
        await turns.append(GONE, {"role": "nobody", "content": WHISPERED})
        (_, large), (_, kept) = [await pipeline.requests(session, 2) for session in (GONE, KEPT)]
    assert WHISPERED in json.dumps(json.loads(large.body))
    assert hashlib.sha256(kept.body).hexdigest() == kept.headers.body_sha256
    assert len(pipeline.stored()) == 4  # a turn and a body of each
    await lab.drained(pipeline.bootstrap, pipeline.prefix)

    (receipt,) = await pipeline.run("forget", GONE)
    assert (receipt["done"], receipt["objects"]) == (True, 0)
    await lab.drained(pipeline.bootstrap, pipeline.prefix)
    every = {topic.name: await pipeline.records(topic.name) for topic in TOPICS}
    holding = {
        pipeline.prefix + name: sum(map(of_session, records))
        for name, records in every.items()
        if any(map(of_session, records))
    }
    # The topics of states hold no more than before, and the records of the deletion.
    assert {held["topic"] for held in receipt["held"]} == holding.keys()
    assert all(held["until"] for held in receipt["held"])
    for name in (topic.name for topic in TOPICS if "state" in topic.name):
        last = {record.key: record for record in every[name]}
        assert [record.key for record in last.values() if record.value is not None and of_session(record)] == []
    assert all(hashlib.sha256(KEPT.encode()).hexdigest() in path for path in pipeline.stored())
    assert pipeline.files_that_tell() == []

    async with Turns(pipeline.brokers) as turns:
        await turns.append(GONE, user(f"{WHISPERED} again"))
        await turns.append(KEPT, user("and on"))
    assert (await pipeline.requests(KEPT, 3))[2].body.startswith(kept.body[: kept.headers.prefix_bytes])
    await lab.drained(pipeline.bootstrap, pipeline.prefix)
    *_, letter = await pipeline.records(DEAD_LETTERS)
    assert (letter.key, letter.value) == (GONE.encode(), None)
    assert dict(letter.headers)["reknit.error.code"] == b"forgotten"
    assert pipeline.files_that_tell() == []


async def test_replays_forget_a_session_as_far_as_they_can_or_are_deleted(pipeline, tmp_path, free_port):
    async with Turns(pipeline.brokers) as turns, Events(pipeline.brokers, "anthropic") as events:
        for session, word in ((GONE, WHISPERED), (KEPT, "spoken-words")):
            await turns.append(session, user(f"{word} " * 300))
            await events.feed(session, json.dumps({"type": "error", "error": {"message": word}}).encode(), run="r")
    await lab.drained(pipeline.bootstrap, pipeline.prefix)
    config = ("--config", str(pipeline.directory / "reknit.toml"))
    place = (*config, "--state-dir", str(tmp_path / "replays"))
    await pipeline.run("replay", "--id", "done", "--metrics-port", "0", *place)
    await pipeline.run("replay", "--id", "apart", "--session", KEPT, "--metrics-port", "0", *place)
    async with Turns(pipeline.brokers) as turns:
        for at in range(100):
            await turns.append(GONE, user(f"{WHISPERED} {at}"))
    await lab.drained(pipeline.bootstrap, pipeline.prefix)
    replayed = f"{pipeline.prefix}replay.done."
    slow = [sys.executable, "-m", "reknit", "replay", "--id", "slow", "--rate", "5", *place]
    slow += ["--bootstrap-servers", pipeline.bootstrap, "--prefix", pipeline.prefix]

    async def published() -> bool:
        return any(map(of_session, await pipeline.records(f"replay.slow.{PROVIDER_REQUESTS}")))

    with harness.Fleet(lambda port: [*slow, "--metrics-port", str(port)], tmp_path, free_port) as fleet:
        under_way = fleet.start()
        await under_way.ready(60)
        async with asyncio.timeout(240):
            while not await published():  # noqa: ASYNC110  by another process
                await asyncio.sleep(0.2)

        (receipt,) = await pipeline.run("forget", GONE, code=75)
        assert receipt["done"]
        assert receipt["replays"] == [
            {"replay": "done", "deleted": False, "at_work": False},
            {"replay": "slow", "deleted": False, "at_work": True},
        ]
        assert await under_way.stop() == 75
    for name in (TURNS_STATE, EVENTS_STATE):
        last = {record.key: record for record in await pipeline.records(f"replay.done.{name}")}
        assert [record.key for record in last.values() if record.value is not None and of_session(record)] == []
        assert any(record.value is not None and KEPT.encode() in record.key for record in last.values())
    gone = hashlib.sha256(GONE.encode()).hexdigest()
    assert [path for path in pipeline.stored() if gone in path and "slow" not in path] == []
    assert any(hashlib.sha256(KEPT.encode()).hexdigest() in path and "done" in path for path in pipeline.stored())
    *_, told = await pipeline.run("diff", pipeline.prefix, replayed, "--json")
    assert (told["summary"]["not_compared"], told["summary"]["compared"]["sessions"]) == ({"forgotten": [GONE]}, 1)

    (receipt,) = await pipeline.run("forget", GONE, "--delete-replays")
    assert [(each["replay"], each["deleted"]) for each in receipt["replays"]] == [("done", True), ("slow", True)]
    assert [held["topic"] for held in receipt["held"] if "replay." in held["topic"]] == []
    assert [each["replay"] for each in await pipeline.run("replay", "list")] == ["apart"]
    assert [path for path in pipeline.stored() if gone in path] == []

    # One whose start was interrupted has no plan, so nothing shows that its topics are a replay's.
    left = [f"{pipeline.prefix}replay.broken.{name}" for name in (PROVIDER_REQUESTS, REPLAY_PLAN.name)]
    await harness.make_topics(pipeline.bootstrap, left, 1)
    async with AIOKafkaProducer(bootstrap_servers=pipeline.bootstrap) as producer:
        await producer.send_and_wait(left[0], b"{}", key=GONE.encode())
    (receipt,) = await pipeline.run("forget", GONE, "--delete-replays", code=2)
    assert receipt["replays"] == [{"replay": "broken", "deleted": False, "at_work": False}]
    assert [held["topic"] for held in receipt["held"] if "replay." in held["topic"]] == left[:1]


async def test_objects_that_no_record_names_are_collected(pipeline):
    async with Turns(pipeline.brokers) as turns:
        await turns.append(KEPT, user(LARGE))
    await pipeline.requests(KEPT, 1)
    named = pipeline.stored()
    folder = pipeline.directory / "objects" / f"{pipeline.prefix}reknit"
    stray = f"{hashlib.sha256(b'x').hexdigest()}/{hashlib.sha256(b'y').hexdigest()}"
    (folder / stray).parent.mkdir()
    (folder / stray).write_bytes(b"y")
    assert await pipeline.run("objects", "collect") == []  # too young
    shown = await pipeline.run("objects", "collect", "--older", "0", "--dry-run")
    assert shown == [{"object": stray, "deleted": False}]
    assert await pipeline.run("objects", "collect", "--older", "0") == [{"object": stray, "deleted": True}]
    assert pipeline.stored() == named


async def test_an_imported_session_asks_for_the_same_bytes(pipeline):
    async with Turns(pipeline.brokers) as turns:
        await turns.open(KEPT, model="claude-sonnet-4-5", system="Be brief.", params={"max_tokens": 7})
        for at in range(40):
            await turns.append(KEPT, user(f"{at} {LARGE if at == 3 else ''}"))
            await turns.append(KEPT, said(f"answer {at}"))
        await turns.append(KEPT, user("last"))
    await lab.drained(pipeline.bootstrap, pipeline.prefix)
    (document,) = await pipeline.run("export", KEPT)
    assert len(document["document"]["messages"]) == 81
    copy = json.dumps(document | {"session": "copy"}).encode()
    assert [each["session"] for each in await pipeline.run("import", given=copy)] == ["copy"]
    async with Turns(pipeline.brokers) as turns:
        await turns.want_request("copy")
    *_, last = await pipeline.requests(KEPT, 41)
    (first,) = await pipeline.requests("copy", 1)
    assert first.body == last.body
    await pipeline.run("export", "nobody", code=2)
    await pipeline.run("import", given=b'{"messages": []}', code=2)


async def test_a_lost_changelog_is_rebuilt_from_the_inputs(pipeline):
    async with Turns(pipeline.brokers) as turns:
        for at in range(5):
            await turns.append(KEPT, user(f"question {at}"))
            await turns.append(KEPT, said(f"answer {at}"))
        await turns.append(KEPT, user("last"))
    before = await pipeline.requests(KEPT, 6)
    await lab.drained(pipeline.bootstrap, pipeline.prefix)
    (worker,) = pipeline.fleet.workers
    assert await worker.stop() == 0

    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    await admin.start()
    await admin.delete_topics([pipeline.prefix + TURNS_STATE])
    await admin.close()
    await pipeline.run("topics", "apply")
    assert await pipeline.fleet.start().wait(60) == 2
    # With the settings of the worker: they have the defaults of sessions.
    await pipeline.run("topics", "rebuild", "--config", str(pipeline.directory / "reknit.toml"))
    await pipeline.fleet.start().ready(60)

    async with Turns(pipeline.brokers) as turns:
        await turns.append(KEPT, said("answer"))
        await turns.append(KEPT, user("more"))
    *_, last = await pipeline.requests(KEPT, 7)
    assert last.body.startswith(before[-1].body[: before[-1].headers.prefix_bytes])
    assert [record.key for record in await pipeline.records(DEAD_LETTERS)] == []
    assert len(await pipeline.records(AGENT_TURNS)) == 13
    assert len(await pipeline.records(PROVIDER_REQUESTS)) == 7


def restless(chance: random.Random) -> Iterator[lab.Row]:
    """The script's sessions, which expire after a second, and now and then a late turn of one, or its forgetting."""
    seen: list[bytes] = []
    for topic, key, value, headers in lab.script(1_000):
        if key not in seen:
            seen.append(key)
            yield AGENT_TURNS, key, b'{"type": "session.opened", "policy": {"expires_after": 1}}', []
        yield topic, key, value, headers
        if chance.random() < 0.1:
            late = {"type": "turn.appended", "message": user("late")}
            yield AGENT_TURNS, chance.choice(seen), json.dumps(late).encode(), []
        if chance.random() < 0.02:
            yield AGENT_TURNS, chance.choice(seen), b'{"type": "session.forgotten"}', []


async def test_what_expires_and_is_forgotten_is_the_same_under_kill_9(broker, prefix, tmp_path, free_port):
    chance = random.Random(7)  # noqa: S311  reproducible, not secret
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        async with lab.Feeder(broker.bootstrap, prefix, 200, restless(chance)):
            for _ in range(4):
                await worker.ready(60)
                await asyncio.sleep(chance.uniform(1.0, 2.5))
                worker.kill()
                worker = fleet.start()
        await worker.ready(60)
        await lab.drained(broker.bootstrap, prefix)
        await lab.audit(broker.bootstrap, prefix)
        letters = await harness.read_all(broker.bootstrap, prefix + DEAD_LETTERS, lab.PARTITIONS)
        codes = Counter(dict(record.headers)["reknit.error.code"] for part in letters for record in part)
        assert codes[b"expired"] > 5
        assert codes[b"forgotten"] > 5
        assert await worker.stop() == 0
