"""A session's stream for a user who examines it: all output, and the withdrawn items.

The screen of an agent program shows current items. This one also keeps retracted items. The reducer of the contract
(``reknit.topics.reducer``) defines an item. This module computes the change by one record, so that an open page is not
rendered again. Badges next to an item's text state its origin. Each has a sign and a word, so that no reader depends on
its colour.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import UNSET, Raw, Struct

from reknit.pipeline.viewer.cells import laid_out, plain, texts_of
from reknit.pipeline.viewer.index.entries import Entry as IndexEntry
from reknit.topics import items
from reknit.topics.reducer import Entry, View

# Sub-agents call sub-agents; deeper ones are shown next to their parents, so that the page keeps its width.
DEEPEST = 6
# Code points of one text that a page shows; the topic has the rest.
TEXT = 20_000
# Code points of a reason in a sentence.
_REASON = 200
# Deltas of an unknown type are shown unchanged, up to this many for one item.
_MOST_RAW = 20
# The kinds of records that have a row of their own; all others are out-of-band.
_KINDS: dict[type[items.Item], str] = {
    items.AgentError: "notice",
    items.TurnResult: "result",
    items.TurnDiagnosis: "diagnosis",
    items.AgentUnrecognized: "unrecognised",
}
_decode = msgspec.json.Decoder(items.AnyItem).decode


class Change(Struct, frozen=True):
    """A row that is ``new`` or must be rendered again; or, with ``added``, the continuation of its text.

    ``at`` is the number of earlier code points of the text.
    """

    row: StreamRow
    new: bool = False
    added: str = ""
    at: int = 0


class Screen:
    """The rows of a session's records, which come in the order of the log; those that came before may be left out."""

    def __init__(self) -> None:
        self._view = View()
        self._rows: dict[str, StreamRow] = {}
        self._of_items: dict[str, StreamRow] = {}
        self._numbers: set[int] = set()
        self._run = ""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[StreamRow]:
        """All of them, in the order in which they appeared, with their texts."""
        for item_id in self._of_items:
            self._view.find(item_id)
        return list(self._rows.values())

    def apply(self, record: IndexEntry) -> Change | None:
        """Take one record; None where it changes nothing that is seen."""
        try:
            item = _decode(record.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Of a value that is lost, the summary says why.
            text = record.summary if record.value is None else plain(record.value)
            row = _row(record, "unreadable")
            row.raw = [text]
            return self._show(row)
        match item:
            case items.ItemDelta():
                return self._extend(item)
            case items.ItemStarted() | items.ItemCompleted() | items.ItemRetracted() | items.ItemResult():
                return self._change_item(item, record)
            case items.TurnDelta():
                return None
            case _:
                return self._show_record(item, record)

    def _extend(self, item: items.ItemDelta) -> Change | None:
        row = self._of_items.get(item.item_id)
        at = self._view.length(item.item_id)
        self._view.apply(item)
        if row is None:
            return None
        if isinstance(item.raw, Raw) and len(row.raw) < _MOST_RAW:
            row.raw.append(plain(item.raw))
            self._view.find(item.item_id)
            return Change(row)
        added = self._view.length(item.item_id) - at
        if not added or at > TEXT:
            return None
        if at + added > TEXT:
            self._view.find(item.item_id)
            return Change(row)
        return Change(row, added=item.content[-added:], at=at)

    def _change_item(
        self, item: items.ItemStarted | items.ItemCompleted | items.ItemRetracted | items.ItemResult, record: IndexEntry
    ) -> Change | None:
        row = self._of_items.get(item.item_id)
        before = self._view.find(item.item_id)
        self._view.apply(item)
        if isinstance(item, items.ItemRetracted):
            if row is None or row.withdrawn:
                return None
            # The reducer drops a withdrawn item; its last state is kept here.
            row.entry, row.withdrawn = before or row.entry, item.reason or "withdrawn"
            return Change(row)
        entry = self._view.find(item.item_id)
        if item.item_id in self._view.retracted or (entry is None and isinstance(item, items.ItemCompleted)):
            return None
        if row is None:
            row = self._of_items[item.item_id] = _row(record, "answer" if entry is None else "item")
            row.entry = entry
            row.said_before = self._of_items.get(entry.repeats) if entry is not None else None
            _keep_record(row, item)
            return self._show(row, getattr(item, "parent_tool_use_id", None))
        row.entry, row.kind = entry, "answer" if entry is None else "item"
        _keep_record(row, item)
        return Change(row)

    def _show_record(self, item: items.Item, record: IndexEntry) -> Change | None:
        number = getattr(item, "seq", -1)
        if number >= 0 and number in self._numbers:
            return None
        self._numbers.add(number)
        row = _row(record, _KINDS.get(type(item), "aside"))
        row.record = item
        return self._show(row, getattr(item, "parent_tool_use_id", None))

    def _show(self, row: StreamRow, parent: str | None = None) -> Change:
        above = self._of_items.get(parent) if parent else None
        if above is not None and above is not row:
            row.inside = above if above.depth < DEEPEST else above.inside
            row.depth = min(above.depth + 1, DEEPEST)
        row.begins_run = row.run != self._run
        self._run = row.run
        self._rows[row.place] = row
        return Change(row, new=True)


def _row(record: IndexEntry, kind: str) -> StreamRow:
    place = f"{record.partition}/{record.offset}"
    return StreamRow(place=place, time_ms=record.time_ms, run=record.run, kind=kind)


def _keep_record(row: StreamRow, item: items.ItemStarted | items.ItemCompleted | items.ItemResult) -> None:
    """Keep data without a place in the reducer: the whole record, and a block of an unknown type unchanged."""
    if not isinstance(item, items.ItemCompleted):
        row.record = item
    given = getattr(item, "raw", UNSET)
    if isinstance(given, Raw):
        row.raw = [laid_out(given)]


class Badge(Struct, frozen=True):
    """A property of an item: a name for its style, a sign, a word, and its meaning.

    ``link`` is the row that it refers to, if any.
    """

    name: str
    sign: str
    word: str
    meaning: str
    link: str = ""


class StreamRow(Struct, kw_only=True, eq=False):
    """One row of the page: an item, or a record with a row of its own.

    ``place`` is that of the record with which it appeared. ``kind`` is ``item``, ``answer`` (a tool's answer whose call
    is not here), ``notice``, ``result``, ``diagnosis``, ``unrecognised``, ``unreadable`` or ``aside``; ``record`` is
    its last record, None if that cannot be read. ``withdrawn`` is the reason of its withdrawal, if it was withdrawn.
    ``inside`` is the call of its sub-agent.
    """

    place: str
    time_ms: int
    run: str
    kind: str
    record: items.Item | None = None
    entry: Entry | None = None
    inside: StreamRow | None = None
    depth: int = 0
    withdrawn: str = ""
    said_before: StreamRow | None = None
    begins_run: bool = False
    raw: list[str] = []

    @property
    def anchor(self) -> str:
        """Its name in the page."""
        return "r" + self.place.replace("/", "-")

    @property
    def badges(self) -> list[Badge]:
        """The reasons for its state, the most important first."""
        return list(_badges(self))

    @property
    def title(self) -> str:
        """An aside in a few words."""
        item = self.record
        match item:
            case items.SessionInit():
                named = ", ".join(
                    filter(None, (item.model, item.agent_version and f"version {item.agent_version}", item.cwd))
                )
                return f"The program has started: {named}" if named else "The program has started"
            case items.SessionStatus():
                return f"Status: {item.status or 'none'}"
            case items.SessionCompacted():
                return "The program has shortened its context"
            case items.SessionReset():
                return "The program has begun a new conversation"
            case items.ModelChanged():
                return f"The model has changed: {item.message or item.to_model}"
            case items.PermissionDenied():
                return f"Permission denied: {item.tool_name} {item.message or item.reason}"
            case items.HookStarted():
                return f"A hook has begun: {item.hook_name}"
            case items.HookCompleted():
                return f"A hook has ended: {item.hook_name} {item.outcome}"
            case items.AgentNotice():
                return f"Notice: {item.message}"
            case items.TaskUpdated():
                return f"News of a task: {item.task_id}"
            case items.TaskList():
                return "The list of background tasks has changed"
            case items.TaskStarted():
                return f"A task has begun: {item.description or item.task_id}"
            case items.TaskNotification():
                return f"News of a task: {item.status} {item.summary or item.task_id}"
            case items.SessionSummary():
                return f"Title: {item.summary}"
            case items.SessionSystem():
                return f"System event: {item.subtype}"
            case items.ProcessStderr():
                return f"The program wrote: {item.text}"
            case items.ProcessExit():
                return "The program has ended" + ("" if item.code is None else f" with status {item.code}")
            case items.TurnStop():
                why = f": {item.stop_reason}" if item.stop_reason else ""
                return ("The turn was cut off" if item.incomplete else "The turn has ended") + why
            case None:
                return ""
            case _:
                return str(type(item).__struct_config__.tag)

    @property
    def text(self) -> str:
        """An item's text; of a user's message that has none, its blocks."""
        if self.entry is None:
            return ""
        content = self.entry.started.content
        return self.entry.text or ("\n".join(texts_of(content)) if isinstance(content, Raw) else "")

    @property
    def input(self) -> str:
        """Return a call's input, formatted if it is whole; otherwise the raw JSON so far."""
        if self.entry is None:
            return ""
        return self.entry.text if self.entry.input is None else laid_out(self.entry.input)

    @property
    def answer(self) -> list[str]:
        """A tool's answer, block by block: texts as they are, others as JSON."""
        return [] if self.answered is None else texts_of(self.answered.content)

    @property
    def answered(self) -> items.ItemResult | None:
        found = self.record if self.entry is None else self.entry.result
        return found if isinstance(found, items.ItemResult) else None

    @property
    def diagnosis(self) -> Diagnosis | None:
        item = self.record
        if not isinstance(item, items.TurnDiagnosis):
            return None
        sentences = [f"The run did not finish: {_CAUSES.get(item.cause, item.cause)}."]
        if item.reason:
            sentences.append(f"Whoever ended it said “{item.reason}”.")
        if item.error:
            sentences.append(f"The provider's own code is {item.error}.")
        if not item.length:
            sentences.append("The model had written nothing by then.")
        elif item.repeats:
            sentences.append(f"The model had written {item.length:,} characters, and the end is one passage repeated.")
        else:
            sentences.append(f"The model had written {item.length:,} characters by then.")
        whole = item.length <= len(item.head)
        excerpts = [("It wrote" if whole else "It began with", item.head)] if item.head else []
        if item.tail and not whole:
            excerpts.append(("It ended with", item.tail))
        return Diagnosis(sentences, excerpts, item.counts)

    @property
    def json(self) -> str:
        """Return its whole record."""
        return "" if self.record is None else laid_out(Raw(msgspec.json.encode(self.record)))


def _badges(row: StreamRow) -> Iterator[Badge]:
    entry = row.entry
    if row.withdrawn:
        why = _WITHDRAWN.get(row.withdrawn) or row.withdrawn[:_REASON]
        yield Badge("retracted", "✕", "retracted", f"Taken back: {why}. It stood on the screen for a while.")
    if row.kind == "answer":
        yield Badge("alone", "?", "no call", "The call that this answers is not among these records.")
    if entry is None:
        return
    if entry.origin != "stream":
        yield _ORIGINS[entry.origin]
    if entry.incomplete:
        because = f": {entry.reason[:_REASON]}" if entry.reason else ""
        yield Badge("incomplete", "…", "incomplete", f"Its end never came{because}. What had come is kept as it is.")
    elif not entry.done and not row.withdrawn:
        yield Badge("open", "▸", "streaming", "Its end has not come yet.")
    if entry.doubtful and not row.withdrawn:
        yield _DOUBTS[entry.doubtful]
    if entry.repeats:
        first = row.said_before
        yield Badge(
            "repeated",
            "↻",
            "said again",
            "An attempt that was cut had said the same; the program's own history holds both.",
            first.anchor if first is not None else "",
        )
    if entry.result is not None and entry.result.is_error:
        yield Badge("failed", "!", "error", "The tool answered with an error.")
    if entry.started.is_synthetic:
        yield Badge("synthetic", "◇", "program", "The agent program wrote this itself.")
    if entry.started.is_replay:
        yield Badge("replayed", "⟲", "replayed", "The agent program told an earlier message once more.")


_WITHDRAWN = {
    "replaced": "a later attempt replaced it",
    "transcript": "the program's own transcript does not hold it",
}
_ORIGINS = {
    "promoted": Badge(
        "promoted",
        "↑",
        "promoted",
        "It never streamed; the complete message holds it, and so it was shown.",
    ),
    "result": Badge("promoted", "↑", "from the result", "No message held it; only the result's text did."),
}
_DOUBTS = {
    "attempt": Badge(
        "doubtful",
        "?",
        "doubtful",
        "The program does not say whether it gave this up for another attempt.",
    ),
    "end": Badge("doubtful", "?", "doubtful", "The program does not say whether this is the whole or a beginning."),
    "kept": Badge(
        "doubtful", "?", "doubtful", "The program was ended here; its own history probably does not have this."
    ),
}


_CAUSES = {
    "stall": "nothing came any more",
    "loop": "the model said the same over and over",
    "time_limit": "its time was up",
    "disconnect": "the connection was lost",
    "stopped": "somebody stopped it",
    "error": "an error ended it",
    "other": "it ended before it had finished",
}


class Diagnosis(Struct, frozen=True):
    """A diagnosis as sentences. ``excerpts`` are the ends of the text, each with what it is."""

    sentences: list[str]
    excerpts: list[tuple[str, str]]
    counts: dict[str, int]
