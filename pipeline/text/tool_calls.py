"""Extracts tool calls from text, piece by piece.

A call is ``<tool_call>{"name": …, "arguments": …}</tool_call>``, a bare ``{"name": …, "arguments": …}`` or
``{"tool_code": "name(arguments)"}``. An echoed ``<tool_result …>…</tool_result>`` is removed whole, and nothing in it
is ever a call, even if the text breaks off before its end. Everything else stays text, unchanged.

Faults of the source that this module does not have: a ``</tool_call>`` inside of a JSON string ended the call; a tag
that is only mentioned swallowed the text after it, up to the end of the stream; a bare call at the end of a stream was
lost; an unclosed result was dropped; each piece was searched from the beginning of the block again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from itertools import groupby
from typing import Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from reknit.pipeline.text.filters import either, literal, pack, unpack
from reknit.pipeline.text.jsontext import Body, JsonSpan, ToolCall, read_bare, read_tagged

LIMIT: Final = 65_536
"""How many characters of a call or an echoed result are held, waiting for its end; as in the source."""


class Removed(Struct, frozen=True):
    """Text that was removed and is not shown.

    ``reason`` is ``echoed_result``, or ``beside_call`` for text in a call's tag next to its JSON, or members in its
    JSON besides name and arguments.
    """

    text: str
    reason: str


Output: TypeAlias = str | ToolCall | Removed


class Mode(Enum):
    """The parser's current state."""

    TEXT = "text"
    CALL = "call"  # the JSON inside of a tag
    CALL_END = "call_end"  # after that JSON, before the closing tag
    BARE = "bare"  # JSON that may be a call
    RESULT = "result"  # an echoed result
    LONG_JSON = "long_json"  # JSON beyond the limit, shown as it comes, up to its end
    LONG_RESULT = "long_result"  # a result beyond the limit, likewise


_ANY_OPENER: Final = re.compile(r'<tool_(?:call>|result[\s>])|\{"(?:name|tool_code)"')
# Between a tag and the JSON only blanks and the start of a code fence are allowed; any other tag is only mentioned.
_CALL_OPENER: Final = re.compile(r"<tool_call>\s{0,32}(?:```[A-Za-z]{0,16}\s{0,32})?(?=\{)")
_CALL_BEGINS: Final = re.compile(r"<tool_call>\s{0,32}(?:`{0,2}|```[A-Za-z]{0,16}\s{0,32})\Z")
_RESULT_OPENER: Final = re.compile(r"<tool_result(?:\s[^<>]{0,256})?>")
_RESULT_BEGINS: Final = re.compile(r"<tool_result(?:\s[^<>]{0,256})?\Z")
# After the JSON small models add brackets, and the end of a fence. A next opening tag closes the previous one.
_CALL_CLOSER: Final = re.compile(r"([\s}\])`]{0,64})(?:</tool_call>|(?=<tool_call>))")
_CALL_GOES_ON: Final = re.compile(r"[\s,;]{0,64}(?=\{)")
_OPENERS: Final = ("<tool_call>", "<tool_result>", '{"name"', '{"tool_code"')
_MAY_CLOSE: Final = re.compile(
    r"[\s}\])`,;]{0,64}" + either(literal("</tool_call>"), literal("<tool_call>")).prefix,
)
_RESULT_CLOSER: Final = "</tool_result>"
# Text before an object that is not a bare call: in a list, after a key or another object of a list it is part of a
# larger JSON; after a tag it is only mentioned.
_NOT_BARE: Final = re.compile(r'(?:\[|":|\},|<tool_call>)\Z')


class _Saved(Struct, array_like=True):
    mode: Mode
    before: bytes
    held: bytes
    block: bytes
    bodies: list[int]
    depth: int
    quote: str
    calls: int


class ToolCallParser:
    """Takes text in pieces; gives text, calls and what it removed, in their order.

    ``feed`` and ``flush`` of any pieces give, neighbouring texts joined, what they would give of all in one. At most
    ``limit`` characters are held, and 272 where nothing has begun yet. A call or result that is longer is shown as
    text up to its end, and nothing in it is a call.

    Args:
        tools: the names that a bare call must have one of; None takes any. A tagged call may have any name.
        limit: characters that a call or an echoed result may have.
    """

    def __init__(self, tools: Iterable[str] | None = None, limit: int = LIMIT) -> None:
        self.calls = 0
        """How many calls were given: `call_<n>` with their numbers are ids that any replay makes again."""
        self._tools = None if tools is None else frozenset(tools)
        self._limit = limit
        self._mode = Mode.TEXT
        self._before = ""  # the end of the shown text, which decides whether a tag is only mentioned
        self._held = ""  # text to read again with the next piece
        self._block: list[str] = []  # the call or result that has begun, unchanged
        self._size = 0
        self._bodies: list[int] = []  # where in the block its JSON values begin and end, in turn
        self._span = JsonSpan()

    def feed(self, text: str) -> list[Output]:
        """Take the next piece; return what is certain by now."""
        text, self._held = self._held + text, ""
        outputs: list[Output] = []
        at = 0
        while at < len(text):
            at = self._read_next(text, at, outputs)
        return joined(outputs)

    def flush(self) -> list[Output]:
        """End the text: an unfinished call or result is text. The next feed is another text."""
        outputs: list[Output] = []
        self._show_text("".join(self._block) + self._held, outputs)
        self._drop_block()
        self._held, self._before, self._span = "", "", JsonSpan()
        return outputs

    def begun(self) -> str:
        """The unfinished call in a tag, unchanged; ``""`` if there is none."""
        return "".join(self._block) + self._held if self._mode in {Mode.CALL, Mode.CALL_END} else ""

    def drop_begun(self) -> None:
        """Forget what `begun` returns: the caller makes something other than text of it."""
        if self._mode in {Mode.CALL, Mode.CALL_END}:
            self._drop_block()
            self._held, self._span = "", JsonSpan()

    def save(self) -> bytes:
        """The state, for `load` of a parser with the same tools and limit."""
        block = pack("".join(self._block))
        span = (self._span.depth, self._span.quote)
        saved = _Saved(self._mode, pack(self._before), pack(self._held), block, self._bodies, *span, self.calls)
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Restore a saved state."""
        saved = msgspec.msgpack.decode(data, type=_Saved)
        block = unpack(saved.block)
        self._mode, self.calls = saved.mode, saved.calls
        self._before, self._held = unpack(saved.before), unpack(saved.held)
        self._block, self._size, self._bodies = [block], len(block), saved.bodies
        self._span = JsonSpan(saved.depth, saved.quote)

    def _read_next(self, text: str, at: int, outputs: list[Output]) -> int:
        """Process the text from here in the current mode; return where it continues."""
        match self._mode:
            case Mode.TEXT:
                return self._text(text, at, outputs)
            case Mode.CALL_END:
                return self._call_end(text, at, outputs)
            case Mode.RESULT | Mode.LONG_RESULT:
                return self._result(text, at, outputs)
            case _:
                return self._json(text, at, outputs)

    def _text(self, text: str, at: int, outputs: list[Output]) -> int:
        """Show text up to what begins a call or a result."""
        while found := _ANY_OPENER.search(text, at):
            begin = found.start()
            self._show_text(text[at:begin], outputs)
            mode, end = _begins(text, begin, quoted=self._before.endswith("`") and not self._before.endswith("``"))
            if mode is not None and not (mode is Mode.BARE and _NOT_BARE.search(self._before.rstrip())):
                if mode is Mode.TEXT:
                    break
                self._mode = mode
                self._add_to_block(text[begin:end])
                self._bodies.append(self._size)
                return end
            at = found.end()
            self._show_text(text[begin:at], outputs)
        else:
            begin = _possible_tag(text, at, _OPENERS)
            self._show_text(text[at:begin], outputs)
        self._held = text[begin:]
        return len(text)

    def _json(self, text: str, at: int, outputs: list[Output]) -> int:
        """Continue with a JSON value, up to its end."""
        end, outcome = self._span.scan(text, at)
        if self._mode is Mode.LONG_JSON:
            self._show_text(text[at:end], outputs)
            if outcome != "open":
                self._mode = Mode.TEXT
            return end
        self._add_to_block(text[at:end])
        if outcome == "broken":
            self._give_back(outputs)
        elif self._size > self._limit:
            self._give_back(outputs)
            self._mode = Mode.LONG_JSON if outcome == "open" else Mode.TEXT
        elif outcome == "closed":
            self._bodies.append(self._size)
            if self._mode is Mode.CALL:
                self._mode = Mode.CALL_END
            else:
                self._finish_block([read_bare("".join(self._block), self._tools)], "", outputs)
        return end

    def _call_end(self, text: str, at: int, outputs: list[Output]) -> int:
        """Read the text after a tagged call's JSON: its closing tag, another value, or proof of a mention."""
        found = _CALL_CLOSER.match(text, at)
        if found:
            block = "".join(self._block)
            starts, ends = self._bodies[::2], self._bodies[1::2]
            bodies = [read_tagged(block[start:end]) for start, end in zip(starts, ends, strict=True)]
            self._add_to_block(text[at : found.end()])
            self._finish_block(bodies, found[1].strip(), outputs)
            return found.end()
        found = _CALL_GOES_ON.match(text, at)
        if found:
            self._add_to_block(text[at : found.end()])
            self._bodies.append(self._size)
            self._mode = Mode.CALL
            return found.end()
        if _MAY_CLOSE.match(text, at):
            self._held = text[at:]
            return len(text)
        self._give_back(outputs)
        return at

    def _result(self, text: str, at: int, outputs: list[Output]) -> int:
        """Continue with an echoed result, up to its end."""
        found = text.find(_RESULT_CLOSER, at)
        end = found + len(_RESULT_CLOSER) if found >= 0 else _possible_tag(text, at, (_RESULT_CLOSER,))
        if self._mode is Mode.LONG_RESULT:
            self._show_text(text[at:end], outputs)
            if found >= 0:
                self._mode = Mode.TEXT
        else:
            self._add_to_block(text[at:end])
            if self._size > self._limit:
                self._give_back(outputs)
                self._mode = Mode.LONG_RESULT if found < 0 else Mode.TEXT
            elif found >= 0:
                outputs.append(Removed("".join(self._block), "echoed_result"))
                self._drop_block()
        if found >= 0:
            return end
        self._held = text[end:]
        return len(text)

    def _finish_block(self, bodies: list[Body | None], around: str, outputs: list[Output]) -> None:
        """A block is at its end: give its calls, or, where one of its values is no call, all of it as text."""
        found = [body for body in bodies if body]
        if len(found) < len(bodies):
            self._give_back(outputs)
            return
        outputs += (body.call for body in found)
        self.calls += len(found)
        asides = [*(body.aside for body in found), around.strip("`").strip()]
        outputs += (Removed(aside, "beside_call") for aside in asides if aside)
        self._drop_block()

    def _add_to_block(self, text: str) -> None:
        self._block.append(text)
        self._size += len(text)

    def _give_back(self, outputs: list[Output]) -> None:
        text, before = "".join(self._block), self._before
        self._drop_block()
        self._before = before
        self._show_text(text, outputs)

    def _drop_block(self) -> None:
        self._mode, self._block, self._size, self._bodies, self._before = Mode.TEXT, [], 0, [], ""

    def _show_text(self, text: str, outputs: list[Output]) -> None:
        if not text:
            return
        outputs.append(text)
        self._before = _ending(self._before + text)


def _ending(text: str) -> str:
    """Return the part of shown text to keep: its end without blanks, as long as a tag, and whether a blank follows."""
    solid = text.rstrip()
    return solid[-len(_OPENERS[0]) :] + text[len(solid) :][-1:]


def _begins(text: str, at: int, *, quoted: bool) -> tuple[Mode | None, int]:
    """Return what begins here, and where it continues; ``TEXT`` if more text is needed, None if it is only mentioned.

    ``quoted``: a single backtick precedes it.
    """
    if text.startswith("<tool_result", at):
        found = _RESULT_OPENER.match(text, at)
        if not found:
            return (Mode.TEXT if _RESULT_BEGINS.match(text, at) else None), at
        # A quoted result is a mention only if it is the tag alone: the output of a tool is never a call.
        following = text[found.end() : found.end() + 1] if quoted else "-"
        return (None if following == "`" else Mode.RESULT if following else Mode.TEXT), found.end()
    if quoted:
        return None, at
    if text[at] == "{":
        return Mode.BARE, at
    found = _CALL_OPENER.match(text, at)
    if found:
        return Mode.CALL, found.end()
    return (Mode.TEXT if _CALL_BEGINS.match(text, at) else None), at


def _possible_tag(text: str, at: int, tags: tuple[str, ...]) -> int:
    """Return where the end of the text begins that may still become a tag; its length if there is none."""
    low = max(at, len(text) - max(map(len, tags)) + 1)
    begin = max(text.rfind("<", low), text.rfind("{", low))
    if begin >= 0 and any(tag.startswith(text[begin:]) for tag in tags):
        return begin
    return len(text)


def joined(outputs: list[Output]) -> list[Output]:
    """The same with neighbouring texts in one."""
    if len(outputs) < 2:
        return outputs
    together: list[Output] = []
    for is_text, group in groupby(outputs, key=lambda output: isinstance(output, str)):
        if is_text:
            together.append("".join(cast("Iterable[str]", group)))
        else:
            together += group
    return together
