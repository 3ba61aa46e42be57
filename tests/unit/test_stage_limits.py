"""Limits of a tenant in a partition; records beyond them are dead letters that name the limit."""

from __future__ import annotations

import json

import pytest
from build import said, user
from stage_runs import in_batches, processed
from stored import by_session

from reknit.pipeline.config import load_config
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.tenants import Limit, Limits
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS

OPENED = json.dumps({"type": "session.opened", "model": "claude-sonnet-4-5", "params": {"max_tokens": 9}}).encode()
CLOSED = b'{"type":"session.closed"}'
WANTED = b'{"type":"request.wanted"}'
RESTORED = json.dumps({"type": "history.restored", "messages": [user("r")]}).encode()


def turn(text, speaker=user):
    return json.dumps({"type": "turn.appended", "message": speaker(text)}).encode()


def run(log, limits, *, policy="go-on", batch=1, restart=None):
    records = [Record(partition=0, offset=at, key=key, value=value) for at, (key, value) in enumerate(log)]
    defaults = Defaults(on_dead_letter=policy, limits=limits)
    outputs, _, state = processed(lambda: TurnsStage(defaults), in_batches(records, batch), restart)
    headers = [dict(output.headers) for output in outputs if output.topic == DEAD_LETTERS]
    letters = [
        (int(h["reknit.error.offset"]), h["reknit.error.code"].decode(), h.get("reknit.error.limit", b"").decode())
        for h in headers
    ]
    sent = [output.key for output in outputs if output.topic == PROVIDER_REQUESTS]
    return letters, sent, {session: int(size) for session, size in by_session(state, "size").items()}


two = Limits(sessions=2)
runs = pytest.mark.parametrize(("batch", "restart"), [(1, None), (1, "changelog"), (3, "store"), (99, None)])


@runs
def test_the_session_limit_of_a_tenant_does_not_affect_others(batch, restart):
    log = [
        (b"a/1", OPENED),
        (b"a/2", OPENED),
        (b"a/3", OPENED),
        (b"b/1", OPENED),
        (b"none", OPENED),
        (b"a/3", turn("x")),
    ]
    log += [(b"a/1", turn("x")), (b"a/1", CLOSED), (b"a/3", OPENED), (b"a/3", turn("x")), (b"a/4", OPENED)]
    letters, sent, sizes = run(log, two, batch=batch, restart=restart)
    assert letters == [(at, "limit_sessions", "sessions=2") for at in (2, 5, 10)]
    assert sent == [b"a/1", b"a/3"]
    assert sizes.keys() == {b"a/2", b"a/3", b"b/1", b"none"}


@runs
def test_the_byte_limit_of_a_tenant_counts_live_sessions_only(batch, restart):
    room = Limits(bytes=2 * len(OPENED) + 3 * len(turn("x")))
    log = [
        (b"a/1", OPENED),
        (b"a/2", OPENED),
        (b"b/1", OPENED),
        *[(b"a/1", turn(x)) for x in "xxx"],
        (b"a/2", turn("y")),
    ]
    log += [(b"b/1", turn("x")), (b"a/1", WANTED), (b"a/1", RESTORED), (b"a/2", turn("z")), (b"a/2", CLOSED)]
    letters, sent, sizes = run(log, room, batch=batch, restart=restart)
    assert letters == [(6, "limit_bytes", f"bytes={room.bytes}")]
    assert sent == [b"a/1"] * 3 + [b"b/1", b"a/1", b"a/2"]
    assert sizes == {b"a/1": len(RESTORED), b"b/1": len(OPENED) + len(turn("x"))}


def test_a_tenant_may_have_its_own_limit():
    limits = Limits(sessions=1, tenants={"big": Limit(sessions=2)}, separator=":")
    log = [(key, OPENED) for key in (b"big:1", b"big:2", b"big:3", b"small:1", b"small:2", b"a/1", b"a/2")]
    assert [at for at, *_ in run(log, limits)[0]] == [2, 4, 6]


@pytest.mark.parametrize("policy", ["follow", "park", "stop"])
def test_a_session_that_lost_a_turn_to_a_limit_follows_it_until_its_history_is_restored(policy):
    limits = Limits(bytes=len(OPENED) + len(turn("x")))
    log = [(b"a", OPENED), (b"a", turn("xx", said)), (b"a", WANTED), (b"a", RESTORED), (b"a", WANTED), (b"c", OPENED)]
    letters, sent, _ = run([*log, (b"c", OPENED)], limits, policy=policy)
    assert [(at, code) for at, code, _ in letters] == [
        (1, "limit_bytes"),
        (2, "quarantined"),
        (5, "limit_bytes"),
        (6, "limit_bytes"),
    ]
    assert sent == [b"a"]


def test_without_limits_no_sizes_are_stored():
    assert run([(b"a/1", OPENED), (b"a/1", turn("x"))], Limits())[2] == {}


def test_limits_are_settings():
    given = {"REKNIT_LIMITS__SESSIONS": "5", "REKNIT_LIMITS__TENANTS": '{"acme": {"bytes": 7}}'}
    assert load_config(env=given).limits == Limits(sessions=5, tenants={"acme": Limit(bytes=7)})
