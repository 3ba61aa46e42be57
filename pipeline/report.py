"""A report of repairs, avoided refusals, rejections, and unjudged requests: a fold over records.

It reads the outputs of a worker, shadow or live, and its inputs: their producers and, for requests that were read from
a log, the rules that each broke as it was sent. It keeps only counts, and digests of sessions.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, field

from reknit.pipeline.fixes import FIXES
from reknit.pipeline.healing.table import healed_summary
from reknit.pipeline.inline_images import images_in
from reknit.pipeline.letters import REFUSED, letter_kind
from reknit.pipeline.rules.sets import RULES
from reknit.topics import AGENT_TURNS
from reknit.topics import headers as names
from reknit.topics.headers import DeadLetterHeaders
from reknit.topics.records import FixRecord


class _Typed(Struct, frozen=True):
    type: str = ""


_decode_type = msgspec.json.Decoder(_Typed).decode
_RESTORED = b"history.restored"
_DECODE_FIX = msgspec.json.Decoder(FixRecord).decode


Row = TypeVar("Row", bound=tuple[object, ...])


class Logged(Struct, frozen=True, kw_only=True):
    """Requests of one program to one target, read from a log.

    ``refused`` broke a rule as they were sent; of them ``prevented`` would have been sent repaired, the others are
    rejected.
    """

    target: str
    producer: str
    requests: int
    refused: int
    prevented: int


class Refusal(Struct, frozen=True, kw_only=True):
    """A rule that requests broke as they were sent, or for which they are rejected, in its provider's words."""

    target: str
    rule: str
    message: str
    producer: str
    requests: int


class Mend(Struct, frozen=True, kw_only=True):
    """A kind of repair. ``avoids`` is a refusal that it avoids; ``observed`` says that a policy only watches it."""

    code: str
    target: str
    producer: str
    summary: str
    avoids: str
    lossless: bool
    observed: bool
    mends: int
    sessions: int


class Unjudged(Struct, frozen=True, kw_only=True):
    """Records that could not be judged, by the topic that they came from and why."""

    topic: str
    code: str
    records: int
    sessions: int


class Answered(Struct, frozen=True, kw_only=True):
    """Published requests that their provider refused all the same, by what decided it."""

    outcome: str
    target: str
    rule: str
    message: str
    requests: int


class DeadLetters(Struct, frozen=True, kw_only=True):
    """The number of dead letters by kind (``reknit.pipeline.letters``)."""

    failed: int = 0
    rejected: int = 0
    refused: int = 0

    @property
    def all(self) -> int:
        return self.failed + self.rejected + self.refused


class Day(Struct, frozen=True, kw_only=True):
    """The events of a day, in UTC. ``refused`` are requests that broke a rule as they were sent."""

    day: str
    mends: int
    rejections: int
    refused: int


class EqualImages(Struct, frozen=True):
    """Images that repeat an earlier one of their session: their number, the bytes of their base64 text, the sessions.

    Requests have each of them, since a body has no other way to say that two are equal. Inputs in an object store do
    not count.
    """

    images: int = 0
    bytes: int = 0
    sessions: int = 0


class Report(Struct, frozen=True, kw_only=True):
    """All of it, each list with the most frequent first; days in order."""

    sessions: int
    mended_sessions: int
    logged: list[Logged]
    refusals: list[Refusal]
    rejections: list[Refusal]
    mends: list[Mend]
    unjudged: list[Unjudged]
    answered: list[Answered]
    days: list[Day]
    equal_images: EqualImages = EqualImages()

    @property
    def dead_letters(self) -> DeadLetters:
        return DeadLetters(
            failed=sum(row.records for row in self.unjudged),
            rejected=sum(row.requests for row in self.rejections),
            refused=sum(row.requests for row in self.answered),
        )

    def mends_by_code(self) -> list[Bar]:
        """Return the repairs of all targets and programs."""
        return _bars((row.code, row.mends) for row in self.mends if not row.observed)

    def refusals_by_message(self) -> list[Bar]:
        """Return the violations of requests as they were sent, of all programs."""
        return _bars((row.message, row.requests) for row in self.refusals)


class Bar(Struct, frozen=True):
    """One row of a chart."""

    label: str
    count: int


# Rows of a chart at most, the longest.
_MOST_BARS = 12


def _bars(rows: Iterable[tuple[str, int]]) -> list[Bar]:
    counts = Counter[str]()
    for label, count in rows:
        counts[label] += count
    return [Bar(label, count) for label, count in counts.most_common(_MOST_BARS)]


class Tally(Struct):
    """The counts so far. Dead letters are counted before inputs, which are compared with them.

    ``day`` is that of a record, as 2026-11-22 in UTC.
    """

    sessions: set[int] = field(default_factory=set)
    repaired_sessions: set[int] = field(default_factory=set)
    logged: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refusals: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    rejections: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    mends: Counter[tuple[str, str, str, bool, bool]] = field(default_factory=Counter)
    unjudged: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    days: Counter[tuple[str, str]] = field(default_factory=Counter)
    # The sessions of each row; and the records of the sessions' logs that became dead letters, with their codes.
    sessions_by_row: dict[tuple[object, ...], set[int]] = field(default_factory=dict)
    letters: dict[tuple[int, int], str] = field(default_factory=dict)
    # The digests of each session's images; of those that repeat one, the number, the bytes and the sessions.
    images: dict[int, set[bytes]] = field(default_factory=dict)
    equal_images: Counter[str] = field(default_factory=Counter)
    equal_in: set[int] = field(default_factory=set)

    def count_letter(self, key: bytes | None, headers: Mapping[str, bytes | None], day: str) -> None:
        """Count a dead letter.

        Raises:
            msgspec.ValidationError: a worker did not write it.
        """
        why = names.decode(headers.items(), DeadLetterHeaders)
        if why.letter is not UNSET:
            return  # a note about another letter
        message, rule = why.message or "", why.rule or ""
        if why.topic == AGENT_TURNS:
            self.letters[why.partition, why.offset] = why.code
        kind = letter_kind(why.code)
        if kind == "rejected":
            target = RULES[rule].target if rule in RULES else message.partition(":")[0]
            self.rejections[target, rule, message.removeprefix(f"{target}: "), _producer(headers)] += 1
            self.days[day, "rejections"] += 1
        elif kind == "refused":
            self.answered[why.code.removeprefix(REFUSED), why.target or "", rule, message] += 1
        else:
            self.unjudged[why.topic, why.code] += 1
            self._note_session(("unjudged", why.topic, why.code), key)

    def count_fix(self, key: bytes | None, value: bytes, headers: Mapping[str, bytes | None], day: str) -> None:
        """Count a fix.

        Raises:
            msgspec.DecodeError: it is not a fix record.
        """
        fix = _DECODE_FIX(value)
        row = (fix.code, fix.source or fix.target, _producer(headers), fix.lossless, fix.observed)
        self.mends[row] += 1
        self._note_session(("mend", *row), key)
        if not fix.observed:
            self.repaired_sessions.add(hash(key))
            self.days[day, "mends"] += 1

    def count_input(
        self, key: bytes | None, partition: int, offset: int, headers: Mapping[str, bytes | None], day: str
    ) -> None:
        """Count a record of a session's log."""
        self.sessions.add(hash(key))
        target, *broken = (names.text_of(headers.get(names.JUDGED)) or "").split(" ")
        letter = self.letters.get((partition, offset), "")
        if not target or letter not in {"", "rejected"}:
            return
        producer = _producer(headers)
        outcome = "taken" if not broken else "rejected" if letter else "prevented"
        self.logged[target, producer, outcome] += 1
        if broken:
            self.days[day, "refused"] += 1
        for rule in broken:
            self.refusals[target, rule, producer] += 1

    def count_images(self, key: bytes | None, value: bytes | None) -> None:
        """Count the images in a record of a session's log that repeat an earlier one."""
        session = hash(key)
        if _RESTORED in (value or b"") and _decode_type(value or b"").type == _RESTORED.decode():
            self.images.pop(session, None)  # the record has the whole history
        for data in images_in(value or b""):
            seen, digest = self.images.setdefault(session, set()), hashlib.sha256(data.encode()).digest()[:16]
            if digest in seen:
                self.equal_images["images"] += 1
                self.equal_images["bytes"] += len(data)
                self.equal_in.add(session)
            seen.add(digest)

    def report(self) -> Report:
        return Report(
            sessions=len(self.sessions),
            mended_sessions=len(self.repaired_sessions),
            logged=self._logged(),
            refusals=[
                Refusal(target=target, rule=rule, message=_words(rule), producer=producer, requests=count)
                for (target, rule, producer), count in _most(self.refusals)
            ],
            rejections=[
                Refusal(target=target, rule=rule, message=message, producer=producer, requests=count)
                for (target, rule, message, producer), count in _most(self.rejections)
            ],
            mends=[_mend(row, count, len(self.sessions_by_row["mend", *row])) for row, count in _most(self.mends)],
            unjudged=[
                Unjudged(topic=row[0], code=row[1], records=count, sessions=len(self.sessions_by_row["unjudged", *row]))
                for row, count in _most(self.unjudged)
            ],
            answered=[
                Answered(outcome=outcome, target=target, rule=rule, message=message, requests=count)
                for (outcome, target, rule, message), count in _most(self.answered)
            ],
            days=self._days(),
            equal_images=EqualImages(self.equal_images["images"], self.equal_images["bytes"], len(self.equal_in)),
        )

    def _note_session(self, row: tuple[object, ...], key: bytes | None) -> None:
        self.sessions_by_row.setdefault(row, set()).add(hash(key))

    def _logged(self) -> list[Logged]:
        found = []
        for target, producer in sorted({row[:2] for row in self.logged}):
            prevented, rejected = (self.logged[target, producer, outcome] for outcome in ("prevented", "rejected"))
            requests = self.logged[target, producer, "taken"] + prevented + rejected
            refused = prevented + rejected
            found.append(
                Logged(target=target, producer=producer, requests=requests, refused=refused, prevented=prevented)
            )
        return sorted(found, key=lambda each: -each.refused)

    def _days(self) -> list[Day]:
        return [
            Day(day=day, **{name: self.days[day, name] for name in ("mends", "rejections", "refused")})
            for day in sorted({day for day, _ in self.days})
        ]


def _mend(row: tuple[str, str, str, bool, bool], count: int, sessions: int) -> Mend:
    code, target, producer, lossless, observed = row
    known = FIXES.get(code)
    return Mend(
        code=code,
        target=target,
        producer=producer,
        summary=healed_summary(code) if known is None else known.summary,
        avoids="" if known is None else known.error,
        lossless=lossless,
        observed=observed,
        mends=count,
        sessions=sessions,
    )


def _most(counts: Counter[Row]) -> Iterable[tuple[Row, int]]:
    return sorted(counts.items(), key=lambda each: (-each[1], each[0]))


def _producer(headers: Mapping[str, bytes | None]) -> str:
    return names.text_of(headers.get(names.PRODUCER)) or ""


# Fewer letters than this of a rule's own say nothing without what stood around them.
_LEAST_LETTERS = 12


def _words(rule: str) -> str:
    """A rule's message, with … where a refusal has a place or an id; where little else is in it, what the rule says."""
    if rule not in RULES:
        return ""
    message = re.sub(r"\{\w+\}", "…", RULES[rule].message).removeprefix("…: ")
    return message if len(re.findall(r"[A-Za-z]", message)) >= _LEAST_LETTERS else RULES[rule].summary
