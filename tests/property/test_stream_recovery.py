"""Properties of recovery over made-up runs: whatever the stream does, and however it is cut into records."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from stream_strategies import LINES
from streamed import check_well_formed, encoded, items_of

from topics.reducer import reduce

RUNS = st.lists(LINES, max_size=30)


def lines_of(run, *, uuids=False):
    return [json.dumps(line | ({"uuid": f"u{number}"} if uuids else {})).encode() for number, line in enumerate(run)]


@settings(max_examples=200)
@given(RUNS, st.data())
def test_lines_with_uuids_may_come_again(run, data):
    lines = lines_of(run, uuids=True)
    doubled = [line for line in lines for _ in range(data.draw(st.integers(1, 2)))]
    assert items_of("claude-cli", doubled) == items_of("claude-cli", lines)


@settings(max_examples=300)
@given(RUNS)
def test_items_are_well_formed(run):
    check_well_formed(items_of("claude-cli", lines_of(run)))


@settings(max_examples=200)
@given(RUNS)
def test_what_complete_messages_say_last_is_on_the_screen(run):
    """Nothing that comes after the last message can take it away: there is no attempt that could replace it."""
    final = {"type": "assistant", "message": {"id": "final", "content": [{"type": "text", "text": "The end."}]}}
    view = reduce(items_of("claude-cli", lines_of([*run, final])))
    last = view.blocks("text")[-1]
    assert (last.text, last.done, last.incomplete) == ("The end.", True, False)


@settings(max_examples=200)
@given(LINES, LINES, st.data())
def test_a_line_that_another_was_written_into_is_read(line, after, data):
    text = json.dumps(line).encode()
    place = data.draw(st.integers(1, len(text) - 1))
    foreign = b'{"type":"rate_limit_event","rate_limit_info":{"status":"allowed"}}'
    newline = data.draw(st.sampled_from([b"", b"\n"]))
    cut = items_of("claude-cli", [text[:place] + foreign + newline + text[place:], json.dumps(after).encode()])
    plain = items_of("claude-cli", [foreign, text, json.dumps(after).encode()])
    assert encoded(cut) == encoded(plain)
