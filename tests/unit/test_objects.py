"""Values too large for a topic: stored as objects, read back for their own session only."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest
from build import user
from obstore.store import MemoryStore

from reknit.pipeline import objects as module
from reknit.pipeline.client import Brokers, Place
from reknit.pipeline.client.consumers import Request, with_body
from reknit.pipeline.engine.commit import Batch
from reknit.pipeline.engine.large_values import ObjectWriter
from reknit.pipeline.errors import InputError
from reknit.pipeline.objects import Objects, ObjectSettings, ObjectStoreError, open_objects, with_objects
from reknit.pipeline.settings import Config
from reknit.pipeline.stages.base import Output, Record
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics.headers import RequestHeaders

SESSION = b"session-1"
OTHER = b"session-2"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr(module, "_LOOK_AGAIN_SECONDS", (0.0, 0.0))


@pytest.fixture
def objects():
    return Objects(MemoryStore(), "p.reknit", 10)


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path, objects):
    if request.param == "memory":
        return objects
    return in_folder(tmp_path / "made" / "here", threshold_bytes=10)


def in_folder(path, prefix="p.", **settings):
    return open_objects(Config(prefix=prefix, objects=ObjectSettings(url=f"file://{path}", **settings)))


async def listed(store) -> list[str]:
    return sorted(await store.every())


async def test_an_objects_key_has_the_digests_of_its_session_and_its_value(store):
    key = await store.put(SESSION, b"a large value")
    assert key == f"{sha(SESSION)}/{sha(b'a large value')}"
    assert await store.get(SESSION, key) == b"a large value"
    assert await store.put(SESSION, b"a large value") == key
    await store.put(OTHER, b"a large value")
    assert len(await listed(store)) == 2


async def test_a_pipeline_has_a_folder_of_its_own(tmp_path):
    await in_folder(tmp_path, "replay.7.").put(SESSION, b"value")
    assert [path.name for path in tmp_path.iterdir()] == ["replay.7.reknit"]


async def test_a_replay_reads_the_live_pipelines_objects_and_writes_its_own(tmp_path):
    key = await in_folder(tmp_path).put(SESSION, b"value")
    own = in_folder(tmp_path, "p.replay.7.")
    assert await own.of_pipeline("p.").get(SESSION, key) == b"value"
    assert await own.forget(SESSION) == 0


async def test_forgetting_deletes_all_objects_of_a_session_and_no_others(store):
    for value in (b"one", b"two"):
        await store.put(SESSION, value)
    kept = await store.put(OTHER, b"one")
    assert await store.forget(SESSION) == 2
    assert await listed(store) == [kept]
    assert await store.forget(SESSION) == 0


async def test_deleting_a_missing_object_succeeds(store):
    key = await store.put(SESSION, b"one")
    await store.delete([key])
    await store.delete([key])
    assert await listed(store) == []


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (f"{sha(SESSION)}/{sha(b'never written')}", "object_missing"),
        (f"{sha(OTHER)}/{sha(b'secret')}", "object_foreign"),
        (f"{sha(SESSION)}/../{sha(OTHER)}/{sha(b'secret')}", "object_foreign"),
        ("../../../etc/passwd", "object_foreign"),
        ("file:///etc/passwd", "object_foreign"),
        (f"{sha(SESSION)}/{sha(b'x')}\n", "object_foreign"),
        (f"{sha(SESSION).upper()}/{sha(b'secret')}", "object_foreign"),
        ("", "object_foreign"),
    ],
)
async def test_only_values_of_the_session_are_read(store, key, code):
    await store.put(OTHER, b"secret")
    with pytest.raises(InputError) as error:
        await store.get(SESSION, key)
    assert error.value.code == code


async def test_a_changed_object_is_rejected(tmp_path):
    store = in_folder(tmp_path, "")
    key = await store.put(SESSION, b"as it was written")
    (tmp_path / "reknit" / key).write_bytes(b"as it was tampered")
    with pytest.raises(InputError) as error:
        await store.get(SESSION, key)
    assert error.value.code == "object_damaged"


async def test_an_object_that_appears_a_moment_later_is_found(objects, monkeypatch):
    written = []

    async def sleep(seconds):
        written.append(await objects.put(SESSION, b"late"))

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    assert await objects.get(SESSION, f"{sha(SESSION)}/{sha(b'late')}") == b"late"
    assert len(written) == 1


async def test_an_unavailable_store_differs_from_a_missing_object(tmp_path):
    store = in_folder(tmp_path, "")
    (tmp_path / "reknit").write_bytes(b"a file where the folder is to be")
    with pytest.raises(ConnectionError, match="the object store does not answer"):
        await store.put(SESSION, b"value")


@pytest.mark.parametrize("url", ["bogus://bucket/folder", "folder"])
def test_an_unusable_url_is_reported_in_a_sentence(url):
    with pytest.raises(ObjectStoreError, match="cannot be used") as error:
        open_objects(Brokers(objects=ObjectSettings(url=url)))
    assert (error.value.code, error.value.path) == ("objects_unusable", "objects.url")


@pytest.mark.parametrize("url", ["s3://bucket/folder", "gs://bucket/folder"])
def test_stores_of_providers_need_no_more_than_a_url(url, monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert isinstance(open_objects(Brokers(objects=ObjectSettings(url=url))), Objects)


def test_without_the_extra_only_the_store_is_rejected(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert open_objects(Brokers()) is None
    with pytest.raises(ObjectStoreError, match=r"pip install 'reknit\[objects\]'"):
        open_objects(Brokers(objects=ObjectSettings(url="memory:///")))


# In a worker.


class Written:
    """A writer that records the given outputs, and the objects that existed at that time."""

    def __init__(self, objects):
        self.objects = objects
        self.batches = []

    async def open(self):
        """Do nothing."""

    async def close(self):
        """Do nothing."""

    async def write(self, batch):
        self.batches.append((batch.outputs, await listed(self.objects)))


async def written(objects, *outputs: Output):
    writer = Written(objects)
    await ObjectWriter(writer, objects).write(Batch(outputs, {}, 1))
    return writer.batches[0]


async def test_a_large_body_is_an_object_before_the_batch_is_written(objects):
    small, other = Output(PROVIDER_REQUESTS, SESSION, b"123456789"), Output(SESSION_ITEMS, SESSION, b"1234567890")
    outputs, there = await written(
        objects, Output(PROVIDER_REQUESTS, SESSION, b"1234567890", (("turn", b"1"),)), small, other
    )
    key = f"{sha(SESSION)}/{sha(b'1234567890')}"
    assert outputs == [
        Output(PROVIDER_REQUESTS, SESSION, None, (("turn", b"1"), ("dataref", key.encode()))),
        small,
        other,
    ]
    assert there == [key]


async def test_a_forgotten_sessions_objects_are_deleted_before_the_batch_is_written(objects):
    kept = await objects.put(OTHER, b"value")
    await objects.put(SESSION, b"value")
    large = Output(PROVIDER_REQUESTS, SESSION, b"1234567890")
    told = Output(PROVIDER_EVENTS, SESSION, None, (("forgotten", b"agent.turns.v1/0/7"),))
    assert (await written(objects, large, told))[1] == [kept]


def named(dataref: str, offset: int = 0, headers: tuple = ()) -> Record:
    return Record(
        partition=0, offset=offset, key=SESSION, value=None, headers=(("dataref", dataref.encode()), *headers)
    )


async def test_inputs_get_their_values_a_few_objects_at_a_time(objects):
    keys = [await objects.put(SESSION, b"%d" % n) for n in range(6)]
    plain = Record(partition=0, offset=100, key=SESSION, value=b"plain")
    records = [plain, *(named(key, n) for n, key in enumerate(keys))]
    first = await with_objects(records, objects)
    assert [record.value for record in first] == [b"plain", b"0", b"1", b"2", b"3"]
    assert [record.value for record in await with_objects(records[len(first) :], objects)] == [b"4", b"5"]
    assert await with_objects([plain], objects) == [plain]
    assert await with_objects(records, None) == records


TURN = json.dumps({"type": "turn.appended", "message": user("hello")}).encode()
MISSING = f"{sha(SESSION)}/{sha(b'nothing')}"


@pytest.mark.parametrize("stage", [TurnsStage, EventsStage])
@pytest.mark.parametrize(
    ("dataref", "code"), [(MISSING, "object_missing"), (f"{sha(OTHER)}/{sha(b'x')}", "object_foreign")]
)
async def test_a_record_with_an_unreadable_object_is_a_dead_letter(objects, stage, dataref, code):
    (record,) = await with_objects([named(dataref)], objects)
    (letter,) = [output for output in stage().process([record]).outputs if output.topic == DEAD_LETTERS]
    assert dict(letter.headers)["reknit.error.code"].decode() == code
    assert letter.headers[0] == ("dataref", dataref.encode())


async def test_a_dead_letter_names_the_object_and_does_not_contain_it(objects):
    (record,) = await with_objects([named(await objects.put(SESSION, b"not JSON"))], objects)
    (letter,) = TurnsStage().process([record]).outputs
    assert (record.value, letter.value) == (b"not JSON", None)


async def test_a_turn_stored_as_an_object_is_a_turn(objects):
    (record,) = await with_objects([named(await objects.put(SESSION, TURN))], objects)
    assert TurnsStage().process([record]).tally["reknit_turns_total", "turn.appended", "taken"] == 1


# In the client.


@pytest.mark.parametrize(
    ("url", "value", "lost"),
    [("file://{}", b"body", ""), ("file://{}", None, "object_missing"), ("", b"body", "no_object_store")],
)
async def test_a_reader_returns_the_body_or_the_reason_for_its_absence(tmp_path, url, value, lost):
    there = Brokers(objects=ObjectSettings(url=f"file://{tmp_path}"))
    if value:
        await open_objects(there).put(SESSION, value)
    headers = RequestHeaders(
        request_id="r",
        target="anthropic",
        turn=1,
        fixes=0,
        body_sha256=sha(b"body"),
        prefix_bytes=0,
        reknit_version="1",
        dataref=f"{sha(SESSION)}/{sha(b'body')}",
    )
    given = Request(session=SESSION.decode(), body=None, headers=headers, place=Place(AGENT_TURNS, 0, 0))
    found = await with_body(given, open_objects(Brokers(objects=ObjectSettings(url=url.format(tmp_path)))))
    assert (found.body, found.lost) == (None if lost else b"body", lost)
