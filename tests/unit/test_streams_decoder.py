"""All sources: neighbouring deltas are joined, bad payloads are reported with a reason, the likely source is found."""

import json

import pytest
from anthropic_events import block, delta, end, start, stop, text
from claude_lines import said, whole
from msgspec import Raw
from stream_runs import only, run

from reknit.pipeline.streams.decoder import joined
from reknit.pipeline.streams.events import BlockDelta, BlockStopped
from reknit.pipeline.streams.recovery.likely import LOOKED_AT_BYTES, likely_source
from reknit.topics.items import AgentUnrecognized

TEXT, THOUGHT = "text_delta", "thinking_delta"
OWN = BlockDelta(1, "own_delta", "", None, Raw(b"{}"))


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param(
            [BlockDelta(0, TEXT, part) for part in "ab"], [BlockDelta(0, TEXT, "ab", count=2)], id="one block"
        ),
        pytest.param(
            [BlockDelta(at, TEXT, part) for at, part in ((0, "a"), (1, "b"), (1, "c"), (0, "d"))],
            [BlockDelta(0, TEXT, "a"), BlockDelta(1, TEXT, "bc", count=2), BlockDelta(0, TEXT, "d")],
            id="interleaved blocks",
        ),
        pytest.param(
            [BlockDelta(0, THOUGHT, "a"), BlockDelta(0, TEXT, "b")],
            [BlockDelta(0, THOUGHT, "a"), BlockDelta(0, TEXT, "b")],
            id="two kinds",
        ),
        pytest.param(
            [BlockDelta(1, TEXT, "a"), OWN, BlockDelta(1, TEXT, "b"), BlockStopped(1), BlockDelta(1, TEXT, "c")],
            [BlockDelta(1, TEXT, "a"), OWN, BlockDelta(1, TEXT, "b"), BlockStopped(1), BlockDelta(1, TEXT, "c")],
            id="other events between",
        ),
        pytest.param(
            [BlockDelta(0, TEXT, "a", "m"), BlockDelta(0, TEXT, "b", "m", count=2), BlockStopped(0)],
            [BlockDelta(0, TEXT, "ab", "m", count=3), BlockStopped(0)],
            id="joined deltas of a named message",
        ),
    ],
)
def test_neighbouring_deltas_of_one_block_and_kind_are_joined(events, expected):
    assert joined(events) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1]", "not a JSON object"),
        (b"words", "non-JSON output"),
        (b"{}", "unknown or malformed event"),
        (b'{"type":"x"}', "unknown or malformed event: x"),
    ],
)
def test_a_payload_that_is_no_event_is_reported_with_the_reason(line, reason):
    assert [item.reason for item in only(run("openai-chat", line).items, AgentUnrecognized)] == [reason]


# -- the likely source ----------------------------------------------------------------------------------------------


def lines_of(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


CLI = lines_of(*(whole(f"m{number}", said("Hi")) for number in range(5)))
API = lines_of(start(), block(0, "text", text=""), text(0, "Hi"), delta(0, "text_delta", text="."), stop(0), *end())


@pytest.mark.parametrize(
    ("data", "named", "likely"),
    [
        pytest.param(CLI, "anthropic", "claude-cli", id="another source"),
        pytest.param(API, "claude-cli", "anthropic", id="the source of the program's provider"),
        pytest.param(CLI, "claude-cli", "", id="the named source"),
        pytest.param(b"", "gemini", "", id="nothing"),
        pytest.param(b"words\n" * 5, "gemini", "", id="no source"),
        pytest.param(b"words\n" + CLI, "anthropic", "claude-cli", id="a line that is no event"),
        pytest.param(CLI * (LOOKED_AT_BYTES // len(CLI) + 2), "anthropic", "claude-cli", id="a long input"),
    ],
)
def test_the_likely_source_recognises_more_than_the_named_one(data, named, likely):
    assert likely_source(data, named) == likely
