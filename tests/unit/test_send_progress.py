"""Commits of a group whose requests end in any order, and the continuation by the next owner."""

import random

import pytest

from reknit.pipeline.client.progress import MOST_TEXT, Progress


def after(done, read, *, offset=None, text=""):
    """Return the progress of a partition whose records are read and partly done, and the begun requests."""
    progress = Progress(offset, text)
    begun = [each for each in read if progress.begin(each)]
    for each in done:
        progress.finish(each)
    return progress, begun


def test_nothing_is_committed_before_anything_is_read():
    progress = Progress()
    assert (progress.mark(), progress.is_changed) == (None, False)


def test_requests_finished_without_a_gap_need_no_text():
    progress, _ = after([5, 7, 6], [5, 6, 7])
    assert progress.mark() == (8, "")
    assert progress.is_changed
    progress.note_committed((8, ""))
    assert not progress.is_changed


def test_the_next_owner_skips_requests_that_were_done_after_an_open_one():
    progress, _ = after([3, 11, 15], [1, 3, 9, 11, 15, 17])
    offset, text = progress.mark()
    assert offset == 1
    following, begun = after([], [1, 3, 9, 11, 15, 17, 19], offset=offset, text=text)
    assert begun == [1, 9, 17, 19]
    assert following.mark() == (offset, text)


def test_done_requests_that_the_next_owner_has_not_read_yet_stay_known():
    offset, text = after([30, 50], [10, 30, 40, 50])[0].mark()
    following, begun = after([10], [10], offset=offset, text=text)
    assert begun == [10]
    third, begun = after([], [30, 40, 50, 60], offset=following.mark()[0], text=following.mark()[1])
    assert begun == [40, 60]
    assert not third.begin(50)


def test_records_that_are_read_again_are_begun_once():
    progress, _ = after([2], [1, 2, 3])
    assert [progress.begin(offset) for offset in (1, 2, 3, 4)] == [False, False, False, True]


def test_a_recreated_log_is_read_from_its_beginning():
    progress, begun = after([], [500, 501], offset=500)
    assert begun == [500, 501]
    assert [progress.begin(offset) for offset in (0, 1)] == [True, True]
    progress.finish(500)  # of the previous log
    progress.finish(0)
    assert progress.mark() == (1, "")


@pytest.mark.parametrize("text", ["", "another program's", "[]", "{}", '["x", 1]', "[1]"])
def test_text_of_other_programs_is_ignored(text):
    assert after([], [7, 8], offset=7, text=text)[1] == [7, 8]


def test_the_text_is_never_longer_than_brokers_accept():
    read = list(range(0, 100_000, 7))
    done = read[1::2]
    progress, _ = after(done, read)
    offset, text = progress.mark()
    assert len(text) <= MOST_TEXT
    begun = after([], read, offset=offset, text=text)[1]
    assert set(read) - set(done) <= set(begun)
    assert len(begun) < len(read) - 300


def test_the_next_owner_begins_exactly_the_open_requests():
    chance = random.Random(3)  # noqa: S311  examples, not secrets
    for _ in range(200):
        read = sorted(chance.sample(range(60), 20))
        done = chance.sample(read, chance.randrange(21))
        rest = [each for each in read if each not in done]
        offset, text = after(done, read)[0].mark()
        again = chance.sample(rest, chance.randrange(len(rest) + 1))
        seen = read[: chance.randrange(21)]
        following, begun = after(
            [each for each in again if each in seen], [e for e in seen if e >= offset], offset=offset, text=text
        )
        assert begun == [each for each in seen if each in rest]
        offset, text = following.mark()
        left = [each for each in rest if not (each in again and each in seen)]
        assert after([], [e for e in read if e >= offset], offset=offset, text=text)[1] == left
