"""Changelog records by what they store: tests name a kind of record, not the bytes of its key."""

from reknit.pipeline.stages.base import POSITION

# The first byte of a key, and the place of the session in it.
KINDS = {
    "head": (b"h", 1),
    "change of a head": (b"c", 5),
    "segment": (b"s", 5),
    "record id": (b"i", 5),
    "parked session": (b"p", 1),
    "waiting record": (b"w", 9),
    "release": (b"r", 1),
    "size": (b"z", 1),
    "deadline": (b"d", 1),
    "marker": (b"x", 1),
    "time": (b"t", 1),
    "stream": (b"e", 1),
}
NAMES = {first: kind for kind, (first, _) in KINDS.items()}


def kind_of(key):
    """Return the kind of a changelog record by its key."""
    return "position" if key == POSITION else NAMES[key[:1]]


def kinds_in(state):
    """Return the kinds of records that a changelog holds, without the position."""
    return {kind_of(key) for key in state} - {"position"}


def of_kinds(state, *kinds):
    """Return the records of some kinds, by their keys."""
    return {key: value for key, value in state.items() if kind_of(key) in kinds}


def without_kinds(state, *kinds):
    """Return the records of all other kinds, by their keys."""
    return {key: value for key, value in state.items() if kind_of(key) not in kinds}


def by_session(state, kind):
    """Return the values of one kind's records by session, for a kind with one record for each session."""
    return {key[KINDS[kind][1] :]: value for key, value in of_kinds(state, kind).items()}


def key_for(kind, session):
    """Return the key of a session's record, for a kind with one record for each session."""
    return KINDS[kind][0] + session


def of_session(state, session):
    """Return the records of a session, by their keys; deleted ones (None) are left out.

    The keys of all kinds end with the session, apart from those of the partition and of markers, which have a digest.
    """
    kept = without_kinds(state, "position", "time", "marker")
    return {key: value for key, value in kept.items() if value is not None and key.endswith(session)}


def record_ids(state):
    """Return the ids of records that sessions have taken."""
    return {key[5 : 5 + int.from_bytes(key[1:5], "big")].decode() for key in of_kinds(state, "record id")}
