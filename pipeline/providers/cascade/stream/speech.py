"""Filters of a planner's output: its calls, then redaction, then identity, and their settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.fixes import digest
from reknit.pipeline.streams.events import Rewritten
from reknit.pipeline.text.filters import Change
from reknit.pipeline.text.identity import IdentityRewriter
from reknit.pipeline.text.jsontext import ToolCall
from reknit.pipeline.text.redaction import MARKER, SOURCE_ROOTS, Redactor
from reknit.pipeline.text.tool_calls import LIMIT, Output, Removed, ToolCallParser, joined
from reknit.topics.items import AgentUnrecognized


class _SavedOutput(Struct, array_like=True):
    parser: bytes
    redactor: bytes
    identity: bytes


class OutputFilter:
    """Takes the planner's text in pieces; returns the text to show, and the calls in it, in order.

    All text before a call is returned before it. A removal is returned as soon as it is known, possibly before text
    that preceded it: the text around it is one text, so that no path is joined there.

    Args:
        model: the name to use, as for `IdentityRewriter`.
        tools: the names that a bare call must have one of, as for `ToolCallParser`.
        roots: the redacted paths, as for `Redactor`; in the arguments of calls too.
        marker: replaces them.
        limit: maximum characters of a call or an echoed result.

    Raises:
        InputError: a root or the marker cannot be used.
    """

    def __init__(
        self,
        model: str | None,
        tools: Iterable[str] | None = None,
        roots: Iterable[str] = SOURCE_ROOTS,
        marker: str = MARKER,
        limit: int = LIMIT,
    ) -> None:
        self.parser = ToolCallParser(tools, limit)
        self.redactor = Redactor(roots, marker)
        self.identity = IdentityRewriter(model)

    def feed(self, text: str) -> list[Output]:
        """Take the next piece; return what is certain by now."""
        return joined(list(self.each(text)))

    def flush(self) -> list[Output]:
        """Return the rest at the end of the text. The next feed is another text."""
        return joined(list(self.each_left()))

    def each(self, text: str) -> Iterator[Output]:
        """Yield the results of `feed` piece by piece; `take_changes` returns the changes of the last one."""
        yield from self._shown(self.parser.feed(text))

    def each_left(self) -> Iterator[Output]:
        """Return the changes that `flush` makes, in the form of ``feed``."""
        yield from self._shown(self.parser.flush())
        rest = self.identity.feed(self.redactor.flush()) + self.identity.flush()
        if rest:
            yield rest

    def release(self) -> str:
        """Something else follows, such as a call: return the text that is held, but for what may become a call."""
        return self.identity.feed(self.redactor.flush()) + self.identity.release()

    def take_changes(self) -> dict[Change, int]:
        """Return the redactions and rewritings since the last call, with their counts."""
        return self.redactor.take_changes() | self.identity.take_changes()

    def save(self) -> bytes:
        """The state, for `load` of a filter made with the same arguments."""
        return msgspec.msgpack.encode(_SavedOutput(self.parser.save(), self.redactor.save(), self.identity.save()))

    def load(self, data: bytes) -> None:
        """Restore a saved state."""
        saved = msgspec.msgpack.decode(data, type=_SavedOutput)
        self.parser.load(saved.parser)
        self.redactor.load(saved.redactor)
        self.identity.load(saved.identity)

    def _shown(self, outputs: list[Output]) -> Iterator[Output]:
        for output in outputs:
            if isinstance(output, Removed):
                yield output
                continue
            text = self.release() if isinstance(output, ToolCall) else self.identity.feed(self.redactor.feed(output))
            if text:
                yield text
            if isinstance(output, ToolCall):
                yield structs.replace(output, arguments=self.redactor.json(output.arguments))


# A call's unfinished JSON: its name, which is whole, and its arguments, which are not.
_BEGUN: Final = re.compile(
    r'<tool_call>\s*(?:```[A-Za-z]*\s*)?\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*(?:,\s*(?:"arguments"\s*:\s*(.*))?)?\Z',
    re.DOTALL,
)

_WHY: Final = {
    "echoed_result": "a tool result that the model repeated",
    "beside_call": "what stood in a call beside its name and arguments",
}


class OutputFilters(Struct, frozen=True, kw_only=True):
    """The filters of a session's planner.

    Attributes:
        model: the name to use; None takes the stream's, or else leaves the planner's.
        tools: the names that a call without a tag must have one of; None takes any.
        roots: paths of the planner's own machine, which are redacted.
        marker: replaces them.
    """

    model: str | None = None
    tools: tuple[str, ...] | None = None
    roots: tuple[str, ...] = SOURCE_ROOTS
    marker: str = MARKER


class _SavedFilters(Struct, array_like=True):
    text: bytes
    paths: bytes
    identity: bytes


class Filters:
    """The filters of a text and of the reasoning next to it, which are two texts. Reasoning has no calls.

    Raises:
        InputError: a root or the marker cannot be used.
    """

    def __init__(self, speech: OutputFilters, model: str | None) -> None:
        self.text = OutputFilter(model, speech.tools, speech.roots, speech.marker)
        self._paths = Redactor(speech.roots, speech.marker)
        self._identity = IdentityRewriter(model)

    def think(self, thinking: str) -> str:
        return self._identity.feed(self._paths.feed(thinking))

    def end_thinking(self) -> str:
        """Return the rest of the reasoning; the next feed is another text of reasoning."""
        return self._identity.feed(self._paths.flush()) + self._identity.flush()

    def take_begun_call(self) -> tuple[str, str] | None:
        """Return the name of the unfinished call, and its arguments so far; None without one.

        A call whose name is not complete stays text.
        """
        parser = self.text.parser
        found = _BEGUN.match(parser.begun())
        if found is None:
            return None
        parser.drop_begun()
        redactor = self.text.redactor
        return msgspec.json.decode(found[1], type=str), redactor.whole(redactor.json(found[2] or ""))

    def opaque(self, item: AgentUnrecognized) -> AgentUnrecognized:
        """Return an unknown value without the paths, because it is shown as well."""
        event = item.event if item.event is UNSET else Raw(self._paths.json(bytes(item.event).decode()).encode())
        return structs.replace(item, event=event, text=self._paths.whole(item.text))

    def error(self, message: str) -> str:
        return self._paths.whole(message)

    def changes(self, index: int) -> list[Rewritten]:
        """Return the changes of the text since the last call, as changes of the block with this index."""
        return _as_rewritten(self.text.take_changes(), index)

    def changes_next_to(self, index: int) -> list[Rewritten]:
        """The same of the reasoning, and of what is no text of the model's."""
        return _as_rewritten(self._paths.take_changes() | self._identity.take_changes(), index)

    def save(self) -> bytes:
        """Return the state, for `load` of filters with the same settings."""
        return msgspec.msgpack.encode(_SavedFilters(self.text.save(), self._paths.save(), self._identity.save()))

    def load(self, data: bytes) -> None:
        saved = msgspec.msgpack.decode(data, type=_SavedFilters)
        self.text.load(saved.text)
        self._paths.load(saved.paths)
        self._identity.load(saved.identity)


def removed(output: Removed) -> Rewritten:
    """Return removed text as a change next to no block."""
    return Rewritten(-1, "tool_text_removed", digest(output.text), detail=_WHY[output.reason])


def _as_rewritten(changes: dict[Change, int], index: int) -> list[Rewritten]:
    return [
        Rewritten(index, change.kind, change.before, digest(change.after), times=times)
        for change, times in changes.items()
    ]
