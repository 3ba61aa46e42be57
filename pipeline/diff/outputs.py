"""Compares the outputs of single records: requests, fixes and dead letters.

A request is paired with the one that the same record caused for the same target, never by an id or a turn; a fix and a
dead letter by the record that caused them. Versions, and values that are derived from compared ones, do not count.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct, field, structs

from reknit.pipeline.diff.values import ABSENT, Json, differing, encodable, read_json, unified
from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import severity_of
from reknit.topics import AGENT_TURNS, PROVIDER_EVENTS
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.records import FixRecord

T = TypeVar("T")

# The compared kinds, and the subject of a difference.
Subject: TypeAlias = Literal["request", "rejection", "dead letter", "fix", "item", "recorded"]
# How the second side differs from the first. ``repeated``: one side published equal records more often.
How: TypeAlias = Literal["appeared", "vanished", "changed", "repeated"]


class Published(Struct, frozen=True, kw_only=True):
    """One record of a side. ``topic`` is the contract's name.

    ``digest`` is equal for equal values; ``read`` returns the value, which may be large, on demand, and None if there
    is none.
    """

    topic: str
    partition: int
    offset: int
    headers: Headers
    digest: bytes
    read: Callable[[], bytes | None]


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One difference of a session.

    Attributes:
        subject, how: the kind of output that differs, and the kind of difference.
        label: a target and its block, a fix's code, a rule, an item's type. From a bounded set.
        place: the target and the record that caused a request, the record of a fix, an item's id.
        path: the place in it, in the provider's shape; of an addition, the second side's.
        lines: before and after, as the lines of a unified difference.
        again: of a request, the number of later ones of the target with the same difference.
    """

    subject: Subject
    how: How
    label: str
    place: str = ""
    path: str = ""
    lines: tuple[str, ...] = ()
    again: int = 0


class Repeat(Struct, frozen=True, order=True):
    """Records that both sides would call the same: their subject, label and place, as in a ``Change``."""

    subject: Subject
    label: str
    place: str


class Repeats(Struct, frozen=True):
    """The records of a side that repeat an earlier one with equal id and bytes.

    ``at_least_once``: the side's worker may publish a record again, so a repeat is no difference.
    """

    at_least_once: bool
    counts: Counter[Repeat] = field(default_factory=Counter)

    def note(self, repeat: Repeat) -> None:
        self.counts[repeat] += 1


def compare_repeats(before: Repeats, after: Repeats) -> tuple[int, list[Change]]:
    """Compare how often equal records were published.

    Returns:
        How many repeats are explained by at-least-once delivery of their side, and the differences that are not.
    """
    explained = 0
    changes = []
    for repeat in sorted(before.counts.keys() | after.counts.keys()):
        counts = before.counts[repeat], after.counts[repeat]
        if counts[0] == counts[1]:
            continue
        if (after if counts[1] > counts[0] else before).at_least_once:
            explained += abs(counts[1] - counts[0])
            continue
        said = [f"published {count + 1} times" if count else "published once" for count in counts]
        changes.append(
            Change(
                subject=repeat.subject,
                how="repeated",
                label=repeat.label,
                place=repeat.place,
                lines=unified(said[0], said[1]),
            )
        )
    return explained, changes


def texts(record: Published) -> dict[str, str]:
    """A record's headers; of a name that occurs twice the last value, as everywhere."""
    return dict(names.as_texts(record.headers))


def read_value(record: Published, decode: Callable[[bytes], T]) -> T:
    """Decode a record's value as a value of its topic.

    Raises:
        InputError: ``not_readable``, if it is not one.
    """
    try:
        return decode(record.read() or b"")
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        place = f"{record.topic}/{record.partition}/{record.offset}"
        raise InputError("not_readable", f"{place} holds no record of its topic: {error}") from error


# Requests.

# A request's identity, and values that are derived from its body and its fixes, which are compared.
_DERIVED = frozenset(
    {names.REQUEST_ID, names.SUPERSEDES, names.REKNIT_VERSION, names.BODY_SHA256, names.FIXES, names.DATAREF}
    | {names.TARGET, names.CAUSE}
)


def compare_requests(
    before: Iterable[Published], after: Iterable[Published], repeats: tuple[Repeats, Repeats]
) -> Iterator[Change]:
    """Return requests that only one side has, and the differences of the others; bodies are read two at a time.

    Each later request repeats the history, and so a difference: it is reported for the first.
    """
    sides = _requests(before, repeats[0]), _requests(after, repeats[1])
    first: dict[object, Change] = {}
    again: Counter[object] = Counter()
    for pair in sorted(sides[0].keys() | sides[1].keys(), key=_in_log):
        one, other = sides[0].get(pair, ()), sides[1].get(pair, ())
        place = " ".join(filter(None, pair))
        for number in range(max(len(one), len(other))):
            if number >= min(len(one), len(other)):
                how: How = "vanished" if number >= len(other) else "appeared"
                first[place, number] = Change(subject="request", how=how, label=pair[0], place=place)
                continue
            for key, change in _compare_request(one[number], other[number], pair[0], place):
                if key in first:
                    again[key] += 1
                else:
                    first[key] = change()
    for key, found in first.items():
        yield structs.replace(found, again=again[key]) if again[key] else found


_Pair: TypeAlias = tuple[str, str]


def _requests(side: Iterable[Published], repeats: Repeats) -> dict[_Pair, list[Published]]:
    """Requests by target and cause, without those that repeat one of the same id and body."""
    found: dict[_Pair, dict[object, Published]] = defaultdict(dict)
    for record in side:
        said = texts(record)
        pair = said.get(names.TARGET, ""), said.get(names.CAUSE, "")
        same = said.get(names.REQUEST_ID), record.digest
        if same in found[pair]:
            repeats.note(Repeat("request", pair[0], " ".join(filter(None, pair))))
        found[pair].setdefault(same, record)
    return {pair: list(records.values()) for pair, records in found.items()}


def _in_log(pair: _Pair) -> tuple[object, ...]:
    """A sorting key: causes in the order of their log."""
    topic, _, rest = pair[1].partition("/")
    return topic, [int(part) if part.isdigit() else -1 for part in rest.split("/")], pair


# A difference, which is made when it is the first of its key.
_Found: TypeAlias = Iterator[tuple[object, Callable[[], Change]]]


def _compare_request(before: Published, after: Published, target: str, place: str) -> _Found:
    same_body = before.digest == after.digest
    if not same_body:
        yield from _compare_bodies(before.read(), after.read(), target, place)
    if before.headers == after.headers:
        return
    said = [_said(record) for record in (before, after)]
    for name in sorted(said[0].keys() | said[1].keys()):
        values = said[0].get(name, ABSENT), said[1].get(name, ABSENT)
        # Where a body differs, so does what is settled of it.
        if values[0] != values[1] and (same_body or name != names.PREFIX_BYTES):
            change = partial(_request_change, target, place, f"header {name}", values=values)
            yield (place, name, before.digest), change


def _said(record: Published) -> dict[str, str]:
    """The headers that are compared. Only a pipeline that accepted a re-created topic has a base, so it is left out."""
    found = texts(record)
    base = found.pop(names.BASE, "0")
    if base.isdecimal() and found.get(names.FIRST, "").isdecimal():
        found[names.FIRST] = str(int(found[names.FIRST]) - int(base))
    return {name: value for name, value in found.items() if name not in _DERIVED}


def _compare_bodies(before: bytes | None, after: bytes | None, target: str, place: str) -> _Found:
    change = partial(_request_change, target, place)
    if before is None or after is None:
        # Its object could not be read; that it is another one is known from its digest.
        yield (place, "body"), partial(change, "body")
        return
    try:
        bodies = read_json(before), read_json(after)
        found = list(differing(*bodies))
    except (ValueError, RecursionError):
        words = before.decode("utf-8", "backslashreplace"), after.decode("utf-8", "backslashreplace")
        yield (target, _likeness(*words)), partial(change, "text", values=words)
        return
    if not found:
        yield (place, "spelling"), partial(change, "spelling", values=(before.decode(), after.decode()))
    for where in found:
        part = _part(where.path, bodies[1] if where.before is ABSENT else bodies[0])
        values = where.before, where.after
        yield (target, where.path, _likeness(*values)), partial(change, part, where.path, values=values)


def _likeness(before: Json, after: Json) -> object:
    """Return a key that is equal for a difference that a later request repeats.

    If a target's history is one long text that continues, its differing lines are equal.
    """
    if isinstance(before, str) and isinstance(after, str) and "\n" in before and "\n" in after:
        return unified(before, after)
    # Values may be large, and there are many.
    return hashlib.sha256(repr((before, after)).encode("utf-8", "surrogatepass")).digest()


def _request_change(
    target: str, place: str, part: str, path: str = "", *, values: tuple[Json, Json] | None = None
) -> Change:
    return Change(
        subject="request",
        how="changed" if values is None else how_of(*values),
        label=encodable(f"{target} {part}"),
        place=place,
        path=path,
        lines=() if values is None else unified(*values),
    )


def how_of(before: Json, after: Json) -> How:
    return "appeared" if before is ABSENT else "vanished" if after is ABSENT else "changed"


# The place of a conversation in the bodies of all providers, and of a block in it: an element of a message's list, or
# of `input` an item that is not a message.
_CONVERSATION = re.compile(r"(?P<message>(?:messages|contents|input)\.\d+|message)(?P<block>\.[a-z_]+\.\d+)?")
_HEAD = {
    "model": "model",
    "modelId": "model",
    "system": "system",
    "systemInstruction": "system",
    "system_instruction": "system",
    "instructions": "system",
    "tools": "tools",
    "toolConfig": "tools",
}


def _part(path: str, body: Json) -> str:
    """Which part of a body a path leads into: `block text`, `message user`, `system`, `parameter temperature`."""
    found = _CONVERSATION.match(path)
    if found is None:
        member = path.partition(".")[0]
        return _HEAD.get(member, f"parameter {member}" if member else "body")
    message = _at(body, found["message"])
    if found["block"]:
        return f"block {_kind(_at(body, found[0]))}"
    return f"block {_kind(message)}" if "role" not in message else f"message {message['role']}"


def _at(body: Json, path: str) -> Json:
    for name in path.split("."):
        body = body[int(name)] if isinstance(body, list) else body[name]
    return body if isinstance(body, dict) else {}


def _kind(block: Json) -> str:
    """A block's type; Gemini's and Converse's have a member for it instead."""
    kind = block.get("type")
    return kind if isinstance(kind, str) else next(iter(block), "text")


# Fixes and dead letters: the other outputs of one record.


class _Report(Struct, frozen=True, kw_only=True):
    """One of them.

    ``place`` is the record that caused it; outputs that are ``named`` equally on both sides are the same.
    """

    subject: Subject
    label: str
    place: str
    named: tuple[str, ...]
    content: dict[str, Json]


def compare_fixes(
    before: Iterable[Published], after: Iterable[Published], repeats: tuple[Repeats, Repeats]
) -> Iterator[Change]:
    return _compare_reports(_fixes(before, repeats[0]), _fixes(after, repeats[1]))


def _fixes(side: Iterable[Published], repeats: Repeats) -> list[_Report]:
    found: dict[object, _Report] = {}
    for record in side:
        fix = read_value(record, _FIXES.decode)
        place = f"{PROVIDER_EVENTS if fix.source else AGENT_TURNS}/{record.partition}/{fix.offset}"
        content = {name: value for name, value in structs.asdict(fix).items() if name not in _NOT_OF_A_FIX}
        report = _Report(
            subject="fix",
            label=f"{fix.code} {severity_of(lossless=fix.lossless, observed=fix.observed)}",
            place=place,
            named=(fix.source, fix.target, fix.code),
            content=content,
        )
        # Its number distinguishes it from an equal fix of the same record.
        _keep(found, (place, fix.number, fix.code, *content.values()), report, repeats)
    return list(found.values())


def _keep(found: dict[object, _Report], same: object, report: _Report, repeats: Repeats) -> None:
    if same in found:
        repeats.note(Repeat(report.subject, report.label, report.place))
    found[same] = report


_FIXES = msgspec.json.Decoder(FixRecord)

# Its place, and derived values.
_NOT_OF_A_FIX = frozenset({"version", "request_id", "turn", "number", "offset", "base", "code"})


def compare_letters(
    before: Iterable[Published], after: Iterable[Published], repeats: tuple[Repeats, Repeats]
) -> Iterator[Change]:
    """Requests that were rejected, and records that could not be processed."""
    return _compare_reports(_letters(before, repeats[0]), _letters(after, repeats[1]))


def _letters(side: Iterable[Published], repeats: Repeats) -> list[_Report]:
    found: dict[object, _Report] = {}
    for record in side:
        said = texts(record)
        # A note is a person's.
        if names.ERROR_LETTER in said:
            continue
        code, rule = said.get(names.ERROR_CODE, ""), said.get(names.ERROR_RULE, "")
        place = "/".join(said.get(name, "") for name in (names.ERROR_TOPIC, names.ERROR_PARTITION, names.ERROR_OFFSET))
        content = {"path": said.get(names.ERROR_PATH, ""), "message": said.get(names.ERROR_MESSAGE, "")}
        # The record's own headers and value are in its letter.
        content |= {name: value for name, value in said.items() if not name.startswith(names.ERROR_PREFIX)}
        content["value"] = record.digest.hex()
        report = _Report(
            subject="rejection" if code == "rejected" else "dead letter",
            label=rule if code == "rejected" else code,
            place=place,
            named=(code, rule, said.get(names.ERROR_TARGET, "")),
            content=content,
        )
        _keep(found, (place, *report.named, *content.items()), report, repeats)
    return list(found.values())


def _compare_reports(before: list[_Report], after: list[_Report]) -> Iterator[Change]:
    """Pairs what is equal, then what one record led to in the same part of a history, then what it led to at all."""
    pairs: list[tuple[_Report, _Report]] = []
    for key in _LIKENESSES:
        waiting: dict[object, list[_Report]] = defaultdict(list)
        for each in after:
            waiting[key(each)].append(each)
        left = []
        for each in before:
            same = waiting[key(each)]
            if same:
                pairs.append((each, same.pop(0)))
            else:
                left.append(each)
        before, after = left, [each for same in waiting.values() for each in same]
    for one, other in pairs:
        for where in differing(one.content, other.content):
            yield Change(
                subject=one.subject,
                how="changed",
                label=one.label,
                place=one.place,
                path=where.path,
                lines=unified(where.before, where.after),
            )
    left_over: tuple[tuple[How, list[_Report]], ...] = (("vanished", before), ("appeared", after))
    for how, those in left_over:
        for each in those:
            said = {name: value for name, value in each.content.items() if value}
            yield Change(
                subject=each.subject,
                how=how,
                label=each.label,
                place=each.place,
                path=str(each.content["path"]),
                lines=unified(said, ABSENT) if how == "vanished" else unified(ABSENT, said),
            )


# By what two of them are a pair, the closest likeness first.
_LIKENESSES: tuple[Callable[[_Report], object], ...] = (
    lambda report: (report.subject, report.place, report.named, *report.content.items()),
    lambda report: (report.subject, report.place, report.named, report.content["path"]),
    lambda report: (report.subject, report.place, report.named),
)
