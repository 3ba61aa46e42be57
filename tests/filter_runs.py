"""Helpers that feed text filters: whole, in pieces, and in two halves with the state saved between them."""

from itertools import chain


def fed(one, pieces):
    """Return a filter's output for these pieces and their end: a text, or a list of texts, calls and removed parts."""
    given = [*map(one.feed, pieces), one.flush()]
    return "".join(given) if isinstance(given[-1], str) else [*chain.from_iterable(given)]


def in_pieces(text, size):
    return [text[at : at + size] for at in range(0, len(text), size)]


def in_halves(make, text):
    """For each cut yield the output of two filters, the second restored from the first, and the second filter."""
    for at in range(len(text) + 1):
        one, other = make(), make()
        before = one.feed(text[:at])
        other.load(one.save())
        yield before + fed(other, [text[at:]]), other


def shown(outputs):
    return "".join(output for output in outputs if isinstance(output, str))


def most_held(one, text):
    """Return the most characters that a filter holds back when they arrive one by one."""
    given = most = 0
    for at, character in enumerate(text, start=1):
        given += len(shown(one.feed(character)))
        most = max(most, at - given)
    return most
