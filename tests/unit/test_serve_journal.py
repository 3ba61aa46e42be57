"""The gateway's journal: records stay until they are delivered, also after a process that was killed."""

import os

import pytest

from reknit.pipeline.errors import InputError
from reknit.pipeline.serve.journal import Journal
from reknit.pipeline.serve.journal_format import Delivered, InputRecord, Stored, encode_frame, frames, ranges_of
from reknit.pipeline.serve.run_order import RunOrder

SEGMENT = 400


def piece(run, seq, value=b"x" * 40, *, session="s", ends=False):
    return InputRecord("provider.events.v1", session, None if ends else value, (("run", run.encode()),), run, seq, ends)


def left(journal):
    """Everything that is not delivered, in order."""
    found = []
    while some := journal.read(100):
        found += some
    return found


def values(found):
    return [(record.run, record.seq) for _, record in found]


class Opened:
    """A journal whose process can be killed: its files stay, and nothing is closed properly."""

    def __init__(self, directory):
        self.directory = directory
        self.open()

    def open(self):
        self.journal = Journal(self.directory, segment_bytes=SEGMENT)
        return self.journal

    def kill(self):
        self.journal.close()  # the system closes files of a killed process, and frees its lock
        return self.open()


@pytest.fixture
def opened(tmp_path):
    found = Opened(tmp_path)
    yield found
    found.journal.close()


def test_records_are_read_in_order_over_several_segments(opened):
    for seq in range(40):
        opened.journal.append([piece("a", seq)])
    assert values(left(opened.journal)) == [("a", seq) for seq in range(40)]
    assert len(list((opened.directory / "serve.journal").glob("[0-9]*"))) > 5


def test_a_killed_process_leaves_what_was_not_delivered(opened):
    opened.journal.append([piece("a", seq) for seq in range(10)])
    places = [place.number for place, _ in left(opened.journal)]
    opened.journal.deliver([places[0], places[2], places[3]])
    again = opened.kill()
    assert values(left(again)) == [("a", seq) for seq in (1, 4, 5, 6, 7, 8, 9)]


@pytest.mark.parametrize("kills", range(6))
def test_delivered_records_never_come_back_and_numbers_are_not_used_twice(opened, kills):
    seen = []
    for number in range(12):
        opened.journal.append([piece("a", number)])
        found = left(opened.journal)
        seen += values(found)
        opened.journal.deliver([place.number for place, _ in found])
        if number % 6 <= kills:
            opened.kill()
    assert seen == [("a", seq) for seq in range(12)]
    assert left(opened.kill()) == []


def test_delivered_segments_are_deleted_and_the_size_says_so(opened):
    for seq in range(40):
        opened.journal.append([piece("a", seq)])
    before = opened.journal.size
    opened.journal.deliver([place.number for place, _ in left(opened.journal)])
    files = list((opened.directory / "serve.journal").glob("[0-9]*"))
    assert opened.journal.size == sum(file.stat().st_size for file in files) < before / 4


def test_an_undelivered_record_keeps_its_segment_and_the_later_ones(opened):
    for seq in range(40):
        opened.journal.append([piece("a", seq)])
    numbers = [place.number for place, _ in left(opened.journal)]
    opened.journal.deliver(numbers[:3] + numbers[4:])
    assert values(left(opened.kill())) == [("a", 3)]


@pytest.mark.parametrize("cut", [1, 7, 9, 20])
def test_a_torn_end_is_ignored_and_the_journal_goes_on(opened, cut):
    opened.journal.append([piece("a", 0), piece("a", 1)])
    opened.journal.close()
    path = max((opened.directory / "serve.journal").glob("[0-9]*"))
    os.truncate(path, path.stat().st_size - cut)
    again = opened.open()
    again.append([piece("b", 0)])
    assert values(left(again)) == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("at", [0, 5, 12, 30])
def test_a_damaged_frame_ends_its_segment(opened, at):
    opened.journal.append([piece("a", 0)])
    opened.journal.close()
    path = max((opened.directory / "serve.journal").glob("[0-9]*"))
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    assert left(opened.open()) == []


def test_runs_without_an_end_are_known_after_a_kill(opened):
    for seq in range(20):  # over several segments, all of them delivered and deleted
        opened.journal.append([piece("a", seq), piece("b", seq, session="t")])
    opened.journal.append([piece("b", 20, session="t", ends=True)])
    opened.journal.deliver([place.number for place, _ in left(opened.journal)])
    again = opened.kill()
    assert [(record.session, record.run, record.seq, record.value) for record in again.unfinished] == [
        ("s", "a", 19, None)
    ]


def test_a_rewind_reads_what_is_not_delivered_again(opened):
    opened.journal.append([piece("a", seq) for seq in range(4)])
    first = left(opened.journal)
    opened.journal.deliver([first[1][0].number])
    assert left(opened.journal) == []
    opened.journal.rewind()
    assert values(left(opened.journal)) == [("a", 0), ("a", 2), ("a", 3)]


def test_records_are_read_again_by_their_places(opened):
    large = piece("a", 0, b"y" * 5000)
    opened.journal.append([piece("a", 1), large, piece("a", 2)])
    found = left(opened.journal)
    assert opened.journal.read_again([place for place, _ in found[1:]]) == found[1:]


def test_two_gateways_cannot_use_one_directory(opened):
    with pytest.raises(InputError) as caught:
        Journal(opened.directory)
    assert caught.value.code == "state_dir_unusable"


def test_files_are_for_their_owner_only(opened):
    folder = opened.directory / "serve.journal"
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert (folder.stat().st_mode & 0o777, modes) == (0o700, {0o600})


def test_frames_stop_at_the_first_that_is_not_whole():
    whole = [encode_frame(Stored(at, piece("a", at))) for at in range(3)]
    data = b"".join(whole)
    assert [frame.end for frame in frames(data)] == [len(whole[0]) * (at + 1) for at in range(3)]
    for cut in range(len(data)):
        assert len(list(frames(data[:cut]))) == cut // len(whole[0])


def test_ranges_hold_each_number_once():
    assert ranges_of([5, 1, 2, 2, 3, 9]) == ((1, 3), (5, 5), (9, 9))
    assert next(frames(encode_frame(Delivered(((1, 3),))))).entry == Delivered(((1, 3),))


def test_runs_of_one_session_follow_each_other():
    order = RunOrder()
    end_a, end_b = piece("a", 1, ends=True), piece("b", 1, ends=True)
    arrivals = [piece("a", 0), piece("b", 0), piece("c", 0), piece("b", 0, session="t"), end_b, end_a]
    sent = [record for record in arrivals if order.arrive(record, record)]
    assert sent == [piece("a", 0), piece("b", 0, session="t"), end_a]
    assert (order.waiting, order.end(end_a), order.waiting) == (3, [piece("b", 0), end_b], 1)
    assert (order.end(end_b), order.waiting) == ([piece("c", 0)], 0)


def test_turns_and_answers_of_a_session_do_not_wait_for_each_other():
    order = RunOrder()
    turns = [InputRecord("agent.turns.v1", "s", b"{}", (), run, ends_run=True) for run in ("a", "b")]
    assert [order.arrive(record, record) for record in (piece("a", 0), *turns)] == [True, True, False]
    assert order.end(turns[0]) == [turns[1]]
