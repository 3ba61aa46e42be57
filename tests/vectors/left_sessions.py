"""A session that is saved midway: the records fed to its stage, and the row that is written for it."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from reknit.pipeline.stages.base import Output, Record  # noqa: E402  the project is found relative to this file
from reknit.pipeline.stages.defaults import Defaults  # noqa: E402  as above
from reknit.pipeline.stages.events import EventsStage  # noqa: E402  as above
from reknit.pipeline.stages.turns import TurnsStage  # noqa: E402  as above
from reknit.topics import PROVIDER_REQUESTS, SESSION_ITEMS  # noqa: E402  as above

STAGES = {"turns": TurnsStage, "events": EventsStage}
# The key, next to the state, under which the engine stores how far the source was read.
POSITION = b"\0position"

Json = dict[str, Any]
# One source record: its value and its headers.
Sent = tuple[bytes | None, dict[str, str]]


def sent(event: Json | bytes, **headers: str) -> Sent:
    """A record with an event."""
    return event if isinstance(event, bytes) else json.dumps(event).encode(), headers


class Log:
    """One session of a stage: the records fed to it, and its changelog as compaction leaves it."""

    def __init__(self, side: str, defaults: Json, key: bytes, state: dict[bytes, bytes | None] | None = None) -> None:
        self.side, self.defaults, self.key = side, defaults, key
        self.state = dict(state or {})
        self.offset = 0
        self.stage = self._fresh()

    def _fresh(self) -> Any:
        stage = STAGES[self.side](msgspec.json.decode(json.dumps(self.defaults), type=Defaults))
        for key, value in self.state.items():
            stage.restore(key, value)
        return stage

    def feed(self, sent: Iterable[Sent], batch: int = 1) -> list[tuple[int, Output]]:
        """Process records in batches; yield each output with the number of its batch."""
        found: list[tuple[int, Output]] = []
        sent = list(sent)
        for number, start in enumerate(range(0, len(sent), batch)):
            records = [
                Record(
                    partition=0,
                    offset=self.offset + at,
                    key=self.key,
                    value=value,
                    headers=tuple((name, text.encode()) for name, text in headers.items()),
                    timestamp=1000,
                )
                for at, (value, headers) in enumerate(sent[start : start + batch])
            ]
            self.offset += len(records)
            result = self.stage.process(records)
            found += [(number, output) for output in result.outputs]
            for key, value in sorted(result.changes.items()):
                self.state.pop(key, None)  # a compacted log has each key at its last write
                self.state[key] = value
        return found

    def restart(self) -> None:
        self.stage = self._fresh()


def row(
    name: str,
    side: str,
    before: list[Sent],
    then: list[Sent],
    *,
    defaults: Json | None = None,
    key: bytes = b"session-1",
    batch: int = 3,
    restart: bool = False,
) -> Json:
    """A session that is saved after ``before`` and continues with ``then``."""
    log = Log(side, defaults or {}, key)
    half = len(before) // 2 if restart else 0
    shown = log.feed(before[:half], batch)
    if restart:
        log.restart()
    shown += log.feed(before[half:], batch)
    state = [[_b64(key), None if value is None else _b64(value)] for key, value in log.state.items()]
    state.append([_b64(POSITION), _b64(str(log.offset).encode())])
    log.restart()
    heads, accounts = (_heads(log), _accounts(log)) if side == "turns" else ({}, {})
    outputs = log.feed(then)
    made: Json = {"name": name, "side": side, "key": _b64(key)}
    if defaults:
        made["defaults"] = defaults
    made |= {"offset": log.offset - len(then), "state": state}
    if side == "events":
        made["items"] = [json.loads(output.value or b"") for _, output in shown if output.topic == SESSION_ITEMS]
    made["then"] = [[_value(value), headers] for value, headers in then]
    made["outputs"] = [_output(at, output) for at, output in outputs]
    if heads:
        made["heads"] = heads
    if accounts:
        made["accounts"] = accounts
    return made


def _heads(log: Log) -> dict[str, int]:
    """Return the number of bytes before the messages in each target's request, which no state stores."""
    look = Log(log.side, log.defaults, log.key, log.state)
    one = {"type": "history.restored", "messages": [{"role": "user", "content": "hi"}]}
    outputs = look.feed([sent(one), sent({"type": "request.wanted"})])
    headers = [dict(output.headers) for _, output in outputs if output.topic == PROVIDER_REQUESTS]
    return {given["target"].decode(): int(given["prefix-bytes"]) for given in headers}


def _accounts(log: Log) -> Json:
    """Return the metadata of each target's request: its messages' ids, its fixes, and the outcome of every block."""
    entry = Log(log.side, log.defaults, log.key, log.state).stage._states.find(log.key)  # no output has it
    if entry is None:
        return {}
    found = {target: entry.session.request(target) for target in entry.session.targets}
    return {
        target: {
            "ids": done.ids,
            "fixes": [[fix.code, fix.path, fix.lossless, fix.before, fix.after] for fix in done.fixes],
            "ledger": [[line.path, line.fate, line.output, line.code] for line in done.ledger],
        }
        for target, done in found.items()
    }


def _value(value: bytes | None) -> str | Json | None:
    """A record's value: as text, or as base64 if it is not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": _b64(value)}


def _output(at: int, output: Output) -> Json:
    made: Json = {"at": at, "topic": output.topic, "value": _value(output.value)}
    if output.headers:
        made["headers"] = {name: value.decode() for name, value in output.headers}
    return made


def dumped(value: bytes | str | Json) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
