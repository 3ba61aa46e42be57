"""What a planner says, through all filters in a row: its calls, then redaction, then identity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct, structs

from pipeline.text.call_json import ToolCall
from pipeline.text.filters import Change
from pipeline.text.identity import IdentityRewriter
from pipeline.text.redaction import MARKER, SOURCE_ROOTS, Redactor
from pipeline.text.tool_calls import LIMIT, Output, Removed, ToolCallParser, joined


class _Saved(Struct, array_like=True):
    parser: bytes
    redactor: bytes
    identity: bytes


class OutputFilter:
    """Takes the planner's text in pieces; gives what can be shown, and the calls in it, in their order.

    All text before a call is given before it. What was removed is given as soon as it is known to be, which may be
    before text that stood in front of it: the text around it is one text, so that no path comes together there.

    Args:
        model: the name to speak under, as for `IdentityRewriter`.
        tools: the names that a bare call must have one of, as for `ToolCallParser`.
        roots: what is redacted, as for `Redactor`; in the arguments of calls too.
        marker: what stands for it.
        limit: characters that a call or an echoed result may have.

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
        """The text is at its end: return the rest. What is fed next is another text."""
        return joined(list(self.each_left()))

    def each(self, text: str) -> Iterator[Output]:
        """What `feed` returns, piece by piece: in between, `take_changes` tells what was changed in the last one."""
        yield from self._shown(self.parser.feed(text))

    def each_left(self) -> Iterator[Output]:
        """What `flush` returns, in the same way."""
        yield from self._shown(self.parser.flush())
        rest = self.identity.feed(self.redactor.flush()) + self.identity.flush()
        if rest:
            yield rest

    def release(self) -> str:
        """Something else follows, such as a call: return the text that is held, but for what may become a call."""
        return self.identity.feed(self.redactor.flush()) + self.identity.release()

    def take_changes(self) -> dict[Change, int]:
        """What was redacted and rewritten since this was last asked, and how often."""
        return self.redactor.take_changes() | self.identity.take_changes()

    def save(self) -> bytes:
        """The state, for `load` of a filter made with the same arguments."""
        return msgspec.msgpack.encode(_Saved(self.parser.save(), self.redactor.save(), self.identity.save()))

    def load(self, data: bytes) -> None:
        """Go on from a saved state."""
        saved = msgspec.msgpack.decode(data, type=_Saved)
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
