"""Sources of recorded answers, streamed or whole: every address and every title is in their items.

A further source needs one line of one table (``SOURCES``). An address or title that is not the answer's is in
``EXCEPTIONS`` with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec
import pytest
import stream_lab as lab
from recorded import needs_corpus, rows
from stream_runs import only, run

from reknit.topics.items import AgentUnrecognized, ItemCompleted, ItemRetracted, TurnDiagnosis, TurnStop, Usage
from reknit.topics.reducer import reduce

pytestmark = needs_corpus

Row = dict[str, Any]


def is_claude(row):
    """Return True if a row is of the Messages API: Bedrock has other vendors' models with the same call."""
    if row.get("stream"):
        return any('"message_start"' in event for event in map(text_of, row["stream"]))
    return whole(row).get("type") == "message"


def is_generated(row):
    """Whether a row is an answer: Gemini's files have counts of tokens, embeddings and caches, too."""
    return bool(row.get("stream")) or not {"candidates", "promptFeedback"}.isdisjoint(whole(row))


def is_anything(_row):
    return True


def is_chat(row):
    return bool(row.get("stream")) or any("message" in choice for choice in whole(row).get("choices") or [])


def is_response(row):
    return bool(row.get("stream")) or "output" in whole(row)


# Members of a response that repeat its request: they do not describe the answer.
ECHOED = {"instructions", "tools", "text", "metadata", "tool_choice", "prompt"}


def beside_pieces(event):
    """A Responses event without the pieces of texts, and without what it repeats of its request."""
    if event.get("type", "").endswith(".delta"):
        return {}
    answer = event.get("response", event)
    said = {name: value for name, value in answer.items() if name not in ECHOED}
    return event | {"response": said} if "response" in event else said


class Source(NamedTuple):
    """A source: the file of its recordings, how many are streams and how many are not, and which are its own.

    ``said`` is what an event says of the answer.
    """

    name: str
    file: str
    streams: int
    answers: int
    is_own: Callable[[Row], bool] = is_anything
    said: Callable[[Any], Any] = lambda event: event


SOURCES = [
    # The Messages API first: its log is compared as it is.
    Source("anthropic", "anthropic", 293, 549, is_claude),
    Source("anthropic", "anthropic-compat", 17, 44, is_claude),
    Source("anthropic", "bedrock-invoke", 27, 52, is_claude),
    Source("bedrock-converse", "bedrock-converse", 56, 419),
    Source("gemini", "gemini", 297, 503, is_generated),
    # The others' ends and whole answers have modules of their own.
    Source("openai-chat", "openai-chat", 232, 441, is_chat),
    Source("openai-chat", "openai-compat", 157, 221, is_chat),
    Source("openai-chat", "other", 25, 2, is_chat),
    Source("openai-responses", "openai-responses", 183, 286, is_response, beside_pieces),
    Source("openai-responses", "responses-compat", 26, 46, is_response, beside_pieces),
]
each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.file)
each_of_blocks = pytest.mark.parametrize("source", SOURCES[:5], ids=lambda source: source.file)

# Addresses and titles that no item has, by the end of a recording's id, and why.
EXCEPTIONS = {}


def text_of(event):
    return event if isinstance(event, str) else json.dumps(event)


def whole(row):
    """The answer of an interaction that was not streamed and went well."""
    found = row.get("response")
    return found if isinstance(found, dict) and row["status"] == 200 else {}


@cache
def interactions(file):
    """The rows of a file that have an answer."""
    return tuple(row for row in rows(file) if row.get("stream") or whole(row))


def streamed(source):
    return [row for row in interactions(source.file) if row.get("stream") and source.is_own(row)]


def answers(source):
    return [row for row in interactions(source.file) if not row.get("stream") and source.is_own(row)]


def events(row):
    """The events of a stream, or the answer, as text."""
    return [text_of(event) for event in row["stream"]] if row.get("stream") else [json.dumps(whole(row))]


def fed(source, row):
    return lab.fed(source.name, [lab.sse(event) for event in events(row)])


# -- the named sources --------------------------------------------------------------------------------------------

TITLES = {"title", "filename", "file_id", "url"}
ADDRESS = re.compile(r"https?://[^\s\"'<>\\]+")


def strings(value, name=""):
    """The strings in JSON, each with the name of the member that holds it."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, name)


def named(source, event):
    try:
        found = list(strings(source.said(json.loads(event))))
    except ValueError:
        return set()
    titles = {text for name, text in found if text and (name in TITLES or text.startswith("http"))}
    return titles.union(*(ADDRESS.findall(text) for _, text in found))


def told(items):
    """Everything that items say, decoded, and the texts that their deltas make."""
    said = [text for _, text in strings(json.loads(msgspec.json.encode(items)))]
    return "\n".join([*said, *(entry.text for entry in reduce(items).entries)])


@each_source
def test_every_address_and_every_title_is_in_the_items(source):
    missing = {}
    count = 0
    for row in [*streamed(source), *answers(source)]:
        expected = set().union(*(named(source, event) for event in events(row)))
        count += len(expected)
        said = told(fed(source, row)) if expected else ""
        lost = sorted(text for text in expected if text not in said)
        if lost and not row["id"].endswith(tuple(EXCEPTIONS)):
            missing[row["id"]] = lost
    assert missing == {}
    assert count or source.file in {"anthropic-compat", "bedrock-invoke"}


@each_of_blocks
def test_sources_of_a_text_are_only_with_the_text(source):
    """If an answer has a text and names sources, they are with the text."""
    apart = [
        row["id"]
        for row in [*streamed(source), *answers(source)]
        for item in fed(source, row)
        if getattr(item, "subtype", "") not in {"", "trace"}
    ]
    assert apart == []


# -- ends ----------------------------------------------------------------------------------------------------------

_REASON = re.compile(r'"(?:stop_reason|stopReason|finishReason)":\s*(?:"(\w+)"|(\d+))')


def reasons(row):
    found = [name or number for event in events(row) for name, number in _REASON.findall(event)]
    return [{"1": "STOP", "2": "MAX_TOKENS"}.get(reason, reason) for reason in found]


@each_of_blocks
def test_an_answer_with_a_reported_end_is_not_called_cut(source):
    for row in [*streamed(source), *answers(source)]:
        items = fed(source, row)
        said = reasons(row)
        stops = only(items, TurnStop)
        assert {item.stop_reason for item in stops if item.stop_reason} <= set(said), row["id"]
        if said:
            # An attempt that another one replaced was cut, and the other's content was reported.
            begun = sum('"message_start"' in event for event in events(row))
            assert not any(item.incomplete for item in stops[-1 if begun > 1 else 0 :]), row["id"]
            assert only(items, TurnDiagnosis) == [], row["id"]


@each_source
def test_the_recordings_are_all_there(source):
    assert (len(streamed(source)), len(answers(source))) == (source.streams, source.answers)


# -- answers that were not streamed ----------------------------------------------------------------------------------


@each_of_blocks
def test_an_answer_that_was_not_streamed_is_on_the_screen(source):
    for row in answers(source):
        items = fed(source, row)
        assert only(items, AgentUnrecognized | ItemRetracted) == [], row["id"]
        view = reduce(items)
        assert all(entry.done for entry in view.entries), row["id"]
        assert (texts(view.entries), calls(view.entries)) == plain(source, whole(row)), row["id"]


def texts(entries):
    return "".join(entry.text for entry in entries if entry.item_type == "text")


def calls(entries):
    found = [entry for entry in entries if entry.item_type == "tool_use"]
    return [json.loads(bytes(entry.input) if entry.input is not None else entry.text or "{}") for entry in found]


def plain(source, answer):
    """The words and the inputs of the calls in an answer, read in the plainest way."""
    words, inputs = "", []
    for block in blocks(source, answer):
        cited = block.get("citationsContent") or {}
        parts = [block, *(cited.get("content") or [])]
        words += "" if block.get("thought") else "".join(part.get("text", "") for part in parts)
        called = (
            block.get("toolUse") or block.get("functionCall") or (block if block.get("type") == "tool_use" else None)
        )
        if called is not None and called.get("type") != "server_tool_use":
            inputs.append(called.get("input") or called.get("args") or {})
    return words, inputs


def blocks(source, answer):
    if source.name == "gemini":
        first = (answer.get("candidates") or [{}])[0]
        return (first.get("content") or {}).get("parts") or []
    message = answer["output"]["message"] if source.name == "bedrock-converse" else answer
    return list(message["content"])


# -- compared with the official client -----------------------------------------------------------------------------


@each_of_blocks
def test_stop_reasons_and_tokens_are_the_official_clients(source):
    for row in streamed(source):
        final = row.get("sdk_final")
        if final is None or sum('"message_start"' in event for event in events(row)) > 1:
            continue  # of several messages in one stream the client keeps the last one alone
        stops = only(fed(source, row), TurnStop)
        assert [item.stop_reason for item in stops] == [final["stop_reason"]], row["id"]
        usage = {name: final["usage"].get(name) or 0 for name in Usage.__struct_fields__}
        assert [msgspec.structs.asdict(item.usage) for item in stops] == [usage], row["id"]


@pytest.mark.parametrize("source", SOURCES[:3], ids=lambda source: source.file)
def test_the_log_of_a_whole_answer_is_the_answer(source):
    """Unchanged blocks, with the issuer of reasoning; a text without a word is left out."""
    for row in answers(source):
        content = run(source.name, whole(row)).blocks
        known = [{name: value for name, value in block.items() if name != "issuer"} for block in content]
        assert known == [block for block in whole(row)["content"] if not is_blank(block)], row["id"]


def is_blank(block):
    return block == {"type": "text", "text": ""}


def test_items_of_own_blocks_end_with_the_block_of_the_recording():
    """Blocks of an Anthropic stream's own types are in ``raw``, as in the official client."""
    (source, *_) = SOURCES
    count = 0
    for row in streamed(source):
        if row.get("sdk_final") is None or sum('"message_start"' in event for event in events(row)) > 1:
            continue
        ended = only(fed(source, row), ItemCompleted)
        found = [json.loads(bytes(item.raw)) for item in ended if isinstance(item.raw, msgspec.Raw)]
        common = {"text", "thinking", "tool_use", "redacted_thinking"}
        expected = [block for block in row["sdk_final"]["content"] if block["type"] not in common]
        assert [without_nothing(block) for block in found] == [without_nothing(block) for block in expected], row["id"]
        count += len(found)
    assert count > 50


def without_nothing(block):
    return {name: value for name, value in block.items() if value is not None}
