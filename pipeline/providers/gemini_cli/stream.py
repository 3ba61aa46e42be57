"""The output of ``gemini --output-format stream-json`` to common events.

The lines report a run's words and calls, but not its attempts: if a connection is lost, the program asks again and
continues the output, and an answer that ends too early may be taken for the whole. So each answer's end is unknown,
which its last text reports (``doubtful``). A possible second attempt is reported as well: text that repeats an answer's
beginning (``Attempts``), and text after a pause as long as the program makes before it asks again. Only the program's
own transcript shows which attempt it took (``reknit.pipeline.streams.recovery.transcript``).

An answer of the model is the output between two results, and its calls are whole when they arrive. If a run has no end,
its output stays, because a later one replaces nothing.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.decoder import PayloadDecoder, tool_result, whole_call
from reknit.pipeline.streams.events import (
    Aside,
    BlockDelta,
    BlockStarted,
    BlockStopped,
    Event,
    MessageDelta,
    MessageStarted,
    MessageStopped,
    Notice,
    RunEnded,
    RunResult,
    UserMessage,
    WholeMessage,
)
from reknit.pipeline.streams.fields import Counted
from reknit.pipeline.streams.framing.repair import check_strings
from reknit.topics.items import Doubt, SessionInit, TurnResult, Usage

# The program waits so long before it asks again: half a second in 0.12, a second in 0.61, longer the next times.
_PAUSE_MS: Final = 500
_TIME: Final = re.compile(r"T(\d\d):(\d\d):(\d\d)\.(\d{3})")
_DAY_MS: Final = 86_400_000
# The repetition of a shorter text is not significant.
_TELLING: Final = 8


class _Line(Struct, tag_field="type", gc=False):
    timestamp: str = ""


class Message(_Line, tag="message", kw_only=True):
    """Words. With ``delta`` they continue the previous words."""

    role: str
    content: str
    delta: bool = False


class Init(_Line, tag="init", kw_only=True):
    """A run begins."""

    session_id: str
    model: str = ""


class ToolUse(_Line, tag="tool_use", kw_only=True):
    """A call, whole."""

    tool_name: str
    tool_id: str
    parameters: Raw = Raw(b"{}")


class ErrorDetails(Struct, gc=False):
    """An error, in the program's words."""

    message: str = ""
    type: str = ""


class ToolAnswered(_Line, tag="tool_result", kw_only=True):
    """A call's result, as the program shows it."""

    tool_id: str
    status: str
    output: str | None = None
    error: ErrorDetails | None = None


class Noticed(_Line, tag="error", kw_only=True):
    """A notice, which ends nothing."""

    message: str
    severity: str = ""


class Stats(Counted, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached: int = 0
    duration_ms: int | float | None = None


class Result(_Line, tag="result", kw_only=True):
    """The end of a run. A status of ``error`` is one, whatever the exit status; ``success`` says nothing."""

    status: str
    error: ErrorDetails | None = None
    stats: Raw | UnsetType = UNSET


_decode = msgspec.json.Decoder(Message | Init | ToolUse | ToolAnswered | Noticed | Result).decode
_decode_stats = msgspec.json.Decoder(Stats).decode


class Waiting(Struct, array_like=True):
    """A call that has no result yet; ``input`` is JSON."""

    index: int
    id: str
    name: str
    input: bytes

    def says_as(self, other: Waiting) -> bool:
        """Return True if another call asks for the same."""
        same = self.name == other.name
        return same and read.in_order(Raw(self.input)) == read.in_order(Raw(other.input))


class Attempts(Struct, array_like=True):
    """The text of one answer so far, and the attempts at it. Positions are counted in code points.

    A new attempt begins where a delta does, and usually like the previous one. So every delta that repeats the
    beginning of the text may be the start of one, and is taken for one once it has repeated the whole first attempt.
    Attempts between the two may have been cut earlier, and are shorter. A model may also repeat itself: a finding is
    never more than doubtful.

    ``parts`` is the text; ``open`` are the positions from which on everything repeats the beginning, each as the list
    of the starts of the attempts that led to it. ``doubtful`` says that the text holds a beginning twice that was too
    short, or spanned a call.
    """

    parts: list[str] = []
    length: int = 0
    open: list[list[int]] = []
    doubtful: bool = False

    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""

    def extend(self, piece: str) -> list[int]:
        """Take a delta; return the starts of other attempts than the first, once one of them has said enough."""
        at = self.length
        self.parts.append(piece)
        self.length += len(piece)
        if not self.open and not (at and piece[:1] == self.parts[0][:1]):
            return []  # nearly always
        text, before = self.text(), self.open
        begun = [*before[0], at] if before else [at]
        candidates = [*before, begun] if at else before
        self.open = [starts for starts in candidates if _says_again(text, piece, at - starts[-1], starts[0])]
        return next((starts for starts in self.open if self.length - starts[-1] >= starts[0]), [])

    def go_on_from(self, start: int) -> None:
        """Take the text from this position on for the first attempt."""
        rest = self.text()[start:]
        self.parts, self.length, self.open = [rest], len(rest), []


def _says_again(text: str, piece: str, said: int, first: int) -> bool:
    """Return True if an attempt of this length continues like the first one, within that one's length."""
    return text.startswith(piece[: first - said], said)


class GeminiCliDecoderState(Struct, array_like=True):
    """The state between lines.

    ``began`` is the time of the run's first line, ``answering`` says that an answer is open and ``blocks`` is its
    number of blocks; ``place`` is that of the current text, -1 if there is none, and ``begins`` its start in the text
    of the answer. ``latest`` is the time of the answer's latest line, in milliseconds of its day.
    """

    began: str = ""
    session: str = ""
    model: str = ""
    answering: bool = False
    blocks: int = 0
    place: int = -1
    begins: int = 0
    latest: int | None = None
    attempts: Attempts = msgspec.field(default_factory=Attempts)
    waiting: list[Waiting] = []


class GeminiCli(PayloadDecoder[GeminiCliDecoderState]):
    """The source ``gemini-cli``."""

    def __init__(self) -> None:
        super().__init__(GeminiCliDecoderState)

    @property
    def began(self) -> str:
        return self.state.began

    @property
    def session(self) -> str:
        return self.state.session

    def payload(self, payload: bytes) -> list[Event]:
        line = _decode(payload)
        if type(line) is Init:
            return self._init(line)
        if type(line) is not Message:
            check_strings(payload)  # its raw JSON was not checked yet
        self.state.began = self.state.began or line.timestamp
        match line:
            case Message(role="assistant"):
                return self._words(line)
            case Message(content=content):
                block = Raw(msgspec.json.encode({"type": "text", "text": content}))
                return [UserMessage(rest=(block,), replay=True)]
            case ToolUse():
                return self._call(line)
            case ToolAnswered():
                return [*self._end_answer(), _answer_of(line)]
            case Noticed(message=message, severity=severity):
                return [Notice(message=message, code=severity)]
            case _:
                return self._result(line)

    # The run.

    def _init(self, line: Init) -> list[Event]:
        left: list[Event] = []
        if self.state.began:
            # Another run in the same pipe; the end of the previous one was not reported.
            left = [*self.release_held(), RunEnded("next run")]
        self.state = GeminiCliDecoderState(line.timestamp, line.session_id, line.model)
        return [*left, Aside(SessionInit(session_id=line.session_id, model=line.model))]

    def _result(self, line: Result) -> list[Event]:
        failed = line.status != "success" or line.error is not None
        stats = Stats() if line.stats is UNSET else _stats_of(line.stats)
        # An answer without tokens was none that the program counts.
        silent = stats.output_tokens == 0 and self.state.answering
        ended = self.release_held() if failed else self._end_answer("attempt" if silent else "end")
        told = line.error or ErrorDetails()
        item = TurnResult(
            subtype=line.status,
            is_error=failed,
            result=told.message or None,
            duration_ms=stats.duration_ms,
            usage=_usage(stats),
            errors=UNSET if line.error is None else Raw(msgspec.json.encode([told.message])),
            extras=UNSET if line.stats is UNSET else {"stats": read.own(line.stats)},
        )
        return [*ended, RunResult(item)]

    # Answers.

    def _begin_answer(self) -> list[Event]:
        state = self.state
        if state.answering:
            return []
        state.answering, state.blocks, state.attempts, state.latest = True, 0, Attempts(), None
        return [MessageStarted(None, state.model or None)]

    def _end_answer(self, doubtful: Doubt = "") -> list[Event]:
        """The end of an answer, for its results come, or the run's."""
        if not self.state.answering:
            return []
        self.state.answering, self.state.waiting = False, []
        # The program reports no reason.
        return [*self._stop_text(doubtful), MessageDelta(""), MessageStopped()]

    def release_held(self) -> list[Event]:
        """The end of a run in the middle of an answer: a call without a result may have been given up."""
        events = self._stop_text(cut=True)
        for call in self.state.waiting:
            whole = whole_call(call.id, call.name, Raw(call.input), index=call.index)
            events += [BlockStopped(call.index, doubtful="attempt"), WholeMessage(message_id=None, blocks=(whole,))]
        self.state.answering, self.state.waiting = False, []
        return events

    def _words(self, line: Message) -> list[Event]:
        if not line.content:
            return []
        state = self.state
        events = self._begin_answer()
        paused = self._paused(line.timestamp)
        if not line.delta:
            events += self._stop_text()
        if state.place < 0:
            events += self._start_text()
        state.attempts.doubtful |= paused
        events.append(BlockDelta(state.place, "text_delta", line.content))
        starts = state.attempts.extend(line.content)
        if starts:
            events += self._part_attempts(starts)
        return events if line.delta else [*events, *self._stop_text()]

    def _paused(self, time: str) -> bool:
        """Return True if a line of an answer comes so late that the program may have asked again before it."""
        before, now = self.state.latest, _milliseconds(time)
        self.state.latest = now
        return before is not None and now is not None and (now - before) % _DAY_MS >= _PAUSE_MS

    def _start_text(self, text: str = "", doubtful: Doubt = "") -> list[Event]:
        state = self.state
        state.place, state.blocks = state.blocks, state.blocks + 1
        attempts = state.attempts
        if not text:
            # After a call without a result yet, an answer may have begun again.
            state.begins, attempts.open = attempts.length, [[attempts.length]] if attempts.length else []
        return [BlockStarted(index=state.place, kind="text", text=text, doubtful=doubtful)]

    def _part_attempts(self, starts: list[int]) -> list[Event]:
        """Make each attempt that is distinguished from the others a separate block."""
        state, attempts = self.state, self.state.attempts
        text = attempts.text()
        if starts[0] - state.begins < _TELLING:
            attempts.doubtful, attempts.open = True, []
            return []
        events: list[Event] = []
        begins = state.begins
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            events.append(BlockStopped(state.place, text=text[begins:start], cut=True))
            events += self._start_text(text[start:end], "attempt")
            begins = start
        attempts.go_on_from(starts[-1])
        state.begins = 0
        return events

    def _stop_text(self, doubtful: Doubt = "", *, cut: bool = False) -> list[Event]:
        state = self.state
        if state.place < 0:
            return []
        place, state.place = state.place, -1
        if state.attempts.doubtful or state.attempts.open:  # it ends in what may be another attempt, or held one
            doubtful, state.attempts.doubtful = "attempt", False
        return [BlockStopped(place, cut=cut, doubtful=doubtful)]

    def _call(self, line: ToolUse) -> list[Event]:
        state = self.state
        begun = self._begin_answer()
        paused = self._paused(line.timestamp)
        state.attempts.doubtful |= paused and state.place >= 0
        events = [*begun, *self._stop_text()]
        call = Waiting(state.blocks, line.tool_id, line.tool_name, bytes(line.parameters))
        doubtful: Doubt = "attempt" if paused or any(map(call.says_as, state.waiting)) else ""
        state.blocks += 1
        state.waiting.append(call)
        return [
            *events,
            BlockStarted(index=call.index, kind="tool_use", tool_id=call.id, name=call.name, doubtful=doubtful),
            BlockDelta(call.index, "input_json_delta", call.input.decode()),
            BlockStopped(call.index),
        ]


def _milliseconds(time: str) -> int | None:
    """Return a time of day in milliseconds; None if there is none."""
    found = _TIME.search(time)
    if found is None:
        return None
    hours, minutes, seconds, rest = map(int, found.groups())
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + rest


def _answer_of(line: ToolAnswered) -> UserMessage:
    told = line.error.message if line.error is not None else ""
    text = line.output if line.output is not None else told
    content = Raw(msgspec.json.encode([{"type": "text", "text": text}]))
    return UserMessage(results=(tool_result(line.tool_id, content, failed=line.status != "success"),))


def _stats_of(raw: Raw) -> Stats:
    try:
        return _decode_stats(raw)
    except msgspec.DecodeError:
        return read.counts({"stats": raw}, "stats", Stats) or Stats()


def _usage(stats: Stats) -> Usage | UnsetType:
    if stats.input_tokens is None and stats.output_tokens is None:
        return UNSET
    told = stats.input_tokens or 0
    return Usage(
        input_tokens=max(told - stats.cached, 0),
        output_tokens=stats.output_tokens or 0,
        cache_read_input_tokens=stats.cached,
    )
