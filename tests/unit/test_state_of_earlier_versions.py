"""Sessions saved by earlier versions are read by this one, and continue (``tests/vectors/make_state.py``).

Two separate questions. Is everything present: the settled part of each request byte for byte, each word of the
history, each item under its id with its text? That holds for as long as the topics are called ``v1``. And is the
output exactly equal to the earlier output? A later version may deliberately change it; ``CHANGED`` then lists the
change.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reknit.pipeline.stages.base import POSITION, Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventsStage
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics.items import AnyItem
from reknit.topics.reducer import reduce

VECTORS = sorted((Path(__file__).parents[1] / "vectors").glob("state_*.jsonl.gz"))
STAGES = {"turns": TurnsStage, "events": EventsStage}
WORD = re.compile(rb"w[0-9]+w")

# By the version that wrote them: rows, or whole kinds of them (the text before the colon), whose records of a topic
# (or `accounts`) this version deliberately changes, and why. The other tests check what these records must still
# contain.
_WORDS = "words of tools and earlier turns do not act, the JSON is ASCII, an earlier document leaves a mark"
_OWN = (
    "a block of the source's own type ends with its whole JSON, and thinking begins with its first word if it has one"
)
_MODEL = "a turn's model is told with its stop, and no delta says only that"
_CALLS = "a call's item begins with its first input, since its name may still come"
_BESIDE = "digests count what an item has beside the canonical form"
_STAYS = "what a target's models take stays as it came, and where nobody said anything nothing is put in its place"
_POINTS = "a cache breakpoint goes over between Anthropic's form and Converse's"
_NAMED = "a fix that not all targets of a session needed is told for each that did, by its name"
_SINCE_0_1_0: dict[tuple[str, str], str] = {
    ("all targets: in one session, read back midway", HISTORY_FIXES): _NAMED,
    ("shape: converse", PROVIDER_REQUESTS): _POINTS,
    ("shape: converse", HISTORY_FIXES): _POINTS,
    ("cache breakpoints", PROVIDER_REQUESTS): f"{_POINTS}; {_STAYS}",
    ("cache breakpoints", HISTORY_FIXES): f"{_POINTS}; {_STAYS}",
    ("cache breakpoints", "accounts"): f"{_POINTS}; {_STAYS}",
    ("claude-cli", PROVIDER_REQUESTS): _WORDS,
    ("claude-cli", HISTORY_FIXES): _WORDS,
    ("copilot-cli", PROVIDER_REQUESTS): _WORDS,
    ("copilot-cli", HISTORY_FIXES): _WORDS,
    ("anthropic", SESSION_ITEMS): _OWN,
    ("bedrock-converse", SESSION_ITEMS): _OWN,
    ("claude-cli", SESSION_ITEMS): _OWN,
    ("gemini", SESSION_ITEMS): _OWN,
    ("openai-responses", SESSION_ITEMS): f"{_OWN}; {_MODEL}",
    ("openai-chat", SESSION_ITEMS): _CALLS,
    ("vllm", SESSION_ITEMS): _CALLS,
    ("shape: responses", HISTORY_FIXES): f"{_BESIDE}; {_STAYS}",
    ("two sources in one session", SESSION_ITEMS): _CALLS,
}
_STAYING: dict[tuple[str, ...], tuple[str, ...]] = {
    (PROVIDER_REQUESTS, HISTORY_FIXES, "accounts"): (
        "anthropic: a varied history",
        "bedrock-converse: a varied history",
        "gemini: a varied history",
        "openai-chat: a varied history",
        "openai-responses: a varied history",
        "vllm: a varied history",
        "policy",
        "many segments",
        "rewound to a number",
        "restored",
        "restored and gone on",
        "configured anew",
        "closed and opened again",
        "under the worker's defaults",
        "a key that is no text",
        "system messages",
        "only system messages",
        "thinking beside a call that was cut",
    ),
    (PROVIDER_REQUESTS, "accounts"): ("all targets: in one session, read back midway",),
    (PROVIDER_REQUESTS, HISTORY_FIXES): (
        "rewound to an id",
        "rewound to nothing",
        "never opened",
        "something that nobody gave",
        "shape: chat completions",
        "a request that nobody answered",
        "calls, one answered",
        "a fix that was told and may be undone",
        "recorded turns",
    ),
    (PROVIDER_REQUESTS,): (
        "shape: responses",
        "texts and numbers at the edge",
        "calls that wait",
    ),
    ("accounts",): (
        "quarantined",
        "a request that was answered",
        "ids that may come again",
    ),
}
_SINCE_0_1_0 |= {(name, topic): _STAYS for topics, names in _STAYING.items() for topic in topics for name in names}
_PAPERS = "documents of plain text are shown as text, and media that are not sent have a fix"
_MEDIA = "media of parallel results follow the last result of their exchange"
_DEVELOPER = "a developer that came in the shape of one of OpenAI's APIs stays one for the other"
_UNSHOWN = "a displaced result that no assistant turn follows may be replaced, so prefix-bytes ends before it"
_SINCE_5E982C6: dict[tuple[str, str], str] = {
    ("left midway: parallel pictures, openai-chat", PROVIDER_REQUESTS): _MEDIA,
    ("left midway: parallel pictures, openai-chat", HISTORY_FIXES): _MEDIA,
    ("left midway: parallel pictures, openai-chat", DEAD_LETTERS): _MEDIA,
    ("left midway: parallel pictures, vllm", PROVIDER_REQUESTS): _MEDIA,
    ("left midway: parallel pictures, vllm", HISTORY_FIXES): _MEDIA,
    ("left midway: parallel pictures, vllm", DEAD_LETTERS): _MEDIA,
    ("left midway: parallel pictures, gemini", PROVIDER_REQUESTS): _MEDIA,
    ("claude-cli", PROVIDER_REQUESTS): _PAPERS,
    ("claude-cli", HISTORY_FIXES): _PAPERS,
    ("copilot-cli", PROVIDER_REQUESTS): _PAPERS,
    ("copilot-cli", HISTORY_FIXES): _PAPERS,
    ("mixed shapes", PROVIDER_REQUESTS): _DEVELOPER,
    ("anthropic: a varied history", PROVIDER_REQUESTS): _UNSHOWN,
    ("bedrock-converse: a varied history", PROVIDER_REQUESTS): _UNSHOWN,
    ("gemini: a varied history", PROVIDER_REQUESTS): _UNSHOWN,
    ("openai-chat: a varied history", PROVIDER_REQUESTS): _UNSHOWN,
    ("openai-responses: a varied history", PROVIDER_REQUESTS): _UNSHOWN,
    ("vllm: a varied history", PROVIDER_REQUESTS): _UNSHOWN,
    ("restored", PROVIDER_REQUESTS): _UNSHOWN,
    ("restored and gone on", PROVIDER_REQUESTS): _UNSHOWN,
    ("under the worker's defaults", PROVIDER_REQUESTS): _UNSHOWN,
}
CHANGED: dict[str, dict[tuple[str, str], str]] = {"0_1_0": _SINCE_0_1_0, "5e982c6": _SINCE_5E982C6}

# Sessions that send more requests now: words that were dropped stay, or a request that was rejected is valid.
SENT_MORE_OFTEN = {
    "rewound to nothing",
    "left midway: parallel pictures, openai-chat",
    "left midway: parallel pictures, vllm",
}
# Sessions whose requests show words that were dropped before: the texts of documents.
SHOWS_MORE = SENT_MORE_OFTEN | {"claude-cli: a varied history", "copilot-cli: a varied history"}

# A key that is not UTF-8 belongs to no session (`bad_key`): such a session has ended.
REFUSED = {"a key that is no text"}

# Headers that name the version, headers that were added later, and ids of requests, which are digests of more members
# since each wanted request has its own id.
UNCOMPARED = {"reknit-version", "reknit.error.version", "cause", "reason", "first", "prefix-reset", "run", "origin"}
UNCOMPARED |= {"request-id", "supersedes"}

Row = dict[str, Any]


@cache
def rows() -> dict[str, Row]:
    found = {}
    for path in VECTORS:
        version = path.name.removeprefix("state_").partition(".")[0]
        for line in gzip.decompress(path.read_bytes()).splitlines():
            row = json.loads(line)
            found[f"{version}: {row['name']}"] = row | {"version": version}
    return found


def taken() -> dict[str, Row]:
    return {name: row for name, row in rows().items() if row["name"] not in REFUSED}


def of(side: str) -> Any:
    return pytest.mark.parametrize("row", [pytest.param(r, id=n) for n, r in taken().items() if r["side"] == side])


each_row = pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in taken().items()])


def value_of(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"])
    return None if value is None else value.encode()


def loaded(row: Row) -> Any:
    """Return a stage that has read the row's changelog."""
    defaults = dict(row.get("defaults", {}))
    if defaults.pop("quarantine", False):  # its name in 0.1.0
        defaults["on_dead_letter"] = "follow"
    stage = STAGES[row["side"]](msgspec.json.decode(json.dumps(defaults), type=Defaults))
    for name, encoded in row["state"]:
        key = base64.b64decode(name)
        value = None if encoded is None else base64.b64decode(encoded)
        if key == POSITION:
            assert int(value) == row["offset"]
        else:
            stage.restore(key, value)
    return stage


def continued(row: Row) -> list[Row]:
    """Return the outputs of the continued session, in the format of the rows."""
    stage, key = loaded(row), base64.b64decode(row["key"])
    found = []
    for at, (value, headers) in enumerate(row["then"]):
        given = tuple((name, text.encode()) for name, text in headers.items())
        record = Record(
            partition=0, offset=row["offset"] + at, key=key, value=value_of(value), headers=given, timestamp=1000
        )
        for output in stage.process([record]).outputs:
            made = {"at": at, "topic": output.topic, "value": output.value and output.value.decode()}
            if output.headers:
                made["headers"] = {name: text.decode() for name, text in output.headers}
            found.append(made)
    return found


def unversioned(outputs: list[Row], topic: str) -> list[Row]:
    """Return the records of a topic without the version that wrote them."""
    found = []
    for output in outputs:
        if output["topic"] == topic:
            kept = {name: text for name, text in output.get("headers", {}).items() if name not in UNCOMPARED}
            value = output["value"]
            if topic == HISTORY_FIXES:
                value = {
                    name: member for name, member in json.loads(value).items() if name not in {"version", "request_id"}
                }
            found.append(output | {"headers": kept, "value": value})
    return found


def reason(row: Row, topic: str) -> str | None:
    """Return the reason for which records of a row are deliberately different now, if any."""
    changed, name = CHANGED[row["version"]], row["name"]
    return changed.get((name, topic)) or changed.get((name.partition(":")[0], topic))


# -- everything is present
# ---------------------------------------------------------------------------------------------


def test_there_are_rows_of_every_kind():
    sides = Counter((row["side"], name.partition(":")[0]) for name, row in rows().items())
    assert sides["turns", "0_1_0"] > 40
    assert sides["events", "0_1_0"] > 100


def letters(outputs: list[Row]) -> list[tuple[int, str]]:
    return [
        (output["at"], output["headers"]["reknit.error.code"]) for output in outputs if output["topic"] == DEAD_LETTERS
    ]


@each_row
def test_no_new_dead_letters_appear(row: Row):
    now, then = Counter(letters(continued(row))), Counter(letters(row["outputs"]))
    assert now <= then if row["name"] in SENT_MORE_OFTEN else now == then


@pytest.mark.parametrize("version", sorted(CHANGED))
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_records_with_a_key_that_is_not_utf8_are_dead_letters(version: str, name: str):
    row = rows()[f"{version}: {name}"]
    assert letters(continued(row)) == [(at, "bad_key") for at in range(len(row["then"]))]


def requests(outputs: list[Row]) -> list[tuple[int, str, bytes]]:
    """Return the requests: the record that each belongs to, its target, and its body."""
    return [(o["at"], o["headers"]["target"], o["value"].encode()) for o in outputs if o["topic"] == PROVIDER_REQUESTS]


def settled(row: Row) -> dict[str, bytes]:
    """Return for each target the bytes of the messages that were settled in the state, up to the final settled one."""
    found: dict[str, bytes] = {}
    for output in row["outputs"]:
        headers = output.get("headers", {})
        target = headers.get("target")
        if output["at"] == 0 and target in row.get("heads", {}):
            found[target] = output["value"].encode()[row["heads"][target] : int(headers["prefix-bytes"])]
    return found


@of("turns")
def test_the_settled_part_of_a_request_is_kept_to_the_byte(row: Row):
    parts = settled(row)
    then = requests(row["outputs"])
    outputs = continued(row)
    now = requests(outputs)
    if row["name"] not in SENT_MORE_OFTEN:
        assert [one[:2] for one in now] == [one[:2] for one in then]
    reset = {(o["at"], o["headers"]["target"]) for o in outputs if "prefix-reset" in o.get("headers", {})}
    bodies = {(at, target): body for at, target, body in now}
    for at, target, old in then:
        part = parts.get(target, b"")
        assert part not in old or part in bodies[at, target] or (at, target) in reset


def test_most_rows_have_a_settled_part():
    parts = [part for row in rows().values() if row["side"] == "turns" for part in settled(row).values()]
    assert sum(len(part) > 100 for part in parts) > 30


@of("turns")
def test_every_word_of_a_history_stays_in_its_place(row: Row):
    then = {(at, target): set(WORD.findall(body)) for at, target, body in requests(row["outputs"])}
    now = {(at, target): set(WORD.findall(body)) for at, target, body in requests(continued(row))}
    if row["name"] in SHOWS_MORE:
        assert all(words <= now[place] for place, words in then.items())
    else:
        assert now == then


def accounts(row: Row) -> Row:
    """Return the metadata of each target's request for the saved session."""
    entry = loaded(row)._states.find(base64.b64decode(row["key"]))
    found = {} if entry is None else {name: entry.session.request(name) for name in entry.session.targets}
    return {
        name: {
            "ids": done.ids,
            "fixes": [[fix.code, fix.path, fix.lossless, fix.before, fix.after] for fix in done.fixes],
            "ledger": [[line.path, line.fate, line.output, line.code] for line in done.ledger],
        }
        for name, done in found.items()
    }


def blocks_of(account: Row) -> set[str]:
    """Return the input blocks in a ledger.

    A synthesised block has no path, and a breakpoint is a member of its block.
    """
    return {path for path, *_ in account["ledger"] if path and not path.endswith(".cache_control")}


@of("turns")
def test_every_block_is_still_accounted_for(row: Row):
    now, then = accounts(row), row.get("accounts", {})
    assert now.keys() == then.keys()
    for target, account in then.items():
        assert blocks_of(now[target]) == blocks_of(account)


def shown(row: Row, outputs: list[Row]) -> list[tuple[Any, ...]]:
    """Return all non-empty items of the session from its beginning, as a reader sees them."""
    later = [output["value"] for output in outputs if output["topic"] == SESSION_ITEMS]
    records = [*map(json.dumps, row["items"]), *later]
    view = reduce([msgspec.json.decode(record, type=AnyItem) for record in records])
    return [
        (entry.item_id, entry.item_type, entry.started.name, entry.text, entry.input and json.loads(bytes(entry.input)))
        for entry in view.entries
        if entry.item_type != "thinking" or entry.text
    ]


@of("events")
def test_items_keep_their_ids_and_their_texts_continue(row: Row):
    now = shown(row, continued(row))
    assert now == shown(row, row["outputs"])
    assert now


def appended(outputs: list[Row]) -> list[tuple[str, str, list[Any]]]:
    """Return the turns for the log: the texts and calls of each."""
    records = [json.loads(output["value"]) for output in outputs if output["topic"] == AGENT_TURNS]
    return [
        (
            record["source"],
            record["message"]["role"],
            [block.get("text") or block.get("name") or block["type"] for block in record["message"]["content"]],
        )
        for record in records
    ]


@of("events")
def test_finished_turns_are_still_recorded(row: Row):
    assert appended(continued(row)) == appended(row["outputs"])


# -- the output is unchanged
# -------------------------------------------------------------------------------------------

TOPICS = (PROVIDER_REQUESTS, HISTORY_FIXES, SESSION_ITEMS, AGENT_TURNS, DEAD_LETTERS)


@each_row
def test_outputs_equal_the_earlier_outputs(row: Row):
    now = continued(row)
    for topic in TOPICS:
        if reason(row, topic) is None:
            assert unversioned(now, topic) == unversioned(row["outputs"], topic)


def as_then(row: Row, topic: str) -> bool:
    if topic == "accounts":
        return accounts(row) == row.get("accounts", {})
    return unversioned(continued(row), topic) == unversioned(row["outputs"], topic)


@of("turns")
def test_accounts_equal_the_earlier_accounts(row: Row):
    if reason(row, "accounts") is None:
        assert accounts(row) == row.get("accounts", {})


def test_listed_changes_are_real():
    unchanged = []
    for version, changed in CHANGED.items():
        of_version = [row for row in rows().values() if row["version"] == version]
        for (name, topic), why in changed.items():
            assert why
            concerned = [row for row in of_version if name in {row["name"], row["name"].partition(":")[0]}]
            if all(as_then(row, topic) for row in concerned):
                unchanged.append((version, name, topic))
    assert unchanged == []


def test_each_version_has_its_list_of_changes():
    assert CHANGED.keys() == {row["version"] for row in rows().values()}


@of("turns")
def test_the_digest_of_a_reloaded_request_is_that_of_its_body(row: Row):
    for output in continued(row):
        if output["topic"] == PROVIDER_REQUESTS:
            assert output["headers"]["body-sha256"] == hashlib.sha256(output["value"].encode()).hexdigest()
