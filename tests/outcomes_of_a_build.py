"""Every outcome of one build for the recorded traffic and the vectors, one digest per line, for ``compare_builds``.

    PYTHONPATH=BUILD python tests/outcomes_of_a_build.py [--sample N] [--only FILE]

A line is ``[kind, case, digest]``. Only functions that a user's program could call are called. A function that has
moved between builds is looked up in each of its places, so that one program drives builds that are far apart.
``--only`` reads a list of cases from a file and writes each outcome in full: ``[kind, case, digest, outcome]``. An
error is an outcome too.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import importlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
CORPUS = Path(os.environ.get("REKNIT_CORPUS", TESTS.parents[1] / "shared" / "corpus"))

Outcome = tuple[str, Any]
Case = tuple[str, Callable[[], Iterator[Outcome]]]


def found(*places: str) -> Any:
    """Return the first of these names that exists, each ``module:name``.

    Before 0.2 the packages were at the top level.
    """
    for place in [*places, *(place.removeprefix("reknit.") for place in places)]:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this build has none of {', '.join(places)}")


if not Path(importlib.import_module("reknit").__file__ or "").is_relative_to(os.environ["PYTHONPATH"]):
    raise SystemExit("the build on PYTHONPATH is not the one that Python finds")

normalize = found("reknit:normalize")
validate = found("reknit:validate")
Session = found("reknit:Session")
Recovery = found("reknit.pipeline.streams.session:Recovery", "reknit.pipeline.streams:Recovery")
TARGETS = sorted(found("reknit.pipeline.registry:TARGETS", "reknit.pipeline.targets:TARGETS"))
SOURCES = sorted(
    found(
        "reknit.pipeline.registry:SOURCES", "reknit.pipeline.streams.sources:SOURCES", "reknit.pipeline.streams:SOURCES"
    )
)
Record = found("reknit.pipeline.stages.base:Record", "reknit.pipeline.engine.stage:Record")
Defaults = found("reknit.pipeline.stages.defaults:Defaults")
TurnsStage = found("reknit.pipeline.stages.turns:TurnsStage")
EventsStage = found("reknit.pipeline.stages.events:EventsStage")

# The provider of each file's requests, and the source of its streams.
SOURCE_OF = {
    "anthropic": "anthropic",
    "anthropic-compat": "anthropic",
    "bedrock-converse": "bedrock-converse",
    "bedrock-invoke": "anthropic",
    "gemini": "gemini",
    "openai-chat": "openai-chat",
    "openai-compat": "vllm",
    "openai-responses": "openai-responses",
    "other": "openai-chat",
    "responses-compat": "openai-responses",
}
# Members that hold the messages of a body.
ROOTS = ("messages", "input", "contents")
# How many turns of a session get a request: evenly spread, always including the last ones.
MOST_TURNS = 12


# -- outcomes ----------------------------------------------------------------------------------------------------------


def encoded(value: Any) -> bytes:
    """Encode an outcome as bytes that are equal in every build with the same outcome."""
    return value if isinstance(value, bytes) else json.dumps(value, default=plain, sort_keys=True).encode()


def plain(value: Any) -> Any:
    """Convert a struct, raw JSON or bytes to JSON."""
    fields = getattr(type(value), "__struct_fields__", None)
    if fields is not None:
        return {"": type(value).__name__} | {name: getattr(value, name) for name in fields}
    if type(value).__name__ == "Raw":
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return sorted(value) if isinstance(value, (set, frozenset)) else repr(value)


def attempted(kind: str, make: Callable[[], Any]) -> Outcome:
    """Return the result of a call, or the error that it raises."""
    try:
        return kind, make()
    except Exception as error:  # noqa: BLE001  an error in one build must occur in the other too
        return kind, error_of(error)


def error_of(error: Exception) -> list[str]:
    return ["error", type(error).__name__, getattr(error, "code", ""), getattr(error, "path", ""), str(error)]


# -- histories ---------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> Iterator[bytes]:
    if path.is_file():
        data = path.read_bytes()
        yield from (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


def rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    name = path.name.partition(".")[0]
    for number, line in enumerate(lines_of(path)):
        yield f"{name}#{number}", json.loads(line)


def histories() -> Iterator[tuple[str, Any, dict[str, Any] | None]]:
    for name in SOURCE_OF:
        for case, row in rows(CORPUS / f"{name}.jsonl.gz"):
            if isinstance(row.get("request"), dict):
                yield case, row["request"], None
    for path in sorted(CORPUS.glob("claude-code-sessions/*")):
        yield path.name[-60:], b"\n".join(lines_of(path)), None
    for path in sorted(CORPUS.glob("trajectories/*")):
        yield path.name[-60:], b"\n".join(lines_of(path)), None
    for case, row in rows(CORPUS / "agent-cli-runs.jsonl.gz"):
        for number, lines in enumerate(row["transcripts"]):
            yield f"{case}.{number}", "\n".join(lines).encode(), None
    for path in sorted((TESTS / "conformance").glob("*.jsonl")):
        for case, row in rows(path):
            history = row.get("body") or row.get("history") or row.get("messages")
            if isinstance(history, list):
                history = {"messages": history} | {name: row[name] for name in ("system", "tools") if name in row}
            if history:
                yield case, history, row.get("policy")


def mended(history: Any, policy: Any) -> Iterator[Outcome]:
    """Yield the request of a history for each target, and the verdict of each rule set on the history as it is."""
    for target in TARGETS:
        try:
            done = normalize(history, to=target, policy=policy)
        except Exception as error:  # noqa: BLE001  as above
            yield f"body {target}", error_of(error)
            continue
        yield attempted(f"body {target}", lambda done=done: done.body)
        yield attempted(f"fixes {target}", lambda done=done: done.fixes)
        yield attempted(f"violations {target}", lambda done=done: done.violations)
        yield attempted(f"ledger {target}", lambda done=done: [done.ledger, done.ids])
        yield attempted(f"digest {target}", lambda done=done: [done.sha256, done.prefix_bytes, done.fix_count])


def judged(history: Any) -> Iterator[Outcome]:
    """Yield the verdict of each rule set on a recorded body, valid or not."""
    body = history if isinstance(history, bytes) else json.dumps(history).encode()
    for rules in TARGETS:
        yield attempted(f"rules {rules}", lambda rules=rules: validate(body, rules))


def messages_of(history: Any) -> list[Any]:
    """Return the messages of a document; of a transcript, its lines."""
    if isinstance(history, bytes):
        return [line for line in history.splitlines() if line.strip()]
    return next((history[root] for root in ROOTS if isinstance(history.get(root), list)), [])


def turn_by_turn(history: Any, policy: Any) -> Iterator[Outcome]:
    """Feed a history to a session message by message; yield the intermediate requests and the state."""
    messages = messages_of(history)
    given = history if isinstance(history, dict) else {}
    setting = {name: given[name] for name in ("system", "tools", "model") if given.get(name)}
    try:
        session = Session(TARGETS, policy, **setting)
    except Exception:  # noqa: BLE001  an unreadable head is covered by the whole request
        session = Session(TARGETS, policy)
    step = max(1, len(messages) // MOST_TURNS)
    said: list[Any] = []
    state: list[Any] = []
    for number, message in enumerate(messages):
        said.append(attempted("append", lambda message=message: session.append(message)))
        if number % step == 0 or number == len(messages) - 1:
            said += [attempted(target, lambda target=target: summary(session.request(target))) for target in TARGETS]
            state += [session.take_segments(), session.head()]
    yield "session", said
    yield "session state", state
    yield attempted("session read back", lambda: read_back(session, state))


def summary(done: Any) -> list[Any]:
    """Summarize a request; a digest replaces the body."""
    fixes = [[fix.code, fix.path] for fix in done.open_fixes]
    return [done.sha256, done.prefix_bytes, done.reset, done.fix_count, fixes, done.violations]


def read_back(session: Any, state: list[Any]) -> list[Any]:
    """Yield the requests of a session that is saved and restored midway."""
    segments = [record for taken in state if isinstance(taken, list) for _, record in taken]
    again = Session.load(session.head(), segments)
    return [attempted(target, lambda target=target: summary(again.request(target))) for target in TARGETS]


def staged(history: Any) -> Iterator[Outcome]:
    """Yield the outputs and the state of the stage for the history as log records."""
    given = history if isinstance(history, dict) else {}
    setting = {name: given[name] for name in ("system", "tools", "model") if given.get(name)}
    opened = {"type": "session.opened", "targets": ["anthropic", "openai-chat"], "params": {"max_tokens": 9}} | setting
    turns = [b'{"type":"turn.appended","message":%b}' % encoded(message) for message in messages_of(history)[:40]]
    yield from fed(TurnsStage(), [(value, ()) for value in (encoded(opened), *turns)], "turns")


def fed(
    stage: Any, values: Iterable[tuple[bytes | None, tuple[Any, ...]]], name: str, key: bytes = b"session"
) -> Iterator[Outcome]:
    """Yield the outputs and the state of a stage for these records, in batches of three."""
    records = [
        Record(partition=0, offset=offset, key=key, value=value, headers=headers, timestamp=1)
        for offset, (value, headers) in enumerate(values)
    ]
    outputs: list[Any] = []
    state: list[Any] = []
    for start in range(0, len(records), 3):
        result = stage.process(records[start : start + 3])
        outputs += [[output.topic, output.value, output.headers] for output in result.outputs]
        state.append(sorted(result.changes.items()))
    yield f"stage of {name}", outputs
    yield f"stage of {name}: state", state


def kept() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield sessions as an earlier version saved them."""
    for path in sorted((TESTS / "vectors").glob("state_*.jsonl.gz")):
        yield from rows(path)


def continued(row: dict[str, Any]) -> Iterator[Outcome]:
    """Yield the outcome of continuing a session that an earlier version saved, and the state afterwards."""
    stage = {"turns": TurnsStage, "events": EventsStage}[row["side"]]()
    for key, value in row["state"]:
        if (name := base64.b64decode(key))[:1] != b"\0":
            stage.restore(name, None if value is None else base64.b64decode(value))
    values = [
        (
            value.encode() if isinstance(value, str) else None,
            tuple((name, text.encode()) for name, text in told.items()),
        )
        for value, told in row["then"]
    ]
    yield from fed(stage, values, f"{row['side']} left earlier", base64.b64decode(row["key"]))


# -- streams -----------------------------------------------------------------------------------------------------------


def sse(event: Any) -> bytes:
    return b"data: %b\n\n" % (event.encode() if isinstance(event, str) else encoded(event))


def line(event: Any) -> bytes:
    return event.encode() if isinstance(event, str) else json.dumps(event).encode()


def streams() -> Iterator[tuple[str, str, list[bytes]]]:
    for name, source in SOURCE_OF.items():
        for case, row in rows(CORPUS / f"{name}.jsonl.gz"):
            if row.get("stream"):
                yield case, source, [(sse if row.get("stream_format") == "sse" else line)(e) for e in row["stream"]]
    for name in ("claude-cli-faults", "claude-cli-held"):
        for case, row in rows(CORPUS / f"{name}.jsonl.gz"):
            yield case, "claude-cli", [line(one) for one in row["lines"]]
    for path in (CORPUS / "agent-cli-runs.jsonl.gz", TESTS / "vectors" / "agent_cli_runs.jsonl.gz"):
        for case, row in rows(path):
            yield case, row["program"], [line(one) for one in row["lines"]]
    for path in sorted(CORPUS.glob("claude-stream-json/*")):
        yield path.name[-60:], "claude-cli", list(lines_of(path))
    for case, row in rows(TESTS / "conformance" / "cydo_stream_recovery.jsonl"):
        yield case, "claude-cli", [line(one) for one in row["lines"]]
    for case, row in rows(TESTS / "conformance" / "stream_near_misses.jsonl"):
        yield case, row.get("from", "cascade"), [line(one) for one in row["events"]]
    for case, row in rows(TESTS / "conformance" / "windsurf_cascade.jsonl"):
        said = row["input"].get("text") if isinstance(row.get("input"), dict) else None
        if isinstance(said, str):
            events = [{"type": "text_delta", "text": said[at : at + 7]} for at in range(0, len(said), 7)]
            yield case, "cascade", [line(event) for event in [*events, {"type": "done"}]]
    for case, row in rows(TESTS / "vectors" / "provider_streams.jsonl"):
        yield case, row["source"], [(sse if row["framing"] == "sse" else line)(event) for event in row["events"]]


def recovered(source: str, records: list[bytes]) -> Iterator[Outcome]:
    """Recover a stream record by record, ten at a time, in pieces of bytes, and cut off; yield state and turns."""
    one = Recovery(source)
    items: list[Any] = []
    saved: list[bytes] = []
    step = max(1, len(records) // 8)
    for number, record in enumerate(records):
        items += [one.feed(record)]
        if number % step == 0:
            saved.append(one.snapshot())
    cut = Recovery.restore(saved[len(saved) // 2]).end_run("cut") if saved else []
    items += [one.end_run("exit")]
    yield f"items {source}", items
    yield f"items {source}: cut", cut
    yield f"stream state {source}", saved
    yield f"finished turns {source}", [one.take_finished(), one.take_fixes()]
    yield attempted(f"items {source}: ten a batch", lambda: in_batches(source, records))
    yield attempted(f"items {source}: bytes", lambda: in_pieces(source, records))


def in_batches(source: str, records: list[bytes]) -> list[Any]:
    recovery = Recovery(source)
    batches = [b"\n".join(records[at : at + 10]) for at in range(0, len(records), 10)]
    return [*map(recovery.feed, batches), recovery.end_run("exit")]


def in_pieces(source: str, records: list[bytes]) -> list[Any]:
    data = b"".join(record if record.endswith(b"\n") else record + b"\n" for record in records)[:60_000]
    recovery = Recovery(source)
    pieces = [data[at : at + 173] for at in range(0, len(data), 173)]
    return [*(recovery.feed(piece, framing="bytes") for piece in pieces), recovery.end_run("exit")]


def streamed(source: str, records: list[bytes]) -> Iterator[Outcome]:
    """Yield the outputs and the state of the stage for the stream as provider events."""
    headers = (("source", source.encode()), ("run", b"r1"))
    policy = (None, (("policy", b'{"record_assistant":true,"model":"m"}'),))
    end = (None, (*headers, ("exit", b"0")))
    yield from fed(EventsStage(), [policy, *[(record, headers) for record in records], end], "events")


# -- cases -------------------------------------------------------------------------------------------------------------


def cases() -> Iterator[tuple[int, Case]]:
    """Yield every case, with how many cases of its kind a plain run has for each one that it tries."""
    seen: set[bytes] = set()
    for name, history, policy in histories():
        digest = hashlib.sha256(encoded([history, policy])).digest()
        if digest in seen:
            continue
        seen.add(digest)
        own = 1 if policy or "#" not in name else 2
        yield 1, (f"{name} mended", lambda h=history, p=policy: mended(h, p))
        yield 1, (f"{name} judged", lambda h=history: judged(h))
        yield own, (f"{name} turn by turn", lambda h=history, p=policy: turn_by_turn(h, p))
        yield own, (f"{name} as records", lambda h=history: staged(h))
    for name, source, records in streams():
        yield 1, (f"{name} recovered", lambda s=source, r=records: recovered(s, r))
        yield 1, (f"{name} as records", lambda s=source, r=records: streamed(s, r))
    for name, row in kept():
        yield 1, (f"{name} goes on", lambda row=row: continued(row))


def chosen(sample: int, only: frozenset[str]) -> Iterator[Case]:
    """Yield the cases to run: a sample of each kind, selected by name so that builds agree, or only the named cases."""
    for every, case in cases():
        number = int.from_bytes(hashlib.sha256(case[0].encode()).digest()[:4], "big")
        if case[0] in only or (not only and number % (every * sample) == 0):
            yield case


def run(sample: int, only: frozenset[str]) -> Iterator[list[str]]:
    for name, make in chosen(sample, only):
        outcomes = make()
        for place in itertools.count():
            try:
                kind, value = next(outcomes)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001  as above
                kind, value = f"error {place}", error_of(error)
            made = encoded(value)
            told = [kind, name, hashlib.sha256(made).hexdigest()[:16]]
            yield [*told, made.decode("utf-8", "backslashreplace")] if only else told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--only", type=Path)
    given = parser.parse_args()
    only = frozenset(json.loads(given.only.read_text(encoding="utf-8"))) if given.only else frozenset()
    for outcome in run(given.sample, only):
        sys.stdout.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
