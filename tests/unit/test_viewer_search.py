"""Search in the index: by all conditions, each session once, page by page."""

from unittest.mock import Mock
from urllib.parse import parse_qsl

import pytest
from build import call, said, user
from multidict import MultiDict
from published_records import OPENED, answers, appended
from viewer_lab import Topics, index_of

from reknit.pipeline.errors import InputError
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.viewer.index import activity, sessions, timeline
from reknit.pipeline.viewer.index.search import Search
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, PROVIDER_EVENTS
from reknit.topics.headers import ERROR_LETTER


@pytest.fixture
def topics():
    made = Topics(Defaults(on_dead_letter="park"))
    made.put_turns("mended", OPENED, *appended(user("the first"), said(call("a")), user("no <answer> & on")))
    made.put(AGENT_TURNS, "mended", {"type": "request.wanted"}, (("producer", b"crew/1.4"),))
    made.put_turns("parked", OPENED, {"type": "turn.appended", "message": {"role": "nobody", "content": "Zürich"}})
    made.put_turns("rejected", {"type": "session.opened", "model": "m"}, *appended(user("without a limit")))
    made.put_turns("gemini/1", OPENED | {"targets": ["gemini"]}, *appended(user("well formed"), said("yes")))
    made.put_turns("restored", {"type": "history.restored", "messages": [user("one"), said("two"), user("three")]})
    for record in answers("streamed words", key=b"streamed"):
        made.put(PROVIDER_EVENTS, "streamed", record.value, record.headers)
    return made


@pytest.fixture
def reader(tmp_path, topics):
    index = index_of(tmp_path / "index", topics)
    yield index.reader
    index.close()


def names(page):
    return [row.name for row in page.rows]


def walk(part_at, onward):
    """Yield the pages of a result from one end to the other, by the cursor that each has for the next."""
    place = ""
    while True:
        part = part_at(place)
        yield part
        place = getattr(part, onward)
        if not place:
            return


EVERY = ["streamed", "restored", "gemini/1", "rejected", "parked", "mended"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ([], EVERY),
        ([("session", "gemini/")], ["gemini/1"]),
        ([("session", "nobody")], []),
        ([("code", "result_synthesised")], ["mended"]),
        ([("code", "result_synthesised"), ("code", "no_such_code")], []),
        ([("target", "gemini")], ["gemini/1"]),
        ([("severity", "lossy")], ["streamed", "mended"]),
        ([("producer", "crew/1.4")], ["mended"]),
        ([("parked", "1")], ["parked"]),
        ([("rejected", "1")], ["rejected"]),
        ([("since", "2025-10-09T08:53:36+00:00")], ["streamed"]),
        ([("until", "2025-10-09T08:53:21+00:00")], ["mended"]),
        ([("q", "first")], ["mended"]),
        ([("q", "first <answer>")], []),
        ([("q", "zurich")], ["parked"]),
        ([("q", '"well formed"')], ["gemini/1"]),
        ([("q", '"formed well"')], []),
        ([("q", "streamed"), ("session", "st")], ["streamed"]),
        ([("q", "streamed"), ("code", "result_synthesised")], []),
        ([("q", "three")], ["restored"]),
        ([("q", 'NEAR( "* OR')], []),
        ([("q", "&&&")], []),
        ([("nonsense", "1"), ("session", "parked")], ["parked"]),
    ],
)
def test_a_search_finds(reader, query, expected):
    wanted = Search.from_query(MultiDict(query))
    assert names(sessions.sessions(reader, wanted)) == expected
    # It is a URL: parsing the URL gives the same search.
    assert Search.from_query(MultiDict([pair for pair in query if pair[0] != "nonsense"])) == wanted


@pytest.mark.parametrize(
    "wanted",
    [
        Search(),
        Search(words='a "b c" <&>', session="s/ 1", codes=("x", "y"), target="t", severity="lossy", producer="p/1"),
        Search(since="24h", until="2025-10-09", parked=True, rejected=True),
    ],
)
def test_a_search_is_its_url(wanted):
    assert Search.from_query(MultiDict(parse_qsl(wanted.query()))) == wanted


@pytest.mark.parametrize(("name", "value"), [("since", "yesterday"), ("until", "12 o'clock")])
def test_an_invalid_time_is_the_callers_fault(name, value):
    with pytest.raises(InputError, match="bad_search"):
        Search.from_query(MultiDict({name: value}))


@pytest.mark.parametrize("after", ["x", "1", "1-x"])
def test_an_invalid_cursor_is_the_callers_fault(reader, after):
    with pytest.raises(InputError, match="bad_search"):
        sessions.sessions(reader, Search(), after)


def test_a_session_has_the_sums_of_its_records(reader):
    row = sessions.session(reader, "mended")
    assert (row.turns, row.requests, row.fixes, row.lossy, row.letters) == (3, 3, 1, 1, 0)
    assert (row.targets, row.parked) == (("anthropic",), False)
    assert sessions.session(reader, "restored").turns == 3
    assert sessions.session(reader, "parked").parked
    assert sessions.session(reader, "no such session") is None


def test_a_released_session_is_not_parked(tmp_path, topics):
    topics.put_turns("parked", {"type": "session.released"})
    index = index_of(tmp_path / "other", topics)
    assert names(sessions.sessions(index.reader, Search(parked=True))) == []
    index.close()


def test_found_words_are_marked(reader):
    (row,) = sessions.sessions(reader, Search(words="answer")).rows
    assert row.excerpt == "no <\x02answer\x03> & on"


@pytest.mark.parametrize("wanted", [Search(), Search(words="hello"), Search(codes=("result_synthesised",))])
@pytest.mark.parametrize("bound", ["few", "many"])
def test_each_session_is_on_one_page_while_new_ones_arrive(tmp_path, monkeypatch, wanted, bound):
    if bound == "many":  # as with more sessions than can be sorted
        monkeypatch.setattr(sessions, "_FEW", 0)
        monkeypatch.setattr(sessions, "_FEW_WITH_WORDS", 0)
    topics = Topics()
    for number in range(25):
        topics.put_turns(f"s{number}", OPENED, *appended(user("hello"), said(call("a")), user("hello again")))
    index = index_of(tmp_path / "index", topics)
    seen = []
    for page in walk(lambda after: sessions.sessions(index.reader, wanted, after, limit=4), "after"):
        seen += names(page)
        topics.put_turns(f"new{len(seen)}", OPENED, *appended(user("hello"), said(call("a")), user("go on")))
        index.write(topics.entries(), topics.positions())
    assert seen == [f"s{number}" for number in reversed(range(25))]
    index.close()


@pytest.mark.parametrize("wanted", [Search(target="gemini"), Search(words="hello", target="gemini")])
def test_a_search_with_few_results_ends_page_by_page_too(tmp_path, monkeypatch, wanted):
    for bound in ("_FEW", "_FEW_WITH_WORDS"):
        monkeypatch.setattr(sessions, bound, 0)
    monkeypatch.setattr(sessions, "_MOST", 6)
    monkeypatch.setattr(sessions, "_CHUNK", 2)
    topics = Topics()
    for number in range(20):
        opened = OPENED | {"targets": ["gemini" if number in {3, 17} else "anthropic"]}
        topics.put_turns(f"s{number}", opened, *appended(user("hello"), said(call("a")), user("go on")))
    index = index_of(tmp_path / "index", topics)
    parts = [names(page) for page in walk(lambda after: sessions.sessions(index.reader, wanted, after), "after")]
    assert [name for part in parts for name in part] == ["s17", "s3"]
    assert len(parts) > 2
    index.close()


def test_a_timeline_is_walked_in_both_directions(reader):
    whole = timeline.timeline(reader, "mended", limit=100)
    assert (whole.before, whole.after) == ("", "")
    assert [entry.kind for entry in whole.entries][:5] == ["opened", "told", "turn", "request", "turn"]
    back = walk(lambda before: timeline.timeline(reader, "mended", before=before, limit=3), "before")
    parts = [part.entries for part in back][::-1]
    assert [entry for part in parts for entry in part] == whole.entries
    forward, after = [parts[0]], parts[0][-1].cursor
    while after:
        part = timeline.timeline(reader, "mended", after=after, limit=3)
        forward.append(part.entries)
        after = part.after
    assert [entry for part in forward for entry in part] == whole.entries
    only = timeline.timeline(reader, "mended", kinds=("fix", "request"), limit=100).entries
    assert only == [entry for entry in whole.entries if entry.kind in {"fix", "request"}]
    assert timeline.timeline(reader, "nobody").entries == []


def test_causes_and_effects_of_a_record(reader):
    (fix,) = timeline.timeline(reader, "mended", kinds=("fix",)).entries
    cause = timeline.entry_at(reader, fix.cause)
    assert (cause.kind, cause.summary) == ("turn", "no <answer> & on")
    assert [entry.kind for entry in timeline.led_to(reader, fix.cause)] == ["fix", "request"]
    log = timeline.turns_until(reader, "mended", fix.cause)
    assert [entry.kind for entry in log] == ["opened", "turn", "turn", "turn"]
    sent = timeline.timeline(reader, "mended", kinds=["request"]).entries
    assert [entry.turn for entry in sent] == [2, 4, 4]
    assert timeline.request(reader, "mended", sent[0].request_id) == sent[0]
    assert timeline.request(reader, "parked", sent[0].request_id) is None
    assert timeline.timeline(reader, "mended", kinds=["request"], target="gemini").entries == []


@pytest.mark.parametrize("place", ["", "agent.turns.v1", "agent.turns.v1/0/x", "nothing/0/1"])
def test_an_invalid_place_is_the_callers_fault(reader, place):
    with pytest.raises(InputError, match="bad_place"):
        timeline.entry_at(reader, place)


def test_dead_letters_are_listed_by_code_and_session(reader):
    def found(after="", limit=50, **wanted):
        return timeline.letters(reader, timeline.LetterFilter(**wanted), after, limit)

    rows = found().rows
    assert [(row.session, row.kind) for row in rows] == [("rejected", "rejection"), ("parked", "letter")]
    assert [row.session for row in found(code=rows[1].code).rows] == ["parked"]
    assert [row.session for row in found(session="rejected").rows] == ["rejected"]
    assert [row.session for row in found(after=found(limit=1).after).rows] == ["parked"]
    assert timeline.letter_groups(reader, timeline.LetterFilter(), 10) == [
        timeline.LetterGroup(row.code, row.kind, 1, 1, row.time_ms) for row in rows
    ]


def test_open_dead_letters_are_those_without_a_note(tmp_path, topics):
    index = index_of(tmp_path / "index", topics)
    every, open_ = timeline.LetterFilter(), timeline.LetterFilter(open=True)
    letter = timeline.letters(index.reader, every).rows[-1]
    record = topics.logs[DEAD_LETTERS, letter.partition][letter.offset]
    note = ((ERROR_LETTER, f"{letter.partition}/{letter.offset}".encode()), *record.headers)
    topics._append(DEAD_LETTERS, record.key, None, note)
    index.write(topics.entries(), topics.positions())
    assert [row.session for row in timeline.letters(index.reader, every).rows] == ["rejected", "parked"]
    assert [row.session for row in timeline.letters(index.reader, open_).rows] == ["rejected"]
    assert [group.letters for group in timeline.letter_groups(index.reader, open_, 10)] == [1]
    index.close()


@pytest.mark.parametrize("number", ["turns", "requests", "fixes", "lost", "added", "letters"])
def test_a_list_is_sorted_by_a_number(reader, number):
    every, wanted = sessions.sessions(reader, Search()).rows, Search(sort=number)
    pages = walk(lambda after: sessions.sessions(reader, wanted, after, 2), "after")
    found = [row for page in pages for row in page.rows]
    assert sorted(row.name for row in found) == sorted(row.name for row in every)
    numbers = [getattr(row, number) for row in found]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) > 1


def test_a_list_is_not_sorted_by_another_member():
    with pytest.raises(InputError, match="sorted by duration, turns"):
        Search.from_query(MultiDict(sort="name"))


def test_totals_are_the_sums_of_the_rows(reader):
    for search in (Search(), Search(target="anthropic"), Search(session="nobody")):
        rows, sums = sessions.sessions(reader, search).rows, sessions.totals(reader, search)
        assert (sums.sessions, sums.bounded) == (len(rows), False)
        for name in ("turns", "requests", "fixes", "lost", "added", "letters"):
            assert getattr(sums, name) == sum(getattr(row, name) for row in rows)


def test_totals_follow_the_index(tmp_path, topics):
    index = index_of(tmp_path / "index", topics)
    searches = Search(), Search(session="m"), Search(target="anthropic")
    for _ in range(2):
        for search in searches:
            rows = sessions.sessions(index.reader, search).rows
            assert sessions.totals(index.reader, search).turns == sum(row.turns for row in rows)
        topics.put_turns("more", OPENED, *appended(user("one"), said("two"), user("three")))
        index.write(topics.entries(), topics.positions())
    before = sessions.totals(index.reader, Search())
    gone = sessions.session(index.reader, "more")
    topics.put(AGENT_TURNS, "more", {"type": "session.forgotten"})
    index.write(topics.entries(), topics.positions())
    after = sessions.totals(index.reader, Search())
    assert (before.sessions - after.sessions, before.turns - after.turns) == (1, gone.turns)
    index.close()


def test_totals_of_an_unchanged_index_are_computed_once(tmp_path, topics, monkeypatch):
    index = index_of(tmp_path / "index", topics)
    monkeypatch.setattr(sessions, "_totals_of", Mock(side_effect=sessions._totals_of))
    for _ in range(3):
        sessions.totals(index.reader, Search(target="anthropic"))
    assert sessions._totals_of.call_count == 1
    topics.put_turns("more", OPENED, *appended(user("one")))
    index.write(topics.entries(), topics.positions())
    sessions.totals(index.reader, Search(target="anthropic"))
    assert sessions._totals_of.call_count == 2
    index.close()


def test_the_rows_of_a_list_need_a_fixed_number_of_queries(reader, monkeypatch):
    queries = []
    ask = reader.rows
    monkeypatch.setattr(reader, "rows", lambda sql, *given: queries.append(sql) or ask(sql, *given))
    counts = []
    for limit in (1, 4):
        queries.clear()
        assert len(sessions.sessions(reader, Search(), limit=limit).rows) == limit
        counts.append(sum("FROM entries" in sql for sql in queries))
    assert counts == [1, 1]


def test_a_row_has_the_first_words_and_the_model(reader):
    row = sessions.session(reader, "mended")
    assert (row.first_words, row.model) == ("the first", OPENED["model"])
    assert sessions.session(reader, "streamed").first_words


def test_words_are_found_within_one_session(reader):
    (entry,) = timeline.found_words(reader, "mended", "first", ("turn",), 10)
    assert (entry.session, entry.role, entry.summary) == ("mended", "user", "the first")
    assert timeline.found_words(reader, "parked", "first", ("turn",), 10) == []
    assert timeline.found_words(reader, "mended", "first", ("fix",), 10) == []
    assert timeline.found_words(reader, "nobody", "first", ("turn",), 10) == []
    assert timeline.found_words(reader, "mended", "&&&", ("turn",), 10) == []


def test_an_overview_counts_records(reader, topics):
    found = activity.overview(reader, topics.now_ms - 3_000_000, topics.now_ms)
    counted = {
        (each.kind, each.target): each.count for each in found.counts if each.kind in {"fix", "request", "session"}
    }
    assert counted == {("fix", ""): 1, ("request", "anthropic"): 3, ("request", "gemini"): 1, ("session", ""): 6}
    assert (found.sessions, found.parked, found.latest_ms) == (6, 1, topics.now_ms)
    assert activity.overview(reader, topics.now_ms + 9_000_000, topics.now_ms + 9_900_000).counts == []
