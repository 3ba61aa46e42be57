"""A request: its bytes, its repairs, the position of every block, and the violations of the target's rules.

The settled part is everything before the open end, in lists that grow with the session. A request is a view of the
first N entries of each list, with the open end rendered and encoded for it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Final

from msgspec import Struct, structs

from reknit.pipeline.fixes import FIXES, Fix, make
from reknit.pipeline.history import History
from reknit.pipeline.history.pieces import LedgerEntry
from reknit.pipeline.history.render import Rendered
from reknit.pipeline.model import Turn
from reknit.pipeline.providers.base import Target
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.session.settled import SettledPart, Shared
from reknit.pipeline.session.settled_state import Mark
from reknit.pipeline.targets import Encoded, Ending
from reknit.pipeline.targets.valid_run import Origins, expanded


class Body:
    """The bytes of a request: the settled chunks, the open messages, prefix and suffix.

    ``active`` are the settled breakpoints that fit within the target's limit.
    """

    def __init__(self, settled: SettledPart, ending: Ending) -> None:
        self._settled, self._ending = settled, ending
        # Messages that the target shows nothing of have no data.
        self.open_data = [data for part in ending.parts if (data := part.marked or part.data)]
        self.active = settled.active(ending)
        self._chunks = len(settled.chunks)
        self._prefix = settled.dialect.prefix if ending.prefix is None else ending.prefix
        self._sha256 = ""

    @property
    def ends(self) -> tuple[bytes, bytes]:
        """The bytes before the settled messages and those after them; for the rules of texts."""
        rest = [b"", *self.open_data] if self._chunks else self.open_data
        return self._prefix, _joined(b"", self._settled.dialect.separator, rest, self._ending.suffix)

    @property
    def parts(self) -> list[bytes]:
        """The parts between the prefix and the suffix: the settled chunks, then the open messages."""
        chunks = self._settled.chunks[: self._chunks]
        for mark in self.active:
            chunks[mark.at] = mark.data
        return [*chunks, *self.open_data]

    @cached_property
    def whole(self) -> bytes:
        """All of it. Joined on first access."""
        return _joined(self._prefix, self._settled.dialect.separator, self.parts, self._ending.suffix)

    @property
    def sha256(self) -> str:
        """The digest of all of it, in hex; without joining it, where the session has not moved on."""
        # Asked of every request, and a cached property takes a lock.
        if not self._sha256:
            found = None
            if self._ending.prefix is None:
                found = self._settled.digest(self._chunks, self.open_data, self.active, self._ending.suffix)
            self._sha256 = found or hashlib.sha256(self.whole).hexdigest()
        return self._sha256


# Made with each request, and nothing that it holds knows of it, so the garbage collector need not look (gc=False).
class Account(Struct, frozen=True, gc=False):
    """The account of a request: its repairs, the ids of its messages, and the outcome of every block.

    The lists of the settled part grow with the session; the counts are the number of entries that belong to the
    request. ``inactive`` are the breakpoints beyond the target's limit.
    """

    settled: SettledPart
    shared: Shared
    rendered: Rendered
    ending: Ending
    inactive: Sequence[Mark]
    row_count: int
    fix_count: int
    own_fix_count: int
    dropped_count: int
    own_dropped_count: int
    # A later turn would undo or move a repair at the end; only where reasoning is bound to its prefix.
    end_may_change: bool = False
    # As ``History.is_open``.
    is_open: bool = False

    @property
    def shared_fixes(self) -> list[Fix]:
        """The settled repairs that all targets share."""
        return self.shared.fixes[: self.fix_count]

    def own_fixes(self, first: int = 0) -> list[Fix]:
        """The target's own repairs of the settled part, beginning with this number."""
        return self.settled.fixes[first : self.own_fix_count]

    @property
    def open_fixes(self) -> list[Fix]:
        """The repairs of the open end."""
        target = self.settled.target.name
        inactive = [
            make("cache_control_dropped", mark.path, target=target, tool_id=mark.tool_id) for mark in self.inactive
        ]
        return [*self.rendered.fixes, *chain.from_iterable(part.fixes for part in self.ending.parts), *inactive]

    @property
    def ids(self) -> list[str | None]:
        """For each message or item of the body the id of the message in."""
        ids = [*self.shared.ids[: self.row_count], *(message.id for message in self.rendered.messages)]
        rows = list(self._all_rows())
        if not any(map(_is_placed, rows)):
            return ids
        # Targets that distinguish turns: each message or item of the body has the id of its turn.
        written = {
            int(entry.output.split(".")[1]): identity
            for at, (identity, row) in enumerate(zip(ids, rows, strict=False))
            for entry in _entries(at, row)
        }
        return [written.get(at) for at in range(max(written) + 1)]

    def _all_rows(self) -> Iterator[Origins]:
        return chain(islice(self.settled.rows, self.row_count), (part.rows for part in self.ending.parts))

    @property
    def ledger(self) -> list[LedgerEntry]:
        """The blocks in the system slot, those in the output, then those that are in neither."""
        own = _touched(self.settled.dialect.fixes)
        shown = chain(
            (_as_read(LedgerEntry(piece.path, "kept", "system"), own) for piece in self.shared.system),
            (entry for at, row in enumerate(self._all_rows()) for entry in _entries(at, row)),
        )
        read = _touched(self.shared_fixes)
        return [
            *(_as_read(entry, read) for entry in shown),
            *self.shared.dropped[: self.dropped_count],
            *self.settled.dropped[: self.own_dropped_count],
            *self.rendered.dropped,
            *chain.from_iterable(part.dropped for part in self.ending.parts),
        ]


class Normalized:
    """A request for one target.

    Attributes:
        target: the target's name.
        violations: the rules of the target that the body breaks. If one of them is ``hard`` there is no body.
        prefix_bytes: how many bytes of the body the session's next request starts with.
        reset: why the settled part differs from the last request's, ``""`` where it does not.
        prefix_reset: why the body does not start with the last request's settled part, ``""`` where it does: ``reset``,
            or why this request alone has another head (`Ending.reset`), or ``mended``.
        judged_as: the model by whose rules the body was judged: the session's, or one of those of the endpoint that a
            policy names.
        watched: the effect of repairs that the policy observes: those that were not made, each ``observed``, or, where
            the request had to be ``mended`` after all, the additional repairs.
    """

    def __init__(
        self,
        target: Target,
        body: Body,
        account: Account,
        violations: list[Violation],
        *,
        prefix_bytes: int,
        reset: str,
        prefix_reset: str,
    ) -> None:
        self.target = target.name
        self.violations = violations
        self.prefix_bytes = prefix_bytes
        self.reset = reset
        self.prefix_reset = prefix_reset
        self.judged_as = account.settled.model
        self.watched: Sequence[Fix] = ()
        self._reporting = account
        self._is_text = target.is_text
        self._body, self._account = body, account

    @property
    def account(self) -> Account:
        """The account of the body, whatever the rules say of it."""
        return self._account

    @property
    def reporting(self) -> Account:
        """The account whose repairs of the settled part are reported."""
        return self._reporting

    @property
    def rejected(self) -> bool:
        """True if the body is withheld, because the target would refuse it."""
        return any(violation.severity == "hard" for violation in self.violations)

    @property
    def body(self) -> bytes | None:
        """The request body, or None where the target would refuse it. Joined on first access."""
        return None if self.rejected else self._body.whole

    @property
    def unjudged(self) -> bytes:
        """The body, whatever the rules say of it."""
        return self._body.whole

    @property
    def parts(self) -> list[bytes]:
        """The parts that are joined to the body, even if it violates rules; for a text one part for each message."""
        return self._body.parts

    @property
    def text(self) -> str | None:
        """The body as text, for targets that take one text instead of messages."""
        return None if not self._is_text or self.body is None else self.body.decode()

    @property
    def sha256(self) -> str:
        """The digest of the body, in hex, whether or not the target would refuse it."""
        return self._body.sha256

    @property
    def fixes(self) -> list[Fix]:
        """Every repair in this body: the settled ones, then those of the open end, then the observed ones."""
        observed = [fix for fix in self.watched if fix.observed]
        return [*self._made, *observed] if observed else self._made

    @cached_property
    def _made(self) -> list[Fix]:
        return [*self._account.shared_fixes, *self._account.own_fixes(), *self.open_fixes]

    def own_fixes(self, first: int = 0) -> list[Fix]:
        """The target's own repairs of the settled part, beginning with this number, without ``watched`` ones."""
        return self._reporting.own_fixes(first)

    @cached_property
    def open_fixes(self) -> list[Fix]:
        """The repairs of the open end, which a later turn may still undo."""
        return self._account.open_fixes

    @property
    def own_fix_count(self) -> int:
        """The number of the target's own settled repairs, without ``watched`` ones."""
        return self._reporting.own_fix_count

    @property
    def fix_count(self) -> int:
        """The number of repairs in the body, computed without listing them, and without the observed ones."""
        return self._account.fix_count + self._account.own_fix_count + len(self.open_fixes)

    @cached_property
    def ids(self) -> list[str | None]:
        """For each message or item of the body the id of its input message; the later one's where several were merged.

        A message without an input message, such as a system prompt, has none.
        """
        return self._account.ids

    @cached_property
    def ledger(self) -> list[LedgerEntry]:
        """The outcome of every block: those in the system slot, those in the output, then those in neither."""
        return self._account.ledger

    def note_void(self, message: int) -> None:
        """Report the message from which on reasoning is left out because something before it has changed."""
        self.prefix_reset = f"{self.prefix_reset}; reasoning from messages.{message}"

    def observing(self, fixes: Sequence[Fix]) -> Normalized:
        """Return this request with these repairs observed."""
        self.watched = [structs.replace(fix, observed=True, target=self.target) for fix in fixes]
        return self

    def mended_after_all(self, tried: Normalized, fixes: Sequence[Fix]) -> Normalized:
        """Return this request, sent because the one that was ``tried`` without the observed repairs is not valid.

        The session continues without the observed repairs, so nothing of this request is a prefix of the next one,
        unless both are equal.
        """
        same = tried.sha256 == self.sha256
        self.watched = list(fixes)
        self._reporting = tried._reporting
        self.prefix_bytes = tried.prefix_bytes if same else 0
        self.prefix_reset = tried.prefix_reset if same else self.reset or MENDED
        return self

    def __repr__(self) -> str:
        state = "rejected" if self.rejected else "accepted"
        return f"<Normalized for {self.target}: {state}, {len(self.fixes)} fixes, {len(self.violations)} violations>"


def make_request(settled: SettledPart, shared: Shared, history: History) -> Normalized:
    """Return the request for one target: the open end rendered, encoded and judged."""
    target = settled.target
    tail = _tail(history.policy.tail, target)
    rendered = history.open_messages(tail)
    messages, stubbed = settled.with_stubs(rendered.messages)
    ending = settled.dialect.encode_ending(messages, settled.state, len(settled.chunks), final=rendered.final)
    if stubbed:
        ending = structs.replace(ending, parts=[*ending.parts, Encoded(data=b"", state=settled.state, fixes=stubbed)])
    body = Body(settled, ending)
    # Until a turn has been taken, a system message may still come and change the head.
    steady = bool(history.exchanges) and ending.prefix is None
    prefix_bytes = settled.stable_prefix_bytes() if steady else 0
    last = history.messages + len(rendered.messages) - 1 if ending.last is None else ending.last
    violations = _judged(settled, body, ending, last, endless=tail == "keep" or rendered.refused)
    if rendered.refused:
        # The policy forbids the repair, so the rules of models without a prefill apply.
        violations.append(RULES[target.writer.tail_rule].broken(f"messages.{last}", "hard", role="assistant"))
    account = Account(
        settled,
        shared,
        rendered,
        ending,
        [mark for mark in settled.marks if mark not in body.active] if settled.marks else (),
        len(settled.rows),
        len(shared.fixes),
        len(settled.fixes),
        len(shared.dropped),
        len(settled.dropped),
        history.structure.prefix_bound and history.end_may_change,
        history.is_open,
    )
    reset, settled.reset = settled.reset, ""
    return Normalized(
        target, body, account, violations, prefix_bytes=prefix_bytes, reset=reset, prefix_reset=reset or ending.reset
    )


MENDED: Final = "mended"
"""The prefix reset of a request that had to make repairs which the policy only observes."""


def choose_request(tried: Normalized, made: Normalized, observed: Collection[str]) -> Normalized:
    """Choose the request to send: without the ``observed`` repairs, or with all of them.

    The one without them is chosen if the target accepts it and its other repairs are among those of the other request,
    so that no repair is omitted in one place and made in another.
    """
    more = _beyond(made.fixes, tried.fixes)
    spared = [fix for fix in more if fix.code in observed]
    if not spared:
        return tried
    codes = {fix.code for fix in spared}
    instead = _beyond(tried.fixes, made.fixes) or [fix for fix in tried.fixes if fix.code in codes]
    if tried.rejected or instead or tried.sha256 == made.sha256:
        return made.mended_after_all(tried, more)
    return tried.observing(spared)


def _beyond(fixes: Sequence[Fix], others: Sequence[Fix]) -> list[Fix]:
    """Return the fixes that are not among others; an addition has another path where something else stayed."""
    known = Counter(map(_wherever, others))
    beyond = []
    for fix in fixes:
        known[_wherever(fix)] -= 1
        if known[_wherever(fix)] < 0:
            beyond.append(fix)
    return beyond


def _wherever(fix: Fix) -> Fix:
    return structs.replace(fix, path="") if FIXES[fix.code].fate == "synthesised" else fix


def _tail(tail: str, target: Target) -> str:
    """The policy for the end as the target can have it: a text has no place for a half-said answer."""
    return "continue" if target.is_text and tail in {"keep", "prefill"} else tail


def _judged(settled: SettledPart, body: Body, ending: Ending, last: int, *, endless: bool) -> list[Violation]:
    target = settled.target
    if target.is_text:
        return settled.judge_text(*body.ends, lambda: body.whole)
    violations = settled.judge(body.open_data, ending.head)
    if not endless:
        return violations
    # The target does not judge the end of this history yet: the next user turn will be the last message.
    return [
        violation
        for violation in violations
        if violation.rule not in target.writer.tail_rules or violation.path.split(".")[1:2] not in ([], [str(last)])
    ]


def _joined(prefix: bytes, separator: bytes, parts: Sequence[bytes], suffix: bytes) -> bytes:
    """All of it in one piece, copied once: of a large body each further copy is as much as reading it."""
    if not parts:
        return prefix + suffix
    pieces = [separator] * (2 * len(parts) + 1)  # filled by slices: a loop would cost more than the bytes
    pieces[0], pieces[1::2], pieces[-1] = prefix, parts, suffix
    return b"".join(pieces)


def _touched(fixes: Sequence[Fix]) -> dict[str, str]:
    """Return the input paths that were repaired, outer ones included, each with the first fix's code."""
    touched: dict[str, str] = {}
    for fix in fixes:
        if FIXES[fix.code].fate == "synthesised":
            continue  # its path is one of the output
        parts = fix.path.split(".")
        for end in range(1, len(parts) + 1):
            touched.setdefault(".".join(parts[:end]), fix.code)
    return touched


def _as_read(entry: LedgerEntry, touched: dict[str, str]) -> LedgerEntry:
    """Return the outcome of a block: one that repair kept is not "kept" if the reader had to change it."""
    if entry.fate != "kept" or entry.path not in touched:
        return entry
    return LedgerEntry(entry.path, "rewritten", entry.output, touched[entry.path])


def _is_placed(row: Origins) -> bool:
    """Return True if blocks have places of their own in the body, besides their numbers."""
    return not isinstance(row, Turn) and any(place for _, _, _, *place in expanded(row))


def _entries(at: int, row: Origins) -> list[LedgerEntry]:
    return [
        LedgerEntry(path, fate, where[0] if where else f"messages.{at}.content.{place}", code)  # type: ignore[arg-type] # rows hold outcomes as text
        for place, (path, fate, code, *where) in enumerate(expanded(row))
    ]
