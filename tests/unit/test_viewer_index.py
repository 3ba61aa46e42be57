"""The index: it has the content of the topics, each record once, and nothing that they no longer have."""

import asyncio
import sqlite3
import stat
from unittest.mock import AsyncMock

import msgspec
import pytest
from aiokafka import TopicPartition
from build import call, said, user
from msgspec import structs
from published_records import OPENED, answers, appended
from viewer_lab import Topics, contents, demo_inputs, filled, index_of

from reknit.pipeline.config import load_config
from reknit.pipeline.viewer.index import Index, IndexFileError, Reader, reading, search, sessions, timeline
from reknit.pipeline.viewer.index.reading import Follower
from reknit.topics import AGENT_TURNS, DAY_MS, PROVIDER_EVENTS, SESSION_ITEMS
from reknit.topics.items import AnyItem, ItemCompleted, ItemDelta, ItemRetracted, ItemStarted, TurnStop
from reknit.topics.reducer import reduce

FORGOTTEN = {"type": "session.forgotten"}


def talk(topics, session, *words):
    """Publish a session that asks, calls a tool, is interrupted, and is answered once, with these words."""
    topics.put_turns(session, OPENED, *appended(user(*words), said(call("a")), user("go on")))
    for record in answers(f"{session} answers", key=session.encode()):
        topics.put(PROVIDER_EVENTS, session, record.value, record.headers)


@pytest.fixture
def topics():
    made = Topics()
    talk(made, "s1", "hello world")
    talk(made, "s2", "hello moon")
    return made


@pytest.fixture
def index(tmp_path, topics):
    opened = index_of(tmp_path / "index", topics)
    yield opened
    opened.close()


def test_a_repeated_record_changes_nothing(index, topics):
    before = contents(index)
    assert index.write(topics.entries(), topics.positions()) == []
    assert contents(index) == before


@pytest.mark.parametrize("size", [1, 7])
def test_batches_do_not_matter(tmp_path, index, topics, size):
    other = Index.open(tmp_path / "other", cluster="c", prefix="")
    entries = topics.entries()
    for at in range(0, len(entries), size):
        other.write(entries[at : at + size], {})
    assert contents(other) == contents(index)
    other.close()


CUT_OFF = ItemCompleted(item_id="x", text="cut o", incomplete=True, reason="killed")
WHOLE = ItemCompleted(item_id="x", text="cut off")
WITHDRAWN = ItemRetracted(item_id="x")
OTHER = structs.replace(CUT_OFF, item_id="y")
BEGUN = ItemStarted(item_id="x", item_type="text", doubtful="attempt")
DOUBTFUL = ItemCompleted(item_id="x", text="cut o", doubtful="end")


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("items", "counted", "marks"),
    [
        ([CUT_OFF], {"incomplete": 1}, ("incomplete",)),
        ([CUT_OFF, WITHDRAWN], {"retracted": 1}, ("retracted",)),
        ([CUT_OFF, WHOLE], {}, ()),
        ([CUT_OFF, CUT_OFF], {"incomplete": 1}, ("incomplete",)),
        ([CUT_OFF, OTHER, WITHDRAWN], {"incomplete": 1, "retracted": 1}, ("incomplete", "retracted")),
        ([CUT_OFF, WITHDRAWN, FORGOTTEN], {"retracted": 1}, None),
        ([CUT_OFF, FORGOTTEN, WITHDRAWN], {"incomplete": 1, "retracted": 1}, None),
        ([TurnStop(incomplete=True)], {}, ()),
        ([BEGUN], {"doubtful": 1}, ("doubtful",)),
        ([BEGUN, DOUBTFUL], {"doubtful": 1}, ("doubtful",)),
        ([BEGUN, DOUBTFUL, WITHDRAWN], {"retracted": 1}, ("retracted",)),
        ([BEGUN, WITHDRAWN], {"retracted": 1}, ("retracted",)),
        ([BEGUN, OTHER, DOUBTFUL, WHOLE], {"incomplete": 1}, ("incomplete",)),
        ([BEGUN, CUT_OFF], {"incomplete": 1}, ("incomplete",)),
        ([CUT_OFF, DOUBTFUL], {"doubtful": 1}, ("doubtful",)),
    ],
)
def test_an_item_counts_once_by_its_outcome(tmp_path, items, counted, marks, size):
    topics, entries = Topics(), []
    for seq, item in enumerate(items, 1):
        topic = AGENT_TURNS if item is FORGOTTEN else SESSION_ITEMS
        topics.put(topic, "s", msgspec.to_builtins(item) | {"seq": seq})
        entries += [each for each in topics.entries() if each.topic == topic][-1:]
    index, whole = (Index.open(tmp_path / name, cluster="c", prefix="") for name in ("index", "whole"))
    whole.write(entries, {})
    for at in range(0, len(entries), size):
        index.write(entries[at : at + size], {})
    sql = "SELECT code, sum(count) FROM counters WHERE unit = ? AND code <> '' GROUP BY code"
    rows = index.reader.rows(sql, DAY_MS)
    assert dict(rows) == counted
    assert [row.marks for row in sessions.sessions(index.reader, search.Search()).rows] == [marks] * (marks is not None)
    assert contents(index) == contents(whole)
    for each in (index, whole):
        each.close()


def test_items_reduce_to_the_same_view_as_those_of_the_topic(index, topics):
    decode = msgspec.json.Decoder(AnyItem).decode
    published = [each for each in topics.logs[SESSION_ITEMS, 0] if each.key == b"s1"]
    kept = timeline.items(index.reader, "s1")
    values = dict(index.reader.rows("SELECT place, value FROM entries"))
    found = reduce(decode(values[entry.number]) for entry in kept)
    assert found.entries == reduce(decode(each.value) for each in published).entries
    assert [entry.text for entry in found.entries] == ["s1 answers"]
    # Text that arrived in ten pieces is one entry.
    assert [entry.kind for entry in kept].count("item/delta") == 1


@pytest.mark.parametrize("read", [timeline.items, lambda reader, name: timeline.of_items(reader, name, ["a"])])
def test_pieces_are_read_while_the_index_joins_them(tmp_path, read):
    topics = Topics()
    topics.put(SESSION_ITEMS, "s", ItemStarted(item_id="a", item_type="text"))
    for piece in ("One, ", "two."):
        topics.put(SESSION_ITEMS, "s", ItemDelta(item_id="a", delta_type="text_delta", content=piece))
    index = index_of(tmp_path / "index", topics)

    class WithWriter(Reader):
        """A reader; the item ends after its first query."""

        def rows(self, sql, *given):
            found = super().rows(sql, *given)
            if len(topics.logs[SESSION_ITEMS, 0]) == 3:
                topics.put(SESSION_ITEMS, "s", ItemCompleted(item_id="a"))
                index.write(topics.entries(), topics.positions())
            return found

    found = read(WithWriter(index.path), "s")
    assert [each.kind for each in found] == ["item/started", "item/delta", "item/delta"]
    # The next read has the record that the index made of both pieces.
    assert [each.kind for each in read(index.reader, "s")] == ["item/started", "item/delta", "item/completed"]
    index.close()


def test_text_streamed_in_pieces_is_found_and_shown(index):
    assert [row.name for row in sessions.sessions(index.reader, search.Search(words='"s1 answers"')).rows] == ["s1"]
    shown = timeline.timeline(index.reader, "s1", kinds=("item/completed",)).entries
    assert [entry.summary for entry in shown] == ["s1 answers"]


def test_the_file_is_readable_only_by_its_owner(index):
    modes = [stat.S_IMODE(file.stat().st_mode) for file in index.path.parent.iterdir()]
    assert modes == [0o600] * 4  # with its write-ahead log, its shared memory and its lock


def test_an_index_has_one_writer(index):
    with pytest.raises(IndexFileError) as raised:
        Index.open(index.path, cluster="c", prefix="")
    assert raised.value.code == "index_in_use"


@pytest.mark.parametrize("other", [{"cluster": "d", "prefix": ""}, {"cluster": "c", "prefix": "p."}])
def test_an_index_of_another_cluster_or_prefix_is_rejected_and_rebuilt_on_request(tmp_path, topics, other):
    index_of(tmp_path / "index", topics).close()
    with pytest.raises(IndexFileError, match="--rebuild") as raised:
        Index.open(tmp_path / "index", **other)
    assert raised.value.code == "index_foreign"
    anew = Index.open(tmp_path / "index", **other, rebuild=True)
    assert (anew.positions, sessions.sessions(anew.reader, search.Search()).rows) == ({}, [])
    anew.close()


@pytest.mark.parametrize(("damage", "code"), [(b"no database", "index_damaged"), (b"", "index_version")])
def test_an_unusable_file_is_reported_with_the_next_step(tmp_path, damage, code):
    path = tmp_path / "index"
    if damage:
        path.write_bytes(damage * 1000)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
    with pytest.raises(IndexFileError, match="--rebuild") as raised:
        Index.open(path, cluster="c", prefix="")
    assert raised.value.code == code


def test_an_index_of_version_1_gets_its_new_columns(tmp_path):
    topics = filled(demo_inputs())
    index = index_of(tmp_path / "index", topics)
    expected, sums = contents(index), index.reader.rows("SELECT * FROM sums")
    index.close()
    with sqlite3.connect(tmp_path / "index") as connection:
        connection.executescript(
            "DROP TRIGGER sums_insert; DROP TRIGGER sums_update; DROP TRIGGER sums_delete; DROP TABLE sums; "
            "ALTER TABLE sessions DROP COLUMN added; "
            "DELETE FROM facets WHERE kind = 'severity' AND value IN ('lost', 'added'); PRAGMA user_version = 1;"
        )
    connection.close()
    index = Index.open(tmp_path / "index", cluster="c", prefix="")
    assert contents(index) == expected
    assert index.reader.rows("SELECT * FROM sums") == sums
    assert sum(row["added"] for row in expected["sessions"]) > 0
    index.close()


def test_a_rebuilt_index_is_equal(tmp_path, index, topics):
    before = contents(index)
    index.close()
    again = Index.open(index.path, cluster="c", prefix="", rebuild=True)
    again.write(topics.entries(), topics.positions())
    assert contents(again) == before
    again.close()


def in_files(index, words):
    return [file.name for file in index.path.parent.iterdir() if words in file.read_bytes()]


def test_a_forgotten_session_is_in_no_table_and_no_file(index, topics):
    assert in_files(index, b"moon")
    without = Topics()
    talk(without, "s1", "hello world")
    topics.put_turns("s2", FORGOTTEN)
    index.write(topics.entries(), topics.positions())
    while index.erase():
        pass
    assert sessions.session(index.reader, "s2") is None
    found = contents(index)
    assert [row["name"] for row in found["sessions"]] == ["s1"]
    assert all(row["session"] == "s1" for table in ("entries", "runs", "facets") for row in found[table])
    assert in_files(index, b"moon") == in_files(index, b"s2 answers") == []


def test_late_records_of_a_forgotten_session_are_ignored(index, topics):
    topics.put_turns("s2", FORGOTTEN)
    behind = [each for each in topics.entries() if each.topic == AGENT_TURNS]
    index.write(behind, {})
    talk(topics, "s2", "hello again")
    index.write(topics.entries(), topics.positions())
    assert sessions.session(index.reader, "s2") is None
    topics.now_ms += 33 * DAY_MS
    topics.put_turns("s2", OPENED)
    index.write(topics.entries(), topics.positions())
    assert sessions.session(index.reader, "s2") is not None


def test_records_that_a_topic_no_longer_has_are_removed(tmp_path, index, topics):
    """The index equals one of the remaining records, except for its counters."""
    ends = {place: len(log) // 2 for place, log in topics.logs.items()}
    for (topic, partition), end in ends.items():
        while index.drop_before(topic, partition, end, most=3):
            pass
    rest = Index.open(tmp_path / "rest", cluster="c", prefix="")
    kept = [each for each in topics.entries() if each.offset >= ends[each.topic, each.partition]]
    rest.write(kept, topics.positions())
    tables = ("entries", "facets", "words")
    found, expected = contents(index), contents(rest)
    assert {table: found[table] for table in tables} == {table: expected[table] for table in tables}
    for row in (*found["sessions"], *expected["sessions"]):
        del row["last_ms"], row["first_ms"]
    assert found["sessions"] == expected["sessions"]
    rest.close()
    everything = {place: len(log) for place, log in topics.logs.items()}
    for (topic, partition), end in everything.items():
        while index.drop_before(topic, partition, end):
            pass
    found = contents(index)
    assert [found[table] for table in ("sessions", "entries", "deltas", "runs", "facets", "words")] == [[]] * 6


def test_a_batch_is_written_completely_or_not_at_all(index, topics):
    before, positions = contents(index), index.positions
    talk(topics, "s3", "more")
    *entries, last = topics.entries()
    with pytest.raises(OverflowError):
        index.write([*entries, structs.replace(last, turn=1 << 80)], topics.positions())
    assert (contents(index), index.positions) == (before, positions)
    index.write(topics.entries(), topics.positions())
    assert sessions.session(index.reader, "s3") is not None


class ToldTooEarly:
    """A consumer of one partition whose broker reports an end of 1, and whose records end at ``holds``."""

    def __init__(self, holds):
        self._holds, self._served, self.at = holds, None, 0

    def assign(self, places):
        pass

    def seek(self, place, offset):
        self.at = offset

    async def beginning_offsets(self, places):
        return dict.fromkeys(places, 0)

    async def end_offsets(self, places):
        return dict.fromkeys(places, 1)

    def highwater(self, place):
        return self._served

    async def getmany(self, place, timeout_ms):
        await asyncio.sleep(0)
        if self.at < self._holds:
            self.at = self._served = self._holds
        return {}


async def test_an_end_reported_too_early_is_not_taken_for_another_topic(index, monkeypatch):
    place = TopicPartition(AGENT_TURNS, 0)
    monkeypatch.setattr(reading, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(reading, "every_place", AsyncMock(return_value={AGENT_TURNS: [place]}))
    follower, position = Follower(load_config(env={}), index), index.positions[AGENT_TURNS, 0]
    consumer = ToldTooEarly(holds=position)
    assert await follower._look(consumer, {}) == {place: AGENT_TURNS}
    assert consumer.at == position > 1
    for holds in (position - 1, 1):
        with pytest.raises(IndexFileError, match="--rebuild"):
            await follower._look(ToldTooEarly(holds), {})
