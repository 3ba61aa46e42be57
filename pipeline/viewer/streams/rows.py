"""What is told of one thing in a session's stream: how it came to be as it is, in badges and in words.

A badge has a sign and a word, so that nobody depends on its colour.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from topics.items import (
    Item,
    ItemResult,
    ProcessExit,
    ProcessStderr,
    SessionCompacted,
    SessionInit,
    SessionStatus,
    SessionSummary,
    SessionSystem,
    TaskNotification,
    TaskStarted,
    TurnDiagnosis,
    TurnStop,
)
from topics.reducer import Entry

# Longer JSON is shown as it came: laying it out is for reading, and nobody reads that much.
_LAID_OUT = 64 * 1024
# Code points of a reason that stand in a sentence.
_REASON = 200


class Badge(Struct, frozen=True):
    """What is to be known of an item: a name for its style, a sign, a word, and what it means.

    ``link`` is the row that it is about, if it is about another one.
    """

    name: str
    sign: str
    word: str
    meaning: str
    link: str = ""


class StreamRow(Struct, kw_only=True, eq=False):
    """One thing on the page: an item, or a record that stands for itself.

    ``place`` is that of the record with which it appeared. ``kind`` is ``item``, ``answer`` (a tool's answer whose call
    is not here), ``notice``, ``result``, ``diagnosis``, ``unrecognised``, ``unreadable`` or ``aside``; ``record`` what
    was last said of it, None where that cannot be read. ``withdrawn`` is the reason why it was, if it was.
    ``inside`` is the call of the sub-agent that it belongs to.
    """

    place: str
    time_ms: int
    run: str
    kind: str
    record: Item | None = None
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
        """How it came to be as it is; the first is the one that matters most."""
        return list(_badges(self))

    @property
    def title(self) -> str:
        return _title(self.record)

    @property
    def text(self) -> str:
        """An item's text; of a user's message that has none, its blocks."""
        if self.entry is None:
            return ""
        content = self.entry.started.content
        return self.entry.text or ("\n".join(_blocks(content)) if isinstance(content, Raw) else "")

    @property
    def input(self) -> str:
        """A call's input, laid out where it is whole; where it is not, the raw JSON as far as it came."""
        if self.entry is None:
            return ""
        return self.entry.text if self.entry.input is None else laid_out(self.entry.input)

    @property
    def answer(self) -> list[str]:
        """A tool's answer, block by block: texts as they are, others as JSON."""
        return [] if self.answered is None else _blocks(self.answered.content)

    @property
    def answered(self) -> ItemResult | None:
        found = self.record if self.entry is None else self.entry.result
        return found if isinstance(found, ItemResult) else None

    @property
    def diagnosis(self) -> Diagnosis | None:
        return _diagnosed(self.record) if isinstance(self.record, TurnDiagnosis) else None

    @property
    def json(self) -> str:
        """Its record, for whoever wants to see all of it."""
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
}


def _title(item: Item | None) -> str:
    """An aside in a few words."""
    match item:
        case SessionInit():
            named = ", ".join(
                filter(None, (item.model, item.agent_version and f"version {item.agent_version}", item.cwd))
            )
            return f"The program has started: {named}" if named else "The program has started"
        case SessionStatus():
            return f"Status: {item.status or 'none'}"
        case SessionCompacted():
            return "The program has shortened its context"
        case TaskStarted():
            return f"A task has begun: {item.description or item.task_id}"
        case TaskNotification():
            return f"News of a task: {item.status} {item.summary or item.task_id}"
        case SessionSummary():
            return f"Title: {item.summary}"
        case SessionSystem():
            return f"System event: {item.subtype}"
        case ProcessStderr():
            return f"The program wrote: {item.text}"
        case ProcessExit():
            return "The program has ended" + ("" if item.code is None else f" with status {item.code}")
        case TurnStop():
            why = f": {item.stop_reason}" if item.stop_reason else ""
            return ("The turn was cut off" if item.incomplete else "The turn has ended") + why
        case None:
            return ""
        case _:
            return str(type(item).__struct_config__.tag)


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


def _diagnosed(item: TurnDiagnosis) -> Diagnosis:
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


def _blocks(content: Raw) -> list[str]:
    try:
        blocks = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return [text_of(content)]
    return [_block_text(block) for block in (blocks if isinstance(blocks, list) else [blocks])]


def _block_text(block: object) -> str:
    match block:
        case str():
            return block
        case {"type": "text", "text": str(text)}:
            return text
        case _:
            return laid_out(Raw(msgspec.json.encode(block)))


# Longer JSON is shown as it came: laying it out is for reading, and nobody reads that much.


def laid_out(raw: Raw) -> str:
    """JSON over as many lines as it takes; what cannot be laid out stays as it came."""
    if len(raw) <= _LAID_OUT:
        try:
            return msgspec.json.format(bytes(raw), indent=2).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return text_of(raw)


def text_of(raw: Raw) -> str:
    return bytes(raw).decode("utf-8", "replace")
