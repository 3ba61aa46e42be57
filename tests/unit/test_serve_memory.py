"""The gateway's memory of refusals: keys of conversations, and the store with its bounds."""

import json
import sqlite3
from pathlib import Path

import msgspec
import pytest
from multidict import CIMultiDict

from reknit.pipeline.errors import InputError
from reknit.pipeline.healing.memory import NO_MEMORY, Noted, TargetMemory, Value
from reknit.pipeline.serve import store
from reknit.pipeline.serve.conversations import conversation_key
from reknit.pipeline.serve.memory import GatewayMemory
from reknit.pipeline.serve.refusals import RefusalMemory
from reknit.pipeline.serve.repair import RequestBody

SECRET = b"s" * 32


def memory_of(*digests):
    healings = (Noted("thinking_signature", "messages.1.content.0: Invalid signature", "req_1"),)
    return TargetMemory(healings=healings, values=tuple(Value("reasoning", each, 0) for each in digests), count=1)


def key(body, headers=(), upstream="anthropic", target="anthropic"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return conversation_key(SECRET, CIMultiDict(headers), members, upstream=upstream, target=target)


def first(text, name="messages"):
    return {name: [{"role": "user", "content": text}, {"role": "assistant", "content": "Fine."}]}


def test_a_later_request_of_a_conversation_has_its_key():
    longer = first("hi")
    longer["messages"].append({"role": "user", "content": "go on"})
    blocks = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    reminder = {"type": "text", "text": "<system-reminder>\nToday is Friday.\n</system-reminder>\n"}
    keys = {key(first("hi")), key(longer), key(first(blocks)), key(first([reminder, *blocks]))}
    assert len(keys) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"body": first("hello")},
        {"headers": {"x-api-key": "other"}},
        {"headers": {"Authorization": "Bearer other"}},
        {"headers": {"thread-id": "other"}},
        {"upstream": "own"},
        {"target": "vllm"},
    ],
    ids=str,
)
def test_every_part_of_a_key_counts(other):
    assert key(**{"body": first("hi"), **other}) != key(first("hi"))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"input": "hi"}, {"input": "hello"}),
        ({"contents": [{"parts": [{"text": "hi"}]}]}, {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}),
        (
            {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
            {"input": [{"type": "message", "role": "user", "content": "hello"}]},
        ),
    ],
)
def test_first_words_are_read_in_the_shape_of_each_provider(one, two):
    assert key(one) != key(two)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"messages": null}',
        b'{"messages": [1]}',
        b'{"messages": [{"role": "user", "content": [1, null, {"text": 2}]}]}',
        b'{"messages": [{"role": ["user"], "content": "\xff"}]}',
        b'{"messages": "\xff"}',
        b'{"messages": ' + b"[" * 2_000 + b"]" * 2_000 + b"}",
    ],
)
def test_a_body_of_any_kind_has_a_key(body):
    members = RequestBody(body).members
    assert len(conversation_key(SECRET, CIMultiDict(), members, upstream="a", target="b")) == 32


def test_memories_are_kept_without_the_providers_words(tmp_path):
    first = GatewayMemory(tmp_path)
    assert first.refusals.is_empty
    first.refusals.keep(b"k", memory_of(b"1" * 16))
    second = GatewayMemory(tmp_path)
    again = second.refusals
    assert (again.is_empty, second.secret == first.secret) == (False, True)
    found = again.of(b"k")
    assert (found.values, found.healings) == (memory_of(b"1" * 16).values, (Noted("thinking_signature", "", ""),))
    assert again.of(b"other") == NO_MEMORY


def test_the_least_recently_used_memories_are_forgotten_first(tmp_path, monkeypatch):
    now = [1_000_000]
    monkeypatch.setattr(store, "now", lambda: now[0])
    GatewayMemory(tmp_path).refusals.keep(b"a", memory_of(b"1" * 16))
    with sqlite3.connect(tmp_path / "serve.sqlite") as database:
        (size,) = database.execute("SELECT length(memory) FROM memories").fetchone()
    kept = RefusalMemory(store.Store(tmp_path), most_bytes=2 * size)
    for name in (b"a", b"b", b"c"):
        kept.keep(name, memory_of(b"1" * 16))
        now[0] += 1
    assert [kept.of(name) == NO_MEMORY for name in (b"a", b"b", b"c")] == [True, False, False]


def test_a_memory_that_was_not_used_for_30_days_is_forgotten(tmp_path, monkeypatch):
    now, day = [1_000_000], 24 * 3600
    monkeypatch.setattr(store, "now", lambda: now[0])
    kept = GatewayMemory(tmp_path).refusals
    kept.keep(b"used", memory_of(b"1" * 16))
    kept.keep(b"unused", memory_of(b"1" * 16))
    now[0] += 20 * day
    assert kept.of(b"used") != NO_MEMORY
    now[0] += 11 * day
    again = GatewayMemory(tmp_path).refusals
    assert [again.of(name) == NO_MEMORY for name in (b"used", b"unused")] == [False, True]


def test_a_damaged_memory_is_none_and_stops_no_request(tmp_path, caplog):
    memory = GatewayMemory(tmp_path)
    kept = memory.refusals
    kept.keep(b"k", memory_of(b"1" * 16))
    with sqlite3.connect(tmp_path / "serve.sqlite") as database:
        database.execute("UPDATE memories SET memory = x'c1'")
    assert kept.of(b"k") == NO_MEMORY
    memory.close()
    assert kept.of(b"k") == NO_MEMORY
    kept.keep(b"k", memory_of(b"1" * 16))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


@pytest.mark.parametrize("name", ["serve.sqlite", "serve.key"])
def test_a_directory_that_cannot_be_used_is_named_at_the_start(tmp_path, name):
    (tmp_path / name).write_bytes(b"no database, and too short for a key" if "sqlite" in name else b"short")
    with pytest.raises(InputError, match="--state-dir") as found:
        GatewayMemory(tmp_path)
    assert found.value.code == "state_dir_unusable"


def test_a_file_in_place_of_the_directory_is_named_at_the_start(tmp_path):
    Path(tmp_path / "file").touch()
    with pytest.raises(InputError, match="--state-dir"):
        GatewayMemory(tmp_path / "file")
