"""State of a stage: heads written as differences, live sessions within a memory bound, and state formats."""

import random

import pytest
from stage_runs import deltas, records, settling, with_calls_open, written_bytes
from stored import key_for, kind_of

from reknit.pipeline.engine.stores import PackedRecords
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.stages.written_head import WrittenHead, change_key

ROOM = 1 << 40
SMALL_BYTES = 1 << 13
HEAD = key_for("head", b"s")


def processed(stage, values, keys=(b"session",), room=ROOM, state=None):
    """Return the outputs record by record, and the resulting changelog.

    ``room`` is the memory that each commit leaves.
    """
    outputs, state = [], {} if state is None else state
    for offset, value in enumerate(values):
        key = keys[offset % len(keys)]
        made = stage.process(records([value], key=key, first=offset))
        outputs += made.outputs
        state |= made.changes
        stage.committed(made.changes, room)
    return outputs, {key: value for key, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("stage", "values", "sizes"),
    [
        (TurnsStage, settling, (10, 100, 400)),
        (TurnsStage, with_calls_open, (10, 100, 800)),
        (EventsStage, deltas, (10, 100, 3_000)),
    ],
)
def test_the_size_of_a_write_does_not_grow_with_the_history(stage, values, sizes):
    means = [sum(written) / len(written) for written in (written_bytes(stage(), values(size)) for size in sizes)]
    assert max(means) < 9_000


def edited(head, chance):
    at = chance.randrange(len(head))
    match chance.randrange(4):
        case 0:
            return head[:at] + chance.randbytes(chance.randrange(1, 900)) + head[at:]
        case 1:
            return head[:at] + head[at + chance.randrange(1, 600) :]
        case 2:
            return bytes([head[0] ^ 1]) + head[1:] + chance.randbytes(9)
    return head


@pytest.mark.parametrize("seed", range(8))
def test_a_head_is_read_as_last_written_after_any_changes(seed):
    chance = random.Random(seed)  # noqa: S311  the same edits in every run
    head, written, state, kinds = chance.randbytes(2 * SMALL_BYTES), WrittenHead(SMALL_BYTES), {}, set()
    for _ in range(200):
        head = edited(head, chance) or chance.randbytes(100)
        changes = written.write(HEAD, b"s", head, 2)
        kinds |= {(kind_of(key), value is None) for key, value in changes.items()}
        state |= changes
        state = {key: value for key, value in state.items() if value is not None}
        of_head = {number: state[key] for number in range(200) if (key := change_key(number, b"s")) in state}
        again, found = WrittenHead.read(state[HEAD], of_head, SMALL_BYTES)
        assert found == head
        if chance.randrange(3) == 0:
            written = again
    assert kinds >= {("change of a head", False), ("change of a head", True), ("head", False)}


def test_a_head_that_has_changed_completely_is_written_whole():
    chance = random.Random(1)  # noqa: S311  a test
    first, second = (
        b"".join(b"%s what stays of a line, and of each\n" % chance.randbytes(16).hex().encode() for _ in range(3_000))
        for _ in range(2)
    )
    written = WrittenHead(SMALL_BYTES)
    written.write(HEAD, b"s", first, 2)
    ((key, change),) = written.write(HEAD, b"s", second, 2).items()
    found = WrittenHead.read(first, {0: change}, SMALL_BYTES)[1] if key == change_key(0, b"s") else change
    assert found == second
    assert second[len(second) // 2 :] in change


def test_a_head_of_format_1_is_always_written_whole():
    head, written = b"x" * 3 * SMALL_BYTES, WrittenHead(SMALL_BYTES)
    for more in range(3):
        assert written.write(HEAD, b"s", head + b"%d" % more, 1) == {HEAD: head + b"%d" % more}


def test_leftover_changes_of_an_earlier_head_are_ignored():
    first, second = (bytes([byte]) * 2 * SMALL_BYTES for byte in b"ab")
    written = WrittenHead(SMALL_BYTES)
    state = written.write(HEAD, b"s", first, 2) | written.write(HEAD, b"s", first + b"c", 2)
    whole = written.write(HEAD, b"s", second, 1)
    changes = {0: state[change_key(0, b"s")]}
    assert whole == {change_key(0, b"s"): None, HEAD: second}
    again, found = WrittenHead.read(second, changes, SMALL_BYTES)
    assert found == second
    assert again.write(HEAD, b"s", first, 1) == {change_key(0, b"s"): None, HEAD: first}


@pytest.mark.parametrize(
    ("stage", "values"),
    [(TurnsStage, settling(120)), (TurnsStage, with_calls_open(200)), (EventsStage, deltas(600))],
)
def test_evicted_sessions_continue_as_if_they_had_stayed_in_memory(stage, values):
    keys = (b"one", b"two", b"three")
    calm = [value for value in values for _ in keys]
    outputs, state = processed(stage(), calm, keys)
    for loose_bytes in (ROOM, 1):
        tight, store = stage(), PackedRecords(loose_bytes)
        tight.keep_in(store)
        assert processed(tight, calm, keys, room=0) == (outputs, state)
        assert {name: value for key in keys for name, value in store.read(key).items()} == state
        assert tight.committed({}, 0).sessions == 0


def test_the_longest_idle_sessions_are_evicted_first():
    stage = TurnsStage()
    stage.keep_in(store := PackedRecords(1))
    keys = (b"one", b"two", b"three")
    processed(stage, settling(3), keys)
    room = stage.committed({}, ROOM).memory_bytes - 1
    assert stage.committed({}, room).evicted == 1
    assert store.sessions == 3
    assert [key for key in keys if key in stage._states._live] == [b"two", b"three"]


def test_all_records_of_a_session_are_deleted_with_it_live_or_not():
    closed = {"type": "session.closed"}
    for room in (0, ROOM):
        stage = TurnsStage()
        stage.keep_in(store := PackedRecords(1))
        _, state = processed(stage, [*with_calls_open(60), closed], room=room)
        assert state == {}
        assert store.read(b"session") == {}
        assert store.sessions == 0


@pytest.mark.parametrize("loose_bytes", [ROOM, 64])
def test_deleted_records_do_not_change_the_size_of_the_others(loose_bytes):
    worn, fresh = PackedRecords(loose_bytes), PackedRecords(loose_bytes)
    for value in (b"first", None, b"second", None, None, b"a longer value", b"last"):
        worn.put(b"session", b"key", value)
        worn.put(b"session", b"other", value)
    for store in (worn, fresh):
        store.put(b"session", b"key", b"last")
        store.put(b"session", b"other", b"last")
    assert worn.read(b"session") == fresh.read(b"session") == {b"key": b"last", b"other": b"last"}
    if loose_bytes == ROOM:
        assert worn.size == fresh.size
