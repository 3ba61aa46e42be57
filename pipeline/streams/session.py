"""Streams: raw provider events in, items out; content that the stream dropped is recovered from later events.

A session's ``Recovery`` is framing, decoder and machine, with one small state. ``framing`` splits bytes, the decoder's
module knows the provider's events, and the source's description (``source``) has everything else about the source. The
table of ``recovery`` decides what an attempt is worth when the next event arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, cast

import msgspec
from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.providers.cascade.stream.speech import OutputFilters
from reknit.pipeline.registry import find_source
from reknit.pipeline.session.arguments import GivenTools, tools_from
from reknit.pipeline.streams.decoder import Decoder
from reknit.pipeline.streams.events import Event, RunEnded, unrecognized
from reknit.pipeline.streams.framing import Tail
from reknit.pipeline.streams.framing.repair import Halves
from reknit.pipeline.streams.recovery import Machine
from reknit.pipeline.streams.recovery.diagnosis import END_OF_INPUT
from reknit.pipeline.streams.recovery.memory import EXCERPT, Context, Ids, Memory
from reknit.pipeline.streams.recovery.render import FinishedTurn
from reknit.pipeline.streams.recovery.session_file import SessionFile
from reknit.pipeline.streams.recovery.transcript import Transcript
from reknit.pipeline.streams.source import RewritingDecoder, Source, TranscribedDecoder
from reknit.pipeline.targets.wrapped_tools import wrapped_tools
from reknit.topics.items import AnyItem, Item

_items = msgspec.json.Decoder(list[AnyItem])
# Errors that restoring a damaged snapshot can raise, at any depth.
_UNREADABLE = (msgspec.MsgspecError, AttributeError, LookupError, TypeError, ValueError, InputError)


class _Saved(Struct, array_like=True):
    source: str
    run: str | None
    fed: bool
    records: bool
    excerpt: int
    tail: Tail
    due: bytes
    decoder: bytes
    memory: Memory
    halves: Halves | None = None
    transcript: Transcript | None = None
    file: SessionFile | None = None


class Recovery:
    """One session's events to items, run after run.

    Args:
        source: the name of a source, a key of ``SOURCES``.
        records: whether finished turns and fixes are kept for ``take_finished`` and ``take_fixes``. The caller must
            take them after each feed.
        excerpt: how much of each end of its text the diagnosis of an unfinished run keeps, in code points.

    Raises:
        UnknownTargetError: the source does not exist.
    """

    def __init__(self, source: str = "claude-cli", *, records: bool = True, excerpt: int = EXCERPT) -> None:
        self._source = find_source(source)
        self._run: str | None = None
        self._fed = False
        self._records = records
        self._excerpt = excerpt
        self._tail = Tail()
        self._due: list[Item] = []
        self._speech = OutputFilters()
        self._wrapped: frozenset[str] = frozenset()
        self._decoder: Decoder = self._source.decoder()
        self._transcript = _transcript_of(self._source)
        self._file = _session_file_of(self._source)
        self._machine = self._machine_with(Memory(Ids(self._source.prefix)))

    @property
    def source(self) -> str:
        return self._source.name

    @property
    def run(self) -> str | None:
        """The current run, by the name under which it was fed; None if it has none, or between runs."""
        return self._run

    @property
    def running(self) -> bool:
        """True if something was fed since the last run ended, or is still due."""
        return self._fed or bool(self._due) or bool(self._tail.size)

    @property
    def turns(self) -> int:
        return self._machine.memory.ids.turns

    def feed(
        self, data: bytes, run: str | None = None, *, framing: Literal["events", "bytes"] = "events"
    ) -> list[Item]:
        """Take one or several events, separated by newlines; return their items.

        Another ``run`` than before ends the former run; None continues it. With ``framing`` bytes the data may end
        inside an event, which the next data continue.

        Raises:
            StreamError: the source broke its own protocol. Damaged lines are items, not errors.
        """
        care = (run is not None and run != self._run) or framing == "bytes" or self._due or self._tail.size
        if care or not self._fed:
            return self._feed_with_care(data, run, framing)
        events = self._decoder.feed(data)
        # Nearly every record is one event.
        return self._machine.apply(events[0]) if len(events) == 1 else self._apply_each(events)

    def _feed_with_care(self, data: bytes, run: str | None, framing: str) -> list[Item]:
        """Feed when it is not just the next events of the same run."""
        items = self.end_former_run(run)
        if self._transcript is not None and not self._fed:
            items += self._begin_run(self._transcript, run)
        self._run = self._run if run is None else run
        self._fed = True
        if framing == "bytes":
            data, lost = self._tail.push(data, self._decoder.framing)
            items += self._apply_each([unrecognized("event longer than 64 MiB")] * lost)
        elif self._tail.size:
            items += self._apply_each(self._decoder.feed(self._tail.flush()))
        return items + self._apply_each(self._decoder.feed(data))

    def feed_each(self, records: Sequence[bytes], run: str | None = None) -> list[Item]:
        """Take records of one run, each with whole events; return the same items as feeding one by one.

        It costs a third of that. The meaning of a record does not depend on the others, however damaged they are.

        Raises:
            StreamError: the source broke its own protocol. Damaged lines are items, not errors.
        """
        items = self.feed(records[0], run)
        return items + self._apply_each(self._decoder.feed_each(records[1:])) if len(records) > 1 else items

    def end_former_run(self, run: str | None) -> list[Item]:
        """Return the last items of the run before ``run``, if that is another one; None continues it."""
        items, self._due = self._due, []
        if run is not None and self._fed and run != self._run:
            items += self.end_run("next run")
        return items

    def end_run(self, reason: str = "end of run") -> list[Item]:
        """End the run: open blocks stay, marked as incomplete for this reason."""
        items, self._due = self._due, []
        tail = self._tail.flush()
        if tail:
            items += self._apply_each(self._decoder.feed(tail))
        self._note_run()
        items += self._apply_each(self._decoder.end_run())
        run, self._fed, self._run = self._run, False, None
        items += self._apply_each([RunEnded(reason)])
        memory = self._machine.memory
        if self._transcript is not None:
            items += self._compare(self._transcript)
            self._transcript.over = True
            self._transcript.released += memory.finished
            memory.finished = []
        if self._file is not None:
            self._file.run = run
            items += self._settle(self._file)
        return items

    # The program's own transcript.

    def expect_transcript(self) -> None:
        """Let the run's turns wait until its transcript has ended, or the run."""
        if self._transcript is not None:
            self._transcript.expected = True

    def feed_transcript(
        self, data: bytes, run: str | None = None, *, framing: Literal["events", "bytes"] = "events"
    ) -> list[Item]:
        """Take lines of the transcript of this run, or of the one that ended last; see ``feed``.

        Raises:
            StreamError: the run before broke its source's protocol at its end.
        """
        if self._file is not None:
            self._feed_file(self._file, data, run, framed=framing == "bytes")
        transcript = self._transcript
        if transcript is None:
            return []
        items = self.end_former_run(run)
        is_late = transcript.over and bool(self._machine.memory.shown) and run in {None, transcript.run}
        if not (self._fed or is_late):
            items += self._begin_run(transcript, run)
            self._run, self._fed = run, True
        transcript.feed(data, framed=framing == "bytes")
        return items

    def end_transcript(self, run: str | None = None) -> list[Item]:
        """End the transcript: blocks that it does not hold are withdrawn, once the stream has ended too."""
        if self._file is not None and not self._fed and run in {None, self._file.run}:
            return self._settle(self._file)
        transcript = self._transcript
        if transcript is None or run not in {None, transcript.run}:
            return []
        message = self._machine.memory.message
        return self._compare(transcript) if message is None or message.over else []

    def _feed_file(self, file: SessionFile, data: bytes, run: str | None, *, framed: bool) -> None:
        """Take lines of a session file for the message that is doubtful, or will be if the run ends now."""
        memory = self._machine.memory
        message = memory.message if self._fed and run in {None, self._run} else None
        if message is None and run in {None, file.run}:
            message = memory.doubted
        if message is not None:
            file.feed(data, message, framed=framed)

    def _settle(self, file: SessionFile) -> list[Item]:
        """Compare the doubtful message of the last run with the session file, if any of it was read."""
        memory = self._machine.memory
        items, turns = file.settle(memory, self._source.issuer)
        if self._records:
            memory.ids.turns += len(turns)
            memory.finished += turns
        file.forget()
        return items

    def _begin_run(self, transcript: Transcript, run: str | None) -> list[Item]:
        """Begin a run whose transcript is to come; that of the one before has ended by now."""
        items = self._compare(transcript)
        transcript.begin_run(run)
        self._machine.memory.shown = []
        return items

    def _note_run(self) -> None:
        if self._transcript is not None:
            decoder = cast(TranscribedDecoder, self._decoder)
            self._transcript.note_run(decoder.began, decoder.session)

    def _compare(self, transcript: Transcript) -> list[Item]:
        """Compare the shown blocks and the waiting turns with the transcript, if any of it was read."""
        transcript.flush()
        if not transcript.read:
            return []
        self._note_run()
        memory, waited = self._machine.memory, transcript.holds_turns()
        items, turns = transcript.compare(memory.shown, memory.ids)
        memory.shown = []
        if waited and turns is not None and self._records:
            memory.finished = turns
        return items

    def switch_source(self, source: str) -> None:
        """Switch to another source's events; the run ends, and its last items are returned with the next feed."""
        following = find_source(source)
        self._due = self.end_run("next source")
        self._source, self._decoder = following, following.decoder()
        self._transcript = _transcript_of(following)
        self._file = _session_file_of(following)
        self.speak(self._speech)
        memory = self._machine.memory
        memory.ids.prefix = following.prefix
        self._machine = self._machine_with(memory)

    def speak(self, speech: OutputFilters) -> None:
        """Set the filters of a source that rewrites words, from its next message on.

        They are not in a snapshot.
        """
        self._speech = speech
        if self._source.rewrites:
            cast(RewritingDecoder, self._decoder).speech = speech

    def unwrap(self, names: frozenset[str]) -> None:
        """Set the tools that accept no object. In the items of their calls the value replaces the object around it.

        They are not in a snapshot.
        """
        if names != self._wrapped:
            self._wrapped = names
            self._machine = self._machine_with(self._machine.memory)

    def take_fixes(self) -> list[Fix]:
        """Return the changes of words and inputs since the last call; the paths are item ids."""
        memory = self._machine.memory
        fixes, memory.fixes = memory.fixes, []
        return fixes

    def take_finished(self) -> list[FinishedTurn]:
        """The turns that were finished since this was last asked, without those that wait for a transcript."""
        memory, released = self._machine.memory, []
        if self._transcript is not None:
            released, self._transcript.released = self._transcript.released, []
            if self._transcript.holds_turns():
                return released
        turns, memory.finished = memory.finished, []
        return [*released, *turns]

    def snapshot(self) -> bytes:
        """Return the whole state of recovery, with the finished turns that were not taken."""
        saved = _Saved(
            self._source.name,
            self._run,
            self._fed,
            self._records,
            self._excerpt,
            self._tail,
            msgspec.json.encode(self._due),
            self._decoder.save(),
            self._machine.memory,
            self._decoder.halves if self._decoder.halves.are_open() else None,
            self._transcript,
            self._file,
        )
        return msgspec.msgpack.encode(saved)

    @classmethod
    def restore(cls, data: bytes) -> Recovery:
        """Restore a recovery from its snapshot; it continues with identical items.

        Raises:
            InputError: it is not a snapshot of this version.
        """
        try:
            return cls._restored(msgspec.msgpack.decode(data, type=_Saved))
        except _UNREADABLE as error:
            raise InputError("bad_snapshot", f"this is not a snapshot of a recovery: {error}") from error

    @classmethod
    def _restored(cls, saved: _Saved) -> Recovery:
        recovery = cls(saved.source, records=saved.records, excerpt=saved.excerpt)
        recovery._run, recovery._fed, recovery._tail = saved.run, saved.fed, saved.tail
        recovery._due = list(_items.decode(saved.due))
        recovery._decoder.load(saved.decoder)
        recovery._decoder.halves = saved.halves or Halves()
        recovery._machine = recovery._machine_with(saved.memory)
        if recovery._transcript is not None:
            recovery._transcript = saved.transcript or recovery._transcript
        if recovery._file is not None:
            recovery._file = saved.file or recovery._file
        return recovery

    def _machine_with(self, memory: Memory) -> Machine:
        source = self._source
        context = Context(
            memory=memory,
            complete_messages=source.confirmed_by != "stop",
            whole_blocks=source.confirmed_by == "block",
            records=self._records,
            issuer=source.issuer,
            excerpt=self._excerpt,
            transcribed=self._transcript is not None,
            wrapped=self._wrapped,
        )
        return Machine(context)

    def _apply_each(self, events: list[Event]) -> list[Item]:
        apply = self._machine.apply
        if len(events) == 1:
            return apply(events[0])
        return [item for event in events for item in apply(event)]


def _transcript_of(source: Source) -> Transcript | None:
    return Transcript() if source.transcript and source.confirmed_by != "message" else None


def _session_file_of(source: Source) -> SessionFile | None:
    return SessionFile() if source.transcript and source.confirmed_by == "message" else None


def recover(
    lines: Iterable[bytes | str] | bytes | str,
    source: str = "claude-cli",
    *,
    transcript: bytes | str | None = None,
    tools: GivenTools = (),
) -> Iterator[Item]:
    """Yield the items of one run.

    ``lines`` is the whole output, or its lines; each element is one or several whole events. Items are yielded when
    their line is read. At the end of the lines open blocks are completed as incomplete. With the program's
    ``transcript`` of the run, the shown blocks are then corrected by it. ``tools`` are those that the model could
    call, as Reknit received them: a request declares one that accepts no object in a wrapped form, and with
    ``tools`` the items of its calls have the value alone.

    Raises:
        InputError: the tools are not valid.
        UnknownTargetError: the source does not exist.

    Example:
        >>> import json
        >>> text = {"type": "agent_message", "id": "i1", "text": "Hello."}
        >>> lines = [json.dumps({"type": "item.completed", "item": text})]
        >>> [type(item).__name__ for item in recover(lines, "codex-cli")]
        ['ItemStarted', 'ItemCompleted', 'TurnStop']
    """
    recovery = Recovery(source, records=False)
    if tools:
        recovery.unwrap(wrapped_tools(tools_from(tools)))
    for line in [lines] if isinstance(lines, bytes | str) else lines:
        yield from recovery.feed(_encoded(line))
    if transcript is not None:
        yield from recovery.feed_transcript(_encoded(transcript))
    yield from recovery.end_run(END_OF_INPUT)


def _encoded(line: bytes | str) -> bytes:
    return line.encode("utf-8", "replace") if isinstance(line, str) else line
