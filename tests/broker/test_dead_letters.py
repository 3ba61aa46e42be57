"""Dead letters and parked sessions as an operator deals with them, on a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import harness
import msgspec
import pipeline_lab as lab
import pytest

from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS

pytestmark = pytest.mark.broker

DEFAULTS = msgspec.structs.replace(lab.DEFAULTS, on_dead_letter="park")


def turn(role, text, **more):
    return {"type": "turn.appended", "message": {"role": role, "content": text}, **more}


OPENED = {"type": "session.opened", "system": "Be brief."}
SESSIONS = {
    "parked": [OPENED, turn("user", "one"), turn("nobody", "two"), turn("user", "three"), turn("assistant", "four")],
    "other": [turn("nobody", "a"), turn("user", "b")],
    "rejected": [{"type": "session.opened", "policy": {"tail": "reject"}}, turn("user", "hi"), turn("assistant", "ho")],
    "calm": [OPENED, turn("user", "one"), turn("assistant", "two"), turn("user", "three")],
}
WANTED = {"type": "request.wanted"}


class Typed:
    """Commands next to a worker that parks."""

    def __init__(self, bootstrap, prefix):
        self.bootstrap, self.prefix = bootstrap, prefix
        self.environment = os.environ | {"REKNIT_BOOTSTRAP_SERVERS": bootstrap, "REKNIT_PREFIX": prefix}

    async def run(self, *arguments, given=b"", code=0):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "reknit", *arguments), env=self.environment, stdin=-1, stdout=-1, stderr=-1
        )
        said, words = await asyncio.wait_for(process.communicate(given), 240)
        assert process.returncode == code, words.decode()
        return said

    async def lines(self, *arguments, **more):
        return [json.loads(line) for line in (await self.run(*arguments, "--json", **more)).splitlines()]

    async def read(self, topic, session):
        parts = await harness.read_all(self.bootstrap, self.prefix + topic, lab.PARTITIONS)
        return [record for part in parts for record in part if record.key == session.encode()]


@pytest.fixture
async def typed(broker, prefix, tmp_path, free_port, monkeypatch):
    monkeypatch.setenv("REKNIT_ON_DEAD_LETTER", "park")
    rows = [
        (AGENT_TURNS, name.encode(), json.dumps(record).encode(), [("producer", b"crew/1")])
        for name, records in SESSIONS.items()
        for record in [*records, *([WANTED] if name == "rejected" else [])]
    ]
    async with lab.workers(broker.bootstrap, prefix, tmp_path, free_port) as fleet:
        worker = fleet.start()
        await worker.ready(60)
        async with lab.Feeder(broker.bootstrap, prefix, 5_000, rows) as feeder:
            await feeder.wait()
        await lab.drained(broker.bootstrap, prefix)
        yield Typed(broker.bootstrap, prefix), fleet, worker


def by_session(letters):
    return {letter["session"]: letter for letter in letters}


async def undisturbed(typed, session, mended):
    """Return the outputs of the session's log with the repaired record in place of the original one."""
    stage, found = TurnsStage(DEFAULTS), []
    for record in await typed.read(AGENT_TURNS, session):
        event = json.loads(record.value)
        if event["type"] != "session.released":
            value = json.dumps(mended).encode() if event.get("message", {}).get("role") == "nobody" else record.value
            found += stage.process([msgspec.structs.replace(record, value=value)]).outputs
    return {
        topic: [(o.value, tuple(o.headers)) for o in found if o.topic == topic]
        for topic in (PROVIDER_REQUESTS, HISTORY_FIXES)
    }


async def published(typed, session):
    return {
        topic: [(record.value, tuple(record.headers)) for record in await typed.read(topic, session)]
        for topic in (PROVIDER_REQUESTS, HISTORY_FIXES)
    }


async def test_a_session_that_two_release_at_once_while_its_worker_is_killed_ends_as_if_nothing_had_been(typed):
    typed, fleet, worker = typed
    found = by_session(await typed.lines("dead-letters", "list"))
    assert {name: letter["code"] for name, letter in found.items()} == {
        "parked": "unknown_role",
        "other": "unknown_role",
        "rejected": "rejected",
    }
    parked = {each["session"]: each["waiting"] for each in await typed.lines("sessions", "parked")}
    assert parked == {"parked": 2, "other": 1}
    states = {each["session"]: each["state"] for each in await typed.lines("sessions", "list")}
    assert states == {"parked": "parked", "other": "parked", "rejected": "open", "calm": "open"}

    mended = turn("assistant", "two")
    record = {"given": json.dumps(mended).encode()}
    retry = ("dead-letters", "retry", found["parked"]["letter"], "--record", "-")
    release = ("sessions", "release", "parked", "--record", "-")
    worker.signal(signal.SIGSTOP)  # neither sees what the other has done
    await asyncio.gather(typed.run(*retry, **record), typed.run(*release, **record))
    worker.signal(signal.SIGCONT)
    await asyncio.sleep(0.1)
    worker.kill()
    await fleet.start().ready(60)
    await typed.run("sessions", "release", "other", "--record", "-", given=json.dumps(turn("user", "a")).encode())
    await lab.drained(typed.bootstrap, typed.prefix)

    assert len([r for r in await typed.read(AGENT_TURNS, "parked") if b"session.released" in r.value]) == 2
    for session, taken in (("parked", mended), ("other", turn("user", "a")), ("calm", None)):
        expected = await undisturbed(typed, session, taken)
        assert await published(typed, session) == expected
        assert len(expected[PROVIDER_REQUESTS]) == 2
    assert await typed.lines("sessions", "parked") == []
    letters = [r for r in await typed.read(DEAD_LETTERS, "parked") if "reknit.error.letter" not in dict(r.headers)]
    assert len(letters) == 1
    await typed.run(*retry, **record)
    assert len([r for r in await typed.read(AGENT_TURNS, "parked") if b"session.released" in r.value]) == 2
    await typed.run("dead-letters", "drop", found["parked"]["letter"], code=2)


async def test_what_was_rejected_is_asked_for_once_and_what_is_dropped_stays_to_be_seen(typed):
    typed, _, _ = typed
    letter = by_session(await typed.lines("dead-letters", "list"))["rejected"]
    (shown,) = await typed.lines("dead-letters", "show", letter["letter"])
    assert (shown["value"], shown["code"]) == (WANTED, "rejected")
    policy = {"type": "session.opened", "policy": {"tail": "continue"}}
    await typed.run("ingest", "turns", "--session", "rejected", given=json.dumps(policy).encode())
    await asyncio.gather(*(typed.run("dead-letters", "retry", letter["letter"]) for _ in range(2)))
    await lab.drained(typed.bootstrap, typed.prefix)
    requests = [dict(record.headers) for record in await typed.read(PROVIDER_REQUESTS, "rejected")]
    assert [request["reason"] for request in requests] == [b"turn", b"wanted"]
    assert {request["producer"] for request in requests} == {b"crew/1"}

    await typed.run("dead-letters", "drop", "--code", "unknown_role", "--session", "other")
    assert by_session(await typed.lines("dead-letters", "list")).keys() == {"parked"}
    every = by_session(await typed.lines("dead-letters", "list", "--all"))
    assert {name: each.get("done") for name, each in every.items()} == {
        "parked": None,
        "other": "dropped",
        "rejected": "retried",
    }
    assert await typed.lines("dead-letters", "count") == [{"topic": AGENT_TURNS, "code": "unknown_role", "letters": 1}]
    for wrong in (("drop",), ("retry", "0/999")):
        await typed.run("dead-letters", *wrong, code=2)
