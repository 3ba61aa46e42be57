"""What a request comes to: its body, what was mended on the way, and where every block is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice

from pipeline.fixes import FIXES, Fix, make
from pipeline.history.pieces import Entry, Piece
from pipeline.history.render import Rendered
from pipeline.model import Turn
from pipeline.rules import Violation
from pipeline.targets import Ending
from pipeline.targets.base import Row
from pipeline.track import Track, expanded, open_data


class Shared:
    """What the targets of a session have in common: message ids, and the structure's fixes and losses."""

    def __init__(self) -> None:
        self.ids: list[str | None] = []
        self.fixes: list[Fix] = []
        self.gone: list[Entry] = []
        self.system: list[Piece] = []


class Normalized:
    """A request for one target.

    Attributes:
        target: the target's name.
        violations: what the target's rules say of the body; with a ``hard`` one among them there is no body.
        open_data: the bytes of the messages behind the settled ones; for the rules.
        prefix_bytes: how many bytes of the body the session's next request starts with.
        reset: why the body does not start with the last request's settled part, ``""`` where it does.
    """

    def __init__(
        self,
        track: Track,
        shared: Shared,
        rendered: Rendered,
        ending: Ending,
        *,
        steady: bool,
    ) -> None:
        self.target = track.target.name
        self.violations: list[Violation] = []
        self.reset = track.reset
        self.prefix_bytes = track.steady() if steady and ending.prefix is None else 0
        self._track, self._shared, self._rendered, self._ending = track, shared, rendered, ending
        self.open_data = open_data(ending.parts)
        self._lit = track.lit(ending)
        self._unlit = [mark for mark in track.marks if mark not in self._lit]
        # The lists grow with the session: these many of their entries belong to this request.
        self._chunks, self._rows = len(track.chunks), len(track.rows)
        self._fixes, self._own_fixes = len(shared.fixes), len(track.fixes)
        self._gone, self._own_gone = len(shared.gone), len(track.gone)

    @property
    def rejected(self) -> bool:
        """Whether the body is withheld, because the target would refuse it."""
        return any(violation.severity == "hard" for violation in self.violations)

    @cached_property
    def body(self) -> bytes | None:
        """The request body, or None where the target would refuse it. Joined on first access."""
        return None if self.rejected else self.unjudged

    @property
    def judged_head(self) -> bytes | None:
        """The head for the rules, where it is not the dialect's own."""
        return self._ending.head

    @property
    def ends(self) -> tuple[bytes, bytes]:
        """The bytes before the settled messages and those behind them; for the rules of texts."""
        dialect, ending = self._track.dialect, self._ending
        behind = self.open_data
        before = dialect.prefix if ending.prefix is None else ending.prefix
        return before, joined(b"", dialect.separator, [b"", *behind] if self._chunks else behind, ending.suffix)

    @cached_property
    def unjudged(self) -> bytes:
        """The body, whatever the rules say of it."""
        dialect, ending = self._track.dialect, self._ending
        chunks = self._track.chunks[: self._chunks]
        for mark in self._lit:
            chunks[mark.at] = mark.data
        prefix = dialect.prefix if ending.prefix is None else ending.prefix
        return joined(prefix, dialect.separator, [*chunks, *self.open_data], ending.suffix)

    @property
    def text(self) -> str | None:
        """The body as text, for targets that take one text instead of messages."""
        return None if not self._track.target.text or self.body is None else self.body.decode()

    @cached_property
    def sha256(self) -> str:
        """The digest of the body, in hex, whether or not the target would refuse it."""
        found = None
        if self._ending.prefix is None:
            found = self._track.digest(self._chunks, self.open_data, self._lit, self._ending.suffix)
        return found or hashlib.sha256(self.unjudged).hexdigest()

    @cached_property
    def fixes(self) -> list[Fix]:
        """Every mend that this body stands on: the settled ones, then those of the open end."""
        return [*self._shared.fixes[: self._fixes], *self.own_fixes(), *self.open_fixes]

    def own_fixes(self, first: int = 0) -> list[Fix]:
        """The target's own mends of the settled part, from the one with this number on."""
        return self._track.fixes[first : self._own_fixes]

    @cached_property
    def open_fixes(self) -> list[Fix]:
        """The mends of the open end, which a later turn may still undo."""
        unlit = [
            make("cache_control_dropped", mark.path, target=self.target, tool_id=mark.tool_id) for mark in self._unlit
        ]
        return [*self._rendered.fixes, *chain.from_iterable(part.fixes for part in self._ending.parts), *unlit]

    @property
    def own_fix_count(self) -> int:
        """How many of the target's own mends are settled."""
        return self._own_fixes

    @property
    def fix_count(self) -> int:
        """How many mends the body stands on; without listing them."""
        return self._fixes + self._own_fixes + len(self.open_fixes)

    @cached_property
    def ids(self) -> list[str | None]:
        """For each message or item of the body the id of the message in; the later one's where several were merged.

        What no message in stands behind, such as a system prompt, has none.
        """
        ids = [*self._shared.ids[: self._rows], *(message.id for message in self._rendered.messages)]
        written = dict(self._written(ids))
        return [written.get(at) for at in range(max(written) + 1)] if written else ids

    def _written(self, ids: Sequence[str | None]) -> Iterator[tuple[int, str | None]]:
        """Each message or item of the body with the id of the turn that it is of, for targets that tell them apart."""
        for identity, row in zip(ids, self._all_rows(), strict=False):
            for _, _, _, *place in () if isinstance(row, Turn) else row:
                if place:
                    yield int(place[0].split(".")[1]), identity

    def _all_rows(self) -> Iterator[Sequence[Row] | Turn]:
        return chain(islice(self._track.rows, self._rows), (part.rows for part in self._ending.parts))

    @cached_property
    def ledger(self) -> list[Entry]:
        """What became of every block: those in the system slot, those in the output, then those that are in neither."""
        own = _touched(self._track.dialect.fixes)
        shown = chain(
            (_as_read(Entry(piece.path, "kept", "system"), own) for piece in self._shared.system),
            (entry for at, row in enumerate(self._all_rows()) for entry in _entries(at, row)),
        )
        read = _touched(self._shared.fixes[: self._fixes])
        return [
            *(_as_read(entry, read) for entry in shown),
            *self._shared.gone[: self._gone],
            *self._track.gone[: self._own_gone],
            *self._rendered.gone,
            *chain.from_iterable(part.gone for part in self._ending.parts),
        ]

    def __repr__(self) -> str:
        state = "rejected" if self.rejected else "accepted"
        return f"<Normalized for {self.target}: {state}, {len(self.fixes)} fixes, {len(self.violations)} violations>"


def joined(prefix: bytes, separator: bytes, parts: Sequence[bytes], suffix: bytes) -> bytes:
    """All of it in one piece, copied once: of a large body each further copy is as much as reading it."""
    pieces = [prefix]
    for part in parts:
        pieces += (part, separator)
    if parts:
        pieces.pop()
    return b"".join([*pieces, suffix])


def _touched(fixes: Sequence[Fix]) -> dict[str, str]:
    """The places in the input that something was mended in, outer ones included, with the first fix's code in each."""
    touched: dict[str, str] = {}
    for fix in fixes:
        if FIXES[fix.code].fate == "synthesised":
            continue  # its path is one of the output
        parts = fix.path.split(".")
        for end in range(1, len(parts) + 1):
            touched.setdefault(".".join(parts[:end]), fix.code)
    return touched


def _as_read(entry: Entry, touched: dict[str, str]) -> Entry:
    """A block that came through the repair as it was read is not kept if reading had to change it."""
    if entry.fate != "kept" or entry.path not in touched:
        return entry
    return Entry(entry.path, "rewritten", entry.output, touched[entry.path])


def _entries(at: int, row: Sequence[Row] | Turn) -> list[Entry]:
    return [
        Entry(path, fate, where[0] if where else f"messages.{at}.content.{place}", code)  # type: ignore[arg-type]  # rows hold fates as text
        for place, (path, fate, code, *where) in enumerate(expanded(row))
    ]
