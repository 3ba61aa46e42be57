"""The words that differ between two versions of a text."""

import random

import pytest

from reknit.pipeline.text import changed_words as module
from reknit.pipeline.text.changed_words import changed_words

WORDS = ["a", "b", "c", " ", ",", "\n"]


def marked(pieces):
    return "".join(f"[{text}]" if is_different else text for text, is_different in pieces)


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        ("one two three", "one 2 three", "one [two] three", "one [2] three"),
        ("call_a b", "call_a, b", "call_a b", "call_a[,] b"),
        ("one two three", "two three", "[one ]two three", "two three"),
        ("x = 1; y = 2; z = 3", "x = 1; y = 5; z = 4", "x = 1; y = [2]; z = [3]", "x = 1; y = [5]; z = [4]"),
        ("first\nsecond", "first\nsecond\nthird", "first\nsecond", "first\nsecond[\nthird]"),
        ("", "new", "", "[new]"),
        ("das Geräusch", "das Gerücht", "das [Geräusch]", "das [Gerücht]"),
    ],
)
def test_differing_words_are_marked(before, after, old, new):
    found = changed_words(before, after)
    assert tuple(map(marked, found)) == (old, new)


@pytest.mark.parametrize(("before", "after"), [("same", "same"), ("", ""), ("one two three four", "un deux trois")])
def test_equal_and_unrelated_texts_have_no_marks(before, after):
    assert changed_words(before, after) is None


def test_the_texts_are_complete_and_their_unmarked_parts_equal():
    chance = random.Random(7)  # noqa: S311  the same texts in each run
    for _ in range(500):
        before = [chance.choice(WORDS) for _ in range(chance.randrange(30))]
        after = [word for word in before if chance.random() > 0.2]
        for _ in range(chance.randrange(4)):
            after.insert(chance.randrange(len(after) + 1), chance.choice(WORDS))
        found = changed_words("".join(before), "".join(after))
        if found is None:
            continue
        old, new = found
        assert "".join(text for text, _ in old) == "".join(before)
        assert "".join(text for text, _ in new) == "".join(after)
        unmarked = ["".join(text for text, is_different in side if not is_different) for side in found]
        assert unmarked[0] == unmarked[1]


class Counting(str):
    """A word that counts its comparisons."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other):
        Counting.compared += 1
        return str.__eq__(self, other)


def test_the_number_of_comparisons_is_bounded():
    old = [Counting("a" if number % 2 else "b") for number in range(module._MOST_WORDS)]
    new = [Counting("a" if number % 3 else "c") for number in range(module._MOST_WORDS)]
    assert module._differences(old, new) is None
    assert Counting.compared < module._MOST_WORDS * 2 * (module._MOST_DIFFERENCES + 1) * 2
    assert module._differences([*old, "b"], new) is None


def test_with_too_many_differences_all_between_the_first_and_the_last_are_marked():
    same = "word " * 200
    before = same + " ".join(f"a{number} x" for number in range(60)) + " " + same
    after = same + " ".join(f"b{number} x" for number in range(60)) + " " + same
    old, new = changed_words(before, after)
    assert [is_different for _, is_different in old] == [False, True, False]
    assert old[1][0].startswith("a0 ")
    assert new[1][0].startswith("b0 ")
